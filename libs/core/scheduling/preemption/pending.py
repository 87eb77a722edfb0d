"""A planner's memory: which plans are on their way, and whether anything has changed that is worth planning on.

The naive planner computes all plans after every record. This one does the same with two differences:

- **Pending.** A plan that was sent and is not answered in the ledger stays as it is: its beneficiary gets no other plan,
  and its victims and devices serve nobody else. The answer is `DevicesHeld` (accepted) or `PlanDeclined` with its id.
  Placement reads its inbox in order, so a plan is answered at the latest when the ledger says that the inbox was
  decided up to it: one that has no answer then (it could not be read) has timed out and is made anew.
- **Changes.** Nothing is computed until something happened that a plan can depend on. A plan that was declined is made
  anew if the world changed between its making and its answer. If it did not, the next plan would be the same and be
  declined again: then its beneficiary waits for the next change.

What is pending is not part of a snapshot. A planner that starts anew may send a second plan for a beneficiary; the first
that placement reads is accepted, the other declined.
"""

from dataclasses import dataclass

from schemas import ledger
from schemas.inbox import PreemptionPlanned

PROGRESS: frozenset[type] = frozenset(
    {
        ledger.AttemptStarting,
        ledger.AttemptRunning,
        ledger.AttemptCheckpointed,
        ledger.AttemptProgress,
        ledger.AttemptClosed,
        ledger.InputRejected,
        ledger.PlanDeclined,
        ledger.BoardRecutWithdrawn,
        ledger.ClockJumped,
        ledger.SegmentSealed,
        ledger.TeamLeft,
        ledger.GranterNamed,
        ledger.NodeDeclaredDead,
        ledger.DevicesReserved,
        ledger.DevicesFragmented,
        ledger.OperatorActed,
        ledger.CommandRefused,
        ledger.LedgerSummed,
        ledger.PeriodClosed,
        ledger.BudgetReached,
        ledger.BudgetHoldsRenewed,
    }
)
"""Events that make no other plan possible: they free, take, add, withdraw and queue nothing. A checkpoint makes a victim
cheaper, but no plan possible that was not before. A promise is none of them: it opens what is kept for a gang to who ends
before."""


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What became of a plan. `accepted`, or declined for `reason`; neither when it timed out."""

    plan: PreemptionPlanned
    accepted: bool
    reason: ledger.PlanDeclineReason | None = None

    @property
    def name(self) -> str:
        """`accepted`, a reason of `PlanDeclineReason`, or `timed-out`."""
        return "accepted" if self.accepted else self.reason.value if self.reason else "timed-out"


@dataclass(frozen=True, slots=True)
class _Sent:
    plan: PreemptionPlanned
    inbox_seq: int
    changes: int
    """Changes that its computation had seen."""


class PendingPlans:
    """Feed it every record, ask whether a computation is `due`, tell it what was `computed` and `sent`."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}
        """Plan id -> plan that has no answer yet."""
        self._changes = 1
        self._seen = 0
        """Changes that the last computation had seen."""
        self._again = False
        """A plan was declined after the world had changed: its beneficiary needs another."""
        self._widening_us = 0
        self._unmoved: dict[str, int] = {}
        """Beneficiary -> changes at which its plan was declined although nothing had changed."""

    @property
    def plans(self) -> list[PreemptionPlanned]:
        """Sent and not yet answered, oldest first."""
        return [sent.plan for sent in self._sent.values()]

    @property
    def waiting(self) -> frozenset[str]:
        """Beneficiaries whose plan would be declined again: nothing has changed since."""
        return frozenset(job for job, changes in self._unmoved.items() if changes == self._changes)

    def sent(self, plan: PreemptionPlanned, inbox_seq: int) -> None:
        """The broker stored `plan` of the last computation at `inbox_seq`."""
        self._sent[plan.plan_id] = _Sent(plan, inbox_seq, self._seen)

    def unsent(self) -> None:
        """The plans of the last computation were not stored, as far as is known: another is due, whatever changed."""
        self._again = True

    def look_again(self) -> None:
        """Something changed that may make another plan possible, although its kind of event mostly does not."""
        self._changes += 1

    def apply(self, record: ledger.LedgerRecord) -> list[PlanAnswer]:
        """Takes in a valid record. The answers in it to plans that were sent from here."""
        answers = []
        for event in record.events:
            if isinstance(event, ledger.DevicesHeld) and event.plan_id in self._sent:
                answers.append(PlanAnswer(self._sent.pop(event.plan_id).plan, accepted=True))
            elif isinstance(event, ledger.PlanDeclined) and event.plan_id in self._sent:
                sent = self._sent.pop(event.plan_id)
                self._plan_again(sent)
                answers.append(PlanAnswer(sent.plan, accepted=False, reason=event.reason))
            self._changes += type(event) not in PROGRESS
        for sent in [sent for sent in self._sent.values() if sent.inbox_seq <= record.inbox_seq]:
            del self._sent[sent.plan.plan_id]
            self._plan_again(sent)
            answers.append(PlanAnswer(sent.plan, accepted=False))
        return answers

    def due(self, t_us: int) -> bool:
        """Whether a computation at `t_us` could give a plan that the last one did not."""
        if self._widening_us and t_us >= self._widening_us:
            self._widening_us = 0
            self._changes += 1
        return self._again or self._changes != self._seen

    def computed(self, widening_us: int = 0) -> None:
        """All plans were computed on everything applied so far. `widening_us`: when a beneficiary may look further
        although nothing changes; 0: never."""
        self._seen, self._again, self._widening_us = self._changes, False, widening_us
        self._unmoved = {job: changes for job, changes in self._unmoved.items() if changes == self._changes}

    def _plan_again(self, sent: _Sent) -> None:
        if self._changes == sent.changes:
            self._unmoved[sent.plan.beneficiary] = self._changes
        else:
            self._again = True
