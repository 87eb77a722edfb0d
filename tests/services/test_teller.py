"""What nodes are told, and when: by records of a decider, without a broker."""

import asyncio
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from libs.bus.messages import Outgoing
from libs.core.scheduling.decider import Decider
from libs.core.state.desired import node_state
from schemas import inbox
from schemas.nodes import DesiredQuery, NodeChanged
from services.agent.wanted import Specs, Wanted
from services.placement import teller as telling
from services.placement.handlers import Answerer, whole_state_of_node
from services.placement.teller import Teller
from tests.core.builders import World, job, node
from tests.kit.waiting import until


@dataclass
class Told:
    """A pool of two nodes, each commit of which is told; what nodes heard, and what they make of it."""

    world: World = field(default_factory=lambda: World(node("a", 2), node("b", 2)))
    settled: bool = True
    heard: list[NodeChanged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.teller = Teller("test", self._publish, CollectorRegistry(), 1024 * 1024, self._shown)
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
        self.teller.committed(self.world.records[seq - 1], self.world.decider, seq)

    def wants(self, name: str) -> list[str]:
        return [part.job_id for part in self.wanted[name].state().parts]


def test_a_node_that_asks_for_itself_thousands_of_times_is_told_once() -> None:
    """With eight jobs of 160 KB each, one question took 4.6 GB at once, and placement was aborted."""
    told = Told()
    told.world.submit(job("one", 1))
    for names in ((), ("a",), ("a",) * 4096):
        asked = Answerer(told.teller, len(told.world.records), leading=True)
        reply = whole_state_of_node(told.world.decider, DesiredQuery(nodes=names), "a", asked)
        assert [state.node for state in reply.states] == list(names[:1])


async def test_what_asks_nothing_of_a_node_goes_with_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record with reports of a gang's nodes was told to all of them."""
    monkeypatch.setattr(telling, "LATER_S", 3600.0)
    told = Told()
    running = asyncio.create_task(told.teller.run())
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


async def test_what_waits_is_told_after_a_while_and_never_of_a_commit_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telling, "LATER_S", 0.01)
    told = Told()
    running = asyncio.create_task(told.teller.run())
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
