"""A job's progress, for people."""

import time

from libs.cli import units
from libs.core.scheduling.progress import left_now
from schemas.queries import AttemptDocument, JobDocument

WIDTH = 10
_FULL, _EMPTY = "#", "."


def bar(part: float, width: int = WIDTH) -> str:
    """`####......` for a fraction between 0 and 1."""
    full = int(max(0.0, min(1.0, part)) * width)
    return _FULL * full + _EMPTY * (width - full)


def progress(job: JobDocument) -> str:
    """`####......  42% 13m left`; empty when the job reports none, or does not run."""
    attempt = job.attempts[-1] if job.attempts else None
    return _text(attempt) if attempt is not None and attempt.closed_us is None else ""


def progress_in_full(attempt: AttemptDocument) -> str:
    """The same with steps, the latest likely time, the loss, or why it is doubted."""
    reported = attempt.progress
    if reported is None:
        return ""
    if reported.doubt is not None:
        return f"not believed ({reported.doubt.value}) since step {reported.step} of {reported.steps}"
    parts = [_text(attempt), f"step {reported.step} of {reported.steps} at {units.moment(attempt.progress_us)}"]
    left = left_now(reported, attempt.progress_us or 0, int(time.time() * 1e6))
    if left is not None and attempt.closed_us is None:
        parts.append(f"at most {units.duration(left.p90_s)} in nine of ten cases")
    if reported.loss is not None:
        parts.append(f"loss {reported.loss:g}")
    return ", ".join(parts)


def _text(attempt: AttemptDocument) -> str:
    reported = attempt.progress
    if reported is None or reported.doubt is not None:
        return ""
    now_us = attempt.closed_us if attempt.closed_us is not None else int(time.time() * 1e6)
    left = left_now(reported, attempt.progress_us or now_us, now_us)
    done = (left.step if left is not None else reported.step) / reported.steps
    shown = f"{bar(done)} {done * 100:.0f}%"
    return f"{shown} {units.duration(left.p50_s)} left" if left is not None and attempt.closed_us is None else shown
