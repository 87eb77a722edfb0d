"""Credits: what attempts paid for and got nothing from, by a policy, each with its cause.

    credit = part of a posting x share of the cause / 1000                        the part exact, in units x microseconds

    node-lost           `unconfirmed` postings of the attempt: its node was silent and was lost
    hardware-fault      the attempt ended because a node or a device was lost: what it had done since its last checkpoint.
                        Not where teams can bring about all that says so: words of its output, a port that others held
    preempted-unsaved   it gave way and acknowledged no checkpoint after it was told to: what it had done since the last one.
                        Not where it gave way to a job of its own team, which could choose the moment
    promise-broken      it was granted later than it was promised, for no cause or for one of the platform's (a fault, a drain):
                        as much of its time, from its grant on, as it was late. Not what was later for jobs of its own team

Nothing is credited twice: silence is `unconfirmed`, all else `billed`, and what a broken promise gives back is not counted as
lost again. A credit changes no posting and no bill: it is a row of its own, a fold of the same ledger, so anybody can recompute
it. It is told when the attempt is closed.
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
"""All of it is credited."""
EVERYTHING: Final[Mapping[CreditCause, int]] = MappingProxyType(dict.fromkeys(CreditCause, WHOLE))
"""The policy without a file: each cause is credited whole."""

_FAULTS = frozenset({Category.NODE_LOST, Category.HARDWARE})


class Credit(NamedTuple):
    """A part of a posting that is given back. `share`: how much of it, thousandths. `why`: the ledger's own words."""

    cause: CreditCause
    why: str
    share: int
    posting: Posting
    """The part, cut to what is credited."""
    closed_seq: int
    """The ledger record that closed the attempt."""

    @property
    def unit_us(self) -> int:
        """Capacity units x microseconds that are given back, rounded down."""
        return self.posting.unit_us * self.share // WHOLE


@dataclass(slots=True)
class _Open:
    """An attempt that is not closed."""

    postings: list[Posting] = field(default_factory=list)
    saved_us: int = 0
    """When it acknowledged its last checkpoint."""
    told_us: int | None = None
    """When it was told to give way."""
    why: str = ""
    promised_us: int = 0
    """When it had been promised to start, if it was late."""
    on_time_us: int = 0
    """From when on it has what it was promised; before: it was late. 0: it was not."""
    proven: bool | None = None
    """Whether more than what teams can bring about says that it ended by a fault; None: nothing says that it did."""
    for_own_team: bool = False
    """It was told to give way to a job of its own team."""


class Credits:
    """Folds ledger records and their postings (`Accounts.apply`) into credits. Memory: of attempts that are open."""

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
    """No other event says that work was lost."""

    def __init__(self, policy: Mapping[CreditCause, int] = EVERYTHING) -> None:
        """`policy`: cause -> thousandths that are credited; a cause that it does not name is not."""
        self._policy = policy
        self._open: dict[tuple[str, int], _Open] = {}
        self._promised: dict[str, int] = {}
        """Job that waits -> the latest start that it was promised, but for what the platform itself put off."""

    def apply(self, record: led.LedgerRecord, seq: int, postings: Iterable[Posting]) -> list[Credit]:
        """What the attempts that this record closed are credited. `postings`: what the accounts made of the same record."""
        for posting in postings:
            if posting.attempt:
                self._at(posting.job_id, posting.attempt).postings.append(posting)
        out: list[Credit] = []
        for event in record.events:
            match event:
                case led.GangPromised():
                    if event.job_id not in self._promised or event.promise.cause is PromiseCause.HIGHER_CLASS:
                        self._promised[event.job_id] = event.promise.start_us
                case led.JobFinished():
                    self._promised.pop(event.job_id, None)
                case led.JobGranted():
                    known, by_us = self._at(event.job_id, event.attempt), self._promised.pop(event.job_id, None)
                    own_us = min(record.t_us, event.own_delay_us if event.own_delay_us is not None else record.t_us)
                    if by_us is not None and by_us < own_us:
                        known.promised_us, known.on_time_us = by_us, record.t_us + own_us - by_us
                case led.AttemptCheckpointed():
                    self._at(event.job_id, event.attempt).saved_us = record.t_us
                case led.AttemptPreempting():
                    known = self._at(event.job_id, event.attempt)
                    known.told_us, known.why = record.t_us, event.reason
                    known.for_own_team = event.for_own_team
                case led.AttemptStopping() | led.DevicesFreed():
                    known = self._at(event.job_id, event.attempt)
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
        """What `dump` told."""
        for job_id, number, *rest in rows:
            if rest:
                postings = [Posting._make([Account(account), *more]) for account, *more in rest[0]]
                self._open[job_id, number] = _Open(postings, *rest[1:])
            else:
                self._promised[job_id] = number

    def _at(self, job_id: str, attempt: int) -> _Open:
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
    """What of a posting is behind `t_us`."""
    later = max(0, t_us - posting.start_us)
    if later >= posting.end_us - posting.start_us:
        return None
    return posting._replace(start_us=posting.start_us + later, wall_start_us=posting.wall_start_us + later)


def _before(posting: Posting, t_us: int) -> Posting | None:
    """What of a posting is before `t_us`."""
    over = max(0, posting.end_us - t_us)
    if over >= posting.end_us - posting.start_us:
        return None
    return posting._replace(end_us=posting.end_us - over, wall_end_us=posting.wall_end_us - over)
