"""Nobody keeps another's message from being stored by using up its id: not a team, and not a node that was taken over."""

from collections.abc import Iterator

import pytest
from nats.js.client import JetStreamContext

from libs.bus.connect import Address, close, connect
from libs.bus.ids import sent_headers
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from libs.client import connect as connect_client
from libs.walls.keyring import Keyring
from schemas import subjects
from schemas.envelope import MSG_ID
from schemas.ids import content_hash, event_id, job_id
from schemas.jobs import JobSpec
from schemas.requests import SubmitJob
from tests.walls.world import broker

SUBMIT = "io.baton.job.submit.v1"


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("ids")) as made:
        yield made


async def subjects_of(js: JetStreamContext, stream: str) -> dict[str, int]:
    return (await js.stream_info(stream, subjects_filter=">")).state.subjects or {}


async def test_a_team_cannot_use_up_the_id_of_anothers_submit(bus: tuple[str, Keyring]) -> None:
    """Though it knows key and body, and so what the id follows from."""
    url, ring = bus
    spec = JobSpec(command=("train",))
    body = SubmitJob(client_key="nightly", job=spec).model_dump_json().encode()
    guessed = event_id(f"{job_id('green', 'nightly')}:{content_hash(body)}", SUBMIT)
    bad = await connect(Address(url, ring.team("blue")), name="bad", inbox_prefix="_INBOX_blue.mallory")
    core = await connect(Address(url, ring.service()), name="core")
    await bad.jetstream().publish(subjects.submit("blue", "mallory"), b"{}", headers={MSG_ID: guessed})
    async with await connect_client(Address(url, ring.team("green")), user="eve") as green:
        for _ in range(2):
            await green.submit(spec, "nightly", wait_admitted=False)
    stored = await subjects_of(core.jetstream(), "REQUESTS")
    assert stored[subjects.submit("green", "eve")] == 1, "and what is sent twice is stored once"
    await close(bad)
    await close(core)


async def test_a_node_cannot_use_up_the_id_of_a_services_message(bus: tuple[str, Keyring]) -> None:
    url, ring = bus
    item = Outgoing(subjects.node_inbox("lost", "main", "n1"), b"{}", {MSG_ID: "lost-n1"})
    bad = await connect(Address(url, ring.node("main", "n1")), name="bad", inbox_prefix="_NODE_main.n1")
    both = [await connect(Address(url, ring.service("leases")), name="leases") for _ in range(2)]
    await bad.jetstream().publish("baton.in.node.v1.observed.main.n1", b"{}", headers={MSG_ID: "lost-n1"})
    for leases in both:
        await Outbox(leases.jetstream()).publish(item)
    stored = await subjects_of(both[0].jetstream(), "INBOX-main")
    assert stored[item.subject] == 1, "two processes of one service have one id"
    assert sent_headers(both[0], item) == sent_headers(both[1], item) != item.headers
    for connection in (bad, *both):
        await close(connection)


async def test_what_only_services_write_keeps_its_id(bus: tuple[str, Keyring]) -> None:
    """Two services that find out the same tell it once."""
    url, ring = bus
    history = await connect(Address(url, ring.service("history")), name="history")
    item = Outgoing(subjects.event("granted", "blue"), b"{}", {MSG_ID: "told"})
    assert sent_headers(history, item) == item.headers
    await close(history)
