"""Placement as a service: what it tells nodes, what it answers to whom, and where it goes on after a restart."""

import asyncio
from typing import Any

import pytest
from faststream.asgi import AsgiFastStream
from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from libs.bus.cancel import cancel
from libs.bus.queries import AskAgain, QueryError, ask, ask_all
from libs.core.scheduling.decider import Decider, Deciders
from libs.ledger.snapshots import Restored, SnapshotStore
from schemas import inbox, subjects
from schemas.base import Fact
from schemas.catalog import BY_TYPE
from schemas.ids import job_id
from schemas.ledger import (
    DevicesFreed,
    InputRejected,
    JobGranted,
    LedgerRecord,
    NodeJoined,
    NodeLeft,
    QuotaSet,
)
from schemas.nodes import DesiredQuery, DesiredReply, NodeChanged, NodeState, NodeStateQuery
from services.placement.app import Placement, make_app
from services.placement.handlers import Answerer, state_of_node, whole_state_of_node
from services.placement.settings import PlacementSettings
from tests.admission.running import running
from tests.core.builders import job, node
from tests.kit.waiting import until
from tests.services.pool import Pool


def placement(world: Pool, nats_url: str, redis_url: str, writer_id: str = "w1", **settings: Any) -> AsgiFastStream:
    return make_app(
        PlacementSettings(nats_url=nats_url, redis_url=redis_url, pool=world.name, **settings), writer_id=writer_id
    )


@pytest.fixture
def settings(world: Pool, nats_url: str, redis_url: str) -> PlacementSettings:
    return PlacementSettings(nats_url=nats_url, redis_url=redis_url, pool=world.name)


def registered(name: str, devices: int = 2, incarnation: int = 1) -> inbox.NodeRegistered:
    return inbox.NodeRegistered(incarnation=incarnation, inventory=node(f"{name}", devices), lease_s=10)


async def question(world: Pool, type_: str, key: str, query: BaseModel) -> Any:
    return await ask(
        world.nats, BY_TYPE[f"io.baton.{type_}.query.v1"], query, pool=world.name, team=key, user="ana", node=key
    )


async def question_in_pieces(world: Pool, node: str, followed: int = -1) -> list[NodeState]:
    message = BY_TYPE["io.baton.node.state.query.v1"]
    return await ask_all(world.nats, message, NodeStateQuery(followed=followed), pool=world.name, node=node)


async def test_nodes_hear_what_should_run_on_them_and_only_they(world: Pool, nats_url: str, redis_url: str) -> None:
    heard: dict[str, list[NodeChanged]] = {}

    async def listen(message: Msg) -> None:
        change = NodeChanged.model_validate_json(message.data)
        heard.setdefault(change.node, []).append(change)

    await world.nats.subscribe(subjects.changed(world.name), cb=listen)
    async with running(placement(world, nats_url, redis_url)):
        await world.put(registered("n1"), registered("n2"))
        await until(lambda: heard.keys() == {"n1", "n2"})
        greeted = {name: len(changes) for name, changes in heard.items()}
        assert all(change.since == change.ledger_seq for changes in heard.values() for change in changes)

        await world.put(job("j", 2, team="red"))
        granted = await world.event(JobGranted)
        where = granted.claims[0].node
        other = "n2" if where == "n1" else "n1"
        await until(lambda: heard[where][-1].parts)
        change = heard[where][-1]
        part = change.parts[0]
        assert (part.job_id, part.attempt, part.world_size) == (granted.job_id, 1, 2)
        assert [(r.device, r.epoch) for r in part.ranks] == [(c.device, c.epoch) for c in granted.claims]
        assert list(change.specs) == [part.spec]

        await world.started(granted)
        await world.released(granted)
        freed = await world.event(DevicesFreed)
        await until(lambda: heard[where][-1].gone)
        assert heard[where][-1].gone == (granted.job_id,)
        assert freed.evidence == "released"
        assert len(heard[other]) == greeted[other], "a node heard of a record that did not touch it"
        assert [c.since for c in heard[where][1:]] == [c.ledger_seq for c in heard[where][:-1]], "a change was left out"


async def test_agents_are_told_the_state_of_nodes_that_they_ask_for(world: Pool, nats_url: str, redis_url: str) -> None:
    async with running(placement(world, nats_url, redis_url)):
        await world.put(registered("n1"), job("j", 1, team="red"))
        await world.event(JobGranted)
        reply: DesiredReply = await question(world, "node.desired", "n1", DesiredQuery(nodes=("n1",)))
        assert [state.node for state in reply.states] == ["n1"]
        assert [part.job_id for part in reply.states[0].parts] == [job_id("red", "j")]
        assert (await question(world, "node.desired", "unheard", DesiredQuery(nodes=("unheard",)))).states == ()


async def test_a_node_is_told_of_itself_only(world: Pool, nats_url: str, redis_url: str) -> None:
    async with running(placement(world, nats_url, redis_url)):
        await world.put(registered("n1"), registered("n2"))
        await until(lambda: world.event(NodeJoined, 2))
        for nodes in (("n2",), ("n1", "n2")):
            with pytest.raises(QueryError, match="asked for on the subject of node 'n1'") as refused:
                await question(world, "node.desired", "n1", DesiredQuery(nodes=nodes))
            assert refused.value.status == "invalid"


async def test_a_node_cannot_speak_of_another(world: Pool, nats_url: str, redis_url: str) -> None:
    forged = [
        (inbox.NodeRegistered(incarnation=7, inventory=node("n2", 2), lease_s=10), "registered"),
        (inbox.NodeLost(node="n2", incarnation=1, silent_s=0, planned=True), "lost"),
        (inbox.NodeObserved(node="n2", incarnation=1, observations=()), "observed"),
    ]
    async with running(placement(world, nats_url, redis_url)):
        await world.put(registered("n1"), registered("n2"))
        for model, what in forged:
            await world.put_on(subjects.node_inbox(what, world.name, "n1"), model)
        for number in range(1, len(forged) + 1):
            refused = await world.event(InputRejected, number)
            assert "it speaks of node 'n2' on the subject of node 'n1'" in refused.reason
        await world.put(job("j", 2, team="red"))
        await world.event(JobGranted)
        assert not [e for record in await world.records() for e in record.events if isinstance(e, NodeLeft)]


async def test_a_restart_goes_on_from_the_snapshot(
    world: Pool, nats_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {"snapshot_records": 100, "batch": 1}
    async with running(placement(world, nats_url, redis_url, **small)):
        await world.put(registered("n1"), job("first", 2, team="red"), job("second", 2, team="red"))
        await world.put(*(inbox.QuotaChanged(team="blue", limit_milli=n) for n in range(1, 120)))
        await world.event(QuotaSet, number=119)
        saved = await until(lambda: snapshot_of(world))
    assert saved.position >= 100
    folded: list[int] = []
    apply = Decider.apply

    def counted(self: Decider, record: LedgerRecord, seq: int) -> None:
        folded.append(seq)
        apply(self, record, seq)

    monkeypatch.setattr(Decider, "apply", counted)

    async with running(placement(world, nats_url, redis_url, "w2", **small)):
        first = await world.event(JobGranted)
        await world.started(first)
        await world.released(first)
        second = await world.event(JobGranted, number=2)

    assert second.job_id == job_id("red", "second"), "what waited before the restart was forgotten"
    assert folded
    assert min(folded) > saved.position, "the whole ledger was folded in spite of the snapshot"


async def snapshot_of(world: Pool) -> Restored[Decider] | None:
    return await SnapshotStore(world.js, world.name).load("placement", Deciders.version, Decider.load)


class Stubborn:
    """A JetStream context on which an append is under way until `go`, and is then lost."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.under_way, self.go = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def publish(self, subject: str, payload: bytes, **options: Any) -> Any:
        if subject.startswith("baton.led.") and b"job.granted" in payload and not self.go.is_set():
            self.under_way.set()
            await self.go.wait()
            raise TimeoutError
        return await self._inner.publish(subject, payload, **options)


class Slow(Stubborn):
    """One on which it is under way until `go`, and is then stored."""

    async def publish(self, subject: str, payload: bytes, **options: Any) -> Any:
        if subject.startswith("baton.led.") and b"job.granted" in payload:
            self.under_way.set()
            await self.go.wait()
        return await self._inner.publish(subject, payload, **options)


class Connected:
    """A client whose JetStream context is `js`."""

    def __init__(self, inner: Any, js: Stubborn) -> None:
        self._inner, self._js = inner, js

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def jetstream(self, **options: Any) -> Stubborn:
        return self._js


async def test_no_agent_hears_of_a_grant_that_is_not_committed(world: Pool, settings: PlacementSettings) -> None:
    """The append may be refused, and the device be another job's: what was told would run twice, or on a device that
    somebody else holds."""
    js = Stubborn(world.js)
    placing = Placement(settings, "w1", CollectorRegistry())
    await placing.open(Connected(world.nats, js))  # type: ignore[arg-type]
    assert placing.writer is not None
    told: list[Fact] = []

    async def ask_for_it() -> None:
        told.append(await placing.answer(lambda decider: _desired(placing, decider)))

    task = asyncio.create_task(placing.writer.run())
    try:
        await world.put(registered("n1"), job("j", 1, team="red"))
        await asyncio.wait_for(js.under_way.wait(), 30)
        asking = asyncio.create_task(ask_for_it())
        await asyncio.sleep(0.2)
        assert told == [], "an agent was told what is not in the ledger"
        js.go.set()
        await asyncio.wait_for(asking, 30)
        granted = await world.event(JobGranted)
        reply = told[0]
        assert isinstance(reply, DesiredReply)
        for state in reply.states:
            for part in state.parts:
                assert part.job_id == granted.job_id
                assert state.ledger_seq > 0
    finally:
        await cancel(task)


async def test_a_question_that_waited_for_a_commit_hears_what_it_changed(
    world: Pool, settings: PlacementSettings
) -> None:
    """Answered before the change was noted, "unchanged" would be said of the record that changed the node: the agent would take
    the change, told a moment later, for one that it knows, and start nothing until it asks for everything again."""
    js = Slow(world.js)
    placing = Placement(settings, "w1", CollectorRegistry())
    await placing.open(Connected(world.nats, js))  # type: ignore[arg-type]
    assert placing.writer is not None
    task = asyncio.create_task(placing.writer.run())

    def asked(decider: Decider) -> list[NodeState]:
        assert placing.notifier is not None
        by = Answerer(placing.notifier, placing.seq, leading=True)
        return list(state_of_node(decider, NodeStateQuery(followed=0), "n1", by))

    try:
        await world.put(registered("n1"), job("j", 1, team="red"))
        await asyncio.wait_for(js.under_way.wait(), 30)
        asking = asyncio.create_task(placing.answer(asked))
        await asyncio.sleep(0)
        js.go.set()
        (told,) = await asyncio.wait_for(asking, 30)
        assert told.up
        assert not told.unchanged
    finally:
        await cancel(task)


async def test_a_question_while_nothing_can_be_committed_is_to_be_asked_again(
    world: Pool, settings: PlacementSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was away for a while left the trace of an error for each question of each node in the log."""
    monkeypatch.setattr("services.placement.app.ANSWER_S", 0.05)
    js = Slow(world.js)
    placing = Placement(settings, "w1", CollectorRegistry())
    await placing.open(Connected(world.nats, js))  # type: ignore[arg-type]
    assert placing.writer is not None
    task = asyncio.create_task(placing.writer.run())
    try:
        await world.put(registered("n1"), job("j", 1, team="red"))
        await asyncio.wait_for(js.under_way.wait(), 30)
        with pytest.raises(AskAgain, match="committed nothing"):
            await placing.answer(lambda decider: decider)
    finally:
        js.go.set()
        await cancel(task)


def _desired(placing: Placement, decider: Decider) -> DesiredReply:
    assert placing.notifier is not None
    asked = Answerer(placing.notifier, placing.seq, leading=True)
    return whole_state_of_node(decider, DesiredQuery(nodes=("n1",)), "n1", asked)


async def test_a_restarted_placement_tells_nodes_at_once_although_nothing_new_is_decided(
    world: Pool, nats_url: str, redis_url: str
) -> None:
    """A commit may be followed by a crash before its nodes heard of it: whoever folds the ledger again tells them."""
    async with running(placement(world, nats_url, redis_url)):
        await world.put(registered("n1"), job("j", 2))
        granted = await world.event(JobGranted)
    records = len(await world.records())
    heard: list[NodeChanged] = []

    async def listen(message: Msg) -> None:
        heard.append(NodeChanged.model_validate_json(message.data))

    await world.nats.subscribe(subjects.changed(world.name), cb=listen)
    async with running(placement(world, nats_url, redis_url, writer_id="w2")):
        await until(lambda: bool(heard))
        assert (heard[0].node, heard[0].since) == ("n1", heard[0].ledger_seq), (
            "it says that there is something to ask for"
        )
        state = (await question_in_pieces(world, "n1", followed=heard[0].since - 1))[0]
        assert [part.job_id for part in state.parts] == [granted.job_id]
    assert len(await world.records()) == records
