"""Preemption's reader of the ledger: keeps placement's state, and decides when to plan again."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from libs.core.scheduling import preemption
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import Precedence
from libs.core.scheduling.precedence.exchange import apart, exchanges
from libs.core.state import fold, snapshot
from libs.core.state.model import State
from schemas.inbox import PreemptionPlanned
from schemas.ledger import AttemptProgress, LedgerRecord


class PreemptionPlanner:
    """The ledger folded, and the plans that are on their way.

    See `libs.core.scheduling.preemption.pending` for what is not planned again.
    """

    version: ClassVar = snapshot.VERSION
    handled: ClassVar = fold.HANDLED
    ignored: ClassVar = fold.IGNORED

    def __init__(self, state: State | None = None, beside: Sequence[bytes] = ()) -> None:
        """`beside`: what was learned beside `state`, as a snapshot has it."""
        self.state = state if state is not None else State()
        self._turns = Precedence.beside(self.state, beside)
        self._pending = preemption.PendingPlans()

    def apply(self, record: LedgerRecord, seq: int) -> list[preemption.PlanAnswer]:
        """Folds a valid record; the answers in it to plans that were sent from here."""
        fold.apply_record(self.state, record)
        answers = self._pending.apply(record)
        if self._turns.rules.preempts and any(isinstance(event, AttemptProgress) for event in record.events):
            self._pending.look_again()
        return answers

    def skip(self, seq: int) -> None:
        """A void record: it changes nothing."""

    def dump(self) -> Iterable[bytes]:
        return snapshot.dump(self.state)

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "PreemptionPlanner":
        state, _, beside = snapshot.load(parts)
        return cls(state, beside)

    def plans(self, base_seq: int, policy: Policy = Policy()) -> list[PreemptionPlanned]:
        """Plans on the present state that are not on their way yet; none when nothing has changed since the last call.

        `policy`: that of the pool's cycles, so that plans are made in their order.
        """
        state, pending, turns = self.state, self._pending, self._turns
        if not pending.due(state.t_us):
            return []
        policy = replace(policy, precedence=turns)
        made = preemption.plans(state, state.t_us, base_seq, pending.plans, pending.waiting, policy)
        passed = {plan.beneficiary for plan in (*pending.plans, *made)} | pending.waiting
        again_us = preemption.next_turn_us(state, state.t_us, passed, policy)
        if turns.rules.preempts:
            made += apart(exchanges(state, turns, state.t_us, base_seq), [*pending.plans, *made], pending.waiting)
            again_us = min(again_us or turns.next_change_us(state.t_us), turns.next_change_us(state.t_us))
        pending.computed(again_us)
        return made

    def sent(self, plan: PreemptionPlanned, inbox_seq: int) -> None:
        """The broker stored `plan` at `inbox_seq`."""
        self._pending.sent(plan, inbox_seq)

    def unsent(self) -> None:
        """The broker stored none of the last plans, as far as is known: they are made anew."""
        self._pending.unsent()
