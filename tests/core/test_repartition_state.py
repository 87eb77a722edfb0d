"""MIG boards repartitioned: what the ledger's events mean, and which reports count."""

from typing import Any

import pytest

from libs.core.accelerators.mig_boards import GEOMETRIES
from libs.core.admission.fleet_shape import FleetShape
from libs.core.scheduling import repartition
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.reactions import Decision, react
from libs.core.state import snapshot
from libs.core.state.desired import desired
from libs.core.state.fleet import Fleet
from libs.core.state.lifecycle import Forbidden
from libs.core.state.model import State
from schemas import inbox, ledger
from schemas.resources import Device, DeviceKind, Inventory, MigBoard, MigPlace, Recut

BOARD = "b0"
POLICY = Policy()


def inventory(*instances: tuple[str, int]) -> Inventory:
    profiles = GEOMETRIES["H100-80GB-SXM"].profiles
    memory = {p.name: p.memory_mib for p in profiles}
    devices = tuple(
        Device(
            id=f"{BOARD}-{profile}-{start}",
            index=i,
            kind=DeviceKind.MIG,
            model="H100",
            memory_mib=memory[profile],
            mig_profile=profile,
            mig_start=start,
            parent=BOARD,
        )
        for i, (profile, start) in enumerate(instances)
    )
    board = MigBoard(id=BOARD, index=0, model="H100", memory_mib=81_559, profiles=profiles, dynamic=True)
    return Inventory(node="n1", devices=devices, boards=(board,), simulated=True)


ONES = tuple(("1g.10gb", start) for start in range(7))
AFTER = inventory(*ONES[:4], ("3g.40gb", 4))
RECUT = Recut(
    board=BOARD,
    number=1,
    destroy=tuple(f"{BOARD}-1g.10gb-{s}" for s in (4, 5, 6)),
    create=(MigPlace(profile="3g.40gb", start=4),),
)


def world() -> Decision:
    d = Decision(State(), 1_000_000)
    react(d, 1, "s", inbox.NodeRegistered(incarnation=1, inventory=inventory(*ONES), lease_s=10))
    d.emit(ledger.BoardRecut(node="n1", incarnation=1, recut=RECUT, why="a job waits"))
    d.events.clear()
    return d


def report(**changes: Any) -> inbox.BoardCut:
    told: dict[str, Any] = {"node": "n1", "incarnation": 1, "board": BOARD, "number": 1, "ok": True, "inventory": AFTER}
    return inbox.BoardCut(**told | changes)


def up(state: State) -> set[str]:
    return {name for row, name in enumerate(state.fleet.devices.names) if state.fleet.up[row]}


def test_nobody_is_granted_an_instance_that_is_about_to_go_and_the_node_is_told() -> None:
    state = world().state
    assert up(state) == {f"{BOARD}-1g.10gb-{s}" for s in range(4)}
    assert desired(state, "n1", "main", 7).recuts == (RECUT,)


def test_a_snapshot_keeps_the_recut() -> None:
    state = world().state
    again = snapshot.load(snapshot.dump(state)).state
    assert list(snapshot.dump(again)) == list(snapshot.dump(state))
    assert up(again) == up(state)


def test_a_cut_that_is_done_offers_the_new_instances_and_its_repetition_is_nothing() -> None:
    d = world()
    react(d, 2, "s", report())
    react(d, 3, "s", report())
    assert [e.kind for e in d.events] == ["board.cut"]
    assert up(d.state) == {device.id for device in AFTER.devices}
    assert desired(d.state, "n1", "main", 8).recuts == ()


def test_a_cut_that_failed_offers_what_was_there_before() -> None:
    d = world()
    react(d, 2, "s", report(ok=False, reason="in use", inventory=inventory(*ONES)))
    assert len(up(d.state)) == 7
    assert d.state.repartition_number == {BOARD: 1}


def test_reports_of_another_life_or_of_no_recut_are_refused_with_a_reason() -> None:
    d = world()
    react(d, 2, "s", report(incarnation=2))
    react(d, 3, "s", report(number=2))
    assert [e.kind for e in d.events] == ["input.rejected", "input.rejected"]
    assert BOARD in d.state.repartitions


def test_a_node_that_leaves_or_starts_anew_was_asked_for_nothing() -> None:
    lost, anew = world(), world()
    react(lost, 2, "s", inbox.NodeLost(node="n1", incarnation=1, silent_s=30))
    react(anew, 2, "s", inbox.NodeRegistered(incarnation=2, inventory=inventory(*ONES), lease_s=10))
    assert not lost.state.repartitions
    assert not anew.state.repartitions
    assert len(up(anew.state)) == 7


def test_admission_learns_the_new_instances() -> None:
    d, shape = world(), FleetShape()
    react(d, 2, "s", report())
    joined = ledger.NodeJoined(incarnation=1, inventory=inventory(*ONES))
    shape.apply(ledger.LedgerRecord(
        pool="main", prev_seq=0, prev_hash="", inbox_seq=1, t_us=1, writer="w", events=(joined, *d.events)
    ), 1)  # fmt: skip
    assert {block.profile for block in shape.blocks["n1"] if not block.possible} == {"1g.10gb", "3g.40gb"}


# ------------------------------------------------------------------------------------------------- no answer in time


def withdrawn() -> Decision:
    """The node is up and has not answered for as long as the policy allows."""
    d = world()
    d.t_us += POLICY.repartition_answer_us
    (event,) = repartition.overdue(d.state, d.t_us, POLICY)
    d.emit(event)
    d.events.clear()
    return d


def test_a_recut_that_is_not_answered_in_time_is_withdrawn_once() -> None:
    d = world()
    assert repartition.overdue(d.state, d.t_us + POLICY.repartition_answer_us - 1, POLICY) == []
    (event,) = repartition.overdue(d.state, d.t_us + POLICY.repartition_answer_us, POLICY)
    assert (event.kind, event.node, event.board, event.number) == ("board.recut-withdrawn", "n1", BOARD, 1)
    assert event.reason == "node n1 is up and has not answered for 600 s"
    d.emit(event)
    assert repartition.overdue(d.state, d.t_us + 10 * POLICY.repartition_answer_us, POLICY) == []


def test_the_node_is_told_to_drop_it_and_what_it_may_have_destroyed_stays_out_of_placement() -> None:
    state = withdrawn().state
    told = desired(state, "n1", "main", 8)
    assert (told.recuts, told.withdrawn) == ((), (RECUT,))
    assert up(state) == {f"{BOARD}-1g.10gb-{s}" for s in range(4)}
    again = snapshot.load(snapshot.dump(state)).state
    assert list(snapshot.dump(again)) == list(snapshot.dump(state))
    assert up(again) == up(state)
    assert desired(again, "n1", "main", 8) == told


def test_a_node_that_had_not_begun_gives_the_instances_back_with_its_answer() -> None:
    d = withdrawn()
    react(d, 2, "s", report(ok=False, reason="withdrawn before it was begun", inventory=inventory(*ONES)))
    react(d, 3, "s", report(ok=False, reason="withdrawn before it was begun", inventory=inventory(*ONES)))
    assert [e.kind for e in d.events] == ["board.cut"]
    assert len(up(d.state)) == 7
    told = desired(d.state, "n1", "main", 9)
    assert (told.recuts, told.withdrawn) == ((), ())
    assert not d.state.withdrawn


def test_a_node_that_was_in_the_middle_of_it_is_believed_when_it_answers_late() -> None:
    d = withdrawn()
    react(d, 2, "s", report())
    assert [e.kind for e in d.events] == ["board.cut"]
    assert up(d.state) == {device.id for device in AFTER.devices}
    assert not d.state.withdrawn


def test_news_of_another_board_brings_nothing_back() -> None:
    """The node's inventory still has the instances, because it has not looked since."""
    d = withdrawn()
    d.emit(ledger.BoardRecut(node="n1", incarnation=1, recut=RECUT.model_copy(update={"board": "b1", "destroy": ()})))
    react(d, 2, "s", report(board="b1", ok=False, reason="x", inventory=inventory(*ONES)))
    assert d.events[-1].kind == "board.cut"
    assert up(d.state) == {f"{BOARD}-1g.10gb-{s}" for s in range(4)}
    assert d.state.withdrawn == {BOARD}


def test_a_withdrawal_is_forgotten_with_the_nodes_life() -> None:
    lost, anew = withdrawn(), withdrawn()
    react(lost, 2, "s", inbox.NodeLost(node="n1", incarnation=1, silent_s=30))
    react(anew, 2, "s", inbox.NodeRegistered(incarnation=2, inventory=inventory(*ONES), lease_s=10))
    for state in (lost.state, anew.state):
        assert not state.repartitions
        assert not state.withdrawn
    assert len(up(anew.state)) == 7


def test_what_is_not_under_way_cannot_be_withdrawn() -> None:
    d = world()
    gone = ledger.BoardRecutWithdrawn(node="n1", incarnation=1, board=BOARD, number=2)
    with pytest.raises(Forbidden, match="repartition 2 of board b0 is withdrawn and was not under way"):
        d.emit(gone)


@pytest.mark.parametrize("board", GEOMETRIES)
def test_every_board_that_there_is_may_be_repartitioned(board: str) -> None:
    known = MigBoard(id=BOARD, index=0, model="H100", memory_mib=1, profiles=GEOMETRIES[board].profiles, dynamic=True)
    assert BOARD in joined(known).boards


@pytest.mark.parametrize(
    "change",
    [{"starts": (2**40,)}, {"starts": (-1,)}, {"memory_slices": 8, "starts": (1,)}, {"starts": tuple(range(8))}],
)
def test_a_board_whose_layouts_nobody_can_count_stays_as_it_was_found(change: dict[str, Any]) -> None:
    """A node describes its own boards. Placement looked at all layouts of one, and was never done."""
    (board,) = inventory().boards
    more = [board.profiles[0].model_copy(update={"name": f"1g.{n}gb", **change}) for n in range(20, 60)]
    assert joined(board.model_copy(update={"profiles": (*board.profiles, *more)})).boards == {}


def joined(board: MigBoard) -> Fleet:
    fleet = Fleet()
    fleet.join(Inventory(node="n1", devices=(), boards=(board,)), 1)
    return fleet
