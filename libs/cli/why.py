"""Why a job waits, behind which jobs, and until when, for people."""

import sys
import time
from collections.abc import Iterable

from libs.cli import units
from libs.cli.output import Column
from libs.cli.session import short
from schemas.explanations import Explanation, HeldBy
from schemas.queue_status import ExpectedStart

BEHIND = [
    Column("BEHIND", lambda h: f"{h.name} ({short(h.job_id)})"),
    Column("TEAM", lambda h: h.team),
    Column("DEVICES", lambda h: h.devices, right=True),
    Column("SINCE", lambda h: f"{units.age(h.since_us)} ago" if sys.stdout.isatty() else units.moment(h.since_us)),
    Column("UNTIL", lambda h: _end(h.p50_us) if sys.stdout.isatty() else until(h)),
    Column(
        "AT THE LATEST",
        lambda h: _end(h.p90_us) if sys.stdout.isatty() else units.moment(h.p90_us) if h.p90_us else "unknown",
    ),
    Column("KNOWN FROM", lambda h: h.basis or "nothing"),
]
"""Columns for `HeldBy` rows, moments on a terminal from now. The latest end covers nine of ten cases; for a limit it is the
limit."""
REMOVED = [
    Column("CONSTRAINT", lambda r: r.constraint),
    Column("DEVICES OUT", lambda r: r.devices, right=True),
]


def until(held: HeldBy) -> str:
    """`2026-11-23 08:40:00Z (in 12m)`."""
    return _at(held.p50_us) if held.p50_us is not None else "unknown"


def start(expected: ExpectedStart | None) -> str:
    """`2026-11-23 08:40:00Z (in 12m), in nine of ten cases by 09:10`; nothing when it is unknown."""
    if expected is None:
        return ""
    late = f", in nine of ten cases by {_at(expected.p90_us)}" if expected.p90_us is not None else ""
    return f"{_at(expected.p50_us)}{late}"


def start_in(expected: ExpectedStart | None) -> str:
    """`12m..40m`, from now."""
    if expected is None:
        return ""
    late = f"..{_from_now(expected.p90_us)}" if expected.p90_us is not None else ".."
    return f"{_from_now(expected.p50_us)}{late}"


def behind(found: Explanation) -> str:
    """`train (job-3f2a...) since ..., until ...` for the job that ends first, and the number of others."""
    if not found.behind:
        return ""
    first, more = found.behind[0], len(found.behind) - 1 + found.behind_more
    name = f"{first.name} ({short(first.job_id)}) since {units.moment(first.since_us)}, until {until(first)}"
    return name + (f", and {units.counted(more, 'more job')}" if more else "")


def why(found: Explanation) -> Iterable[tuple[str, object]]:
    """The lines of `explain`; `describe` shows them as well for a waiting job."""
    yield "reason", found.reason
    yield "because", found.text
    yield "position", found.position or ""
    yield "ahead of it", units.counted(found.ahead, "job") if found.ahead else ""
    yield "expected start", start(found.start) or ("unknown" if found.position else "")
    yield "which rests on", found.start.basis if found.start is not None else ""
    if found.promise is not None:
        moved = f" (moved: {found.promise.cause.value})" if found.promise.cause is not None else ""
        yield "promised", f"to start by {units.moment(found.promise.start_us)}{moved}"
    yield "behind", behind(found)
    if found.user is not None and found.users > 1:
        held, lately = units.devices(found.user.held_milli), units.devices(found.user.recent_milli)
        yield (
            "user",
            f"{found.user.user or 'not known'}: place {found.user.place} of {found.users} users of the team; holds {held}, "
            f"lately {lately}",
        )
    if found.behind_others_devices:
        yield (
            "behind others",
            f"jobs of other teams hold {units.counted(found.behind_others_devices, 'device')} of those it could use",
        )
    yield "would help", found.suggestion


def _end(at_us: int | None) -> str:
    return "unknown" if at_us is None else f"in {_from_now(at_us)}"


def _at(at_us: int) -> str:
    return f"{units.moment(at_us)} (in {_from_now(at_us)})"


def _from_now(at_us: int) -> str:
    return units.duration(at_us / 1e6 - time.time())
