"""Random lives of a pool: whatever is sent, in whatever order and however often, no invariant breaks.

The driver plays agents, teams, telemetry and preemption at once, and replays old messages. After each step the checker
(which has its own books) is content, and the decider that decided equals one that only read the ledger.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libs.core.accelerators.kinds import accelerators_milli
from libs.core.scheduling import preemption
from libs.core.state.lifecycle import ACTIVE
from schemas import inbox
from schemas.jobs import Checkpoint, JobState, RetryPolicy
from schemas.resources import Level
from tests.core.builders import World, job, node

NODES = ("n0", "n1", "n2")


class Pool(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.sent: list = []
        self.count = 0

    @initialize()
    def nodes_register(self) -> None:
        for i, name in enumerate(NODES):
            self.send(inbox.NodeRegistered(incarnation=1, inventory=node(name, 4, leaf=f"leaf-{i // 2}"), lease_s=10))

    def send(self, *messages) -> None:
        self.sent.extend(messages)
        self.world.send(*messages)

    @rule(
        devices=st.sampled_from([1, 1, 2, 4, 6, 8, 12, 13]),
        share=st.sampled_from([1000, 1000, 250, 400]),
        team=st.sampled_from(["research", "vision"]),
        high=st.booleans(),
        failures=st.integers(0, 1),
        required=st.sampled_from([None, None, Level.NODE, Level.LEAF]),
        limit=st.sampled_from([0, 0, 5]),
    )
    def submit(self, devices, share, team, high, failures, required, limit) -> None:
        self.count += 1
        admitted = job(
            f"j{self.count}",
            devices,
            team=team,
            share_milli=share if devices == 1 else 1000,
            priority=100 if high else 0,
            preempts=high,
            retry=RetryPolicy(on_failure=failures, on_lost=1),
            required=required,
            time_limit_s=limit,
            submitted_us=self.world.now_us + 1,
        )
        self.send(admitted)

    def active(self):
        return sorted(j.id for j in self.world.decider.state.jobs.values() if j.state in ACTIVE)

    @precondition(lambda self: self.active())
    @rule(
        data=st.data(),
        kind=st.sampled_from(
            ["started", "checkpoint", "done", "done", "failed", "broken", "stopped", "stopped", "refused"]
        ),
    )
    def observe(self, data, kind) -> None:
        chosen = self.world.decider.state.jobs[data.draw(st.sampled_from(self.active()))]
        where = data.draw(st.sampled_from(sorted(chosen.current.parts)))
        key = {"job_id": chosen.id, "attempt": chosen.current.number}
        seen = {
            "started": lambda: inbox.Started(**key),
            "checkpoint": lambda: inbox.CheckpointTaken(
                **key, checkpoint=Checkpoint(step=data.draw(st.integers(0, 9)), reference="r")
            ),
            "done": lambda: inbox.Released(**key, exit_code=0, own_exit=True),
            "failed": lambda: inbox.Released(**key, exit_code=1, own_exit=True),
            "stopped": lambda: inbox.Released(**key, exit_code=143, own_exit=False),
            "broken": lambda: inbox.Released(**key, exit_code=1, own_exit=True, category="hardware"),
            "refused": lambda: inbox.Refused(**key, reason="stale"),
        }[kind]()
        incarnation = self.world.decider.state.fleet.nodes[where].incarnation
        self.send(inbox.NodeObserved(node=where, incarnation=incarnation, observations=(seen,)))

    @rule(name=st.sampled_from(NODES))
    def node_restarts(self, name) -> None:
        last = self.world.decider.state.fleet.nodes[name].incarnation
        i = NODES.index(name)
        self.send(
            inbox.NodeRegistered(incarnation=last + 1, inventory=node(name, 4, leaf=f"leaf-{i // 2}"), lease_s=10)
        )

    @rule(name=st.sampled_from(NODES), planned=st.booleans())
    def node_is_lost(self, name, planned) -> None:
        incarnation = self.world.decider.state.fleet.nodes[name].incarnation
        self.send(inbox.NodeLost(node=name, incarnation=incarnation, silent_s=30, planned=planned))

    @rule(team=st.sampled_from(["research", "vision"]), limit=st.sampled_from([None, 2000, 6000, 20_000]))
    def quota_changes(self, team, limit) -> None:
        used = accelerators_milli(self.world.decider.state.committed(team))
        if limit is None or limit >= used:  # a lower quota stops new grants; I7 speaks of grants
            self.send(inbox.QuotaChanged(team=team, limit_milli=limit))

    @rule()
    def preemption_plans(self) -> None:
        made = preemption.plans(self.world.decider.state, self.world.now_us, len(self.world.records))
        before = len(self.world.decider.state.holds)
        for plan in made:
            self.send(plan)
        assert len(self.world.decider.state.holds) == before + len(made), "a fresh plan must be accepted"

    @precondition(lambda self: self.world.decider.state.jobs)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        chosen = self.world.decider.state.jobs[data.draw(st.sampled_from(sorted(self.world.decider.state.jobs)))]
        self.send(inbox.CancelRequested(job_id=chosen.id, team=chosen.team, reason="changed my mind"))

    @rule(seconds=st.integers(1, 70))
    def time_passes(self, seconds) -> None:
        self.world.send(inbox.Tick(), after_us=seconds * 1_000_000)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_message_comes_again(self, data) -> None:
        self.world.send(data.draw(st.sampled_from(self.sent)))

    @invariant()
    def no_invariant_is_broken(self) -> None:
        assert self.world.checker.finish().violations == []

    @invariant()
    def a_job_is_where_its_attempt_is(self) -> None:
        for known in self.world.decider.state.jobs.values():
            assert known.state == (known.current.state if known.current is not None else JobState.QUEUED)

    @invariant()
    def nothing_that_fits_is_left_waiting(self) -> None:
        """After each decision a further cycle would grant nothing: the cycle is complete."""
        from libs.core.scheduling import cycle

        state = self.world.decider.state
        assert cycle.plan(state, self.world.now_us).grants == []

    def teardown(self) -> None:
        self.world.check()


TestPool = Pool.TestCase
TestPool.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
