"""The decider: it takes inbox messages in, and gives the events of one ledger record out.

`decide` changes the state as it goes. If the commit of its events fails, the writer (`libs.ledger.writer`) throws the decider
away and folds the ledger again, because the log decides what happened and not this process. The cycle's memory of jobs that
did not fit (`backlog`) goes with it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from libs.core.placement.view import Scores, View
from libs.core.scheduling import cycle, repartition
from libs.core.scheduling.backlog import Backlog
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.reactions import Decision, react
from libs.core.state import fold, snapshot
from libs.core.state.fleet import Fleet
from libs.core.state.formats import NEWEST
from libs.core.state.model import Shape, State, shape_of
from schemas import inbox, ledger


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


class Decider:
    """Placement's state and its two moves: `apply` what was committed, `decide` what comes next."""

    def __init__(
        self,
        state: State | None = None,
        policy: Policy = Policy(),
        learner: Learner | None = None,
        allowed: Callable[[], int] = lambda: NEWEST,
    ) -> None:
        """`allowed`: the newest format of the ledger that may be written now (`libs.core.state.formats`)."""
        self.state = state if state is not None else State()
        self.state.fleet.scorer = learner
        self.learner = learner
        self.policy = policy
        self._allowed = allowed
        self.plan = cycle.Plan()
        """The last cycle's plan: why each queue waits (explain, queue list)."""
        self._backlog = Backlog()

    @property
    def inbox_seq(self) -> int:
        return self.state.inbox_seq

    @property
    def t_us(self) -> int:
        return self.state.t_us

    def apply(self, record: ledger.LedgerRecord, seq: int) -> None:
        """Folds a committed record. Which queues it helps is not known, so the next cycle looks at all of them."""
        self._backlog = Backlog()
        fold.apply_record(self.state, record)
        self._learn(record.events)

    def decide(self, inputs: Sequence[Item], t_us: int) -> list[ledger.LedgerEvent]:
        """The events that `inputs` lead to at `t_us`, in order; then one scheduling cycle. A tick also repartitions boards,
        and withdraws repartitions that were not answered in time."""
        decision = Decision(
            self.state, t_us, self._backlog.changes, inputs[-1].time_us if inputs else 0, self._allowed()
        )
        for item in inputs:
            react(decision, item.seq, item.subject, item.message, item.error)
        self._learn(decision.events)
        self.plan = cycle.plan(self.state, t_us, self.policy, self._backlog)
        for grant in self.plan.grants:
            job = grant.job
            if job.id in self.state.holds:
                decision.emit(ledger.HoldReleased(job_id=job.id))
            decision.emit(
                ledger.JobGranted(
                    job_id=job.id, attempt=job.attempts + 1, claims=grant.claims, resume=job.resume, span=grant.span
                )
            )
        if any(isinstance(item.message, inbox.Tick) for item in inputs):
            for late in repartition.overdue(self.state, t_us, self.policy):
                if decision.may(late):
                    decision.emit(late)
            for repartitioned in repartition.plan_repartitions(self.state, self.plan, t_us, self.policy):
                decision.emit(repartitioned)
        self.state.t_us = t_us
        if inputs:
            self.state.inbox_seq = inputs[-1].seq
        return decision.events

    def upkeep(self) -> None:
        """Brings what the scorer has learned up to date. To be called between decisions: it can take some ten milliseconds."""
        if self.learner is not None and self.learner.due(self.state.fleet):
            self.learner.upkeep(View.of(self.state.fleet))

    def dump(self) -> Iterable[bytes]:
        """Parts of the state as it is now, made as they are asked for (`libs.core.state.snapshot.dump`)."""
        return snapshot.dump(self.state, self.learner.dump() if self.learner is not None else None)

    @classmethod
    def load(
        cls,
        parts: Iterable[bytes],
        policy: Policy = Policy(),
        learner: Learner | None = None,
        allowed: Callable[[], int] = lambda: NEWEST,
    ) -> "Decider":
        state, learned = snapshot.load_learned(parts)
        if learner is not None and learned is not None:
            learner.restore(learned)
        return cls(state, policy, learner, allowed)

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
    """Makes deciders of one policy: new ones, and ones from a snapshot. Each learns from the ledger that it folds."""

    version = snapshot.VERSION

    def __init__(
        self,
        policy: Policy = Policy(),
        learner: Callable[[], Learner] | None = None,
        allowed: Callable[[], int] = lambda: NEWEST,
    ) -> None:
        self.policy = policy
        self._allowed = allowed
        self._learner = learner

    def new(self) -> Decider:
        learner = self._learner() if self._learner else None
        return Decider(policy=self.policy, learner=learner, allowed=self._allowed)

    def load(self, parts: Iterable[bytes]) -> Decider:
        return Decider.load(parts, self.policy, self._learner() if self._learner else None, self._allowed)
