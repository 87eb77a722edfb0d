"""Keeps placement's state as a reader of the ledger, and decides when it is time to plan again."""

from collections.abc import Iterable
from typing import ClassVar

from libs.core.scheduling import preemption
from libs.core.scheduling.policy import Policy
from libs.core.state import fold, snapshot
from libs.core.state.model import State
from schemas.inbox import PreemptionPlanned
from schemas.ledger import LedgerRecord


class PreemptionPlanner:
    """The ledger folded, and the plans that are on their way.

    See `libs.core.scheduling.preemption.pending` for what is not planned again.
    """

    version: ClassVar = snapshot.VERSION
    handled: ClassVar = fold.HANDLED
    ignored: ClassVar = fold.IGNORED

    def __init__(self, state: State | None = None) -> None:
        self.state = state if state is not None else State()
        self._pending = preemption.PendingPlans()

    def apply(self, record: LedgerRecord, seq: int) -> list[preemption.PlanAnswer]:
        """Folds a valid record; the answers in it to plans that were sent from here."""
        fold.apply_record(self.state, record)
        return self._pending.apply(record)

    def skip(self, seq: int) -> None:
        """A void record: it changes nothing."""

    def dump(self) -> Iterable[bytes]:
        return snapshot.dump(self.state)

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "PreemptionPlanner":
        return cls(snapshot.load(parts))

    def plans(self, base_seq: int, policy: Policy = Policy()) -> list[PreemptionPlanned]:
        """Plans on the present state that are not on their way yet; none when nothing has changed since the last call.

        `policy`: that of the pool's cycles, so that plans are made in their order.
        """
        state, pending = self.state, self._pending
        if not pending.due(state.t_us):
            return []
        made = preemption.plans(state, state.t_us, base_seq, pending.plans, pending.waiting, policy)
        pending.computed(preemption.next_turn_us(state, state.t_us))
        return made

    def sent(self, plan: PreemptionPlanned, inbox_seq: int) -> None:
        """The broker stored `plan` at `inbox_seq`."""
        self._pending.sent(plan, inbox_seq)

    def unsent(self) -> None:
        """The broker stored none of the last plans, as far as is known: they are made anew."""
        self._pending.unsent()
