"""The decider: inbox messages in, the events of one ledger record out.

`decide` changes the state as it goes. If the commit of its events fails, the writer (`libs.ledger.writer`) drops the decider
and folds the ledger again, because the log decides what happened and not this process. The cycle's memory of jobs that did not
fit (`backlog`) is dropped with it.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from libs.core.placement.view import Scores, View
from libs.core.scheduling import cycle, repartition
from libs.core.scheduling.allowances import NodeAllowances
from libs.core.scheduling.backlog import Backlog
from libs.core.scheduling.failing import FailingNodes
from libs.core.scheduling.fragments import fragments
from libs.core.scheduling.limits import hold_of
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import Precedence
from libs.core.scheduling.promises import new_promises
from libs.core.scheduling.reactions import Decision, react, reject
from libs.core.scheduling.reactions.attempts import release_hold
from libs.core.scheduling.reactions.boosts import end_boosts
from libs.core.scheduling.reactions.budgets import begin_periods
from libs.core.state import fold, snapshot
from libs.core.state.decided import DecisionFault, RecordEnd, stack_of
from libs.core.state.fleet import Fleet
from libs.core.state.formats import NEWEST
from libs.core.state.model import State
from libs.core.state.shape import Shape, shape_of
from libs.core.state.waiting import pass_time
from schemas import inbox, ledger
from schemas.budgets import BudgetHold
from schemas.jobs import JobState


class Item(Protocol):
    """One inbox message in stream order; `message` is None when it could not be read, then `error` says why."""

    @property
    def seq(self) -> int: ...
    @property
    def subject(self) -> str: ...
    @property
    def time_us(self) -> int: ...
    @property
    def message(self) -> inbox.InboxMessage | None: ...
    @property
    def error(self) -> str: ...


class Learner(Scores, Protocol):
    """A scorer that learns the mix of requests; see `libs.core.placement.score.scorer.Scorer`."""

    def observe(self, shape: Shape) -> None: ...
    def departed(self) -> None: ...
    def due(self, fleet: Fleet) -> bool: ...
    def upkeep(self, view: View) -> None: ...
    def dump(self) -> Any: ...
    def restore(self, learned: Any) -> None: ...


class DecisionFailed(RuntimeError):
    """An error met at the input `inbox_seq`; the state is half changed and must be thrown away. The cause is the error."""

    def __init__(self, inbox_seq: int) -> None:
        super().__init__(f"input {inbox_seq}")
        self.inbox_seq = inbox_seq


_FAULTS_PER_CYCLE = 3
"""The maximum number of jobs that one cycle ends because of errors; the rest waits for the next decision."""
_LEAST_CLAIM_BYTES = 64
_CONDEMNED = 1000


def _short(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"[:300]


class Decider:
    """Placement's state and its two operations: `apply` folds what was committed, `decide` makes the next decision."""

    def __init__(
        self,
        state: State | None = None,
        policy: Policy = Policy(),
        learner: Learner | None = None,
        allowed: Callable[[], int] = lambda: NEWEST,
        largest_event: int = sys.maxsize,
        condemned: dict[str, str] | None = None,
        *,
        nodes: NodeAllowances | None = None,
        failing: FailingNodes | None = None,
        beside: Sequence[bytes] = (),
    ) -> None:
        """`allowed`: the newest format of the ledger that may be written now (`libs.core.state.formats`). `beside`: what was
        learned beside `state`, as a snapshot has it."""
        self.state = state if state is not None else State()
        self.turns = policy.precedence or Precedence.beside(self.state, beside)
        """The order of jobs within a class."""
        self.state.turns = self.turns
        self.state.fleet.scorer = learner
        self.learner = learner
        self.policy = policy
        self._allowed = allowed
        self.plan = cycle.Plan()
        """The last cycle's plan: why each queue waits (explain, queue list)."""
        self._backlog = Backlog()
        self.largest_event = largest_event
        self._nodes = nodes if nodes is not None else NodeAllowances(policy.node_devices)
        self._failing = failing if failing is not None else FailingNodes()
        self._condemned = condemned if condemned is not None else {}
        """Jobs whose grants could not be folded, with the reason: they are ended. It outlives this state, which is then half
        changed and dropped."""
        self.record_ends: list[RecordEnd] = []
        """Where the records of the last decision may end."""
        self.faults: list[DecisionFault] = []
        """Errors that the last decision met and continued after."""

    @property
    def policy(self) -> Policy:
        """That of its cycles, with the order that it keeps."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy if policy.precedence is not None else replace(policy, precedence=self.turns)

    @property
    def inbox_seq(self) -> int:
        return self.state.inbox_seq

    @property
    def t_us(self) -> int:
        return self.state.t_us

    def apply(self, record: ledger.LedgerRecord, seq: int) -> None:
        """Folds a committed record. Which queues it may help is not known, so the next cycle considers all of them."""
        self._backlog = Backlog()
        fold.apply_record(self.state, record)
        self._learn(record.events)

    def decide(
        self, inputs: Sequence[Item], t_us: int, *, behind: bool = False, jumps: Sequence[ledger.ClockJumped] = ()
    ) -> list[ledger.LedgerEvent]:
        """The events that `inputs` lead to at `t_us`, in order; then one scheduling cycle. A tick also repartitions boards,
        and withdraws repartitions that were not answered in time.

        While ledger time is `behind` (the next tick, or the newest input in the inbox), nothing begins: no grant, no promise,
        no repartition. After a night in which the whole system, or the writer alone, stood still, a grant would get the time of
        the evening, and its team would be billed for the night. `jumps`: what the record tells before these events.

        No input and no job blocks the others: an error at one rejects the input, or ends the job, and is in `faults`. Raises
        DecisionFailed when the error has left the state half changed."""
        decision = Decision(
            self.state,
            t_us,
            self._backlog.changes,
            inputs[-1].time_us if inputs else 0,
            self._allowed(),
            self.policy.precedence,
            nodes=self._nodes,
            failing=self._failing,
        )
        self.faults = []
        self._nodes.decide(self.state.inbox_seq)
        back = pass_time(self.state, t_us)
        self._backlog.changes.fronts.update(job.queue for job in back)
        self.state.wall_us = decision.wall_us
        fell_due = self.turns.begin(self.state, t_us, back)
        for jump in jumps:  # as in the fold of its record: behind all that begins with a decision
            fold.apply(self.state, jump, t_us)
        if self.state.budgets:
            begin_periods(decision)
        if self.state.boosted:
            end_boosts(decision)
        for item in inputs:
            self._react(decision, item)
        self._end_condemned(decision)
        self._learn_of(decision)
        self._backlog.changes.held |= fell_due
        if self.turns.shuffled():
            self._backlog.changes.anything = True
        if self.turns.renumbered():
            self._backlog.changes.order = True
        self.plan = self._planned(decision, t_us) if not behind else cycle.Plan(complete=False)
        for grant in self.plan.grants:
            self._grant(decision, grant)
        if not behind and any(isinstance(item.message, inbox.Tick) for item in inputs):
            self._repartition(decision, t_us)
            self._promise(decision, t_us)
            if self.plan.complete:
                self._reserve(decision)
                self._tell_fragments(decision)
        self.state.t_us = t_us
        if inputs:
            self.state.inbox_seq = inputs[-1].seq
        self.record_ends = decision.record_ends
        return decision.events

    def _react(self, decision: Decision, item: Item) -> None:
        before = len(decision.events)
        self._nodes.judge(item.seq)
        try:
            react(decision, item.seq, item.subject, item.message, item.error)
        except Exception as error:
            if not decision.whole or len(decision.events) > before:
                raise DecisionFailed(item.seq) from error
            self.faults.append(DecisionFault(item.seq, item.subject, stack_of(error)))
            reason = f"placement failed on it ({_short(error)}); the dead letter has the stack"
            reject(decision, item.seq, item.subject, item.message, reason)
        decision.decided_to = item.seq
        decision.may_end_here()

    def _planned(self, decision: Decision, t_us: int) -> cycle.Plan:
        """One cycle. A job that cannot be planned for is ended: it must not keep the others from their turns."""
        for _ in range(_FAULTS_PER_CYCLE):
            try:
                return cycle.plan(self.state, t_us, self.policy, self._backlog)
            except Exception as error:
                self._backlog = Backlog()
                decision.changes = self._backlog.changes
                if not isinstance(error, cycle.CannotBePlanned):
                    self.faults.append(DecisionFault(0, "the cycle", stack_of(error)))
                    break
                self._end(decision, error.job_id, f"placement failed on it ({_short(error.__cause__)})")
                self.faults.append(DecisionFault(0, error.job_id, stack_of(error)))
        return cycle.Plan(complete=False)

    def _grant(self, decision: Decision, grant: cycle.Grant) -> None:
        job = grant.job
        granted = ledger.JobGranted(
            job_id=job.id, attempt=job.attempts + 1, claims=grant.claims, resume=job.resume, span=grant.span,
            hold=self._hold(grant, decision.t_us), own_delay_us=self.turns.book.own_delay_us(self.state, job),
        )  # fmt: skip
        if len(grant.claims) * _LEAST_CLAIM_BYTES > self.largest_event // 2:
            size = len(granted.model_dump_json())
            if size > self.largest_event:
                why = f"its grant takes {size} bytes, and the broker takes {self.largest_event}: raise its max_payload"
                self._end(decision, job.id, why)
                return
        try:
            if job.id in self.state.holds:
                decision.emit(ledger.HoldReleased(job_id=job.id))
            decision.emit(granted)
        except Exception as error:
            self._condemned[job.id] = _short(error)
            if len(self._condemned) > _CONDEMNED:
                del self._condemned[next(iter(self._condemned))]
            raise DecisionFailed(0) from error
        decision.may_end_here()

    def _hold(self, grant: cycle.Grant, t_us: int) -> BudgetHold | None:
        if not self.state.budgets:
            return None
        fleet = self.state.fleet
        devices = [(fleet.kind(fleet.row(claim.device)), claim.milli) for claim in grant.claims]
        return hold_of(self.state, grant.job, devices, t_us)

    def _repartition(self, decision: Decision, t_us: int) -> None:
        try:
            for late in repartition.overdue(self.state, t_us, self.policy):
                if decision.may(late):
                    decision.emit(late)
            for repartitioned in repartition.plan_repartitions(self.state, self.plan, t_us, self.policy):
                known = decision.counts_cuts
                decision.emit(repartitioned if known else repartitioned.model_copy(update={"for_job": None}))
        except Exception as error:
            if not decision.whole:
                raise
            self.faults.append(DecisionFault(0, "repartitions", stack_of(error)))

    def _promise(self, decision: Decision, t_us: int) -> None:
        """Tells gangs that wait when they start. A simulator that orders by one rule makes promises of its own."""
        if self.turns.rules.fixed is not None:
            return
        try:
            for promised in new_promises(self.state, self.policy, t_us):
                if decision.may(promised):
                    known = decision.may_tell_own_delays
                    decision.emit(promised if known else promised.model_copy(update={"stays": None}))
                    decision.may_end_here()
        except Exception:
            if not decision.whole:
                raise
            self.faults.append(DecisionFault(0, "promises", stack_of(sys.exc_info()[1] or RuntimeError())))

    def _reserve(self, decision: Decision) -> None:
        """Tells what the cycle keeps free for gangs, where that is not what was told last: of the accounts it is a state of its
        own. With ticks, because it may move with each device that is freed."""
        state, names = self.state, self.state.fleet.devices.names
        kept = {
            gang: tuple(names[row] for row in one.rows.tolist())
            for gang, one in self._backlog.reserved.items()
            if not one.team  # what is kept from its own team only is idle: others may use it
        }
        for gang in sorted(kept.keys() | state.reserved.keys()):
            job, devices = state.jobs.get(gang), kept.get(gang, ())
            if job is None or job.state is not JobState.QUEUED or devices == state.reserved.get(gang, ()):
                continue
            told = ledger.DevicesReserved(gang=gang, devices=devices)
            if decision.may(told):
                decision.emit(told)
                decision.may_end_here()

    def _tell_fragments(self, decision: Decision) -> None:
        """Tells what is free and of no use to what waits, where that is not what was told last: a split of what is idle."""
        try:
            told = ledger.DevicesFragmented(units=fragments(self.state, self.plan.waiting))
            if told.units != self.state.fragmented and decision.may(told):
                decision.emit(told)
                decision.may_end_here()
        except Exception:
            if not decision.whole:
                raise
            self.faults.append(DecisionFault(0, "fragments", stack_of(sys.exc_info()[1] or RuntimeError())))

    def _end_condemned(self, decision: Decision) -> None:
        for job_id, why in list(self._condemned.items()):
            job = self.state.jobs.get(job_id)
            if job is not None and job.state is JobState.QUEUED:
                self._end(decision, job_id, f"placement failed on its grant ({why})")

    def _end(self, decision: Decision, job_id: str, reason: str) -> None:
        release_hold(decision, job_id)
        decision.emit(ledger.JobFinished(job_id=job_id, state=JobState.CANCELLED, reason=reason))
        decision.may_end_here()

    def upkeep(self) -> None:
        """Brings what the scorer has learned up to date. To be called between decisions: it can take some ten milliseconds."""
        if self.learner is not None and self.learner.due(self.state.fleet):
            self.learner.upkeep(View.of(self.state.fleet))

    def dump(self) -> Iterable[bytes]:
        """Parts of the state as it is now, made as they are asked for (`libs.core.state.snapshot.dump`)."""
        return snapshot.dump(self.state, self.learner.dump() if self.learner is not None else None)

    @classmethod
    def load(
        cls, parts: Iterable[bytes], policy: Policy = Policy(), learner: Learner | None = None, **how: Any
    ) -> "Decider":
        state, learned, beside = snapshot.load(parts)
        if learner is not None and learned is not None:
            learner.restore(learned)
        return cls(state, policy, learner, beside=beside, **how)

    def _learn_of(self, decision: Decision) -> None:
        try:
            self._learn(decision.events)
        except Exception as error:  # what it learns only orders good places
            self.faults.append(DecisionFault(0, "the learner", stack_of(error)))

    def _learn(self, events: Sequence[ledger.LedgerEvent]) -> None:
        if self.learner is None:
            return
        for event in events:
            if isinstance(event, ledger.JobQueued):
                job = self.state.jobs.get(event.job_id)  # it may have ended already, by the same record
                self.learner.observe(job.shape if job is not None else shape_of(event.spec))
            elif isinstance(event, ledger.JobFinished):
                self.learner.departed()


class Deciders:
    """Makes deciders of one policy: new ones, and ones from a snapshot. Each learns from the ledger that it folds.

    `largest_event` is what one event may take in a record, bytes: a job whose grant takes more is ended."""

    version = snapshot.VERSION

    def __init__(
        self,
        policy: Policy = Policy(),
        learner: Callable[[], Learner] | None = None,
        allowed: Callable[[], int] = lambda: NEWEST,
        largest_event: int = sys.maxsize,
    ) -> None:
        self.policy = policy
        self._learner = learner
        self.nodes = NodeAllowances(policy.node_devices)
        """What nodes have used up: of all deciders, so that folding again gives nothing back."""
        self._how: dict[str, Any] = {
            "allowed": allowed, "largest_event": largest_event, "condemned": {}, "nodes": self.nodes, "failing": FailingNodes()
        }  # fmt: skip

    def new(self) -> Decider:
        return Decider(policy=self.policy, learner=self._learner() if self._learner else None, **self._how)

    def load(self, parts: Iterable[bytes]) -> Decider:
        return Decider.load(parts, self.policy, self._learner() if self._learner else None, **self._how)
