"""Ledgers of pools that lived: between them every kind of event, and every way in which an attempt can end."""

from collections.abc import Callable
from functools import cache
from typing import Any

from libs.core.proofs.chains import TeamChains
from libs.core.scheduling import preemption
from libs.core.scheduling.precedence.exchange import exchanges
from schemas import inbox
from schemas.audit import ActionOutcome, OperatorAction, RefusedCommand, line_hash
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget
from schemas.clock import BootReading, ClockMark, MeasuredBy
from schemas.ids import job_id
from schemas.jobs import JobSpec, RetryPolicy, Simulation, StepProgress
from schemas.ledger import ClockJumped, GranterNamed, LedgerRecord, SegmentSealed
from schemas.prices import ClosedPeriod, ListRate, RateBook
from schemas.queues import Queue
from schemas.resources import (
    Content,
    Device,
    DeviceKind,
    Inventory,
    Level,
    Position,
    Resources,
    Role,
    Runtime,
    Spread,
    Topology,
    TopologyPolicy,
)
from tests.core.builders import GIB, World, job, node
from tests.core.test_repartition_state import ONES
from tests.core.test_repartition_state import inventory as board_of

S = 1_000_000


def every_end() -> World:
    """Jobs that succeed, fail, are lost, refused, drained, cancelled, over their time; with checkpoints and retries."""
    w = World(node("n0"), node("n1"), node("n2"))
    w.send(inbox.QuotaChanged(team="research", limit_milli=40_000))
    gang = w.submit(job("gang", 12, retry=RetryPolicy(on_lost=2)))
    w.started(gang)
    w.checkpointed(gang, 3)
    w.now_us += 5_000_000
    w.checkpointed(gang, 7)
    halves = [w.submit(job(f"half{i}", share_milli=400, memory_gib=20 * i)) for i in range(2)]
    for half in halves:
        w.started(half)
    first, second = w.nodes_of(gang)
    w.send(inbox.NodeLost(node=second, incarnation=1, silent_s=31))
    w.released(gang, exit_code=143, own_exit=False, nodes=[first])
    w.send(inbox.NodeRegistered(incarnation=2, inventory=node(second), lease_s=10))
    w.started(gang)
    w.checkpointed(gang, 9)
    failing = w.submit(job("failing", retry=RetryPolicy(on_failure=1)))
    w.started(failing)
    w.released(failing, exit_code=3)
    w.started(failing)
    w.released(failing, exit_code=4)
    slow = w.submit(job("slow", time_limit_s=20))
    w.started(slow)
    w.send(inbox.Tick(), after_us=21 * S)
    w.released(slow, exit_code=137, own_exit=False)
    refused = w.submit(job("refused", retry=RetryPolicy(on_lost=0)))
    w.observe(w.nodes_of(refused)[0], inbox.Refused(job_id=refused, attempt=1, reason="stale epoch"))
    w.submit(job("waits", 64))
    unwanted = [w.submit(job("unwanted", 64)), w.submit(job("unwanted-too"))]
    for each in unwanted:
        w.send(inbox.CancelRequested(job_id=each, team="research", reason="no longer wanted"))
    w.released(unwanted[1], exit_code=143, own_exit=False)
    w.send(inbox.CancelRequested(job_id="job-" + "0" * 32, team="research", reason="nobody"))
    w.released(gang)
    anew = w.submit(job("anew", 8))
    w.started(anew)
    (where,) = w.nodes_of(anew)
    w.send(inbox.NodeRegistered(incarnation=9, inventory=node(where), lease_s=10))
    w.send(inbox.NodeLost(node="n2", incarnation=1, silent_s=0, planned=True))
    for half in halves:
        w.released(half)
    return w


def preempted() -> World:
    """A job of a high class makes others give way, is granted what was held for it; a stale plan is declined."""
    w = World(node("n0"), node("n1"))
    victims = [w.submit(job(f"low{i}", 8)) for i in range(2)]
    for victim in victims:
        w.started(victim)
        w.checkpointed(victim, 5)
    urgent = w.submit(job("urgent", 4, priority=100, preempts=True))
    w.submit(job("low2", 2))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    w.send(plan)  # it comes again: declined
    w.submit(job("small", 1, priority=50))
    w.released(plan.victims[0], exit_code=143, own_exit=False)
    w.started(urgent)
    w.released(urgent)
    other = w.submit(job("urgent2", 8, priority=100, preempts=True))
    for again in preemption.plans(w.decider.state, w.now_us, len(w.records)):
        w.send(again)
    w.send(inbox.CancelRequested(job_id=other, team="research", reason="not needed"))
    return w


def boards() -> World:
    """A MIG board is repartitioned for a job that waits; another repartition is withdrawn, and answered later."""
    w = World(board_of(*ONES))
    small = w.submit(job_of("small", Resources(mig_profile="1g.10gb")))
    w.started(small)
    big = w.submit(job_of("big", Resources(mig_profile="3g.40gb")))
    w.send(inbox.Tick(), after_us=31 * S)
    answer(w)
    w.started(big)
    w.released(big)
    w.submit(job_of("bigger", Resources(mig_profile="4g.40gb")))
    w.released(small)
    w.send(inbox.Tick(), after_us=400 * S)
    w.send(inbox.Tick(), after_us=700 * S)
    answer(w)
    return w


def answer(w: World) -> None:
    """The node says that it has done what it was asked for."""
    (asked,) = w.decider.state.repartitions.values()
    offered = [(d.mig_profile, d.mig_start) for d in w.decider.state.fleet.nodes["n1"].inventory.devices
               if d.id not in asked.recut.destroy]  # fmt: skip
    offered += [(place.profile, place.start) for place in asked.recut.create]
    told = {"node": "n1", "incarnation": 1, "board": asked.recut.board, "number": asked.recut.number}
    w.send(inbox.BoardCut(**told, ok=True, inventory=board_of(*offered)))


def particular() -> World:
    """Requests that are particular: roles, labels, processors, spread, a level, a runtime, power and simulation."""
    w = World(*(machine(f"m{i}", leaf=f"leaf-{i // 2}") for i in range(4)))
    leaf = Topology(level=Level.LEAF, policy=TopologyPolicy.REQUIRED)
    roles = (Role(name="worker", count=3, min_count=2, devices=2, cpu_milli=2000), Role(name="head", devices=1))
    wanted = {
        "nested": Resources(roles=roles, types=("H100",), topology=leaf),
        "spread-a": Resources(spread=Spread(key="web", level=Level.LEAF)),
        "spread-b": Resources(spread=Spread(key="web")),
        "elastic": Resources(devices=8, min_devices=2, labels={"zone": "red"}, cpu_milli=1000, host_memory_mib=GIB),
        "processors": Resources(types=("CPU",), share_milli=250),
        "cuda": Resources(runtime=Runtime.CUDA, contents=(Content(name="image", size_mib=9),)),
    }
    for name, resources in wanted.items():
        run = w.submit(job_of(name, resources))
        w.started(run)
    timer = job_of("timer", Resources())
    w.submit(timer.model_copy(update={"spec": timer.spec.model_copy(update={"simulation": Simulation(duration_s=3)})}))
    w.released(job_id("research", "nested"))
    return w


def machine(name: str, leaf: str) -> Inventory:
    gpus = tuple(
        Device(id=f"{name}-gpu{i}", index=i, model="H100", memory_mib=80 * GIB, power_limit_w=700) for i in range(4)
    )
    cpu = Device(id=f"{name}-cpu", index=0, model="CPU", memory_mib=64 * GIB, kind=DeviceKind.CPU, runtime=Runtime.CPU)
    return Inventory(
        node=name, position=Position(leaf=leaf), devices=(*gpus, cpu), cpus=32, memory_mib=256 * GIB,
        labels={"zone": "red"}, rack_power_w=9000, simulated=True,
    )  # fmt: skip


def job_of(name: str, resources: Resources, team: str = "research") -> inbox.JobAdmitted:
    """An admitted job with any request."""
    admitted = job(name, team=team)
    return admitted.model_copy(update={"spec": JobSpec(name=name, command=("true",), resources=resources)})


ON_A_CLOCK = "on a clock"


def silent() -> World:
    """Nodes fall silent: one is heard again, of one the short leases end, one is declared dead. Leases change hands."""
    w = World(node("n0"), node("n1"), node("n2"))
    w.send(inbox.GranterClaimed(epoch=1, holder="a", term_s=5, max_lease_s=300))
    for name, devices, lease_s in (("brief", 8, 10), ("usual", 8, 300), ("kept", 8, 0)):
        w.submit(job(name, devices).model_copy(update={"lease_s": lease_s}))
        w.started(job_id("research", name))
    brief, _, kept = (w.nodes_of(job_id("research", name))[0] for name in ("brief", "usual", "kept"))
    for name in (brief, kept):
        w.send(inbox.NodeSilent(node=name, incarnation=1, silent_s=6), after_us=12 * S)
    w.send(inbox.NodeSilent(node=brief, incarnation=1, silent_s=16, ended_lease_s=10), after_us=10 * S)
    w.send(inbox.NodeHeardAgain(node=brief, incarnation=1))
    w.send(inbox.GranterClaimed(epoch=2, holder="b", term_s=5, max_lease_s=300))
    w.send(inbox.NodeDead(node=kept, fenced_by="power off", user="ops"))
    return w


def lost_again() -> World:
    """What jobs run on is lost again and again: one waits longer each time and ends, one had a good run between. Another fails
    again and again by itself, and waits as long."""
    w = World(node("n0", 1), node("n1", 1))
    unlucky = w.submit(job("unlucky"))
    lucky = w.submit(job("lucky"))
    w.started(lucky)
    for again in range(9):
        w.send(inbox.Tick(), after_us=3600 * S)
        w.started(unlucky)
        begins_anew(w, w.nodes_of(unlucky)[0])
        if again < 3:
            begins_anew(w, w.nodes_of(lucky)[0])
            w.started(lucky)
    assert w.decider.state.finished_by_state == {"failed": 1}
    w.released(lucky)
    clumsy = w.submit(job("clumsy", retry=RetryPolicy(on_failure=5)))
    for _ in range(3):
        w.released(clumsy, exit_code=1)
        w.send(inbox.Tick(), after_us=60 * S)
    w.released(clumsy)
    return w


def quarantined() -> World:
    """Devices are used by what is no job: one until it is free, one until an operator says so, one over lives of its node."""
    w = World(node("n0", 3), node("n1", 1))
    w.started(w.submit(job("busy", 2)))
    (where,) = w.nodes_of(job_id("research", "busy"))
    first, second = (claim.device for claim in w.decider.state.jobs[job_id("research", "busy")].current.claims)
    told = [
        inbox.BusyDevice(device=name, users="python (pid 7)", since_us=9 + n) for n, name in enumerate((first, second))
    ]
    w.send(inbox.NodeQuarantine(node=where, incarnation=1, devices=told))
    w.released(job_id("research", "busy"))
    for n in range(3):
        w.submit(job(f"next{n}"))
    w.send(inbox.NodeQuarantine(node=where, incarnation=1, devices=told[1:]))
    w.send(inbox.QuarantineLifted(node=where, device=second, reason="a monitor", user="olga"))
    w.send(inbox.NodeQuarantine(node=where, incarnation=1, devices=()))
    again = inbox.BusyDevice(device=second, users="python (pid 8)", since_us=99)
    w.send(inbox.NodeQuarantine(node=where, incarnation=1, devices=(again,)))
    known = w.decider.state.fleet.nodes[where].inventory
    w.send(inbox.NodeRegistered(incarnation=2, inventory=known, lease_s=10, quarantine=(again,)))
    w.submit(job("last"))
    w.send(inbox.NodeQuarantine(node=where, incarnation=2, devices=()))
    return w


def out_of_use() -> World:
    """An operator takes a node out of use while a job runs there; devices are kept free for a gang; nodes come back."""
    w = World(node("n0", 2), node("n1", 2))
    for n in range(4):
        w.started(w.submit(job(f"small{n}", team="blue")))
    gang = w.submit(job("gang", 2))
    w.send(inbox.Tick(), after_us=70 * S)
    (first,) = w.nodes_of(job_id("blue", "small0"))
    w.send(inbox.CordonNode(node=first, reason="a fan", user="olga"))
    w.send(inbox.Tick(), after_us=S)
    for n in range(4):
        w.released(job_id("blue", f"small{n}"))
    w.started(gang)
    w.submit(job("more"))
    w.send(inbox.UncordonNode(node=first, reason="mended", user="olga"))
    w.released(gang)
    return w


def suspended() -> World:
    """A team is suspended while it has jobs that wait, run and are made room for; what runs saves its work; it goes on."""
    w = World(node("n0"), node("n1"))
    runs = [w.submit(job(f"runs{i}", 4)) for i in range(2)]
    other = w.submit(job("other", 8, team="blue"))
    for each in (*runs, other):
        w.started(each)
    urgent = w.submit(job("urgent", 8, priority=100, preempts=True))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    w.send(inbox.SuspendTeam(team="research", reason="unpaid", user="olga"))
    w.send(inbox.SuspendTeam(team="research", reason="unpaid", stop=True, user="olga"))
    for victim in plan.victims:
        w.released(victim, exit_code=143, own_exit=False)
    for each in runs:
        if w.decider.state.jobs[each].current is not None:
            w.checkpointed(each, 5)
            w.released(each, exit_code=143, own_exit=False)
    w.submit(job("late"))
    w.submit(job("blue", 4, team="blue"))
    w.send(inbox.ResumeTeam(team="research", reason="paid", user="olga"))
    w.started(other)
    w.released(other)
    w.started(urgent)
    w.released(urgent)
    return w


def left() -> World:
    """A team is suspended, its last job is cancelled, and it leaves; said too early that is refused. It comes back."""
    w = World(node("n0"))
    runs = w.submit(job("runs", 4))
    w.started(runs)
    leaves = inbox.OffboardTeam(team="research", reason="its contract has ended", user="olga")
    w.send(inbox.SuspendTeam(team="research", reason="it leaves", user="olga"))
    w.send(leaves)
    w.released(runs)
    w.send(leaves)
    w.send(leaves)
    w.started(blue := w.submit(job("blue", 4, team="blue")))
    w.released(blue)
    w.send(inbox.ResumeTeam(team="research", reason="it is back", user="olga"))
    w.started(back := w.submit(job("back", 4, submitted_us=w.now_us)))
    w.released(back)
    return w


def queued_up() -> World:
    """A pool is given queues while jobs of two teams run; a limit above both holds, and is raised."""
    w = World(node("n0"), node("n1"))
    tree = (
        Queue(name="lab", limit={"*": 10_000}),
        Queue(name="research", parent="lab", guaranteed={}, weight_milli=2000),
        Queue(name="blue", parent="lab"),
    )
    w.started(first := w.submit(job("first", 6)))
    w.send(inbox.ApplyQueues(version=1, queues=tree, reason="the year begins", user="olga"))
    w.send(inbox.ApplyQueues(version=1, queues=tree, user="olga"))
    w.send(inbox.ApplyQueues(version=1, queues=tree[:1], user="olga"))
    w.started(second := w.submit(job("second", 4, team="blue")))
    third = w.submit(job("third", 4, team="blue"))
    w.released(first)
    w.started(third)
    fourth = w.submit(job("fourth", 8))
    raised = tree[0].model_copy(update={"limit": {"*": 16_000}})
    w.send(inbox.ApplyQueues(version=2, queues=(raised, *tree[1:]), user="olga"))
    w.started(fourth)
    for each in (second, third, fourth):
        w.released(each)
    return w


def progressing() -> World:
    """A job tells how far it is, and is believed until it goes back; it gives way, and begins anew to be believed."""
    w = World(node("n0"))
    runs = w.submit(job("tells", 8))
    w.started(runs)

    def says(step: int, left_s: float) -> None:
        told = StepProgress(step=step, steps=900, left_s=left_s, left_p90_s=left_s * 1.5)
        seen = inbox.ProgressSeen(job_id=runs, attempt=w.attempt(runs), progress=told)
        w.send(inbox.NodeObserved(node="n0", incarnation=1, observations=(), progress=(seen,)), after_us=60 * S)

    for step in (60, 120, 100, 140):
        says(step, 900 - step)
    urgent = w.submit(job("urgent", 8, priority=100, preempts=True))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    w.released(runs, exit_code=143, own_exit=False)
    w.started(urgent)
    w.released(urgent)
    w.started(runs)
    says(10, 890)
    w.released(runs)
    return w


def exchanged() -> World:
    """A queue is ordered by what is left: a job with much left gives way to one of its own class and team."""
    w = World(node("n0"), node("n1"))
    queues = (Queue(name="research", order="shortest-remaining"), Queue(name="blue"))
    w.send(inbox.ApplyQueues(version=1, queues=queues, order="fifo", user="olga"))
    runs = {team: w.submit(job("long", 8, team=team)) for team in ("research", "blue")}
    for each in runs.values():
        w.started(each)
    told = StepProgress(step=1, steps=10**6, left_s=900_000, left_p90_s=900_000)
    seen = inbox.ProgressSeen(job_id=runs["research"], attempt=1, progress=told)
    (where,) = w.nodes_of(runs["research"])
    w.send(inbox.NodeObserved(node=where, incarnation=1, observations=(), progress=(seen,)), after_us=20 * S)
    waits = w.submit(job("waits", 8))
    w.submit(job("waits", 8, team="blue"))
    w.send(inbox.Tick(), after_us=120 * S)
    (plan,) = exchanges(w.decider.state, w.decider.turns, w.now_us, len(w.records))
    w.send(plan)
    w.released(runs["research"], exit_code=143, own_exit=False)
    w.started(waits)
    w.released(waits)
    w.released(runs["blue"])
    while jobs := w.decider.state.jobs:
        last = next(one.id for one in jobs.values() if one.current is not None)
        w.started(last)
        w.released(last)
    return w


def boosted() -> World:
    """A job that waits comes before its class, gives that up, and again; one that runs is raised too. Their times end."""
    w = World(node("n0"))
    w.started(runs := w.submit(job("runs", 8)))
    first, second = (w.submit(job(f"waits {n}", 8, team=team)) for n, team in enumerate(("research", "blue")))

    def boost(of: str, for_s: float) -> None:
        w.send(inbox.BoostJob(job_id=of, priority=50, for_s=for_s, reason="a deadline", user="olga"))

    boost(second, 3600)
    boost(second, 0)
    boost(second, 600)
    boost(runs, 60)
    w.send(after_us=100 * S)
    w.released(runs)
    w.started(second)
    w.send(after_us=600 * S)
    w.released(second)
    w.started(first)
    w.released(first)
    return w


def priced() -> World:
    """A pool is given prices, again, worse ones and better ones; a period is closed, twice, and one that leaves a gap."""
    w = World(node("n0"))
    book = RateBook(version=1, currency="USD", prices=(ListRate(device="H100", micros=2_990_000, from_us=0),))
    w.started(first := w.submit(job("first", 2)))
    w.send(inbox.ApplyPrices(book=book, reason="the year begins", user="olga"))
    w.send(inbox.ApplyPrices(book=book, user="olga"))
    w.send(inbox.ApplyPrices(book=book.model_copy(update={"version": 2, "currency": "EUR"}), user="olga"))
    w.send(inbox.ApplyPrices(book=book.model_copy(update={"prices": book.prices * 2}), user="olga"))
    w.released(first)
    until = w.now_us
    seal = ClosedPeriod(from_us=0, to_us=until, upto_seq=1, head="a" * 64, rows="b" * 64, currency="USD")
    w.send(inbox.ClosePeriod(period=seal, reason="paid", user="olga"))
    w.send(inbox.ClosePeriod(period=seal, user="olga"))
    w.send(inbox.ClosePeriod(period=seal.model_copy(update={"from_us": until + 1, "to_us": until + 2}), user="olga"))
    w.send(inbox.ClosePeriod(period=seal.model_copy(update={"from_us": until, "to_us": until + 10**12}), user="olga"))
    dearer = ListRate(device="H100", micros=3_990_000, from_us=0)
    w.send(inbox.ApplyPrices(book=RateBook(version=2, currency="USD", prices=(dearer,)), user="olga"))
    return w


def budgeted() -> World:
    """A team is given budgets of GPU-hours and money, again, and wrong ones; one job holds its time limit, one is renewed until
    nothing covers it, saves its work and waits for a top-up; another one waits for the first."""
    w = World(node("n0"))
    price = ListRate(device="H100", micros=2_000_000, from_us=0)
    w.send(inbox.ApplyPrices(book=RateBook(version=1, currency="USD", prices=(price,)), user="olga"))
    hour, day = 1_000_000, BudgetPeriod.DAY
    hours = SpendingBudget(
        team="research", unit=BudgetUnit.GPU_HOURS, period=day, soft=3 * hour, hard=9 * hour, carry_over=hour
    )
    money = SpendingBudget(team="research", unit=BudgetUnit.MONEY, period=day, hard=50 * hour)
    both = BudgetSet(version=1, renewal_s=3600, budgets=(hours, money))
    w.send(inbox.ApplyBudgets(budgets=both, reason="the quarter begins", user="olga"))
    w.send(inbox.ApplyBudgets(budgets=both.model_copy(update={"budgets": (hours, hours), "version": 2}), user="olga"))
    first, second = w.submit(job("first", 2, time_limit_s=7200)), w.submit(job("second", 2))
    third = w.submit(job("third", 2, time_limit_s=7200))
    w.started(first)
    w.started(second)
    w.send(inbox.Tick(), after_us=3_600_000_000)
    w.released(first)
    w.send(inbox.Tick(), after_us=3_600_000_000)
    w.checkpointed(second, 3)
    w.released(second, exit_code=143, own_exit=False)
    w.started(third)
    w.send(inbox.TopUpBudget(budget=hours.key, amount=5_000_000, reason="a deadline", user="olga"))
    w.started(second)
    w.released(third)
    w.send(inbox.Tick(), after_us=12 * 3_600_000_000)
    w.send(inbox.Tick(), after_us=6 * 3_600_000_000)
    w.released(second, exit_code=143, own_exit=False)
    return w


def promised() -> World:
    """The first gang that waits is told when it starts; a fault moves that, a node that leaves does again, and it starts."""
    w = World(node("n0"), node("n1"))
    for n in range(2):
        w.started(w.submit(job(f"runs{n}", 8, time_limit_s=600)))
    gang = w.submit(job("gang", 8))
    w.submit(job("behind", 8))
    w.send(inbox.Tick(), after_us=S)
    w.send(inbox.Tick(), after_us=S)
    (soon, late) = (w.nodes_of(job_id("research", f"runs{n}"))[0] for n in range(2))
    w.send(inbox.NodeSilent(node=soon, incarnation=1, silent_s=6), after_us=400 * S)
    w.released(job_id("research", "runs1"))
    w.started(gang)
    w.submit(job("third", 8))
    w.send(inbox.Tick(), after_us=S)
    w.released(gang)
    w.send(inbox.NodeHeardAgain(node=soon, incarnation=1))
    while jobs := w.decider.state.jobs:
        last = next(one.id for one in jobs.values() if one.current is not None)
        w.started(last)
        w.released(last)
    assert late
    return w


def begins_anew(w: World, name: str) -> None:
    known = w.decider.state.fleet.nodes[name]
    w.send(inbox.NodeRegistered(incarnation=known.incarnation + 1, inventory=known.inventory, lease_s=10))


def audited() -> World:
    """Operators act outside the ledger, one line is told twice; commands of a team are refused, and too many of them."""
    w = World(node("n0"))
    w.started(w.submit(job("runs")))
    lines = book("team.add", "team.rotate", "team.revoke")
    for line in (*lines, lines[1]):
        w.send(inbox.ActionTold(action=line, user="olga"))
    (secret,) = book("secret.set", name="b1" * 8, target="research/token")
    w.send(inbox.SecretChanged(action=secret, team="research", user="ana"))
    w.send(inbox.QuotaChanged(team="research", limit_milli=9000, user="olga", cause="REQUESTS:4", reason="more work"))
    for n in range(2):
        said = RefusedCommand(
            service="admission", what="submit", team="research", user="ana", cause=f"REQUESTS:{n + 5}", stored_us=n + 1,
            digest="ab" * 32, reason="no such class", policy="0123456789abcdef", more=n * 9, more_digest="cd" * 32 * n,
        )  # fmt: skip
        w.send(inbox.RefusalTold(command=said))
    return w


def summed() -> World:
    """All teams' lines are summed three times; one of the sums is proposed again, with another nonce."""
    w, chains, read = World(node("n0")), TeamChains(), 0
    for n, again in enumerate((False, True, False)):
        for team in ("blue", "red"):
            runs = w.submit(job(f"j{n}", team=team))
            w.started(runs)
            w.released(runs)
        while read < len(w.records):
            read += 1
            chains.apply(w.records[read - 1], read)
        for nonce in (b"%d" % n * 32, b"x" * 32)[: 1 + again]:
            w.send(inbox.SumProposed(sum=chains.proposal("test", nonce), nonce=nonce.hex()))
    return w


def book(*actions: str, name: str = "b" * 16, target: str = "vision") -> list[OperatorAction]:
    """An operator's book with these actions."""
    lines: list[OperatorAction] = []
    for number, what in enumerate(actions, 1):
        before = line_hash(lines[-1]) if lines else ""
        told = OperatorAction(
            book=name, number=number, prev_hash=before, what=what, target=target, reason="audit test",
            outcome=ActionOutcome.DONE, at_us=number * S, host="h", login="olga", tool="baton 0.2.0",
        )  # fmt: skip
        lines.append(told)
    return lines


def put_off() -> World:
    """Two gangs start later than they were promised: one for its own team's job, and one for another's, its own beside."""
    w = World(*(node(f"n{n}") for n in range(3)))
    for name, team, limit_s in (("own", "research", 600), ("stays", "blue", 90_000), ("others", "research", 3000)):
        w.started(w.submit(job(name, 8, team=team, time_limit_s=limit_s)))
    gangs = [w.submit(job("gang", 8)), w.submit(job("gang", 8, team="blue"))]
    for after_s in (1, 1800):
        w.send(inbox.Tick(), after_us=after_s * S)
    w.released(job_id("research", "own"))
    (first,) = (gang for gang in gangs if w.decider.state.jobs[gang].current is not None)
    w.started(first)
    w.send(inbox.Tick(), after_us=9000 * S)
    w.released(job_id("research", "others"))
    (second,) = (gang for gang in gangs if gang != first)
    w.started(second)
    for name in (first, second, job_id("blue", "stays")):
        w.released(name)
    return w


LIVES: dict[str, Callable[[], World]] = {
    "every end": every_end,
    "preempted": preempted,
    "boards": boards,
    "particular": particular,
    "silent": silent,
    "lost again": lost_again,
    "quarantined": quarantined,
    "out of use": out_of_use,
    "suspended": suspended,
    "left": left,
    "audited": audited,
    "summed": summed,
    "queues": queued_up,
    "progressing": progressing,
    "exchanged": exchanged,
    "boosted": boosted,
    "priced": priced,
    "budgeted": budgeted,
    "promised": promised,
    "put off": put_off,
}
ROLLED = "rolled"
EVERY = (*LIVES, ON_A_CLOCK, ROLLED)


SET_BACK = 18
"""In the life on a clock: the record before which the broker's clock is set."""


def on_a_clock() -> list[LedgerRecord]:
    """A life in which ticks told a boot clock, and no older reader was there: somebody grants leases. In the middle the wall
    clock is set forward by an hour; at the end the machine boots anew, and nobody knows how long that took."""
    out = []
    for n, record in enumerate(records_of("every end")):
        booted, set_us = n == 39, 3600 * S * (n >= SET_BACK)
        t_us, wall_us = record.t_us + 60 * S * (n >= 39), record.t_us + set_us + 60 * S * (n >= 39)
        reading = BootReading(boot=f"boot-{n >= 39}", at_us=record.t_us)
        mark = ClockMark(t_us=t_us, wall_us=wall_us, readings=(reading,))
        events = record.events
        if n == SET_BACK or booted:
            by = MeasuredBy.WALL if booted else MeasuredBy.BOOT_TIME
            before = out[-1]
            elapsed_us = t_us - before.t_us
            from_us = before.clock.wall_us if booted else before.clock.wall_us + elapsed_us
            jump = ClockJumped(from_us=from_us, to_us=wall_us, elapsed_us=elapsed_us, measured=by, estimated=booted)
            events = (jump, *events)
        if n == 0:
            events = (GranterNamed(epoch=1, holder="p", term_s=0.001, max_lease_s=300), *events)
        out.append(record.model_copy(update={"t_us": t_us, "wall_us": wall_us, "clock": mark, "events": events}))
    return out


def rolled() -> list[LedgerRecord]:
    """A life whose ledger lies in three segments."""
    out: list[LedgerRecord] = []
    first = 1
    for record in records_of("preempted"):
        out.append(record)
        if len(out) in (4, 9):
            seal = SegmentSealed(first_seq=first, next=f"SEGMENT-test-{len(out) + 2:020}")
            out.append(record.model_copy(update={"events": (seal,)}))
            first = len(out) + 1
    return out


@cache
def records_of(life: str) -> tuple[LedgerRecord, ...]:
    """The ledger of a life. The checker found nothing in it while it was written."""
    if life == ON_A_CLOCK:
        return tuple(on_a_clock())
    if life == ROLLED:
        return tuple(rolled())
    world = LIVES[life]()
    world.check()
    return tuple(world.records)


def kinds_of(records: Any) -> set[str]:
    return {event.kind for record in records for event in record.events}
