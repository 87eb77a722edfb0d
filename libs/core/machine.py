"""The decider: a state that takes inbox messages in, and gives the events of one ledger record out.

`decide` moves the state as it goes. Whoever fails to commit its events throws the machine away and folds the ledger
again (`libs.ledger.writer`): the log decides what happened, not this process.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from libs.core import cycle, fold, snapshot
from libs.core.decide import Decision
from libs.core.model import State
from schemas import ledger


class Item(Protocol):
    """One inbox message in stream order; `message` is None when it could not be read, then `error` says why."""

    @property
    def seq(self) -> int: ...
    @property
    def subject(self) -> str: ...
    @property
    def time_us(self) -> int: ...
    @property
    def message(self) -> Any: ...
    @property
    def error(self) -> str: ...


class Machine:
    """Placement's state and its two moves: `apply` what was committed, `decide` what comes next."""

    def __init__(self, state: State | None = None, policy: cycle.Policy = cycle.Policy()) -> None:
        self.state = state if state is not None else State()
        self.policy = policy
        self.plan = cycle.Plan()
        """The last cycle's plan: why each line waits (explain, queue list)."""

    @property
    def inbox_seq(self) -> int:
        return self.state.inbox_seq

    @property
    def t_us(self) -> int:
        return self.state.t_us

    def apply(self, record: ledger.LedgerRecord, seq: int) -> None:
        """Folds a committed record."""
        fold.apply_record(self.state, record)

    def decide(self, inputs: Sequence[Item], t_us: int) -> list[Any]:
        """The events that `inputs` lead to at `t_us`, in order; then one scheduling cycle."""
        decision = Decision(self.state, t_us)
        for item in inputs:
            decision.take(item.seq, item.subject, item.message, item.error)
        self.plan = cycle.plan(self.state, t_us, self.policy)
        for grant in self.plan.grants:
            job = grant.job
            if job.id in self.state.holds:
                decision.emit(ledger.HoldReleased(job_id=job.id))
            decision.emit(
                ledger.JobGranted(job_id=job.id, attempt=job.attempts + 1, claims=grant.claims, resume=job.resume)
            )
        self.state.t_us = t_us
        if inputs:
            self.state.inbox_seq = inputs[-1].seq
        return decision.events

    def dump(self) -> bytes:
        return snapshot.dump(self.state)

    @classmethod
    def load(cls, data: bytes, policy: cycle.Policy = cycle.Policy()) -> "Machine":
        return cls(snapshot.load(data), policy)


class Machines:
    """Makes machines of one policy: new ones, and ones from a snapshot."""

    def __init__(self, policy: cycle.Policy = cycle.Policy()) -> None:
        self.policy = policy

    def new(self) -> Machine:
        return Machine(policy=self.policy)

    def load(self, data: bytes) -> Machine:
        return Machine.load(data, self.policy)
