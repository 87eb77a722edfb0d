"""Credits: time that attempts paid for without benefit, returned by a policy, each with its cause.

    credit = part of a posting x share of the cause / 1000                        the part exact, in units x microseconds

    node-lost           `unconfirmed` postings of the attempt: its node was silent, then lost
    hardware-fault      the attempt ended because a node or a device was lost: work since its last checkpoint. Not if the
                        only evidence is what teams can cause: lines in its output, a port held by others
    preempted-unsaved   it was preempted and acknowledged no checkpoint afterwards: work since its last checkpoint. Not if
                        preempted for its own team, which could choose the moment
    promise-broken      it was granted later than promised, without a cause or for one of the platform's (a fault, a
                        drain): as much time from its grant on as it was late, without the delay by its own team's jobs

Nothing is credited twice: silence is `unconfirmed` and all else `billed`, and time credited for a broken promise is not
credited as lost work. A credit changes no posting and no bill. It is a row of its own, folded from the ledger, so
anyone can recompute it. It is posted when the attempt closes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

from libs.core.billing.accounts.posting import Account, Posting
from schemas import ledger as led
from schemas.attempts import Category, Outcome
from schemas.jobs import PromiseCause
from schemas.prices import CreditCause as CreditCause

WHOLE: Final = 1000
"""The share that credits all of it."""
EVERYTHING: Final[Mapping[CreditCause, int]] = MappingProxyType(dict.fromkeys(CreditCause, WHOLE))
"""The default policy: each cause is credited in full."""

_FAULTS = frozenset({Category.NODE_LOST, Category.HARDWARE})


class Credit(NamedTuple):
    """The credited part of a posting. `share`: thousandths of it. `why`: in the ledger's words."""

    cause: CreditCause
    why: str
    share: int
    posting: Posting
    """The posting, cut to the credited part."""
    closed_seq: int
    """The ledger record that closed the attempt."""

    @property
    def unit_us(self) -> int:
        """Credited capacity units x microseconds, rounded down."""
        return self.posting.unit_us * self.share // WHOLE


@dataclass(slots=True)
class _Open:
    """An attempt that is not closed."""

    postings: list[Posting] = field(default_factory=list)
    saved_us: int = 0
    """When its last checkpoint was acknowledged."""
    told_us: int | None = None
    """When it was told to save and stop."""
    why: str = ""
    promised_us: int = 0
    """Promised start, if it started late."""
    on_time_us: int = 0
    """End of the credited delay: earlier time was late. 0: it started on time."""
    proven: bool | None = None
    """Whether there is evidence of a fault beyond what teams can cause. None: no evidence at all."""
    for_own_team: bool = False
    """It was preempted for a job of its own team."""


class Credits:
    """Folds ledger records and their postings (`Accounts.apply`) into credits. Memory: open attempts."""

    handled: ClassVar[frozenset[str]] = led.kinds_of(
        (
            led.GangPromised,
            led.JobFinished,
            led.JobGranted,
            led.AttemptCheckpointed,
            led.AttemptPreempting,
            led.AttemptStopping,
            led.DevicesFreed,
            led.AttemptClosed,
        )
    )
    ignored: ClassVar[frozenset[str]] = frozenset(led.EVENT_KINDS) - handled
    """No other kind of event shows lost work."""

    def __init__(self, policy: Mapping[CreditCause, int] = EVERYTHING) -> None:
        """`policy`: cause -> credited thousandths. A cause that is missing is not credited."""
        self._policy = policy
        self._open: dict[tuple[str, int], _Open] = {}
        self._promised: dict[str, int] = {}
        """Waiting job -> the latest promised start, without delays that the platform caused itself."""

    def apply(self, record: led.LedgerRecord, seq: int, postings: Iterable[Posting]) -> list[Credit]:
        """Credits of the attempts that this record closed. `postings`: of the same record, from the accounts."""
        for posting in postings:
            if posting.attempt:
                self._attempt(posting.job_id, posting.attempt).postings.append(posting)
        out: list[Credit] = []
        for event in record.events:
            match event:
                case led.GangPromised():
                    if event.job_id not in self._promised or event.promise.cause is PromiseCause.HIGHER_CLASS:
                        self._promised[event.job_id] = event.promise.start_us
                case led.JobFinished():
                    self._promised.pop(event.job_id, None)
                case led.JobGranted():
                    known, by_us = self._attempt(event.job_id, event.attempt), self._promised.pop(event.job_id, None)
                    own_us = min(record.t_us, event.own_delay_us if event.own_delay_us is not None else record.t_us)
                    if by_us is not None and by_us < own_us:
                        known.promised_us, known.on_time_us = by_us, record.t_us + own_us - by_us
                case led.AttemptCheckpointed():
                    self._attempt(event.job_id, event.attempt).saved_us = record.t_us
                case led.AttemptPreempting():
                    known = self._attempt(event.job_id, event.attempt)
                    known.told_us, known.why = record.t_us, event.reason
                    known.for_own_team = event.for_own_team
                case led.AttemptStopping() | led.DevicesFreed():
                    known = self._attempt(event.job_id, event.attempt)
                    known.why = known.why or event.reason
                    if isinstance(event, led.DevicesFreed) and known.proven is None and event.category in _FAULTS:
                        known.proven = not event.unproven
                case led.AttemptClosed():
                    out += self._closed(event, self._open.pop((event.job_id, event.attempt), _Open()), seq)
        return out

    def dump(self) -> Iterator[Any]:
        """Rows for a snapshot."""
        for (job_id, attempt), known in self._open.items():
            yield [job_id, attempt, *(getattr(known, name) for name in _Open.__slots__)]
        for job_id, by_us in self._promised.items():
            yield [job_id, by_us]

    def load(self, rows: Iterable[Any]) -> None:
        """The inverse of `dump`."""
        for job_id, number, *rest in rows:
            if rest:
                postings = [Posting._make([Account(account), *more]) for account, *more in rest[0]]
                self._open[job_id, number] = _Open(postings, *rest[1:])
            else:
                self._promised[job_id] = number

    def _attempt(self, job_id: str, attempt: int) -> _Open:
        return self._open.setdefault((job_id, attempt), _Open())

    def _closed(self, event: led.AttemptClosed, known: _Open, seq: int) -> list[Credit]:
        lost = self._lost_by(event, known)
        out: list[Credit] = []

        def give(cause: CreditCause | None, why: str, part: Posting | None) -> None:
            share = self._policy.get(cause, 0) if cause is not None else 0
            if cause is not None and share and part is not None:
                out.append(Credit(cause, why, share, part, seq))

        for posting in known.postings:
            if posting.account is Account.UNCONFIRMED:
                give(CreditCause.NODE_LOST, posting.cause, posting)
                continue
            late = f"promised to start by {known.promised_us} us of ledger time"
            give(CreditCause.PROMISE_BROKEN, late, _before(posting, known.on_time_us))
            give(lost, known.why, _since(posting, max(known.saved_us, known.on_time_us)))
        return out

    def _lost_by(self, event: led.AttemptClosed, known: _Open) -> CreditCause | None:
        if event.category in _FAULTS or (event.category is None and event.outcome is Outcome.LOST):
            return None if known.proven is False else CreditCause.HARDWARE_FAULT
        if event.outcome is Outcome.PREEMPTED and known.told_us is not None and known.saved_us < known.told_us:
            return None if known.for_own_team else CreditCause.PREEMPTED_UNSAVED
        return None


def _since(posting: Posting, t_us: int) -> Posting | None:
    """The part of a posting after `t_us`."""
    later = max(0, t_us - posting.start_us)
    if later >= posting.end_us - posting.start_us:
        return None
    return posting._replace(start_us=posting.start_us + later, wall_start_us=posting.wall_start_us + later)


def _before(posting: Posting, t_us: int) -> Posting | None:
    """The part of a posting before `t_us`."""
    over = max(0, posting.end_us - t_us)
    if over >= posting.end_us - posting.start_us:
        return None
    return posting._replace(end_us=posting.end_us - over, wall_end_us=posting.wall_end_us - over)
