"""A node that was taken over sends without end: it is cut off, told and shown, and the others of its pool go on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.cancel import cancel
from libs.bus.connect import Address, BusUnavailable, close, connect
from libs.bus.creds import LOGS_CREDS
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.team_admin import answering, look
from libs.client import connect as connect_client
from libs.core.admission.intake import EVERYBODY
from libs.core.admission.traffic import TrafficLimits
from libs.walls import broker_claims, floods
from libs.walls.accounts import LOGS_SUBSCRIPTIONS, NODE_CONNECTIONS, TEAM_SUBSCRIPTIONS
from libs.walls.book import Book
from libs.walls.floods import Floods
from libs.walls.keyring import Keyring
from libs.walls.resolver import NotTold, tell
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.jobs import JobSpec, Simulation
from schemas.resources import Resources
from tests.kit.waiting import until
from tests.walls.world import ANSWERED, NODE, broker

FLEET = "groups:\n  - {name: 'n-{i:02d}', count: 1, devices: {model: H100, count: 8, memory_gib: 80}}\n"
EVIL = {"small": 20, "large": 200_000}
"""Bytes of what each of them sends."""


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[LocalStack]:
    """A pool with a simulated node, and the credentials of three more."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    options = LaunchOptions(
        state_dir=tmp_path / "state", teams=("blue",), fleet=fleet, services=("placement", "admission", "leases", "history"),
        sync_always=False, scale=0.2, log_level="WARNING", env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip
    async with LocalStack(options) as made:
        for name in (*EVIL, "good"):
            made.keyring.node("main", name)
        await tell(made.nats_url, made.keyring, [f"@main.{name}" for name in (*EVIL, "good")])
        yield made


def creds(pool: LocalStack, name: str) -> Address:
    return Address(pool.nats_url, pool.keyring.creds / "nodes" / f"main.{name}" / "nats.creds")


async def floods_until_cut(pool: LocalStack, name: str, size: int) -> int:
    """How many messages it could send."""
    sent, subject = 0, subjects.node_inbox("observed", "main", name)
    evil = await nats.connect(
        pool.nats_url, inbox_prefix=f"_NODE_main.{name}", allow_reconnect=False, **creds(pool, name).options()
    )

    async def sends() -> None:
        nonlocal sent
        body = b'{"x":"' + b"x" * size + b'"}'
        with suppress(nats.errors.Error, OSError):
            while True:
                await evil.publish(subject, body, headers={"ce-type": "io.baton.node.observed.v1"})
                sent += 1
                if not sent % 100:
                    await evil.flush()

    sending = asyncio.create_task(sends())
    await until(lambda: evil.is_closed, 120)  # `closed_cb` is not called where something waits to be sent
    await cancel(sending)
    return sent


@pytest.mark.timeout(240)
async def test_a_node_that_floods_its_pools_inbox_is_cut_off_and_the_others_go_on(pool: LocalStack) -> None:
    spec = JobSpec(command=("true",), simulation=Simulation(duration_s=0), resources=Resources())
    stolen = {name: Address(pool.nats_url, Path(str(creds(pool, name).creds)).read_text()) for name in EVIL}
    async with answering(pool.nats_url, pool.keyring):
        good = await connect(creds(pool, "good"), name="good", inbox_prefix="_NODE_main.good")
        async with await connect_client(pool.address("blue"), "blue") as blue:
            for name, size in EVIL.items():
                sent = await floods_until_cut(pool, name, size)
                assert sent > min(floods.MESSAGES_AT_ONCE, floods.BYTES_AT_ONCE / (size + 200)), (
                    "what it may, it may at once"
                )
                job = await blue.submit(spec, give_up_s=120, answer_s=120)
                assert (await blue.wait(job.job_id, timeout_s=120)).what == "succeeded"
    for name in EVIL:
        with pytest.raises(BusUnavailable, match="revoked or rotated"):
            await connect(stolen[name], name=name)
    assert good.is_connected, "another node is not touched"
    assert not good.stats["reconnects"]
    await close(good)
    cut = [line for line in Book(pool.keyring.folder).lines() if line.what == "node.revoke"]
    assert [line.target for line in cut] == ["main/small", "main/large"]
    assert ["messages" in cut[0].reason, "MiB" in cut[1].reason] == [True, True]


async def test_batches_that_a_node_never_ends_fill_no_disk_and_hold_up_no_service(tmp_path: Path) -> None:
    """Their messages lie beside the stream, outside of its limit: it was 1 GB in ten seconds, and 12 GiB at the most."""
    with broker(tmp_path) as (url, ring):
        evil = await connect(Address(url, ring.node("main", "n1")), name="evil", inbox_prefix=NODE.replies)
        for batch in range(40):
            for number in range(1, 31):
                named = {"Nats-Batch-Id": f"b{batch}", "Nats-Batch-Sequence": str(number)}
                await evil.publish(NODE.stored, b"x" * 50_000, headers=named)
        await evil.flush(60)
        waits = sum(file.stat().st_size for file in (tmp_path / "nats").glob("**/INBOX-main/batches/**/*.blk"))
        assert 0 < waits <= 16 * 31 * 51_000, "40 were begun, 16 are kept"
        core = await connect(Address(url, ring.service()), name="core", inbox_prefix="_INBOX.core")
        ticks = [Outgoing(subjects.inbox("clock", "tick", "main"), b"{}", {"Nats-Msg-Id": f"t{n}"}) for n in range(40)]
        acks = await Outbox(core.jetstream(), batches=True).publish_many(ticks)
        assert len({ack.seq for ack in acks}) == 40, "what is refused as a batch goes one by one"
        await close(evil)
        await close(core)


async def test_an_agent_stores_the_reports_of_its_nodes_as_one_batch(tmp_path: Path) -> None:
    """Sixty-four reports of one gang's nodes were synced one after the other. Agents may not ask what a stream allows."""
    with broker(tmp_path) as (url, ring):
        agent = await connect(
            Address(url, ring.nodes("main")), name="agent", inbox_prefix=subjects.node_reply_prefix("main", "n0")
        )
        said = [
            Outgoing(subjects.node_inbox("observed", "main", f"n{n}"), b"{}", {"Nats-Msg-Id": f"r{n}"})
            for n in range(64)
        ]
        acks = await Outbox(agent.jetstream(), batches=True, asks=False).publish_many(said)
        core = await connect(Address(url, ring.service()), name="core", inbox_prefix="_INBOX.core")
        kept = [await core.jetstream().get_msg("INBOX-main", seq=ack.seq) for ack in acks]
        assert [one.subject for one in kept] == [one.subject for one in said]
        assert len({(one.headers or {})["Nats-Batch-Id"] for one in kept}) == 1
        await close(agent)
        await close(core)


async def test_a_broker_that_did_not_hear_who_was_cut_off_hears_it_at_the_next_look(tmp_path: Path) -> None:
    """What it was told failed, and the look at nodes ended for good: the next flood was nobody's affair."""
    ring, heard = Keyring(tmp_path), list[list[str]]()
    ring.node("main", "small")

    async def told(accounts: list[str]) -> None:
        heard.append(accounts)
        if len(heard) == 1:
            raise NotTold("the broker did not answer")

    looking = Floods(ring, told)
    await looking._cut("main.small", "it sent more than a node may")
    for _ in range(2):
        await looking.turn(Client())
    assert heard == [["@main.small", "$baton"]] * 2


async def test_no_error_and_no_closed_connection_ends_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node cannot be cut off, as on a full disk: another one is all the same, and it is, when that has passed."""
    monkeypatch.setattr(floods, "MESSAGES_AT_ONCE", 100.0)
    monkeypatch.setattr(floods, "_AGAIN_S", 0.1)
    revoke, full, said = Keyring.revoke_node, {"n1"}, list[str]()

    def revoke_node(self: Keyring, pool: str, node: str) -> list[str]:
        if node in full:
            raise RuntimeError("no room")
        return revoke(self, pool, node)

    monkeypatch.setattr(Keyring, "revoke_node", revoke_node)
    with broker(tmp_path) as (url, ring):
        evil = {name: await flooding(Address(url, ring.node("main", name)), name) for name in ("n1", "n2")}
        await tell(url, ring, ["@main.n1", "@main.n2"])
        opened: list[Client] = []

        async def again() -> Client:
            opened.append(
                await connect(Address(url, broker_claims.claims_credential(ring, lasting=True)), name="floods")
            )
            return opened[-1]

        looking = asyncio.create_task(
            look(Floods(ring, partial(tell, url, ring), say=said.append), await again(), again)
        )
        await evil["n2"].wait()
        assert not evil["n1"].is_set()
        await until(lambda: any("no room" in line for line in said))
        await opened[0].close()
        full.clear()
        await evil["n1"].wait()
        assert len(opened) == 2
        await cancel(looking)


async def flooding(where: Address, name: str) -> asyncio.Event:
    """A node that says more than it may, until it is cut off: then the event is set."""
    cut = asyncio.Event()
    options = {"inbox_prefix": f"_NODE_main.{name}", "allow_reconnect": False}
    client = await nats.connect(where.url, **options, **where.options())

    async def sends() -> None:
        with suppress(nats.errors.Error, OSError):
            while not client.is_closed:
                for _ in range(50):
                    await client.publish(subjects.node_inbox("observed", "main", name), b"{}")
                await asyncio.sleep(0.02)
        await until(lambda: client.is_closed)
        cut.set()

    client.options["sends"] = asyncio.create_task(sends())
    return cut


async def test_a_node_that_opens_connections_without_end_by_its_second_credential_is_cut_off(tmp_path: Path) -> None:
    """It is one of the core, whose claim bounds none: 3,000 took four seconds, and all that the broker had room for was its."""
    with broker(tmp_path) as (url, ring):
        logs = {name: Address(url, ring.node("main", name).with_name(LOGS_CREDS).read_text()) for name in ("n1", "n2")}
        good = await nats.connect(url, **logs["n2"].options())
        for _ in range(NODE_CONNECTIONS):  # as many services and other agents: they are nobody's crowd
            await nats.connect(url, **Address("", ring.service()).options())
        async with answering(url, ring):
            evil = [
                await nats.connect(url, allow_reconnect=False, **logs["n1"].options()) for _ in range(NODE_CONNECTIONS)
            ]
            await asyncio.sleep(3 * floods.LOOK_S)
            assert all(one.is_connected for one in evil), "so many it may have"
            with suppress(nats.errors.Error, OSError):
                evil.append(await nats.connect(url, allow_reconnect=False, **logs["n1"].options()))
            await until(lambda: not any(one.is_connected for one in evil))
        with pytest.raises(BusUnavailable, match="revoked or rotated"):
            await connect(logs["n1"], name="n1")
        assert good.is_connected
        assert not good.stats["reconnects"]
        assert "65 connections" in next(one for one in Book(ring.folder).lines() if one.what == "node.revoke").reason


async def test_a_question_for_logs_is_copied_for_few_subscriptions_of_a_node(tmp_path: Path) -> None:
    """200,000 on one connection took 0.4 s. Our client closes a connection that is refused one."""
    with broker(tmp_path) as (url, ring):

        async def note(error: Exception) -> None: ...

        async def hears(_: Msg) -> None: ...

        logs = Address("", ring.node("main", "n1").with_name(LOGS_CREDS))
        node = await nats.connect(url, error_cb=note, allow_reconnect=False, **logs.options())
        (subject,) = subjects.log_readers_may("main.n1")[1]
        for _ in range(LOGS_SUBSCRIPTIONS):
            await node.subscribe(subject, cb=hears)
        await node.flush()
        await node.flush()
        assert node.is_connected
        await node.subscribe(subject, cb=hears)
        await until(lambda: node.is_closed)
        assert "maximum subscriptions exceeded" in str(node.last_error)


LIMITS = {EVERYBODY: TrafficLimits(said_per_s=200, heard_per_s=1_000)}


class Watch(Floods):
    """Counts its looks. How long one takes is the broker's affair."""

    looks = 0

    async def turn(self, nats: Client) -> float:
        after_s = await super().turn(nats)
        self.looks += 1
        return after_s

    async def looked(self) -> None:
        """Returns when everything was looked at that has happened until now."""
        before = self.looks
        await until(lambda: self.looks >= before + 2)


@asynccontextmanager
async def watched(
    url: str, ring: Keyring, limits: Mapping[str, TrafficLimits], say: Callable[[str], object] = lambda _: None
) -> AsyncIterator[Watch]:
    """Who sends too much is looked for, and the operator told by `say`."""

    async def again() -> Client:
        return await connect(Address(url, broker_claims.claims_credential(ring, lasting=True)), name="floods")

    watch = Watch(ring, partial(tell, url, ring), say=say, limits=limits)
    looking = asyncio.create_task(look(watch, await again(), again))
    try:
        yield watch
    finally:
        await cancel(looking)


async def teams_client(url: str, ring: Keyring, team: str) -> Client:
    async def note(error: Exception) -> None: ...

    return await nats.connect(url, error_cb=note, allow_reconnect=False, **Address("", ring.team(team)).options())


async def why_not_connected(address: Address) -> str:
    """What a client is told. A connection that is reset before the broker's word came says nothing of it, so it tries again."""
    said = ""
    for _ in range(10):
        with pytest.raises(BusUnavailable) as refused:
            await connect(address, name="blue", wait_s=0.2)
        if "reset by peer" not in (said := str(refused.value)):
            break
    assert "kept out for some minutes" in said
    return said


async def asks(client: Client, team: str, many: int, reply: str = "") -> None:
    """As fast as it goes, and hears nothing."""
    subject = subjects.fill(BY_TYPE["io.baton.pool.status.query.v1"].subject, pool="main", team=team, user="eve")
    with suppress(nats.errors.Error, OSError):
        for number in range(many):
            await client.publish(subject, b"{}", reply=reply or f"_INBOX_{team}.eve.x")
            if not number % 100:
                await client.flush()


async def test_a_team_that_asks_without_end_is_kept_out_for_a_while_and_longer_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """46,000 questions a second, whose answers it did not read: a job of another team took 180 ms in place of 16, and no other
    question was answered."""
    monkeypatch.setattr(floods, "OUT_S", 15)
    with broker(tmp_path) as (url, ring):
        green, blue = await teams_client(url, ring, "green"), await teams_client(url, ring, "blue")
        said = list[str]()
        async with watched(url, ring, LIMITS, said.append) as watch:
            await watch.looked()
            await asks(blue, "blue", 300)
            await watch.looked()
            assert blue.is_connected, "so much it may"
            await asks(blue, "blue", 10_000)
            await until(lambda: blue.is_closed)
            assert "takes no connection of this team" in await why_not_connected(Address(url, ring.team("blue")))
            await asks(green, "green", 10)
            assert green.is_connected, "another team is not touched"
            back = await connect(Address(url, ring.team("blue")), name="blue", wait_s=60)
            await watch.looked()
            assert back.is_connected, "what it had sent before counts no more"
            again = await teams_client(url, ring, "blue")
            await asks(again, "blue", 10_000)
            await until(lambda: again.is_closed)
            await close(back)
        cut = [line for line in Book(ring.folder).lines() if line.what == "team.keep-out"]
        assert [(line.target, line.detail) for line in cut] == [("blue", "for 15 s"), ("blue", "for 30 s")]
        assert "it said more than a team may" in cut[0].reason
        back_in = [(line.target, line.reason) for line in Book(ring.folder).lines() if line.what == "team.let-in"]
        assert back_in == [("blue", "its time is over")]
        assert sum("team blue is kept out" in line for line in said) == 2


async def test_a_team_whose_answers_are_heard_by_a_thousand_subscriptions_is_kept_out(tmp_path: Path) -> None:
    """Each copy counts. A question has one answer, and a connection may hear it eight times."""
    limits = {EVERYBODY: TrafficLimits(said_per_s=None, heard_per_s=1_000)}
    with broker(tmp_path) as (url, ring):
        core = await nats.connect(url, **Address("", ring.service()).options())

        async def answers(message: Msg) -> None:
            await message.respond(b"x" * 100)

        async def hears(_: Msg) -> None: ...

        await core.subscribe(ANSWERED[1], cb=answers)
        async with watched(url, ring, limits) as watch:
            crowd = [await teams_client(url, ring, "blue") for _ in range(20)]
            for one in crowd:
                for _ in range(TEAM_SUBSCRIPTIONS):
                    await one.subscribe("_INBOX_blue.>", cb=hears)
                await one.flush()
            await watch.looked()
            await asks(crowd[0], "blue", 100, "_INBOX_blue.eve.x")  # 16,000 copies
            await until(lambda: all(one.is_closed for one in crowd))
        (cut,) = (line for line in Book(ring.folder).lines() if line.what == "team.keep-out")
        assert "it heard more than a team may" in cut.reason
        await core.close()


async def test_a_team_is_let_in_again_by_whoever_holds_the_keys_then(tmp_path: Path) -> None:
    """The process that kept it out ended meanwhile."""
    with broker(tmp_path) as (url, ring):
        ring.keep_out("blue", 2, 60)
        await tell(url, ring, ["blue"])
        with pytest.raises(BusUnavailable):
            await connect(Address(url, ring.team("blue")), name="blue", wait_s=0.3)
        for _ in range(2):
            async with watched(url, ring, LIMITS):
                await close(await connect(Address(url, ring.team("blue")), name="blue", wait_s=30))
                await until(lambda: not ring.keys().kept_out)
        told = [line.target for line in Book(ring.folder).lines() if line.what == "team.let-in"]
        assert told == ["blue"], "once, however often such a process starts"
