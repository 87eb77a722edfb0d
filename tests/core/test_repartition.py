"""MIG boards repartitioned for who waits: when, which, and what never happens."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from libs.core.accelerators.mig_boards import GEOMETRIES
from libs.core.admission.demand import demand_of
from libs.core.admission.feasible import objections
from libs.core.admission.fleet_shape import FleetShape
from libs.core.placement import mig
from libs.core.placement.answer import Placed
from libs.core.placement.find import find
from libs.core.placement.score.mix import Mix, kind_of
from libs.core.placement.score.scorer import Scorer
from libs.core.placement.view import View
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.policy import Policy
from libs.core.state.fleet import Fleet
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas import inbox
from schemas.jobs import RetryPolicy
from schemas.ledger import BoardRecut
from schemas.queues import Queue, QueueOrder
from schemas.resources import Device, DeviceKind, Inventory, MigBoard, Resources, Runtime
from tests.core.builders import World, job

GEOMETRY = GEOMETRIES["H100-80GB-SXM"]
PROFILES = {p.name: p for p in GEOMETRY.profiles}
ONE, THREE, SEVEN = "1g.10gb", "3g.40gb", "7g.80gb"
ONES = tuple((ONE, start) for start in range(7))
SECOND = 1_000_000
POLICY = Policy()


def cut(name: str, boards: dict[str, tuple[mig.Instance, ...]], *, dynamic: bool = True, **fields) -> Inventory:
    """A node whose boards are cut like this."""
    devices = [
        Device(
            id=f"{board}-{profile}-{start}", index=0, kind=DeviceKind.MIG, model="H100",
            memory_mib=PROFILES[profile].memory_mib, mig_profile=profile, mig_start=start, parent=board,
        )
        for board, instances in boards.items()
        for profile, start in sorted(instances, key=lambda x: x[1])
    ]  # fmt: skip
    return Inventory(
        node=name,
        devices=tuple(d.model_copy(update={"index": i}) for i, d in enumerate(devices)),
        boards=tuple(
            MigBoard(id=b, index=i, model="H100", memory_mib=81_559, profiles=GEOMETRY.profiles, dynamic=dynamic)
            for i, b in enumerate(boards)
        ),
        simulated=True,
        **fields,
    )


def ask(name: str, profile: str, devices: int = 1, **fields) -> inbox.JobAdmitted:
    """A job for instances of `profile`."""
    resources = {
        key: fields.pop(key) for key in ("labels", "types", "memory_mib", "cpu_milli", "min_devices") if key in fields
    }
    admitted = job(name, devices, **fields)
    spec = admitted.spec.model_copy(update={"resources": Resources(devices=devices, mig_profile=profile, **resources)})
    return admitted.model_copy(update={"spec": spec})


def tick(world: World, seconds: float = 1) -> list[BoardRecut]:
    return [e for e in world.send(inbox.Tick(), after_us=int(seconds * SECOND)) if e.kind == "board.recut"]


def instances(state: State, node: str) -> dict[str, list[mig.Instance]]:
    """As the node's last inventory has them."""
    known = state.fleet.nodes[node].inventory
    return {b.id: [(d.mig_profile, d.mig_start) for d in known.devices if d.parent == b.id] for b in known.boards}


def after(state: State, recut: BoardRecut) -> Inventory:
    """The inventory of a node that has carried the recut out. Fails when what it asks for is not legal."""
    boards = instances(state, recut.node)
    board = recut.recut.board
    old = {f"{board}-{profile}-{start}": (profile, start) for profile, start in boards[board]}
    assert set(recut.recut.destroy) <= set(old)
    new = [i for name, i in old.items() if name not in recut.recut.destroy]
    new += [(place.profile, place.start) for place in recut.recut.create]
    assert mig.legal(GEOMETRY, new)
    boards[board] = new
    return cut(recut.node, {name: tuple(i) for name, i in boards.items()})


def carry_out(world: World, recut: BoardRecut, *, ok: bool = True) -> list:
    state = world.decider.state
    told = after(state, recut) if ok else state.fleet.nodes[recut.node].inventory
    return world.send(
        inbox.BoardCut(
            node=recut.node, incarnation=recut.incarnation, board=recut.recut.board, number=recut.recut.number, ok=ok,
            reason="" if ok else "the driver refused", inventory=told,
        )
    )  # fmt: skip


def held(world: World, job_id: str) -> list[str]:
    current = world.decider.state.jobs[job_id].current
    return [claim.device for claim in current.claims] if current else []


def in_use(state: State) -> set[str]:
    parts = [part for j in state.jobs.values() if j.current is not None for part in j.current.parts.values()]
    return {claim.device for part in parts if not part.freed for claim in part.claims}


def one_busy() -> tuple[World, str]:
    """A board of seven 1g of which one runs."""
    world = World(cut("n0", {"b0": ONES}))
    runs = world.submit(ask("runs", ONE))
    assert len(held(world, runs)) == 1
    return world, runs


def test_who_waits_long_enough_gets_a_board_cut_around_what_runs() -> None:
    world, runs = one_busy()
    before = held(world, runs)
    waits = world.submit(ask("waits", THREE))
    assert tick(world, 29) == []
    (recut,) = tick(world, 1)
    assert not set(recut.recut.destroy) & set(before)
    assert waits in recut.why
    assert [place.profile for place in recut.recut.create].count(THREE) == 1
    assert tick(world, 400) == [], "one repartition of a board at a time, however long it takes"
    carry_out(world, recut)
    assert held(world, waits) == [d for d in held(world, waits) if THREE in d] != []
    assert held(world, runs) == before
    world.started(runs)
    world.released(runs)
    assert world.state_of(runs) == "ended"
    world.check()


def test_while_ledger_time_is_behind_no_board_is_cut_and_none_that_was_asked_for_is_withdrawn() -> None:
    """Asked for with an old time, its node would seem not to have answered for minutes when it has just heard of it."""
    world, _ = one_busy()
    world.submit(ask("waits", THREE))
    assert world.send(inbox.Tick(), after_us=60 * SECOND, behind=True) == []
    (recut,) = tick(world, 1)
    assert world.send(inbox.Tick(), after_us=3600 * SECOND, behind=True) == []
    carry_out(world, recut)
    world.check()


def test_a_board_that_is_being_cut_is_not_cut_for_another_however_long_it_takes() -> None:
    world = World(cut("n0", {"b0": ONES}))
    first = world.submit(ask("first", THREE))
    (recut,) = tick(world, 60)
    second = world.submit(ask("second", THREE))
    assert tick(world, 400) == []
    carry_out(world, recut)
    (then,) = tick(world, 1)
    carry_out(world, then)
    assert held(world, first)
    assert held(world, second)
    world.check()


@pytest.mark.parametrize(("asked_for", "start"), [("", 2), (THREE, 2), ("2g.20gb", 6)])
def test_an_instance_is_taken_where_it_leaves_the_profiles_possible_that_are_asked_for(asked_for, start) -> None:
    fleet = Fleet()
    fleet.join(cut("n0", {"b0": ONES}), 1)
    if asked_for:
        fleet.scorer = Scorer(Mix.expecting([(kind_of(Shape(devices=1, profile=asked_for)), 1.0)]))
        fleet.scorer.upkeep(View.of(fleet))
    view = View.of(fleet)
    view.take(np.array([fleet.row(f"b0-{ONE}-{busy}") for busy in (0, 1)]), Shape(devices=1, profile=ONE))
    placed = find(view, Shape(devices=1, profile=ONE))
    assert isinstance(placed, Placed)
    assert fleet.boards["b0"].rows[int(placed.rows[0])] == (ONE, start)


def test_a_repartition_that_nobody_answers_is_withdrawn_and_another_board_is_used_instead() -> None:
    world = World(cut("n0", {"b0": ONES}), cut("n1", {"b1": ONES}))
    waits = world.submit(ask("waits", THREE))
    (silent,) = tick(world, 60)
    assert tick(world, 599) == [], "its queue counts on the instance that comes"
    events = world.send(inbox.Tick())
    assert [e.kind for e in events] == []
    (late, instead, _) = world.send(inbox.Tick(), after_us=1 * SECOND)  # and fewer devices are of no use
    assert (late.kind, late.board) == ("board.recut-withdrawn", silent.recut.board)
    assert instead.recut.board != silent.recut.board
    carry_out(world, instead)
    assert held(world, waits)
    others = [world.submit(ask(f"other{i}", THREE)) for i in range(2)]
    (second,) = tick(world, 400)
    assert second.recut.board == instead.recut.board, "a board that nothing is known of is not cut again"
    carry_out(world, silent)
    assert {claim.split("-")[0] for other in others for claim in held(world, other)} == {silent.recut.board}
    world.check()


def test_nothing_that_a_withdrawn_recut_may_have_destroyed_is_granted_before_the_node_says_what_is_there() -> None:
    world = World(cut("n0", {"b0": ONES}))
    world.submit(ask("half", THREE, team="vision"))
    (silent,) = tick(world, 60)
    (late,) = world.send(inbox.Tick(), after_us=600 * SECOND)
    assert late.kind == "board.recut-withdrawn"
    small = [world.submit(ask(f"small{i}", ONE)) for i in range(7)]
    granted = [one for one in small if held(world, one)]
    assert len(granted) == 7 - len(silent.recut.destroy)
    carry_out(world, silent, ok=False)
    assert all(held(world, one) for one in small)
    world.check()


def test_only_a_tick_recuts_and_only_when_it_may() -> None:
    world, _ = one_busy()
    world.submit(ask("waits", THREE))
    world.send(inbox.QuotaChanged(team="other", limit_milli=1), after_us=60 * SECOND)
    assert not world.decider.state.repartitions
    world.decider.policy = replace(POLICY, repartition=False)
    assert tick(world) == []
    world.decider.policy = POLICY
    assert len(tick(world)) == 1


def test_boards_that_are_not_dynamic_or_gone_or_full_stay_as_they_are() -> None:
    found = World(cut("n0", {"b0": ONES}, dynamic=False))
    found.submit(ask("waits", THREE))
    assert tick(found, 60) == []
    gone = World(cut("n0", {"b0": ONES}))
    gone.submit(ask("waits", THREE))
    gone.send(inbox.NodeLost(node="n0", incarnation=1, silent_s=30))
    assert tick(gone, 60) == []
    full = World(cut("n0", {"b0": ONES}))
    full.submit(ask("fills", ONE, 7))
    full.submit(ask("waits", THREE))
    assert tick(full, 60) == []


@pytest.mark.parametrize(
    "asked", [{"types": ("A100",)}, {"labels": {"rack": "r9"}}, {"memory_mib": 60_000}, {"cpu_milli": 1000}]
)
def test_no_board_is_cut_for_what_its_instances_would_not_serve(asked) -> None:
    world = World(cut("n0", {"b0": ONES}))
    world.submit(ask("waits", THREE, **asked))
    assert tick(world, 60) == []


def test_nothing_is_cut_for_who_waits_for_something_else_than_an_instance() -> None:
    world = World(cut("n0", {"b0": ONES, "b1": ((THREE, 0), (THREE, 4))}, cpus=4))
    world.submit(ask("cpus", THREE, cpu_milli=3000))
    world.submit(ask("too many cpus", THREE, cpu_milli=3000))
    world.send(inbox.QuotaChanged(team="poor", limit_milli=0))
    world.submit(ask("poor", SEVEN, team="poor"))
    assert tick(world, 60) == []


def test_a_line_gets_as_many_boards_as_it_lacks_instances_and_no_more() -> None:
    world = World(*(cut(f"n{i}", {f"b{i}": ONES}) for i in range(4)))
    for i in range(5):
        world.submit(ask(f"j{i}", THREE))
    recuts = tick(world, 60)
    assert len(recuts) == 3
    assert sum(place.profile == THREE for r in recuts for place in r.recut.create) in (5, 6)
    for recut in recuts:
        carry_out(world, recut)
    assert not world.decider.state.queues
    world.check()


def test_the_rest_of_a_cut_board_serves_the_rest_of_the_demand() -> None:
    world = World(cut("n0", {"b0": ((SEVEN, 0),)}))
    world.submit(ask("three", THREE))
    for i in range(2):
        world.submit(ask(f"two{i}", "2g.20gb"))
    (recut,) = tick(world, 60)
    carry_out(world, recut)
    assert not world.decider.state.queues
    world.check()


def test_a_higher_priority_keeps_the_idle_instances_that_it_waits_for() -> None:
    world = World(cut("n0", {"b0": ONES}), cut("n1", {"b1": ((SEVEN, 0),)}))
    big = world.submit(ask("big", SEVEN))
    assert held(world, big)
    world.submit(ask("gang", ONE, 8, priority=10))
    world.submit(ask("three", THREE))
    assert tick(world, 60) == []
    world.submit(ask("urgent", THREE, priority=20))
    (recut,) = tick(world, 60)
    assert recut.recut.board == "b0"
    world.check()


def test_a_board_rests_after_a_recut_also_after_one_that_failed() -> None:
    world, _ = one_busy()
    world.submit(ask("waits", THREE))
    (recut,) = tick(world, 30)
    carry_out(world, recut, ok=False)
    assert tick(world, 299) == []
    (again,) = tick(world, 1)
    assert again.recut.number == 2
    carry_out(world, again)
    world.check()


def test_a_cut_that_lacks_a_held_instance_is_rejected_and_nothing_changes() -> None:
    world, runs = one_busy()
    world.submit(ask("waits", THREE))
    (recut,) = tick(world, 30)
    lacks = inbox.BoardCut(
        node="n0", incarnation=1, board="b0", number=1, ok=True, inventory=cut("n0", {"b0": ((THREE, 0), (THREE, 4))})
    )  # fmt: skip
    (event,) = world.send(lacks)
    assert event.kind == "input.rejected"
    assert held(world, runs)[0] in event.reason
    assert "b0" in world.decider.state.repartitions
    carry_out(world, recut)
    world.check()


@pytest.mark.parametrize(
    "lie",
    [
        {"model": "B200"}, {"model": "unheard-of"}, {"mig_profile": SEVEN}, {"parent": "b1"}, {"parent": ""},
        {"mig_start": 5}, {"kind": DeviceKind.CPU}, {"runtime": Runtime.ROCM}, {"memory_mib": 1}, {"memory_mib": 80_000},
        {"memory_free_mib": 1},
    ],
)  # fmt: skip
def test_a_held_instance_is_what_it_was_whatever_is_said_of_it_when_its_board_is_cut(lie) -> None:
    """What was billed and what the devices had been did not add up any more, for all who verify the ledger; and what was free
    of it went below zero, which no ledger may."""
    world, runs = one_busy()
    world.submit(ask("waits", THREE))
    (recut,) = tick(world, 30)
    (name,) = held(world, runs)
    told = after(world.decider.state, recut)
    devices = tuple(d.model_copy(update=lie) if d.id == name else d for d in told.devices)
    world.send(
        inbox.BoardCut(
            node="n0", incarnation=1, board="b0", number=1, ok=True, inventory=told.model_copy(update={"devices": devices})
        )
    )  # fmt: skip
    fleet = world.decider.state.fleet
    assert fleet.nodes["n0"].inventory == told
    assert fleet.free_mib[: len(fleet)].min() == 0
    world.started(runs)
    world.send(after_us=60 * SECOND)
    world.released(runs)
    assert fleet.free_mib[fleet.row(name)] == PROFILES[ONE].memory_mib
    world.check()


def test_a_cuts_report_is_judged_with_what_is_held_as_it_was() -> None:
    """The held instance was said to be of no board, and a device had the board's id: both were told to exist under one id."""
    world, runs = one_busy()
    world.submit(ask("waits", THREE))
    (recut,) = tick(world, 30)
    (name,) = held(world, runs)
    told = after(world.decider.state, recut)
    (kept,) = (device for device in told.devices if device.id == name)
    said = kept.model_copy(update={"mig_profile": "", "parent": ""})
    lie = told.model_copy(update={"boards": (), "devices": (said, said.model_copy(update={"id": "b0", "index": 1}))})
    (event,) = world.send(inbox.BoardCut(node="n0", incarnation=1, board="b0", number=1, ok=True, inventory=lie))
    assert event.kind == "input.rejected"
    assert "names board b0 twice" in event.reason
    world.send(inbox.Tick(), after_us=SECOND)
    world.check()


def test_what_is_held_for_a_job_is_given_up_when_the_node_has_it_no_more() -> None:
    """A cut that failed half-way: the job waited for ever for an instance that was gone, and kept another idle."""
    world = World(cut("n0", {"b0": ONES, "b1": ONES}))
    low = [world.submit(ask(f"low{n}", ONE, priority=100)) for n in range(13)]
    for one in low:
        world.started(one)
    for one in low[10:]:
        world.released(one)
    world.submit(ask("wide", THREE, priority=100))
    (recut,) = tick(world, 31)
    first = world.submit(ask("first", ONE, 2, priority=300, preempts=True))
    (plan,) = preemption.plans(world.decider.state, world.now_us, len(world.records))
    world.send(plan)
    of = {device: victim for victim in plan.victims for device in held(world, victim)}
    gone = next(device for device in plan.devices if device.startswith(recut.recut.board))
    world.released(of[gone], exit_code=143, own_exit=False)
    known = world.decider.state.fleet.nodes["n0"].inventory
    left = tuple(device for device in known.devices if device.id not in (gone, *recut.recut.destroy))
    told = inbox.BoardCut(
        node="n0", incarnation=1, board=recut.recut.board, number=recut.recut.number, ok=False, reason="the driver failed",
        inventory=known.model_copy(update={"devices": left}),
    )  # fmt: skip
    assert [event.kind for event in world.send(told)] == ["board.cut", "hold.released"]
    assert world.decider.state.holds == {}
    (again,) = preemption.plans(world.decider.state, world.now_us, len(world.records))
    assert (again.beneficiary, gone in again.devices) == (first, False)
    world.check()


def test_an_empty_board_is_cut_for_the_first_who_comes() -> None:
    world = World(cut("n0", {"b0": ()}))
    waits = world.submit(ask("waits", THREE))
    (recut,) = tick(world, 30)
    assert recut.recut.destroy == ()
    carry_out(world, recut)
    assert held(world, waits)


@pytest.mark.parametrize("seed", range(12))
def test_a_long_random_life_never_flaps_and_breaks_no_invariant(seed: int) -> None:
    """Two profiles compete for boards for hours; nodes report late, fail, and start anew."""
    rng = Random(seed)
    nodes = {f"n{i}": {f"b{i}-{k}": ONES for k in range(2)} for i in range(2)}
    world = World(*(cut(name, boards) for name, boards in nodes.items()))
    state = world.decider.state
    last: dict[str, int] = {}
    pending: list[BoardRecut] = []
    granted: set[str] = set()
    for step in range(400):
        if rng.random() < 0.35:
            profile = rng.choice([ONE, ONE, THREE, THREE, "2g.20gb", SEVEN])
            devices = rng.choice([1, 1, 1, 2, 4]) if profile == ONE else rng.choice([1, 1, 2])
            world.submit(ask(f"{seed}-{step}", profile, devices, priority=rng.choice([0, 0, 10])))
        running = sorted(j.id for j in state.jobs.values() if j.current is not None)
        granted |= set(running)
        for job_id in running:
            if rng.random() < 0.06:
                world.started(job_id)
                world.released(job_id)
        claims = in_use(state)
        for recut in tick(world, rng.choice([1, 5, 20, 60])):
            board = recut.recut.board
            assert world.now_us - last.get(board, -POLICY.repartition_rest_us) >= POLICY.repartition_rest_us
            assert all(asked.recut.board != board for asked in pending)
            assert not set(recut.recut.destroy) & claims
            last[board] = world.now_us
            pending.append(recut)
        for recut in list(pending):
            if rng.random() < 0.3:
                pending.remove(recut)
                carry_out(world, recut, ok=rng.random() < 0.9)
        if rng.random() < 0.01:
            name = rng.choice(sorted(nodes))
            world.send(
                inbox.NodeRegistered(
                    incarnation=state.fleet.nodes[name].incarnation + 1,
                    inventory=state.fleet.nodes[name].inventory,
                    lease_s=10,
                )
            )
            pending = [recut for recut in pending if recut.node != name]
        assert set(state.repartitions) == {recut.recut.board for recut in pending}
        assert world.checker.finish().violations == []
    assert last, "boards were cut"
    assert len(granted) > 20
    world.check()


def verdict(admitted: inbox.JobAdmitted, *inventories: Inventory) -> list[str]:
    fleet = FleetShape.of(inventories, {})
    again = FleetShape.load(fleet.dump())
    told = [o.reason.field for o in objections(admitted.spec, demand_of(admitted.spec), fleet)]
    assert [o.reason.field for o in objections(admitted.spec, demand_of(admitted.spec), again)] == told
    return told


def test_admission_takes_what_a_board_could_be_cut_into() -> None:
    """Without any such instance now; as many as fit on all boards, with the memory of that profile, and no more."""
    board = cut("n0", {"b0": ONES})
    found = cut("n0", {"b0": ONES}, dynamic=False)
    both = (board, cut("n1", {"b1": ((SEVEN, 0),)}))
    assert verdict(ask("j", THREE), board) == []
    assert verdict(ask("j", THREE), found) == ["job.resources.mig_profile"]
    assert verdict(ask("j", THREE, memory_mib=40_000), board) == []
    assert verdict(ask("j", THREE, memory_mib=50_000), board) == ["job.resources.memory_mib"]
    assert verdict(ask("j", THREE, 2), board) == []
    assert verdict(ask("j", THREE, 3), board) == ["job.resources.devices"]
    assert verdict(ask("j", THREE, 4), *both) == []
    assert verdict(ask("j", ONE, 14), *both) == []
    assert verdict(ask("j", ONE, 15), *both) == ["job.resources.devices"]
    assert verdict(ask("j", "5g.99gb"), board) == ["job.resources.mig_profile"]
    assert verdict(ask("j", SEVEN, labels={"rack": "r9"}), *both) == ["job.resources.labels.rack"]
    assert verdict(ask("j", THREE), cut("n0", {"b0": ()})) == []


def test_a_decider_that_was_loaded_plans_the_same() -> None:
    world, _ = one_busy()
    world.submit(ask("waits", THREE))
    again = Decider.load(world.decider.dump())
    assert tick(world, 60)
    assert again.decide([_Tick(99)], world.now_us)[-1].model_dump() == world.records[-1].events[-1].model_dump()


class _Tick:
    subject, message, error, time_us = "t", inbox.Tick(), "", 0

    def __init__(self, seq: int) -> None:
        self.seq = seq


@pytest.mark.parametrize("order", ["fifo", "least-attained"])
def test_boards_are_cut_for_the_job_that_is_the_next_of_its_queue(order: QueueOrder) -> None:
    """Seen: of a queue that is ordered by what its jobs have had the oldest was looked at, which has no place in the
    order while another is the next. No board of the pool was cut at all."""
    world = World(cut("n0", {"b0": ((THREE, 0),), "b1": ONES}))
    world.send(inbox.ApplyQueues(version=1, queues=(Queue(name="research", order=order),), user="olga"))
    ran = world.submit(ask("ran", THREE, retry=RetryPolicy(on_failure=1)))
    world.started(ran)
    for _ in range(120):
        world.send(inbox.Tick(), after_us=60 * SECOND)
    world.submit(ask("higher", THREE, priority=10))
    world.released(ran, exit_code=1)
    new = world.submit(ask("new", THREE, submitted_us=world.now_us))
    found = tick(world, 30)
    assert [one.for_job for one in found] == [ran if order == "fifo" else new]
    assert world.decider.faults == []
    world.check()
