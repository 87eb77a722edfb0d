"""`baton team` against a running broker: who is added is in, who is revoked is out, at once and after a restart."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.bus.connect import Address, BusConnection, BusUnavailable, close, connect
from libs.bus.creds import LOGS_CREDS
from libs.cli.launch import LaunchOptions, LocalStack
from libs.client import connect as connect_client
from libs.client.errors import Denied
from libs.client.sending import unless_denied
from libs.client.where import find
from libs.embedded.servers import NATS
from libs.walls.keyring import Keyring
from libs.walls.keys_of import NoCredential
from libs.walls.resolver import tell
from schemas import subjects
from schemas.jobs import JobSpec
from tests.cli.test_command import Result, baton
from tests.kit.waiting import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalStack]:
    options = LaunchOptions(state_dir=tmp_path / "state", teams=("red",), services=(), sync_always=False, scale=0.01)
    async with LocalStack(options) as made:
        yield made


async def team(cluster: LocalStack, *words: str) -> Result:
    return await baton("team", *words, BATON_STATE_DIR=str(cluster.state_dir))


async def submits(address: Address, name: str) -> BusConnection:
    """A connection with which one has submitted."""
    connection = await connect(address, name=name, inbox_prefix=subjects.reply_prefix(name, "ci"))
    ack = await connection.request(subjects.submit(name, "ci"), b"{}", timeout=10)
    assert json.loads(ack.data)["stream"] == "REQUESTS"
    return connection


async def test_a_team_comes_changes_its_credential_and_goes(cluster: LocalStack) -> None:
    added = await team(cluster, "add", "vision")
    assert (added.code, added.err) == (0, "")
    address = Address(cluster.nats_url, Path(added.out.strip()))
    first = await submits(address, "vision")
    place = find(team="vision", environ={"BATON_STATE_DIR": str(cluster.state_dir)})
    async with await connect_client(place.address) as vision:
        await vision.submit(JobSpec(command=("x",)), wait_admitted=False)
    stolen = cluster.state_dir / "stolen.creds"
    stolen.write_text(Path(added.out.strip()).read_text())

    rotated = await team(cluster, "rotate", "vision")
    assert (rotated.code, rotated.out) == (0, added.out)
    await until(lambda: not first.is_connected)
    await close(first)
    with pytest.raises(BusUnavailable, match="revoked or rotated"):
        await connect(Address(cluster.nats_url, stolen), name="thief")

    first = await submits(address, "vision")
    revoked = await team(cluster, "revoke", "vision", "--reason", "its contract has ended")
    assert (revoked.code, revoked.out) == (0, "vision\n")
    await until(lambda: not first.is_connected)
    await close(first)
    listed = json.loads((await team(cluster, "list", "-o", "json")).out)
    assert [(row["team"], row["credential"]) for row in listed] == [("red", "red"), ("vision", "")]
    assert (await team(cluster, "rotate", "vision")).code == 3
    assert (await team(cluster, "add", "operator")).code == 2
    await close(await submits(cluster.address("red"), "red"))

    again = await team(cluster, "add", "vision")
    await close(await submits(Address(cluster.nats_url, Path(again.out.strip())), "vision"))


async def test_a_user_goes_and_the_others_of_the_team_stay(cluster: LocalStack) -> None:
    for name in ("red.ana", "red.ben"):
        assert (await team(cluster, "add", name, "--plain")).code == 0
    stolen = cluster.state_dir / "stolen.creds"
    stolen.write_text((cluster.keyring.creds / "red.ana.creds").read_text())
    ana, ben = [
        await connect(Address(cluster.nats_url, cluster.keyring.creds / f"red.{user}.creds"), name=user)
        for user in ("ana", "ben")
    ]
    ring = cluster.keyring
    short = Address(cluster.nats_url, ring.team("red.dan", lasts_s=6))
    assert ring.ends("red").keys() == {"red.dan"}
    dan = await connect(short, name="dan")
    await until(lambda: not dan.is_connected)
    with pytest.raises(Denied, match="has ended"):  # what it was doing ends with a word, and not as a bug of ours
        await unless_denied(dan, dan.request("baton.qry.job.v1.list.red.dan", timeout=60))
    await close(dan)

    async def refused() -> bool:
        try:
            await close(await connect(short, name="dan"))
        except BusUnavailable as e:
            return bool(re.search(r"expired|ended on|revoked or rotated", str(e)))
        return False

    await until(refused)  # in the second in which it ends the broker takes it, and cuts it at once
    ring.revoke("red.dan")
    assert (await team(cluster, "revoke", "red.ana", "--reason", "left")).code == 0
    await until(lambda: not ana.is_connected)
    assert ben.is_connected
    carl_creds = ring.team("red.carl")
    await tell(cluster.nats_url, ring, ["red"])
    carl = await connect(Address(cluster.nats_url, carl_creds), name="carl")
    ring.revoke("red.ben"), ring.rotate("red")
    await tell(cluster.nats_url, ring, ["red"])
    await until(lambda: not ben.is_connected)
    assert "*" in ring.keys().teams["red"].revoked, "one line for all of before carl's"
    with pytest.raises(BusUnavailable, match="revoked or rotated"):
        await connect(Address(cluster.nats_url, stolen), name="thief")
    await carl.flush()
    assert carl.stats["reconnects"] == 0, "who stands is not touched"
    await close(carl)
    for connection in (ana, ben):
        await close(connection)


async def test_who_was_revoked_stays_out_when_the_broker_starts_with_what_it_was_given_first(
    cluster: LocalStack,
) -> None:
    """Its configuration file still has the team's first claim; what it was told later is newer."""
    creds = cluster.keyring.team("red")
    stolen = cluster.state_dir / "stolen.creds"
    stolen.write_text(creds.read_text())
    assert (await team(cluster, "rotate", "red")).code == 0
    await cluster.supervisor.restart(NATS)
    await close(await submits(cluster.address("red"), "red"))
    with pytest.raises(BusUnavailable, match="revoked or rotated"):
        await connect(Address(cluster.nats_url, stolen), name="thief")


async def test_agents_are_cut_off_and_let_in_with_new_credentials(cluster: LocalStack) -> None:
    ring, address = cluster.keyring, cluster.nodes_address("main")
    logs = Address(address.url, Path(str(address.creds)).with_name(LOGS_CREDS))
    before = [await connect(one, name="agent", inbox_prefix="_NODE_main.n1") for one in (address, logs)]
    await tell(cluster.nats_url, ring, ring.revoke_node("main"))
    await until(lambda: not any(connection.is_connected for connection in before))
    for connection in before:
        await close(connection)
    assert cluster.nodes_address("main") == address, "new ones lie in the files' places"
    for one in (address, logs):
        await close(await connect(one, name="agent"))
    with pytest.raises(NoCredential, match="west"):
        ring.revoke_node("west")
    with pytest.raises(NoCredential, match=r"main\.gpu-3'; there are: main\. .* leave out the node"):
        ring.rotate_node("main", "gpu-3")


async def test_a_node_is_added_while_all_runs_and_again_after_it_was_revoked(cluster: LocalStack) -> None:
    """Seen: a new node took `baton credentials` with all its options of before, and `baton team push`; one that was cut off, of
    which operators were told that `baton node rotate` lets it in again, was told that there are: none."""
    here = {"BATON_STATE_DIR": str(cluster.state_dir)}
    for _ in range(2):
        added = await baton("node", "add", "new-1", **here)
        assert (added.code, added.err) == (0, "")
        creds = Path(added.out.strip()) / "nats.creds"
        await close(await connect(Address(cluster.nats_url, creds), name="agent", inbox_prefix="_NODE_main.new-1"))
        assert (await baton("node", "revoke", "new-1", "--reason", "gone", **here)).code == 0
        again = await baton("node", "rotate", "new-1", **here)
        assert (again.code, "`baton node add new-1 --pool main` makes one" in again.err) == (3, True), again.err
    wrong = await baton("node", "add", "new.1", **here)
    assert (wrong.code, "use" in wrong.err) == (2, True), wrong.err


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("node", "rotate", "n1"), "nodes/main.n1/nats.creds"),
        (("node", "rotate"), "nodes/main/nats.creds"),
        (("node", "revoke", "n1", "--reason", "it was taken over"), ""),
        (("credentials", "--rotate", "operator,placement"), "operator.creds"),
    ],
)
async def test_a_credential_of_a_node_the_operator_or_a_service_that_was_copied_is_made_void(
    cluster: LocalStack, words: tuple[str, ...], made: str
) -> None:
    """Until it was so, only those of teams could be."""
    ring = cluster.keyring
    ring.node("main", "n1"), ring.operator(), ring.service("placement")
    await tell(cluster.nats_url, ring, ring.accounts)
    stolen = Address(cluster.nats_url, (ring.creds / (made or "nodes/main.n1/nats.creds")).read_text())
    prefix = {"nodes/main/nats.creds": "_NODE_main", "operator.creds": "_INBOX_operator"}.get(made, "_NODE_main.n1")
    thief = await connect(stolen, name="thief", inbox_prefix=prefix)
    done = await baton(*words, BATON_STATE_DIR=str(cluster.state_dir))
    assert (done.code, done.err) == (0, "")
    await until(lambda: not thief.is_connected)
    await close(thief)
    with pytest.raises(BusUnavailable, match="revoked or rotated"):
        await connect(stolen, name="thief")
    if made:
        await close(await connect(Address(cluster.nats_url, ring.creds / made), name="heir"))
    else:
        assert not (ring.creds / "nodes/main.n1/nats.creds").exists()
    assert f'"{words[0]}.' in (cluster.state_dir / "audit.jsonl").read_text()


async def test_programs_are_told_where_a_credential_is_and_never_what_is_in_it(cluster: LocalStack) -> None:
    creds, said, seeds = cluster.keyring.creds, [], set[str]()

    async def told(*words: str, code: int = 0) -> Any:
        result = await baton(*words, "-o", "json", BATON_STATE_DIR=str(cluster.state_dir))
        assert result.code == code, result.err
        said.append(result.out + result.err)
        seeds.update(
            seed for file in creds.rglob("*.creds") for seed in re.findall("^SU[A-Z0-9]+$", file.read_text(), re.M)
        )
        return json.loads(result.out)

    vision = {"team": "vision", "credential": "vision", "file": f"{creds / 'vision.creds'}", "broker_told": True}
    gone = {"file": None, "done": "revoked"}
    assert await told("team", "add", "vision") == {**vision, "done": "added"}
    assert await told("team", "rotate", "vision") == {**vision, "done": "rotated"}
    ana = await told("team", "add", "red.ana")
    assert (ana["team"], Path(ana["file"]).stem) == ("red", ana["credential"]), "the name that she speaks under"
    assert await told("team", "erase", "red.ana") == {
        "team": "red", "credentials": [ana["credential"]], "done": "erased", "broker_told": True,
    }  # fmt: skip
    revoked = await told("team", "revoke", "red", "--reason", "left")
    assert revoked.pop("secrets_removed") is True, "there were none"
    assert revoked == {"team": "red", "credential": "red", "broker_told": True, **gone}
    pushed = {"teams": ["red", "vision"], "done": "told", "broker_told": True, "actions_told": 0}
    assert await told("team", "push") == pushed

    node = {"pool": "main", "node": "n7", "folder": f"{creds / 'nodes/main.n7'}", "broker_told": True}
    assert await told("node", "add", "n7") == {**node, "done": "added"}
    assert await told("node", "rotate", "n7") == {**node, "done": "rotated"}
    assert await told("node", "revoke", "n7", "--reason", "sold") == {**node, "folder": None, "done": "revoked"}
    every = await told("node", "rotate")
    assert (every["node"], every["folder"]) == (None, f"{creds / 'nodes/main'}"), "of all nodes of the pool"

    fay = {"name": "fay", "file": f"{cluster.keyring.finance('fay')}", "broker_told": True}
    assert await told("finance", "add", "fay") == {**fay, "done": "added"}
    assert await told("finance", "rotate", "fay") == {**fay, "done": "rotated"}
    assert await told("finance", "revoke", "fay", "--reason", "left") == {**fay, **gone}

    made = await told("credentials", "--teams", "vision")
    assert {"vision", "operator", "placement"} <= {one["credential"] for one in made["credentials"]}
    assert {"operator", "resolver"} <= made["config"].keys()
    rotated = await told("credentials", "--rotate", "operator,placement")
    assert [Path(one["file"]).is_file() for one in rotated["credentials"]] == [True, True]
    assert len(seeds) > 10
    assert not [seed for seed in seeds if any(seed in text for text in said)]


async def test_a_change_without_a_broker_is_kept_for_its_start(tmp_path: Path) -> None:
    Keyring(tmp_path).team("red")
    added = await baton("team", "add", "vision", BATON_STATE_DIR=str(tmp_path))
    assert (added.code, "takes effect when it is started" in added.err) == (0, True)
    again = await baton("team", "add", "vision", "-o", "json", BATON_STATE_DIR=str(tmp_path))
    assert json.loads(again.out)["broker_told"] is False
    away = await baton("team", "add", "blue", "--url", "nats://127.0.0.1:9", BATON_STATE_DIR=str(tmp_path))
    assert (away.code, "baton team push" in away.err) == (6, True)
    assert Keyring(tmp_path).teams == ["blue", "red", "vision"]
    nowhere = await baton("team", "list", BATON_STATE_DIR=str(tmp_path / "none"))
    assert (nowhere.code, "there are no keys" in nowhere.err) == (2, True)
