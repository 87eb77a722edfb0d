"""What is left of an attempt by now, from what was told of it a while ago."""

from typing import NamedTuple

from schemas.jobs import ProgressDoubt, StepProgress


class TimeLeft(NamedTuple):
    """Seconds, none below zero. `step`: where it should be by now, never beyond what is told to be all."""

    p50_s: float
    p90_s: float
    step: int


def left_now(told: StepProgress, told_us: int, now_us: int) -> TimeLeft | None:
    """From what was told at `told_us`; None: it is not believed, or its rate is not known."""
    if told.doubt is not None or told.left_s is None:
        return None
    passed_s = max(0.0, (now_us - told_us) / 1e6)
    high_s = told.left_p90_s if told.left_p90_s is not None else told.left_s
    done = min(1.0, passed_s / told.left_s) if told.left_s > 0 else 1.0
    step = told.step + int(done * (told.steps - told.step))
    return TimeLeft(max(0.0, told.left_s - passed_s), max(0.0, high_s - passed_s), step)


def believed(last: StepProgress | None, new: StepProgress) -> StepProgress:
    """`new` of an attempt of which `last` was told; with the doubt that the two together raise, if they do."""
    if new.doubt is not None:
        doubt = new.doubt
    elif new.step > new.steps:
        doubt = ProgressDoubt.BEYOND_TOTAL
    elif last is not None and new.steps != last.steps:
        doubt = ProgressDoubt.TOTAL_CHANGED
    elif last is not None and new.step < last.step:
        doubt = ProgressDoubt.WENT_BACK
    elif new.left_s is None:
        doubt = ProgressDoubt.NOT_A_NUMBER
    else:
        return new
    known = last if last is not None else new
    return StepProgress(step=min(known.step, known.steps), steps=known.steps, doubt=doubt)
