"""A dry run says what the cycle would do, without doing it."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from libs.adapters.devices.fleet import parse_fleet
from libs.core.admission.fleet_shape import FleetShape
from libs.core.billing.pricing import Prices
from libs.core.explain.diagnosis import text_of
from libs.core.explain.dry_run import DryRunInputs, dry_run
from libs.core.explain.reasons import Reasons
from libs.core.explain.right_sizing import OfferedKind, kinds_of, suggest
from libs.core.explain.waiting import explain
from libs.core.placement.answer import Blocked, BlockReason, dominant
from libs.core.placement.throughput import Chooser, Measured, Throughputs
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider
from libs.core.state import fold
from libs.core.state.job import Job
from libs.core.state.model import State
from libs.core.state.shape import Shape
from libs.embedded.servers import NatsOptions
from schemas.billing import Price, PriceBook
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget
from schemas.explanations import PlanReply, PlanVerdict
from schemas.ids import job_id
from schemas.inbox import ApplyBudgets, ApplyPrices, NodeLost, QuotaChanged, Tick
from schemas.jobs import CheckpointPolicy, JobSpec, Simulation
from schemas.ledger import JobQueued, NodeJoined
from schemas.model_shape import ModelShape, Workload
from schemas.prices import ContractRate, ListRate, RateBook, RateTier
from schemas.resources import Inventory, Level, Objective, Precision, Resources, Role, Runtime, Topology, TopologyPolicy
from tests.core.builders import GIB, World, job, node

BOOK = PriceBook(
    currency="USD",
    prices=(
        Price(model="H100", micros_per_device_hour=3_000_000),
        Price(model="A10", micros_per_device_hour=600_000),
        Price(model="A100", micros_per_device_hour=2_000_000),
        Price(model="MI300X", micros_per_device_hour=2_000_000),
    ),
)
RATES = Throughputs(
    [
        Measured("bert", "H100", 1, 10.0),
        Measured("bert", "H100", 2, 19.0),
        Measured("bert", "H100", 4, 24.0),
        Measured("bert", "H100", 8, 25.0),
        Measured("bert", "A10", 1, 4.0),
    ]
)


def inputs(table: Throughputs = RATES) -> DryRunInputs:
    prices = Prices(BOOK)
    plain = DryRunInputs(prices, table)
    return replace(plain, policy=replace(plain.policy, chooser=Chooser(table, lambda model: prices.of(model, "*"))))


def spec(devices: int = 1, *, klass: str = "experiment", time_limit_s: float = 0, **resources: Any) -> JobSpec:
    return JobSpec(
        command=("true",),
        priority_class=klass,
        time_limit_s=time_limit_s,
        resources=Resources(devices=devices, **resources),
    )


def planned(
    world: World, asked: JobSpec, steps: float | None = None, team: str = "research", seen_by: str = "operator"
) -> PlanReply:
    before = list(world.decider.dump())
    reply = dry_run(world.decider.state, asked, team, world.now_us, inputs(), steps=steps, seen_by=seen_by)
    assert list(world.decider.dump()) == before, "a plan changed the state"
    return reply


def within(level: Level) -> Topology:
    return Topology(level=level, policy=TopologyPolicy.REQUIRED)


def running(world: World, name: str, devices: int = 8, **options: Any) -> str:
    id_ = world.submit(job(name, devices, priority=100, **options))
    world.started(id_)
    return id_


def test_what_fits_is_planned_where_the_cycle_then_puts_it() -> None:
    world = World(node("n0"), node("n1", leaf="leaf-1"))
    running(world, "half", 4)
    reply = planned(world, spec(4))
    assert (reply.verdict, reply.start_s, reply.level) == (PlanVerdict.NOW, 0.0, "node")
    id_ = world.submit(job("same", 4, priority=100))
    claims = world.decider.state.jobs[id_].current.claims  # type: ignore[union-attr]
    assert reply.nodes[0].devices == tuple(claim.device for claim in claims)
    assert reply.nodes[0].model == "H100"


def test_a_plan_costs_what_the_price_book_says() -> None:
    world = World(node("n0"))
    cost = planned(world, spec(4, time_limit_s=1800)).cost
    assert cost is not None
    assert (cost.currency, cost.micros_per_hour, cost.run_s) == ("USD", 12_000_000, 1800)
    assert cost.total_micros == 6_000_000
    assert planned(world, spec(4)).cost.total_micros is None  # type: ignore[union-attr]


def test_a_plan_costs_what_the_bill_will_say_once_prices_were_applied() -> None:
    """Seen: a plan went by its file for ever, whatever book the ledger billed by."""
    world = World(node("n0"))
    contract = ContractRate(
        team="research", contract="first", device="H100", from_us=0, tiers=(RateTier(above_hours=0, micros=1_000_000),)
    )
    listed = ListRate(device="H100", micros=2_490_000, from_us=0)
    book = RateBook(version=1, currency="EUR", prices=(listed,), contracts=(contract,))
    world.send(ApplyPrices(book=book, user="olga"))
    asked = spec(4, time_limit_s=1800)
    cost, others = planned(world, asked).cost, planned(world, asked, team="vision").cost
    assert cost is not None
    assert others is not None
    assert (cost.currency, cost.micros_per_hour, cost.total_micros) == ("EUR", 4_000_000, 2_000_000)
    assert others.micros_per_hour == 9_960_000
    assert planned(world, spec(1, types=("A10",))).cost is None, "the book has no price for it"


def test_steps_and_a_measured_rate_say_how_long_it_takes() -> None:
    cost = planned(World(node("n0")), spec(2, family="bert"), steps=1900).cost
    assert cost is not None
    assert cost.run_s == pytest.approx(100)
    assert cost.total_micros == round(6_000_000 * 100 / 3600)
    assert cost.micros_per_step == pytest.approx(6_000_000 / 3600 / 19)


def test_the_start_is_guessed_between_age_and_limit() -> None:
    world = World(node("n0"))
    running(world, "long", time_limit_s=10_000)
    world.send(Tick(), after_us=100_000_000)
    reply = planned(world, spec(8))
    assert reply.verdict is PlanVerdict.LATER
    assert reply.latest_s == pytest.approx(9900, abs=1)
    assert reply.start_s == pytest.approx((100 * 10_000) ** 0.5 - 100, abs=1)
    assert [n.node for n in reply.nodes] == ["n0"]
    assert "1 running job of 1 end" in reply.start_basis


def test_the_soonest_end_that_suffices_counts() -> None:
    world = World(node("n0"), node("n1"))
    running(world, "first", time_limit_s=1000)
    running(world, "second", time_limit_s=5000)
    one, both = planned(world, spec(8)), planned(world, spec(16))
    assert one.latest_s == pytest.approx(1000, abs=1)
    assert both.latest_s == pytest.approx(5000, abs=1)


def test_a_timer_ends_when_it_says() -> None:
    world = World(node("n0"))
    admitted = job("timer", 8, priority=100)
    timed = admitted.spec.model_copy(update={"simulation": Simulation(duration_s=300)})
    id_ = world.submit(admitted.model_copy(update={"spec": timed}))
    world.started(id_)
    reply = planned(world, spec(8))
    assert reply.start_s == reply.latest_s == pytest.approx(300, abs=1)


def test_without_limits_the_start_is_unknown_and_says_why() -> None:
    world = World(node("n0"))
    running(world, "endless")
    reply = planned(world, spec(8))
    assert (reply.verdict, reply.start_s) == (PlanVerdict.UNKNOWN, None)
    assert "1 running job without a time limit" in reply.start_basis


def test_jobs_that_wait_ahead_go_first() -> None:
    world = World(node("n0"), node("n1"))
    running(world, "first", time_limit_s=1000)
    running(world, "second", time_limit_s=5000)
    world.submit(job("ahead", 8, priority=200))
    reply = planned(world, spec(8))
    assert reply.ahead == 1
    assert reply.latest_s == pytest.approx(5000, abs=1)


def test_a_long_queue_ahead_makes_the_start_unknown() -> None:
    world = World(node("n0"))
    running(world, "first", time_limit_s=1000)
    for i in range(20):
        world.submit(job(f"ahead{i}", 8, priority=200))
    reply = planned(world, spec(8))
    assert reply.verdict is PlanVerdict.UNKNOWN
    assert "20 jobs wait ahead" in reply.start_basis


def test_devices_reserved_for_an_old_gang_are_not_promised() -> None:
    world = World(node("n0"))
    running(world, "half", 4, time_limit_s=1000)
    world.submit(job("gang", 8, priority=100))
    assert planned(world, spec(4)).verdict is PlanVerdict.NOW
    world.send(Tick(), after_us=61_000_000)
    later = planned(world, spec(4))
    assert later.verdict is not PlanVerdict.NOW
    assert [(r.constraint, r.devices) for r in later.removed] == [("busy", 4), ("reserved", 4)]


def test_what_can_never_fit_on_what_is_up_is_told() -> None:
    world = World(node("n0"), node("n1"))
    world.send(NodeLost(node="n1", incarnation=1, silent_s=11))
    reply = planned(world, spec(16))
    assert reply.verdict is PlanVerdict.NEVER
    assert reply.suggestion == "set resources.devices to 8"


def test_victims_are_those_that_preemption_takes() -> None:
    world = World(node("n0"), node("n1"))
    cheap, dear = running(world, "cheap"), running(world, "dear", team="other")
    world.send(Tick(), after_us=1_000_000_000)
    world.checkpointed(cheap, 7)
    asked = spec(8, klass="serving")
    reply = planned(world, asked)
    assert (reply.verdict, [v.job_id for v in reply.victims]) == (PlanVerdict.AFTER_PREEMPTION, [cheap])
    assert reply.start_s == CheckpointPolicy().grace_s
    assert reply.latest_s == CheckpointPolicy().grace_s + JobSpec.model_fields["stop_grace_s"].default, (
        "if it does not answer"
    )
    world.submit(job("real", 8, priority=300, preempts=True))
    (plan,) = preemption.plans(world.decider.state, world.now_us, 1)
    assert plan.victims == (cheap,)
    assert plan.cost_device_s == pytest.approx(reply.victims[0].lost_device_s, abs=0.1)
    assert dear not in plan.victims


def test_another_teams_victims_are_told_to_the_operator_alone() -> None:
    world = World(node("n0"), node("n1"))
    theirs, own = running(world, "theirs", team="blue"), running(world, "own")
    asked = spec(16, klass="serving")
    told, all_of_it = planned(world, asked, seen_by="research"), planned(world, asked)
    assert [v.job_id for v in told.victims] == [own]
    assert {v.job_id for v in all_of_it.victims} == {own, theirs}
    assert "2 jobs of lower classes" in all_of_it.start_basis
    assert told.start_basis == all_of_it.start_basis.replace("2 jobs", "jobs")
    assert told.start_s == all_of_it.start_s


def test_a_team_is_told_no_number_of_others_jobs() -> None:
    """How many run, wait ahead or never end: the answers are the same for one job of theirs and for many."""

    def told(*sizes: int, endless: bool = False) -> list[PlanReply]:
        world = World(node("n0"), node("n1", model="L40S"))
        for size in sizes:
            running(world, f"theirs-{size}-{endless}", size, team="blue", time_limit_s=0 if endless else 1000)
        for waiting in sizes:
            world.submit(job(f"w{waiting}", 9, team="blue", priority=200, types=("L40S",)))
        return [planned(world, spec(8, types=("H100",)), seen_by="research")]

    def few_and_many(first: list[PlanReply], second: list[PlanReply]) -> None:
        times = {"start_s": 0, "latest_s": 0, "nodes": ()}
        assert [r.model_copy(update=times) for r in first] == [r.model_copy(update=times) for r in second]

    few_and_many(told(8), told(1, 2, 5))
    few_and_many(told(8, endless=True), told(1, 7, endless=True))


def test_a_refusal_is_admissions_with_field_value_and_fix() -> None:
    reply = planned(World(node("n0")), spec(1, types=("H1000",)))
    assert reply.verdict is PlanVerdict.REFUSED
    assert reply.reasons[0].field == "job.resources.types.0"
    assert reply.reasons[0].value == "H1000"
    assert "did you mean H100?" in reply.reasons[0].fix


def test_memory_that_no_device_has_is_refused_with_the_arithmetic() -> None:
    large = spec(1).model_copy(update={"model": ModelShape(parameters_b=70)})
    reply = planned(World(node("n0")), large)
    assert reply.verdict is PlanVerdict.REFUSED
    assert "70e9 x 12 bytes (adamw)" in reply.reasons[0].problem
    assert "70e9 x 12 bytes (adamw)" in reply.memory_text


@pytest.mark.parametrize(
    ("asked", "suggestion"),
    [
        (spec(7), "set resources.devices to 6"),
        (spec(5, topology=within(Level.NODE)), "set resources.topology.level to leaf"),
        (spec(1, types=("A10",)), "add H100 to resources.types"),
        (spec(1, memory_mib=100 * GIB), "set resources.memory_mib to 81920"),
    ],
    ids=["fewer", "wider", "type", "memory"],
)
def test_the_smallest_change_is_one_that_works(asked: JobSpec, suggestion: str) -> None:
    """Three free devices on each of two H100 nodes of a leaf; the A10 and the large card are taken."""
    large = node("large", 1, memory_gib=141)
    world = World(node("n0"), node("n1"), node("n2", 1, model="A10", memory_gib=24), large)
    running(world, "large", 1, memory_gib=141)
    running(world, "a10", 1, types=("A10",))
    for name in ("a", "b"):
        running(world, name, 5, required=Level.NODE)
    reply = planned(world, asked)
    assert reply.verdict is not PlanVerdict.NOW
    assert reply.suggestion == suggestion
    assert all(change != suggestion for change in reply.alternatives)


def test_explain_and_plan_say_the_same() -> None:
    world = World(node("n0"), node("n1"))
    running(world, "a", 4, required=Level.NODE)
    running(world, "b", 8, required=Level.NODE)
    asked = spec(8)
    reply = planned(world, asked)
    id_ = world.submit(job("asked", 8, priority=100))
    told = explain(world.decider.state, world.decider.state.jobs[id_], Reasons(world.decider.state))
    assert (told.reason, told.text, told.removed, told.suggestion) == (
        reply.reason,
        reply.text,
        reply.removed,
        reply.suggestion,
    )
    assert told.suggestion == "set resources.devices to 4"


def test_fewer_devices_keep_the_models_split_and_its_memory() -> None:
    world = World(node("n0"))
    running(world, "five", 5)
    model = ModelShape(parameters_b=7, tensor_parallel=2, workload=Workload.INFERENCE)
    reply = planned(world, spec(4).model_copy(update={"model": model}))
    assert reply.suggestion == "set resources.devices to 2"


def test_a_quota_is_a_reason_and_its_end_a_time() -> None:
    world = World(node("n0"), node("n1"))
    world.send(QuotaChanged(team="research", limit_milli=8000))
    running(world, "mine", 6, time_limit_s=600)
    reply = planned(world, spec(4))
    assert reply.reason == "quota"
    assert reply.suggestion == "set resources.devices to 2"
    assert reply.latest_s == pytest.approx(600, abs=1)


def test_what_waits_for_a_budget_is_not_said_to_wait_for_jobs_without_a_limit() -> None:
    world = World(node("n0"))
    spent = SpendingBudget(team="research", unit=BudgetUnit.GPU_HOURS, period=BudgetPeriod.MONTH, hard=1)
    world.send(ApplyBudgets(budgets=BudgetSet(version=1, budgets=(spent,)), user="olga"))
    reply = planned(world, spec(4, time_limit_s=3600))
    assert (reply.reason, reply.start_s) == ("budget", None)
    assert reply.start_basis == "unknown: no job that ends makes room for it"


def test_without_a_node_it_would_wait_for_the_first() -> None:
    reply = dry_run(State(), spec(1), "research", 1, inputs())
    assert reply.verdict is PlanVerdict.UNKNOWN
    assert "no node is up" in reply.text


def test_jobs_ahead_take_their_victims_first() -> None:
    world = World(node("n0", 2), node("n1", 2))
    running(world, "a", 2)
    running(world, "b", 2)
    world.submit(job("first", 2, priority=300, preempts=True))
    assert planned(world, spec(2, klass="serving")).verdict is PlanVerdict.AFTER_PREEMPTION
    world.submit(job("second", 2, priority=300, preempts=True))
    reply = planned(world, spec(2, klass="serving"))
    assert (reply.verdict, reply.victims) == (PlanVerdict.UNKNOWN, ())


# ------------------------------------------------------------------------------------------------------------- reasons


def test_waiting_for_busy_devices_is_not_blamed_on_what_it_asks_for() -> None:
    world = World(node("h", 4), node("a", 8, model="A10", memory_gib=24))
    running(world, "all", 4, types=("H100",))
    reply = planned(world, spec(1, types=("H100",)))
    assert (reply.reason, reply.text) == ("busy", "0 fitting devices are free and it needs 1 at once")
    assert [(r.constraint, r.devices) for r in reply.removed] == [("type", 8), ("busy", 4)]


@pytest.mark.parametrize(
    ("removed", "left", "need", "reason"),
    [
        (((BlockReason.TYPE, 8), (BlockReason.BUSY, 4)), 0, 1, BlockReason.BUSY),
        (((BlockReason.TYPE, 8), (BlockReason.BUSY, 4)), 0, 5, BlockReason.TYPE),
        (((BlockReason.BUSY, 2), (BlockReason.CPU, 2)), 0, 1, BlockReason.CPU),
        (((BlockReason.BUSY, 2), (BlockReason.CPU, 1)), 1, 2, BlockReason.BUSY),
        (((BlockReason.TYPE, 4), (BlockReason.LABELS, 8)), 0, 1, BlockReason.LABELS),
        (((BlockReason.BUSY, 2),), 0, 4, BlockReason.BUSY),
        ((), 4, 8, BlockReason.NO_DEVICES),
    ],
)
def test_the_dominant_reason(
    removed: tuple[tuple[BlockReason, int], ...], left: int, need: int, reason: BlockReason
) -> None:
    assert dominant(removed, left, need) is reason


def test_no_device_is_only_said_when_none_is_left() -> None:
    state = World(node("n0", 4), node("n1", 8, model="A10")).decider.state
    asked = asking(Shape(8, types=("H100",)))
    some = Blocked(BlockReason.TYPE, ((BlockReason.TYPE, 8),), 4)
    assert text_of(state, asked, some) == (
        "8 of 12 devices are of no type that it asks for (H100); 4 are left and it needs 8 at once"
    )
    assert text_of(state, asked, Blocked(BlockReason.TYPE, ((BlockReason.TYPE, 12),), 0)).startswith(
        "no device of an acceptable"
    )


def asking(shape: Shape) -> Job:
    return Job(
        id="x",
        team="t",
        spec=spec(),
        spec_hash="",
        priority=0,
        preempts=False,
        submitted_us=1,
        queued_us=1,
        shape=shape,
    )


def test_explain_keeps_what_is_reserved() -> None:
    world = World(node("n0", 4))
    running(world, "half", 2)
    world.submit(job("gang", 4, priority=100))
    world.send(Tick(), after_us=70_000_000)
    id_ = world.submit(job("small", 2, priority=100, types=("H100",)))
    told = explain(world.decider.state, world.decider.state.jobs[id_], Reasons(world.decider.state))
    assert (told.reason, told.suggestion) == ("reserved", "")
    reply = planned(world, spec(2, types=("H100",)))
    assert (reply.reason, reply.removed, reply.suggestion) == (told.reason, told.removed, told.suggestion)


def test_the_gang_that_reserves_is_not_kept_from_its_own() -> None:
    world = World(node("n0", 4))
    running(world, "half", 2)
    id_ = world.submit(job("gang", 4, priority=100))
    world.send(Tick(), after_us=70_000_000)
    told = explain(world.decider.state, world.decider.state.jobs[id_], Reasons(world.decider.state))
    assert (told.reason, told.suggestion) == ("busy", "set resources.devices to 2")


@pytest.mark.parametrize(
    ("asked", "suggestion"),
    [
        (spec(1, cpu_milli=16_000), "set resources.cpu_milli to 12000"),
        (spec(2, cpu_milli=7_000), "set resources.cpu_milli to 6000"),
        (spec(1, host_memory_mib=90_000), "set resources.host_memory_mib to 70000"),
        (spec(2, host_memory_mib=40_000), "set resources.host_memory_mib to 35000"),
    ],
)
def test_less_of_its_node_is_the_most_that_is_free(asked: JobSpec, suggestion: str) -> None:
    world = World(node("n0", 4).model_copy(update={"cpus": 32, "memory_mib": 100_000}))
    admitted = job("busy", 2, priority=100)
    resources = admitted.spec.resources.model_copy(update={"cpu_milli": 10_000, "host_memory_mib": 15_000})
    world.submit(admitted.model_copy(update={"spec": admitted.spec.model_copy(update={"resources": resources})}))
    assert planned(world, asked).suggestion == suggestion


def test_a_smaller_share_is_the_largest_that_is_free() -> None:
    world = World(node("n0", 2))
    running(world, "a", 1, share_milli=600)
    running(world, "b", 1, share_milli=700)
    assert planned(world, spec(1, share_milli=500)).suggestion == "set resources.share_milli to 400"


@pytest.mark.parametrize("min_count", [None, 4])
def test_fewer_groups_of_a_role(min_count: int | None) -> None:
    world = World(*(node(f"n{i}", 4) for i in range(4)))
    running(world, "one", 4, required=Level.NODE)
    role = Role(name="tp", count=5 if min_count else 4, min_count=min_count, devices=4, topology=within(Level.NODE))
    field = "min_count" if min_count else "count"
    asked = JobSpec(command=("true",), resources=Resources(roles=(role,)))
    assert planned(world, asked).suggestion == f"set resources.roles.0.{field} to 3"
    world.send(QuotaChanged(team="research", limit_milli=16_000))
    reply = planned(world, asked)
    assert (reply.reason, reply.suggestion) == ("quota", f"set resources.roles.0.{field} to 3")


# -------------------------------------------------------------------------------------------------------- right-sizing


def test_poor_scaling_is_told_with_what_it_wastes() -> None:
    (smaller,) = planned(World(node("n0")), spec(8, family="bert")).right_size
    assert smaller.change == "set resources.devices to 2"
    assert smaller.saves_micros_per_hour == 6 * 3_000_000
    assert smaller.saves_micros_per_step == pytest.approx(3_000_000 / 3600 * (8 / 25 - 2 / 19))
    assert planned(World(node("n0")), spec(2, family="bert")).right_size == ()


def test_a_cheaper_card_that_ends_in_time_is_told() -> None:
    world = World(node("n0"), node("n1", model="A10", memory_gib=24))
    asked = spec(1, family="bert", types=("H100",), time_limit_s=300)
    (smaller,) = planned(world, asked, steps=1000).right_size  # 100 s on H100, 250 s on A10
    assert smaller.change == "set resources.types to [A10]"
    assert smaller.saves_micros_per_hour == 2_400_000
    assert smaller.saves_micros_per_step == pytest.approx((3_000_000 / 10 - 600_000 / 4) / 3600)
    assert planned(world, asked, steps=1300).right_size == ()  # 325 s: too late


def test_what_fits_a_slice_or_a_smaller_card_is_told() -> None:
    world = World(node("n0"), node("n1", model="A10", memory_gib=24))
    serve = ModelShape(parameters_b=7, workload=Workload.INFERENCE)
    asked = spec(1, types=("H100",)).model_copy(update={"model": serve})
    (smaller,) = planned(world, asked).right_size
    assert smaller.change == "set resources.types to [A10]"
    assert smaller.saves_micros_per_hour == 2_400_000
    assert "not measured" in smaller.why
    kinds = (OfferedKind("H100", "", 81_920), OfferedKind("H100", "2g.20gb", 20_000), OfferedKind("A10", "", 10_000))
    (slice_,) = suggest(
        asked, RATES, {"H100": 9, "H100:2g.20gb": 3, "A10": 1}.__getitem__, kinds, "H100", memory_mib=15_000
    )
    assert slice_.change == "set resources.types to [H100] and resources.mig_profile to 2g.20gb"


def rates(family: str, model: str, curve: dict[int, float]) -> Throughputs:
    return Throughputs([Measured(family, model, devices, rate) for devices, rate in curve.items()])


def advice(world: World, asked: JobSpec, table: Throughputs = RATES, steps: float | None = None) -> list[str]:
    """The changes that a plan suggests."""
    reply = dry_run(world.decider.state, asked, "research", world.now_us, inputs(table), steps=steps)
    assert reply.verdict is not PlanVerdict.REFUSED, reply.text
    return [smaller.change for smaller in reply.right_size]


def test_fewer_devices_end_within_the_time_limit() -> None:
    world, asked = World(node("n0")), spec(8, family="bert", time_limit_s=1100)
    (smaller,) = planned(world, asked, steps=24_000).right_size  # 960 s on 8, 1000 s on 4, 1263 s on 2
    assert smaller.change == "set resources.devices to 4"
    assert smaller.why.endswith("and ends in 1000 s of its 1100 s")
    assert advice(world, asked, steps=20_000) == ["set resources.devices to 2"]  # 1053 s
    assert advice(world, asked, steps=27_000) == []
    assert advice(world, asked) == []  # how much work there is was not said


def test_fewer_devices_still_hold_the_model() -> None:
    world, asked = World(node("n0")), spec(8, family="bert")
    sharded = ModelShape(parameters_b=30, zero_stage=3)  # 56 GiB on each of 8, 112 on 4
    assert advice(world, asked.model_copy(update={"model": sharded})) == []
    split = ModelShape(parameters_b=7, workload=Workload.INFERENCE, tensor_parallel=4)
    assert advice(world, asked.model_copy(update={"model": split})) == ["set resources.devices to 4"]


def test_fewer_devices_are_no_fewer_than_the_least() -> None:
    world = World(node("n0"))
    assert advice(world, spec(8, min_devices=4, family="bert")) == ["set resources.devices to 4"]
    assert advice(world, spec(8, min_devices=5, family="bert")) == []


@pytest.mark.parametrize(
    ("curve", "devices", "expected"),
    [
        ({1: 10, 2: 19, 3: 19.1}, 3, ["set resources.devices to 2"]),
        ({1: 10, 2: 19, 3: 19.1}, 4, ["set resources.devices to 2"]),  # 4 was not measured: hardly faster than 3
        ({1: 10, 2: 15, 4: 22.5, 8: 33.75}, 8, []),  # each doubling adds just half
        ({1: 10, 2: 15, 4: 22.5, 8: 33.7}, 8, ["set resources.devices to 4"]),
        ({3: 30, 6: 31, 8: 31.5}, 8, ["set resources.devices to 3"]),
    ],
)
def test_every_measured_count_is_compared(curve: dict[int, float], devices: int, expected: list[str]) -> None:
    assert advice(World(node("n0")), spec(devices, family="f"), rates("f", "H100", curve)) == expected


def test_a_cheaper_card_is_there_often_enough() -> None:
    few = World(node("n0"), node("n1", 2, model="A10", memory_gib=24))
    asked = spec(8, family="bert", types=("H100",))
    assert advice(few, asked) == ["set resources.devices to 2"]
    least = asked.model_copy(update={"resources": asked.resources.model_copy(update={"min_devices": 2})})
    assert advice(few, least) == ["set resources.devices to 2"]  # the rate would be that of 8
    many = World(node("n0"), node("n1", 8, model="A10", memory_gib=24))
    assert "set resources.types to [A10]" in advice(many, asked)


def test_a_cheaper_card_computes_in_the_precision_and_has_the_runtime() -> None:
    world = World(node("n0"), node("n1", model="A10", memory_gib=24), rocm("n2"))
    table = Throughputs([Measured("bert", m, 1, rate) for m, rate in (("H100", 10), ("A10", 9), ("MI300X", 40))])
    asked = spec(1, family="bert", types=("H100",))
    assert advice(world, asked, table) == ["set resources.types to [MI300X]"]
    cuda = asked.resources.model_copy(update={"runtime": Runtime.CUDA})
    assert advice(world, asked.model_copy(update={"resources": cuda}), table) == ["set resources.types to [A10]"]
    fp8 = cuda.model_copy(update={"precision": Precision.FP8})
    assert advice(world, asked.model_copy(update={"resources": fp8}), table) == []


def test_a_smaller_card_computes_in_the_precision_and_has_the_runtime() -> None:
    world = World(node("n0"), node("n1", model="A10", memory_gib=24), rocm("n2"))
    asked = spec(1, types=("H100",), memory_mib=20 * GIB)
    assert advice(world, asked) == ["set resources.types to [A10]"]
    fp8 = asked.resources.model_copy(update={"precision": Precision.FP8})
    assert advice(world, asked.model_copy(update={"resources": fp8})) == ["set resources.types to [MI300X]"]
    cuda = fp8.model_copy(update={"runtime": Runtime.CUDA})
    assert advice(world, asked.model_copy(update={"resources": cuda})) == []
    assert advice(world, asked.model_copy(update={"time_limit_s": 600})) == []  # nobody knows whether it would end


def rocm(name: str) -> Inventory:
    """A node with one MI300X; the price book has it for less than an H100."""
    found = node(name, 1, model="MI300X", memory_gib=192)
    devices = tuple(device.model_copy(update={"runtime": Runtime.ROCM}) for device in found.devices)
    return found.model_copy(update={"devices": devices})


@pytest.mark.parametrize("workload", Workload)
@pytest.mark.parametrize("precision", Precision)
def test_every_precision_is_planned_or_refused(precision: Precision, workload: Workload) -> None:
    model = ModelShape(workload=workload, parameters_b=1, precision=precision)
    reply = planned(World(node("n0")), spec(1).model_copy(update={"model": model}))
    frozen = precision in (Precision.INT8, Precision.INT4, Precision.FP4) and workload is Workload.TRAINING
    assert (reply.verdict is PlanVerdict.REFUSED) == frozen
    assert not frozen or reply.reasons[0].field == "job.model.precision"


def test_a_job_that_uses_what_it_asks_for_gets_no_advice() -> None:
    assert planned(World(node("n0")), spec(1, memory_mib=70 * GIB)).right_size == ()
    assert planned(World(node("n0")), spec(4)).right_size == ()


def test_kinds_are_what_is_up() -> None:
    world = World(node("n0", memory_gib=80), node("n1", model="A10", memory_gib=24))
    assert kinds_of(world.decider.state) == (OfferedKind("A10", "", 24 * GIB), OfferedKind("H100", "", 80 * GIB))


def test_the_objective_decides_where_it_would_run() -> None:
    world = World(node("n0"), node("n1", model="A10", memory_gib=24))
    finish = planned(world, spec(1, family="bert", objective=Objective.FINISH))
    cheap = planned(world, spec(1, family="bert", objective=Objective.COST))
    assert (finish.nodes[0].model, cheap.nodes[0].model) == ("H100", "A10")


def test_a_plan_shows_a_whole_v5p_pod_as_one_slice_and_its_grant_fits_into_a_message() -> None:
    """8,960 chips, 16 x 20 x 28: the largest pod of that generation, on 2,240 hosts of 2 x 2 x 1."""
    pod = parse_fleet(
        'groups: [{name: "host-{i}", count: 2240, nodes_per_leaf: 64, devices: '
        "{model: v5p, count: 4, torus: {shape: [16, 20, 28], host: [2, 2, 1]}}}]",
        "pod",
    )
    state, shape = State(), FleetShape.of(pod, {})
    for inventory in pod:
        fold.apply(state, NodeJoined(incarnation=1, inventory=inventory), 1)
    asked = spec(types=("v5p",), torus=(16, 20, 28), devices=8960)
    reply = dry_run(state, asked, "research", 1, inputs(), fleet=shape)
    assert (reply.verdict, sum(len(n.devices) for n in reply.nodes), len(reply.nodes)) == (PlanVerdict.NOW, 8960, 2240)
    assert reply.link_gb_s == 100  # one link of the torus
    job_id_ = job_id("research", "pod")
    queued = JobQueued(
        job_id=job_id_, team="research", spec=asked, spec_hash="", client_key="pod", priority=0, preempts=False,
        submitted_us=1,
    )  # fmt: skip
    fold.apply(state, queued, 1)
    (grant,) = Decider(state).decide([], 2)
    assert len({claim.device for claim in grant.claims}) == 8960
    assert len(grant.model_dump_json()) < NatsOptions().max_payload_bytes
    with pytest.raises(ValidationError, match="9216"):
        spec(types=("v5p",), torus=(16, 20, 32), devices=10_240)  # more chips than any pod has
