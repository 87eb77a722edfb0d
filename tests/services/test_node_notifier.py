"""What nodes are told, and when: by records of a decider, without a broker."""

import asyncio
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from libs.bus.messages import Outgoing
from libs.bus.queries import AskAgain, InvalidQuestion
from libs.core.scheduling.decider import Decider
from libs.core.state.desired import desired, node_state
from schemas import inbox
from schemas.nodes import DesiredQuery, NodeChanged, NodeSpecsQuery, NodeStateQuery
from services.agent.wanted import Specs, Wanted
from services.placement import handlers
from services.placement import node_notifier as telling
from services.placement.handlers import Answerer, specs_of_node, state_of_node, whole_state_of_node
from services.placement.node_notifier import NodeNotifier
from tests.core.builders import World, job, node
from tests.kit.waiting import until


@dataclass
class Told:
    """A pool of two nodes, each commit of which is told; what nodes heard, and what they make of it."""

    world: World = field(default_factory=lambda: World(node("a", 2), node("b", 2)))
    settled: bool = True
    heard: list[NodeChanged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notifier = NodeNotifier("test", self._publish, CollectorRegistry(), 1024 * 1024, self._shown)
        self.wanted = {name: Wanted("test", name, 1, Specs()) for name in ("a", "b")}
        self.tell()
        for name, known in self.wanted.items():
            known.take_state(node_state(self.world.decider.state, name, "test", len(self.world.records)))

    def _shown(self) -> Decider | None:
        return self.world.decider if self.settled else None

    async def _publish(self, message: Outgoing) -> None:
        change = NodeChanged.model_validate_json(message.payload)
        self.heard.append(change)
        assert self.wanted[change.node].take_change(change), "a change was missed"

    def tell(self) -> None:
        """Of the last record."""
        seq = len(self.world.records)
        self.notifier.committed(self.world.records[seq - 1], self.world.decider, seq)

    def wants(self, name: str) -> list[str]:
        return [part.job_id for part in self.wanted[name].state().parts]


def test_a_node_that_asks_for_itself_thousands_of_times_is_told_once() -> None:
    """With eight jobs of 160 KB each, one question took 4.6 GB at once, and placement was aborted."""
    told = Told()
    told.world.submit(job("one", 1))
    for names in ((), ("a",), ("a",) * 4096):
        asked = Answerer(told.notifier, len(told.world.records), leading=True)
        reply = whole_state_of_node(told.world.decider, DesiredQuery(nodes=names), "a", asked)
        assert [state.node for state in reply.states] == list(names[:1])


async def test_what_asks_nothing_of_a_node_goes_with_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record with reports of a gang's nodes was told to all of them."""
    monkeypatch.setattr(telling, "LATER_S", 3600.0)
    told = Told()
    running = asyncio.create_task(told.notifier.run())
    gang = told.world.submit(job("gang", 4))
    told.tell()
    await until(lambda: len(told.heard) == 4)  # two nodes that joined, and two parts
    for name in ("a", "b"):
        told.world.observe(name, inbox.Started(job_id=gang, attempt=1))
        told.tell()
    for name in ("a", "b"):
        told.world.observe(name, inbox.Released(job_id=gang, attempt=1, exit_code=0, own_exit=True))
        told.tell()
    await asyncio.sleep(0.01)
    assert len(told.heard) == 4
    after = told.world.submit(job("after", 2))
    told.tell()
    await until(lambda: len(told.heard) == 5)
    (part,) = told.heard[-1].parts
    assert (part.job_id, told.heard[-1].gone) == (after, (gang,))
    assert told.wants(told.heard[-1].node) == [after]
    running.cancel()


async def test_nodes_of_a_gang_hear_when_all_of_it_runs_and_of_a_single_job_its_node_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their time limit counts from then, also where nobody is there any more to end it."""
    monkeypatch.setattr(telling, "LATER_S", 0.01)
    told = Told()
    running = asyncio.create_task(told.notifier.run())
    gang, single = told.world.submit(job("gang", 3)), told.world.submit(job("single", 1))
    told.notifier.refolded(told.world.decider, len(told.world.records))
    for name, known in told.wanted.items():
        known.take_state(node_state(told.world.decider.state, name, "test", len(told.world.records)))

    def runs(name: str) -> dict[str, bool]:
        return {part.job_id: part.running for part in told.wanted[name]._parts.values()}

    for name in ("a", "b"):
        assert not runs(name)[gang]
        told.world.observe(name, inbox.Started(job_id=gang, attempt=1))
        told.tell()
    await until(lambda: runs("a")[gang] and runs("b")[gang])
    (where,) = told.world.nodes_of(single)
    told.world.observe(where, inbox.Started(job_id=single, attempt=1))
    told.tell()
    await until(lambda: single in told.heard[-1].started)
    assert all(change.running in ((), (gang,)) for change in told.heard)
    (whole,) = node_state(told.world.decider.state, where, "test", len(told.world.records))
    assert all(part.running for part in whole.parts), "who asks for all hears it of each"
    running.cancel()


async def test_what_waits_is_told_after_a_while_and_never_of_a_commit_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telling, "LATER_S", 0.01)
    told = Told()
    running = asyncio.create_task(told.notifier.run())
    one = told.world.submit(job("one", 1))
    told.tell()
    await until(lambda: len(told.heard) == 3)
    told.settled = False
    told.world.observe("a", inbox.Started(job_id=one, attempt=1))
    told.tell()
    await asyncio.sleep(0.05)
    assert len(told.heard) == 3
    two = told.world.submit(job("two", 1))  # its commit ends the wait of all that is due
    told.tell()
    await until(lambda: len(told.heard) >= 4)
    told.settled = True
    told.world.observe("a", inbox.Released(job_id=one, attempt=1, exit_code=0, own_exit=True))
    told.tell()
    await until(lambda: told.heard[-1].gone == (one,))
    assert told.wants("a") == [two]
    running.cancel()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows, s."""
    now = [1000.0]
    monkeypatch.setattr(telling.clock, "boot_s", lambda: now[0])
    return now


def asks(told: Told, name: str, followed: int = -1) -> bool:
    """Whether it is answered."""
    asked = Answerer(told.notifier, len(told.world.records), leading=True)
    try:
        return bool(state_of_node(told.world.decider, NodeStateQuery(followed=followed), name, asked))
    except AskAgain:
        return False


def test_a_node_that_asks_as_fast_as_it_can_is_answered_at_a_rate_and_no_other_waits_for_it(at: list[float]) -> None:
    """Seen: of 4,096 parts an answer takes placement 0.1 s, and a node may say 500 things a second."""
    told = Told()
    small = [job(f"j{n}", share_milli=10) for n in range(150)]
    told.world.send(*small)
    full, other = sorted(("a", "b"), key=lambda name: -len(told.world.decider.state.on_node[name]))
    parts = len(told.world.decider.state.on_node[full])
    assert parts > 50
    answered = sum(asks(told, full) for _ in range(1000))
    assert answered == telling.LOOKED_AT_ONCE // (parts + telling._LEAST)
    assert asks(told, other)
    at[0] += 10
    again = sum(asks(told, full) for _ in range(1000))
    assert again == pytest.approx(10 * telling.LOOKED_PER_S / (parts + telling._LEAST), abs=1)
    asked = Answerer(told.notifier, len(told.world.records), leading=True)
    while not told.notifier._looks_at(full, 0):
        pass
    with pytest.raises(AskAgain, match="ask again in"):
        specs_of_node(told.world.decider, NodeSpecsQuery(specs=("0" * 64,)), full, asked)
    with pytest.raises(AskAgain, match="ask again in"):
        whole_state_of_node(told.world.decider, DesiredQuery(nodes=(full,)), full, asked)


def test_an_agent_that_follows_is_answered_every_time(at: list[float]) -> None:
    """On a full node, which asks each second, and for all of it every twentieth time."""
    told = Told()
    told.world.send(*[job(f"j{n}", share_milli=1) for n in range(1500)])
    told.tell()
    full = max(("a", "b"), key=lambda name: len(told.world.decider.state.on_node[name]))
    assert len(told.world.decider.state.on_node[full]) > 700
    for turn in range(400):
        at[0] += 1
        assert asks(told, full, -1 if turn % 20 == 0 else len(told.world.records))


def test_what_is_too_large_for_one_message_is_not_written_to_be_thrown_away(
    at: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: of 2,000 jobs with 40 KB of environment 82 MB were written for each question, and after each commit that touched
    the node."""
    told, written = Told(), list[str]()
    for of in (telling, handlers):
        monkeypatch.setattr(of, "desired", lambda state, node, *_: written.append(node) or desired(state, node, *_))
    asked = Answerer(told.notifier, len(told.world.records), leading=True)
    large = job("large", 2)
    large = large.model_copy(update={"spec": large.spec.model_copy(update={"env": {"A": "x" * 4000}})})
    told.notifier.largest = 10_000
    (where,) = told.world.nodes_of(told.world.submit(large))
    told.notifier.reads_whole(where)
    told.tell()
    assert written == [where]
    told.notifier.largest = 3_000
    with pytest.raises(InvalidQuestion, match="bytes or more in one message"):
        whole_state_of_node(told.world.decider, DesiredQuery(nodes=(where,)), where, asked)
    for _ in range(2):
        told.tell()
    assert written == [where]
