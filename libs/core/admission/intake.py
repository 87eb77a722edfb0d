"""How much a team may ask for: limits of an operator's file, and one that everybody has. Pure; time is the broker's.

    Intake(limits).submit(team, size, open_jobs, at_us) -> None, or the limit that is reached and when to come again
    Intake(limits).cancel(team, job_id, open, at_us)    -> likewise

A limit refuses a request for now: nothing is wrong with it, and the same one may be sent again. Only a request that is too
large will never do. What is counted here is known to one process and is lost with it; nothing else depends on it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from schemas.base import Strict

LEAST_WAIT_S: Final = 150.0
"""Longer than the broker remembers message ids (two minutes): a repeat before that would be dropped as one."""

FULL_QUEUE_WAIT_S: Final = 600.0
IDLE_CANCELS: Final = 100
IDLE_CANCELS_PER_S: Final = 1.0
"""Cancels of jobs that are not open, or were asked to end already, that a team may send at once and for ever. Each is
written into the ledger and into the dead letters, and changes nothing."""

_TEAMS = 10_000
_CANCELLED = 50_000


class IntakeLimits(Strict):
    """What a team may send; null: no such limit. `burst` is how many submits may come at once, by default what ten seconds
    allow."""

    open_jobs: int | None = Field(default=None, ge=1, le=100_000_000, description="jobs that wait or run")
    submits_per_s: float | None = Field(default=None, gt=0, le=1_000_000)
    burst: int | None = Field(default=None, ge=1, le=100_000_000)
    request_bytes: int | None = Field(default=None, ge=256, le=1 << 30, description="of one submit's body")


@dataclass(frozen=True, slots=True)
class OverLimit:
    """`limit` in words. `wait_s` until it is worth trying again; None: it never is."""

    field: str
    value: str
    limit: str
    fix: str
    wait_s: float | None


class Bucket:
    """Tokens that come back at a rate, up to a number. One that is older than the last is taken for as old."""

    __slots__ = ("_at_us", "_left")

    def __init__(self, most: float, at_us: int) -> None:
        self._left, self._at_us = most, at_us

    def take(self, most: float, per_s: float, at_us: int) -> float:
        """Takes one: 0; or, when there is none, the seconds until there is."""
        self._left = min(most, self._left + max(0, at_us - self._at_us) / 1e6 * per_s)
        self._at_us = max(self._at_us, at_us)
        if self._left < 1.0:
            return (1.0 - self._left) / per_s
        self._left -= 1.0
        return 0.0


class Intake:
    """`limits` by team; a team without has the one on idle cancels alone."""

    def __init__(self, limits: Mapping[str, IntakeLimits] | None = None) -> None:
        self._limits = dict(limits or {})
        self._buckets: OrderedDict[tuple[str, str], Bucket] = OrderedDict()
        self._cancelled: OrderedDict[tuple[str, str], None] = OrderedDict()

    def submit(self, team: str, size: int, open_jobs: int, at_us: int) -> OverLimit | None:
        """Counts a submit of a job that is not known, of `size` bytes, which the broker stored at `at_us`."""
        limits = self._limits.get(team)
        if limits is None:
            return None
        if limits.request_bytes is not None and size > limits.request_bytes:
            limit = f"team {team} may send {limits.request_bytes} bytes in one request (request_bytes)"
            return OverLimit("(payload)", f"{size} bytes", limit, "put large data in a file that it can read", None)
        if limits.open_jobs is not None and open_jobs >= limits.open_jobs:
            limit = f"team {team} may have {limits.open_jobs} jobs that wait or run (open_jobs)"
            return OverLimit("job", f"{open_jobs} jobs", limit, "wait until some have ended", FULL_QUEUE_WAIT_S)
        if limits.submits_per_s is not None:
            most = limits.burst or max(1.0, 10 * limits.submits_per_s)
            if wait_s := self._bucket(team, "submits", most, at_us).take(most, limits.submits_per_s, at_us):
                limit = (
                    f"team {team} may submit {limits.submits_per_s:g} jobs a second, {most:g} at once (submits_per_s)"
                )
                return OverLimit("job", "", limit, "send fewer at a time", max(LEAST_WAIT_S, wait_s))
        return None

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

    def _bucket(self, team: str, what: str, most: float, at_us: int) -> Bucket:
        key = (team, what)
        if (found := self._buckets.get(key)) is None:
            found = self._buckets[key] = Bucket(most, at_us)
            if len(self._buckets) > _TEAMS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return found
