"""Rate limits and quotas on a team's requests, from an operator's file, and one that everybody has. Pure; time is the
broker's.

    Intake(limits).submit(team, size, open, at_us)      -> None, or the limit that is reached and when to retry
    Intake(limits).kind(team, kind, open_kinds)         -> likewise
    Intake(limits).cancel(team, job_id, open, at_us)    -> likewise
    Intake(limits).queued(event)                        counts a job that the ledger shows, whichever process admitted it

A limit refuses a request for now, and the same request may be sent again; only one that is too large is never accepted. So
that two processes together allow what one does, each counts what it admits at once, and what others admitted when the ledger
shows it: a rate can be exceeded only by what is undecided. A process that starts counts what it reads of the ledger, which is
what came after its snapshot. Cancels are counted in each process alone.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

from pydantic import Field

from libs.core.admission.job_kinds import WITH_ROLES_AS, counted
from schemas.base import Strict
from schemas.ledger import JobQueued

LEAST_WAIT_S: Final = 150.0
"""Longer than a broker that 0.1.0 provisioned remembers message ids (two minutes): a repeat before that would be dropped as
one."""

FULL_QUEUE_WAIT_S: Final = 600.0
EVERYBODY: Final = "*"
"""Whose limits a team without any of its own has; no team can be called so."""
IDLE_CANCELS: Final = 100
IDLE_CANCELS_PER_S: Final = 1.0
"""Cancels of jobs that are not open, or were asked to end already, that a team may send at once and for ever. Each is
written into the ledger and into the dead letters, and changes nothing."""

_BUCKETS = 10_000
_SET_BACK_US = 600_000_000
"""What is so much older than the last was not delivered late: the broker's clock was set back."""
_CANCELLED = 50_000
_REMEMBERED = 50_000

K = TypeVar("K")


class IntakeLimits(Strict):
    """What a team may send; null: no such limit. `burst` and `burst_bytes` are how much may come at once, by default what ten
    seconds allow."""

    open_jobs: int | None = Field(default=None, ge=1, le=100_000_000, description="jobs that wait or run")
    open_bytes: int | None = Field(
        default=None,
        ge=256,
        le=1 << 50,
        description="of the specs of those, as JSON: who follows the ledger keeps them",
    )
    open_kinds: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="kinds of those in a pool: of one are jobs of a class that ask for the same",
    )
    submits_per_s: float | None = Field(default=None, gt=0, le=1_000_000)
    burst: int | None = Field(default=None, ge=1, le=100_000_000)
    bytes_per_s: float | None = Field(default=None, gt=0, le=1 << 40, description="of submits' bodies")
    burst_bytes: int | None = Field(default=None, ge=256, le=1 << 40)
    request_bytes: int | None = Field(default=None, ge=256, le=1 << 30, description="of one submit's body")

    def text(self) -> str:
        """In words, for who reads what a team may."""
        rates = (
            (self.submits_per_s, self.burst, "submits a second"),
            (self.bytes_per_s, self.burst_bytes, "bytes a second"),
        )
        said = [f"{self.open_jobs:,} open jobs"] if self.open_jobs is not None else []
        if self.open_bytes is not None:
            said.append(f"of {_size(self.open_bytes)}")
        if self.open_kinds is not None:
            said.append(f"of {self.open_kinds:,} different shapes in a pool")
        for per_s, burst, what in rates:
            if per_s is not None:
                said.append(f"{per_s:,.12g} {what} ({burst or 10 * per_s:,.12g} at once)")
        if self.request_bytes is not None:
            said.append(f"{_size(self.request_bytes)} a request")
        return ", ".join(said) or "no limit"

    def but(self, own: "IntakeLimits") -> "IntakeLimits":
        """These, with what `own` says in its place."""
        return self.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


def _size(size: int) -> str:
    """As people write it: "256 MiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit:,} {name}"
    return f"{size:,} bytes"


SHIPPED: Final = IntakeLimits(
    open_jobs=100_000, open_bytes=256 << 20, open_kinds=1_000, submits_per_s=1_000, burst=100_000, bytes_per_s=1_000_000,
    burst_bytes=64_000_000, request_bytes=256 * 1024,
)  # fmt: skip
"""What every team may ask for unless an operator says otherwise: more than a team of people needs, and less than fills a ledger
in a day."""


@dataclass(frozen=True, slots=True)
class OverLimit:
    """`limit` in words. `wait_s` until it is worth trying again; None: it never is."""

    field: str
    value: str
    limit: str
    fix: str
    wait_s: float | None


class Bucket:
    """Tokens that come back at a rate, up to a number. What is older than the last is taken for as old, unless the clock was
    set back: then time goes on from there, or nothing would come back for as long as it was set back."""

    __slots__ = ("_at_us", "_left")

    def __init__(self, most: float, at_us: int) -> None:
        self._left, self._at_us = most, at_us

    def take(self, most: float, per_s: float, at_us: int, amount: float = 1.0) -> float:
        """Takes `amount`: 0; or, when there is less, the seconds until there is. More than fits in is taken from a full one."""
        if wait_s := self.wait_s(most, per_s, at_us, amount):
            return wait_s
        self._left -= amount
        return 0.0

    def wait_s(self, most: float, per_s: float, at_us: int, amount: float = 1.0) -> float:
        """The seconds until `amount` may be taken."""
        self._left = min(most, self._left + max(0, at_us - self._at_us) / 1e6 * per_s)
        self._at_us = at_us if at_us < self._at_us - _SET_BACK_US else max(self._at_us, at_us)
        return max(0.0, (min(amount, most) - self._left) / per_s)

    def owe(self, most: float, per_s: float, at_us: int, amount: float = 1.0) -> None:
        """Somebody else has taken it already."""
        self.wait_s(most, per_s, at_us)
        self._left -= amount


class Buckets(Generic[K]):
    """A bucket for each key, of the last 10,000 that were asked for: one that comes back begins with a full one."""

    def __init__(self) -> None:
        self._of: OrderedDict[K, Bucket] = OrderedDict()

    def of(self, key: K, most: float, at_us: int) -> Bucket:
        if (found := self._of.get(key)) is None:
            found = self._of[key] = Bucket(most, at_us)
            if len(self._of) > _BUCKETS:
                self._of.popitem(last=False)
        self._of.move_to_end(key)
        return found


@dataclass(frozen=True, slots=True)
class _Rate:
    """One limit of a team: so much a second, and at once."""

    name: str
    unit: str
    per_s: float
    most: float
    of_bytes: bool


@lru_cache(maxsize=1024)
def _rates(limits: IntakeLimits) -> tuple[_Rate, ...]:
    found = []
    if (per_s := limits.submits_per_s) is not None:
        found.append(_Rate("submits_per_s", "jobs", per_s, limits.burst or max(1.0, 10 * per_s), False))
    if (per_s := limits.bytes_per_s) is not None:
        found.append(_Rate("bytes_per_s", "bytes", per_s, limits.burst_bytes or max(256.0, 10 * per_s), True))
    return tuple(found)


class Intake:
    """`limits` by team; a team without has those of `EVERYBODY`, or else the one on idle cancels alone."""

    def __init__(self, limits: Mapping[str, IntakeLimits] | None = None) -> None:
        self._limits = dict(limits or {})
        self._everybody = self._limits.get(EVERYBODY)
        self._own: OrderedDict[str, None] = OrderedDict()
        self._buckets: Buckets[tuple[str, str]] = Buckets()
        self._cancelled: OrderedDict[tuple[str, str], None] = OrderedDict()

    def submit(self, team: str, size: int, open_jobs: int, at_us: int, *, open_bytes: int = 0) -> OverLimit | None:
        """Counts a submit of a job that is not known, of `size` bytes, which the broker stored at `at_us`. `open_jobs`,
        `open_bytes`: of the team, that wait or run."""
        if (limits := self._of(team)) is None:
            return None
        if limits.request_bytes is not None and size > limits.request_bytes:
            limit = f"team {team} may send {limits.request_bytes} bytes in one request (request_bytes)"
            return OverLimit("(payload)", f"{size} bytes", limit, "put large data in a file that it can read", None)
        if limits.open_jobs is not None and open_jobs >= limits.open_jobs:
            limit = f"team {team} may have {limits.open_jobs} jobs that wait or run (open_jobs)"
            return OverLimit("job", f"{open_jobs} jobs", limit, "wait until some have ended", FULL_QUEUE_WAIT_S)
        if limits.open_bytes is not None and open_bytes >= limits.open_bytes:
            limit = f"jobs of team {team} that wait or run may have {limits.open_bytes} bytes of specs (open_bytes)"
            fix = "put large arguments in files, or wait until some have ended"
            return OverLimit("job", f"{open_bytes} bytes", limit, fix, FULL_QUEUE_WAIT_S)
        found = [(rate, self._bucket(team, rate.name, rate.most, at_us)) for rate in _rates(limits)]
        for rate, bucket in found:
            amount = float(size) if rate.of_bytes else 1.0
            if wait_s := bucket.wait_s(rate.most, rate.per_s, at_us, amount):
                value = f"{size} bytes" if rate.of_bytes else ""
                limit = (
                    f"team {team} may submit {rate.per_s:g} {rate.unit} a second, {rate.most:g} at once ({rate.name})"
                )
                return OverLimit("job", value, limit, "send fewer at a time", max(LEAST_WAIT_S, wait_s))
        for rate, bucket in found:
            bucket.take(rate.most, rate.per_s, at_us, float(size) if rate.of_bytes else 1.0)
        return None

    def kind(self, team: str, kind: int, open_kinds: Collection[int]) -> OverLimit | None:
        """Of a submit that is not known and would be admitted as a job of `kind` (`job_kinds`). `open_kinds`: of the team's
        jobs that wait or run in its pool."""
        limits = self._of(team)
        if limits is None or limits.open_kinds is None or kind in open_kinds:
            return None
        if (count := counted(open_kinds)) < limits.open_kinds:
            return None
        limit = (
            f"team {team} may have jobs of {limits.open_kinds} kinds that wait or run in a pool (open_kinds); of a kind are "
            f"jobs of a class that ask for the same; a kind with roles counts as {WITH_ROLES_AS}"
        )
        fix = "let more of them ask for the same, or wait until all jobs of a kind have ended"
        return OverLimit("job.resources", f"{count} kinds", limit, fix, FULL_QUEUE_WAIT_S)

    def admitted(self, team: str, job_id: str) -> None:
        """A submit that was counted here was admitted as this job: the ledger will show it, and it counts once."""
        if self._of(team) is not None:
            self._own[job_id] = None
            if len(self._own) > _REMEMBERED:
                self._own.popitem(last=False)

    def queued(self, event: JobQueued) -> None:
        """The ledger shows a job. What others admitted is counted as of when the broker stored it."""
        if (limits := self._of(event.team)) is None:
            return
        if event.job_id in self._own:
            del self._own[event.job_id]
            return
        for rate in _rates(limits):
            amount = float(len(event.spec.model_dump_json(exclude_defaults=True))) if rate.of_bytes else 1.0
            at_us = event.submitted_us
            self._bucket(event.team, rate.name, rate.most, at_us).owe(rate.most, rate.per_s, at_us, amount)

    def cancel(self, team: str, job_id: str, is_open: bool, at_us: int) -> OverLimit | None:
        """Counts a cancel. A team's first one of a job of its own that is open is free: `is_open`."""
        if is_open and (team, job_id) not in self._cancelled:
            self._cancelled[team, job_id] = None
            if len(self._cancelled) > _CANCELLED:
                self._cancelled.popitem(last=False)
            return None
        wait_s = self._bucket(team, "cancels", IDLE_CANCELS, at_us).take(IDLE_CANCELS, IDLE_CANCELS_PER_S, at_us)
        if not wait_s:
            return None
        limit = (
            f"team {team} may send {IDLE_CANCELS_PER_S:g} cancel a second, {IDLE_CANCELS} at once, of jobs that are not open "
            "or were asked to end already"
        )
        return OverLimit("job_id", job_id, limit, "look whether the job waits or runs", max(LEAST_WAIT_S, wait_s))

    def _of(self, team: str) -> IntakeLimits | None:
        return self._limits.get(team, self._everybody)

    def _bucket(self, team: str, what: str, most: float, at_us: int) -> Bucket:
        return self._buckets.of((team, what), most, at_us)
