"""Messages of a later version, on every subject that a team or a node may publish to: each is answered, taken without what is
new in it, or laid aside with the reason; nothing ends of it, and no good message is held up.

They are the golden files, each with a field, a type, a version or a kind that nobody knows here.
"""

import copy
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from libs.bus import dead
from libs.bus.asking import INVALID, NOT_FOUND, OK, STATUS
from libs.bus.connect import close, connect
from libs.cli.launch import LaunchOptions, LocalStack
from libs.client import connect as connect_client
from libs.core.projections.verify import Checker
from libs.embedded.events import EventKind
from libs.ledger.reader import LedgerReader
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.jobs import JobSpec, Simulation
from schemas.resources import Resources
from schemas.subjects import DEAD, EVENTS, OPERATOR, REQUESTS
from tests.kit.waiting import stored, until
from tests.schemas.golden_files import Golden, load

FLEET = "groups:\n  - {name: 'n-{i:02d}', count: 2, devices: {model: H100, count: 8, memory_gib: 80}}\n"
OWN = {"team": "blue", "user": "eve", "pool": "main", "node": "later"}
"""Who says it. The node is none of the fleet's, and its devices are of a model of their own: nobody is granted them."""
RENAMED = {"gpu-a-01": "later", "gpu-a-09": "later", "H100": "Later100"}
LATER_WORDS = (
    "baton.cmd.job.v1.levitate.blue.eve", "baton.in.node.v1.levitated.main.later", "baton.tel.node.v1.levitated.main.later",
)  # fmt: skip
NEW = "from_the_future"


def may_say() -> Iterator[tuple[Golden, str, bool]]:
    """Of every message that a team or a node may publish one: the subject, as its sender may name it, and whether a node is."""
    team, node = subjects.user_may("blue", "eve")[0], subjects.node_may("main", "later")[0]
    for golden in load():
        if golden.type in BY_TYPE and "~" not in golden.name:
            pattern = BY_TYPE[golden.type].subject
            keys = {key: OWN[key] for key in subjects.keys_in(pattern) if key in OWN}
            if keys.keys() == set(subjects.keys_in(pattern)):
                subject = subjects.fill(pattern, **keys)
                for may, of_node in ((team, False), (node, True)):
                    if any(_allows(allowed, subject) for allowed in may):
                        yield golden, subject, of_node


def _allows(pattern: str, subject: str) -> bool:
    wanted, said = pattern.split("."), subject.split(".")
    return len(wanted) == len(said) and all(one in ("*", other) for one, other in zip(wanted, said, strict=True))


def later(golden: Golden, number: int) -> Iterator[tuple[dict[str, str], bytes]]:
    """Headers and body of each way to be of a later version. `number`: so that none is a repeat of another."""
    ways: list[tuple[dict[str, str], Any]] = [
        ({}, with_new(golden.payload)),
        ({"ce-type": golden.type.replace(".v1", ".v9")}, golden.payload),
        ({"ce-type": "io.baton.job.levitate.v1"}, golden.payload),
        ({"ce-specversion": "9.9"}, golden.payload),
        ({"ce-frombeyond": "x", "Baton-From-Beyond": "x"}, golden.payload),
        ({"Content-Type": "application/cloudevents+json; version=9"}, {"specversion": "9.9", "data": golden.payload}),
        ({"Content-Type": "application/avro"}, golden.payload),
        ({}, with_kind(golden.payload)),
    ]
    for way, (headers, payload) in enumerate(ways):
        unique = {"ce-id": f"later-{number}-{way}", "Nats-Msg-Id": f"later-{number}-{way}"}
        said = json.dumps(payload)
        for old, own in RENAMED.items():
            said = said.replace(old, own)
        yield {**golden.headers, **unique, **headers}, said.encode()


def with_new(node: Any) -> Any:
    """A new field in every object."""
    if isinstance(node, dict):
        return {**{key: with_new(value) for key, value in node.items()}, NEW: [{"any": 1}]}
    return [with_new(item) for item in node] if isinstance(node, list) else node


def with_kind(payload: Any) -> Any:
    """Every word that chooses between kinds is a new one, and so is each that is one of a few."""
    changed = copy.deepcopy(payload)
    for at in _objects(changed):
        for key in {"kind", "what", "state", "category", "class", "priority_class", "accelerator"} & at.keys():
            at[key] = NEW
    return changed


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _objects(item)
    if isinstance(node, dict):
        yield node


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalStack]:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    options = LaunchOptions(
        state_dir=tmp_path / "state", teams=("blue", "green"), fleet=fleet, sync_always=False, scale=0.1,
        log_level="WARNING", env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip
    async with LocalStack(options) as made:
        yield made


async def says(at: Client, subject: str, headers: dict[str, str], body: bytes) -> None:
    if subject.startswith("baton.qry."):
        answer = await at.request(subject, body, timeout=30, headers=headers)
        status = (answer.headers or {}).get(STATUS)
        assert status in (OK, INVALID, NOT_FOUND), f"{subject} was answered {status}: {answer.data!r}"
    else:
        await at.publish(subject, body, headers=headers)


@pytest.mark.timeout(240)
async def test_what_a_later_version_says_is_answered_or_laid_aside_and_ends_nothing(cluster: LocalStack) -> None:
    said = list(may_say())
    assert {of_node for _, _, of_node in said} == {False, True}
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    at = {
        False: await nats.connect(
            cluster.nats_url, error_cb=note, inbox_prefix="_INBOX_blue.eve", **cluster.address("blue").options()
        ),
        True: await nats.connect(
            cluster.nats_url, error_cb=note, inbox_prefix="_NODE_main.later", **cluster.nodes_address("main").options()
        ),
    }
    for number, (golden, subject, of_node) in enumerate(said):
        for headers, body in later(golden, number):
            await says(at[of_node], subject, headers, body)
    for subject in LATER_WORDS:
        await says(at[".node." in subject], subject, {}, b"{}")
    for connection in at.values():
        await connection.flush()
        await connection.close()
    assert not refused, "it may say all of that"

    spec = JobSpec(command=("true",), simulation=Simulation(duration_s=0), resources=Resources(types=("H100",)))
    async with await connect_client(cluster.address("green"), "green") as green:
        for number in range(3):
            job = await green.submit(spec, client_key=f"after-{number}", give_up_s=60)
            assert (await green.wait(job.job_id, timeout_s=60)).what == "succeeded"

    core = await connect(cluster.address(OPERATOR), name="test", inbox_prefix=f"_INBOX_{OPERATOR}")
    js = core.jetstream()
    reader, checker = LedgerReader(js, "main"), Checker()

    async def drained() -> bool:
        reads = await js.consumer_info(REQUESTS, "admission")
        return not reads.num_pending and not reads.num_ack_pending

    await until(drained, 60)
    async for entries in reader.read_to(await reader.last_seq()):
        for entry in entries:
            checker.step(entry.seq, entry.record, entry.valid)
    await reader.close()
    assert not checker.finish().violations
    letters = await stored(js, DEAD, "baton.dead.>")
    reasons = [(letter.headers or {})[dead.REASON] for letter in letters]
    assert all(reason.isprintable() for reason in reasons)
    for expected in ("io.baton.node.observed.v9", "'specversion' is '9.9'", "'cpu' (got 'from_the_future')"):
        assert any(expected in reason for reason in reasons), f"{expected} has a letter"
    assert not any("Input tag" in reason for reason in reasons), (
        "what a node has seen and is new is left out, and no more"
    )
    told = [json.loads(event.data) for event in await stored(js, EVENTS, "baton.evt.job.v1.rejected.blue")]
    assert any("job.levitate" in json.dumps(one) for one in told), "an unknown type is told by its name"
    assert any(NEW in json.dumps(one) for one in told), "and an unknown field"
    assert not [event for event in cluster.supervisor.events if event.kind is EventKind.EXITED], "nothing died of it"
    await close(core)
