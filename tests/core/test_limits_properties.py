"""Random lives of teams under limits of every sort: none is ever exceeded, and all who are asked say the same.

The pool has whole boards of two types, boards cut into slices, and processors; requests are for whole devices, elastic
gangs, shares, slices and nested gangs, for one type, two, or any. Limits come, go, rise and fall. The checker that looks at
each record (`world.send`) keeps books of its own, in fractions.
"""

from fractions import Fraction

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libs.core.accelerators.kinds import GRAINS, grains
from libs.core.admission.evaluate import AdmissionContext, evaluate
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.refusal import RefusalCause
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.verify.limit_books import LimitBooks, part_of
from libs.core.scheduling import cycle, limits, preemption
from libs.core.scheduling.limits import OVER_LIMIT, LimitsUse, Tally, exceeded
from libs.core.state import snapshot
from libs.core.state.lifecycle import ACTIVE
from libs.core.state.limits import Limits
from schemas import inbox
from schemas.jobs import JobSpec, JobState
from schemas.requests import SubmitJob
from schemas.resources import Resources, parts_of
from tests.core.builders import World, job, node
from tests.core.test_limits import asking, board, processors

TEAMS = ("research", "vision")
NODES = (
    node("h", 4),
    node("a", 3, model="A100"),
    board("m", "1g.10gb", 7),
    board("n", "3g.40gb", 2),
    board("o", "1g.6gb", 4, model="A30"),
    processors("c", 3),
)
KEYS = ("H100", "A100", "A30", "CPU", "H100:1g.10gb", "H100:3g.40gb", "A30:1g.6gb")

types = st.sampled_from([(), (), ("H100",), ("A100",), ("H100", "A100"), ("A100", "H100"), ("A100", "CPU")])
whole = st.builds(
    lambda devices, least, types, any_: Resources(
        devices=devices, min_devices=min(least, devices) or None, types=types, objective="any" if any_ else "listed"
    ),
    st.integers(1, 5),
    st.integers(0, 3),
    types,
    st.booleans(),
)
share = st.builds(
    lambda milli, types: Resources(share_milli=milli, types=types), st.sampled_from([250, 400, 999]), types
)
slices = st.builds(
    lambda profile, devices: Resources(mig_profile=profile, devices=devices),
    st.sampled_from(["1g.10gb", "3g.40gb", "1g.6gb"]),
    st.integers(1, 3),
)
nested = st.builds(
    lambda count, least, one, two: Resources.model_validate(
        {
            "roles": [
                {"name": "work", "count": count, "min_count": min(least, count), "devices": 2, "types": one},
                {"name": "serve", "count": 1, "devices": 1, "types": two},
            ]
        }
    ),
    st.integers(1, 2),
    st.integers(1, 2),
    types,
    types,
)
requests = st.one_of(whole, whole, share, slices, slices, nested)
some_limits = st.builds(
    lambda total, by_type: (total, by_type),
    st.sampled_from([None, None, 0, 429, 1000, 2500, 5000]),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from([0, 500, 1000, 2000, 3000]), max_size=3),
)


class Pool(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.count = 0
        self.before: dict[str, dict[str, int]] = {}

    @property
    def state(self):
        return self.world.decider.state

    @initialize()
    def nodes_register(self) -> None:
        self.world.send(*(inbox.NodeRegistered(incarnation=1, inventory=n, lease_s=10) for n in NODES))

    @rule(resources=requests, team=st.sampled_from(TEAMS), high=st.booleans())
    def submit(self, resources, team, high) -> None:
        self.count += 1
        more = {"team": team, "priority": 100 if high else 0, "preempts": high}
        self.world.submit(asking(f"j{self.count}", resources, submitted_us=self.world.now_us + 1, **more))

    def active(self):
        return sorted(j.id for j in self.state.jobs.values() if j.state in ACTIVE)

    @precondition(lambda self: self.active())
    @rule(data=st.data(), ends=st.booleans())
    def a_part_starts_or_ends(self, data, ends) -> None:
        chosen = self.state.jobs[data.draw(st.sampled_from(self.active()))]
        where = sorted(node for node, part in chosen.current.parts.items() if not part.freed)
        if ends:
            own = chosen.state is JobState.RUNNING
            self.world.released(
                chosen.id, exit_code=0 if own else 143, own_exit=own, nodes=[data.draw(st.sampled_from(where))]
            )
        else:
            self.world.started(chosen.id)

    @rule(team=st.sampled_from(TEAMS), stated=some_limits)
    def limits_change(self, team, stated) -> None:
        self.world.send(inbox.QuotaChanged(team=team, limit_milli=stated[0], by_type=stated[1]))

    @rule()
    def preemption_plans(self) -> None:
        made = preemption.plans(self.state, self.world.now_us, len(self.world.records))
        before = len(self.state.holds)
        for plan in made:
            self.world.send(plan)
        assert len(self.state.holds) == before + len(made), "a fresh plan must be accepted"

    @rule(name=st.sampled_from([n.node for n in NODES]))
    def a_node_restarts(self, name) -> None:
        again = self.state.fleet.nodes[name].incarnation + 1
        inventory = next(n for n in NODES if n.node == name)
        self.world.send(inbox.NodeRegistered(incarnation=again, inventory=inventory, lease_s=10))

    @rule(seconds=st.integers(1, 70))
    def time_passes(self, seconds) -> None:
        self.world.send(inbox.Tick(), after_us=seconds * 1_000_000)

    @invariant()
    def no_invariant_is_broken(self) -> None:
        assert self.world.checker.finish().violations == []

    @invariant()
    def no_team_is_lifted_above_a_limit(self) -> None:
        """What counts against a limit is within it, or has not grown since the last step (the limit was lowered)."""
        for team in TEAMS:
            counted = {key: self.counted(team, key) for key in ("*", *KEYS)}
            for key, limit in self.state.quotas.get(team) or ():
                assert counted[key] <= max(limit * GRAINS, self.before.get(team, {}).get(key, 0)), (team, key)
            self.before[team] = counted

    def counted(self, team: str, key: str) -> int:
        """Grains of `key`: what the team holds, and what is kept for its jobs beyond what its own leave for them."""
        state = self.state
        total = grains(key, state.used.get(team, {}))
        for beneficiary in state.holds:
            leave: dict[str, int] = {}
            for one in state.jobs.values():
                if one.current is not None and one.current.beneficiary == beneficiary and one.team == team:
                    for kind, milli in state.devices_of(one.current):
                        leave[kind] = leave.get(kind, 0) + milli
            if state.jobs[beneficiary].team == team:
                total += max(0, grains(key, state.kept(beneficiary)) - grains(key, leave))
        return total

    @invariant()
    def use_is_what_the_claims_say(self) -> None:
        fleet, used = self.state.fleet, {}
        for one in self.state.jobs.values():
            for part in one.current.parts.values() if one.current else ():
                for claim in () if part.freed else part.claims:
                    kind = fleet.kind(fleet.row(claim.device))
                    team = used.setdefault(one.team, {})
                    team[kind] = team.get(kind, 0) + claim.milli
        assert used == self.state.used

    @invariant()
    def all_who_are_asked_agree(self) -> None:
        """A waiting job without room waits for it by the cycle's word and by explain's, and nobody gives way to it."""
        state, plan = self.state, self.settled()
        tally = Tally(state)
        without = {one.id for one in state.jobs.values() if one.id not in state.holds and not tally.room(one).request}
        for queue, blocked in plan.waiting.items():
            heads = [job_id for job_id in state.queues[queue] if job_id not in state.holds][:1]
            assert all((job_id in without) == (blocked is OVER_LIMIT) for job_id in heads)
        for job_id in sorted(without):
            if state.jobs[job_id].state is JobState.QUEUED:
                waits_for = "backing-off" if job_id in state.backing_off else "quota"
                assert explain(state, state.jobs[job_id], Reasons(state)).reason == waits_for
        for one, choice in preemption.choices(state, self.world.now_us):
            assert one.id not in without or one.team in {victim.team for victim in choice.victims}

    def settled(self) -> cycle.Plan:
        """A cycle that looks at everything and grants nothing. What is kept is kept until the cycle's end also if what that
        granted leaves a gang no room below its limit; the next cycle, and no later one, grants what is open then."""
        for _ in range(10):
            plan = cycle.plan(self.state, self.world.now_us)
            if not plan.grants:
                return plan
            assert self.world.decider.plan.grants, "nothing has changed since the last cycle, which did not grant it"
            self.world.send(inbox.Tick(), after_us=0)
            assert self.world.decider.plan.grants == plan.grants
        raise AssertionError("each cycle grants more than the one before has left")

    def teardown(self) -> None:
        again = snapshot.load(snapshot.dump(self.state)).state
        assert (again.quotas, again.used) == (self.state.quotas, self.state.used)
        self.world.check()


TestPool = Pool.TestCase
TestPool.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


kinds = st.sampled_from(["H100", "A100", "CPU", "X9", "H100:1g.10gb", "H100:3g.40gb", "A30:1g.6gb", "H100:2g.22gb"])
amounts = st.dictionaries(kinds, st.integers(1, 4000), max_size=4)


@settings(max_examples=200, deadline=None)
@given(some_limits, amounts, amounts)
def test_before_and_after_judge_alike(stated, held, more) -> None:
    """The rule that is asked before and the checker that looks after reach one verdict on the same placement."""
    books = LimitBooks()
    books.grant("a", "job-1", [(parts_of(kind), milli) for kind, milli in held.items()])
    books.set("a", *stated)
    told = books.grant("a", "job-2", [(parts_of(kind), milli) for kind, milli in more.items()])
    limits = Limits.of(*stated)
    reached = exceeded([LimitsUse(limits, held)] if limits else [], more)
    assert bool(told) == (reached is not None)
    if reached is not None:
        counted = {parts_of(kind): milli for kind, milli in held.items()}
        assert Fraction(reached.used, GRAINS) == part_of(reached.key, counted)


@settings(max_examples=100, deadline=None)
@given(requests, some_limits)
def test_admission_refuses_what_could_never_be_within_the_limits_and_nothing_else(resources, stated) -> None:
    """A request that admission lets pass has room as soon as its team holds nothing, and one that it refuses never has."""
    world = World(*NODES)
    world.send(inbox.QuotaChanged(team="research", limit_milli=stated[0], by_type=stated[1]))
    shape = FleetShape()
    for seq, record in enumerate(world.records, 1):
        shape.apply(record, seq)
    spec = JobSpec(command=("true",), resources=resources)
    verdict = evaluate(SubmitJob(client_key="k", job=spec), "research", AdmissionContext(shape, limits.room))
    refused = RefusalCause.QUOTA in {refusal.why for refusal in getattr(verdict, "refusals", ())}
    waiting = world.submit(asking("k", resources))
    one = world.decider.state.jobs[waiting]
    has_room = Tally(world.decider.state).room(one).request is not None if one.current is None else True
    assert has_room == (not refused)


def test_the_builders_offer_what_the_properties_count_on() -> None:
    world = World(*NODES)
    for name, resources in (("s", Resources(mig_profile="3g.40gb")), ("c", Resources(types=("CPU",)))):
        assert world.state_of(world.submit(asking(name, resources))) == "granted"
    assert world.state_of(world.submit(job("h", 4, types=("H100",)))) == "granted"
