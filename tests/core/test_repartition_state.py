"""MIG boards cut anew: what the ledger's events mean, and which reports count."""

from typing import Any

from libs.core.accelerators.mig_boards import GEOMETRIES
from libs.core.admission.fleet_shape import FleetShape
from libs.core.scheduling.reactions import Decision, react
from libs.core.state import snapshot
from libs.core.state.desired import desired
from libs.core.state.model import State
from schemas import inbox, ledger
from schemas.resources import Device, DeviceKind, Inventory, MigBoard, MigPlace, Recut

BOARD = "b0"


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
    again = snapshot.load(snapshot.dump(state))
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
