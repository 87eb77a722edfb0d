"""A node in hostile hands: how much it can make the ledger keep, and that its neighbours are none the worse."""

from dataclasses import dataclass

import pytest

from libs.core.projections.hot_state import HotState
from libs.core.scheduling import allowances
from libs.core.scheduling.allowances import LIVES, QUARANTINES, REJECTED
from libs.core.scheduling.decider import Decider, Deciders
from libs.core.scheduling.policy import Policy
from schemas import inbox, ledger
from schemas.jobs import JobState
from tests.core.builders import World, job, node

MINUTE_US = 60_000_000


def registered(name: str, incarnation: int, *, prefix: str = "") -> inbox.NodeRegistered:
    """A life of a node, whose devices have other names than before where there is a prefix."""
    inventory = node(name)
    devices = tuple(one.model_copy(update={"id": f"{prefix}{one.id}"}) for one in inventory.devices)
    return inbox.NodeRegistered(
        incarnation=incarnation, lease_s=10, inventory=inventory.model_copy(update={"devices": devices})
    )


def joined(w: World, life: inbox.NodeRegistered) -> bool:
    return any(isinstance(event, ledger.NodeJoined) for event in told(w, life))


def told(w: World, message: inbox.InboxMessage) -> list[ledger.LedgerEvent]:
    """On the node's own subject."""
    name = message.inventory.node if isinstance(message, inbox.NodeRegistered) else getattr(message, "node", "n0")
    return w.send(message, subject=f"baton.in.node.v1.said.main.{name}")


def reason(events: list[ledger.LedgerEvent]) -> str:
    (rejected,) = [event for event in events if isinstance(event, ledger.InputRejected)]
    return rejected.reason


def test_a_node_begins_so_many_lives_at_once_and_then_one_a_minute() -> None:
    w = World(node("n0"), node("n1"))
    taken = [joined(w, registered("n0", 10 + n)) for n in range(40)]
    assert taken == [True] * int(LIVES - 1) + [False] * (41 - int(LIVES)), "the first was that of the world"
    assert "`baton node revoke n0`" in reason(told(w, registered("n0", 90)))
    assert joined(w, registered("n1", 10)), "another node is not held to what this one has used up"
    w.send(after_us=MINUTE_US)
    assert joined(w, registered("n0", 91))
    assert not joined(w, registered("n0", 92))


def test_ids_of_devices_that_a_node_has_ever_had_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World()
    w.decider = Decider(policy=Policy(node_devices=24))
    w.send(registered("n0", 1), registered("n1", 1))
    assert joined(w, registered("n0", 2, prefix="a-"))
    assert joined(w, registered("n0", 3, prefix="b-"))
    said = reason(told(w, registered("n0", 4, prefix="c-")))
    assert "has had 24 devices and offers 8 that are new" in said
    assert "BATON_PLACEMENT_NODE_DEVICES" in said
    assert len(w.decider.state.fleet) == 32, "nothing of the refused life is kept"
    assert joined(w, registered("n0", 5, prefix="a-")), "what it had before it may have again"
    present = HotState()
    for seq, record in enumerate(w.records, 1):
        present.apply(record, seq)
    assert len(present.devices) == 16, "Redis and metrics have what there is now"
    assert joined(w, registered("n1", 2, prefix="d-"))
    monkeypatch.setattr(allowances, "POOL_DEVICES", 41)
    assert "begin a new pool" in reason(told(w, registered("n1", 3, prefix="e-")))
    monkeypatch.setattr(allowances, "POOL_NODES", 2)
    assert "has had 2 nodes" in reason(told(w, registered("n2", 1)))


def test_of_what_is_rejected_of_a_node_so_much_is_written_down_and_the_rest_counted() -> None:
    w = World(node("n0"), node("n1"))
    lies = inbox.NodeObserved(node="n0", incarnation=99, observations=())
    written = [bool(told(w, lies)) for _ in range(500)]
    assert written == [True] * int(REJECTED) + [False] * (500 - int(REJECTED))
    assert told(w, inbox.NodeObserved(node="n1", incarnation=99, observations=())), "another node's are"
    w.send(after_us=2_000_000)
    assert "and 400 more of this node" in reason(told(w, lies))
    mine = w.submit(job("mine", 8))
    assert w.decider.state.jobs[mine].state is JobState.GRANTED


def test_a_node_says_so_often_what_uses_its_devices() -> None:
    w = World(node("n0"))
    device = node("n0").devices[0].id
    said = 0
    for number in range(2 * int(QUARANTINES)):
        busy = (inbox.BusyDevice(device=device, users="x", since_us=number + 1),)
        said += any(
            isinstance(event, ledger.DeviceQuarantined)
            for event in told(w, inbox.NodeQuarantine(node="n0", incarnation=1, devices=busy))
        )
    assert said == int(QUARANTINES)


def test_of_many_devices_a_node_says_less_often_what_uses_them() -> None:
    """Each device is an event: a message a second of a node with a thousand made 16 GiB of ledger a day."""
    w = World(inventory := node("n0", int(QUARANTINES)))
    events = []
    for number in range(int(QUARANTINES)):
        users = (
            ()
            if number % 2
            else tuple(
                inbox.BusyDevice(device=device.id, users="x", since_us=number + 1) for device in inventory.devices
            )
        )
        events += told(w, inbox.NodeQuarantine(node="n0", incarnation=1, devices=users))
    changes = [event for event in events if isinstance(event, ledger.DeviceQuarantined | ledger.DeviceReturned)]
    assert len(changes) == int(QUARANTINES)
    free = inbox.NodeQuarantine(node="n0", incarnation=1, devices=())
    events = w.send(free, after_us=int(QUARANTINES) * 1_000_000, subject="baton.in.node.v1.said.main.n0")
    assert len(events) == int(QUARANTINES), "it is heard again"
    assert not w.decider.state.quarantined


def test_what_is_decided_again_because_it_was_not_stored_uses_up_nothing_more() -> None:
    """A ledger that was full for minutes: the writer folds again and decides the same inputs, and an honest node's next life
    was refused when there was room. What one that lies has used up stays used up."""
    makes = Deciders()
    life = Said(1, 1_000_000, registered("n0", 7), "baton.in.node.v1.registered.main.n0")
    lie = inbox.NodeObserved(node="n0", incarnation=99, observations=())
    lies = [Said(2 + n, 1_000_000, lie, "baton.in.node.v1.said.main.n0") for n in range(300)]
    decided = [makes.new().decide([life, *lies], 1_000_000) for _ in range(40)]
    assert all(events == decided[0] for events in decided)
    assert isinstance(decided[0][0], ledger.NodeJoined)
    assert len(decided[0]) == 1 + int(REJECTED)
    assert makes.nodes.unwritten == 300 - int(REJECTED)


@dataclass(frozen=True)
class Said:
    """An input of a pool."""

    seq: int
    time_us: int
    message: inbox.InboxMessage
    subject: str
    error: str = ""
