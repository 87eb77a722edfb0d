"""Keeps placement's state as a reader of the ledger, and decides when it is time to plan again."""

from collections.abc import Iterable
from typing import ClassVar

from libs.core.scheduling import preemption
from libs.core.state import fold, snapshot
from libs.core.state.model import State
from schemas.inbox import PreemptionPlanned
from schemas.ledger import LedgerRecord


class PreemptionPlanner:
    """The ledger folded, and which beneficiaries already have a plan on its way.

    A plan is *pending* until the ledger shows that placement has read it; then either devices are held for the
    beneficiary, or the plan was stale and the next one is made on the newer state.
    """

    version: ClassVar = snapshot.VERSION
    handled: ClassVar = fold.HANDLED
    ignored: ClassVar = fold.IGNORED

    def __init__(self, state: State | None = None) -> None:
        self.state = state if state is not None else State()
        self._pending: dict[str, int] = {}

    def apply(self, record: LedgerRecord, seq: int) -> None:
        fold.apply_record(self.state, record)

    def skip(self, seq: int) -> None:
        """A void record: it changes nothing."""

    def dump(self) -> Iterable[bytes]:
        return snapshot.dump(self.state)

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "PreemptionPlanner":
        return cls(snapshot.load(parts))

    def plans(self, base_seq: int) -> list[PreemptionPlanned]:
        """New plans on the present state; none for beneficiaries whose last plan is still pending."""
        self._pending = {job: seq for job, seq in self._pending.items() if seq > self.state.inbox_seq}
        waiting = any(key[0] and self._may_preempt(line) for key, line in self.state.queues.items())
        if not waiting:
            return []
        made = preemption.plans(self.state, self.state.t_us, base_seq)
        return [plan for plan in made if plan.beneficiary not in self._pending]

    def sent(self, plan: PreemptionPlanned, inbox_seq: int) -> None:
        """The broker stored `plan` at `inbox_seq`."""
        self._pending[plan.beneficiary] = inbox_seq

    def _may_preempt(self, line: dict[str, int]) -> bool:
        return any(self.state.jobs[job_id].preempts for job_id in line)
