"""Measures the rate at which an attempt gets through its steps, and says when that is news."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

from schemas.jobs import MOST_STEPS, ProgressDoubt, StepProgress

SAMPLE_S = 1.0
"""Steps are noted this often at the most: what is written in between is not looked at."""
SAMPLES = 64
"""Kept of one attempt; beyond that every second one is dropped, so they always cover all of its time."""
LEAST_PACES = 2
"""Paces (time per step between two notes) that are needed before anything is told."""
MOVED = 0.1
"""The end has moved by this part of what is left: that is news ..."""
LEAST_S = 30.0
"""... but not sooner than this after the last."""
EVERY_S = 600.0
"""It is told this often at least."""
JUMP, JUMP_OF_ALL = 10.0, 0.05
"""A note that is ahead of the measured rate by more than this factor, and by this part of all steps, is a jump."""
OVERDUE_S, OVERDUE = 60.0, 0.1
"""How long an attempt may run on when all steps are done: this, or this part of the time that it was measured."""
_PRIOR_SPREAD = 0.5
"""How much paces are taken to vary before they were seen to: one imagined pace so far from the mean."""
_P90 = 1.2816


@dataclass(slots=True)
class Gauge:
    """One attempt's. Give it what the job wrote (`note`), ask whether there is news (`news`). Times in seconds of one clock."""

    _notes: list[tuple[float, int]] = field(default_factory=list)
    """(when, step): each of a later step than the one before."""
    _last_s: float = -math.inf
    """When the last one was looked at."""
    _steps: int = 0
    _loss: float | None = None
    _doubt: ProgressDoubt | None = None
    _told_s: float = -math.inf
    _told_end_s: float = math.inf
    _told_doubt: bool = False

    def wants(self, now_s: float) -> bool:
        """Whether it is time to look at what the job wrote: however often it writes, it is read once a second."""
        if self._doubt is not None or now_s - self._last_s < SAMPLE_S:
            return False
        self._last_s = now_s
        return True

    def note(self, now_s: float, said: Any) -> None:
        """`said`: the JSON object that the job wrote, of any shape. Raises ValueError, naming field and fix, when it is none of
        ours at all; an impossible one is taken for what it is."""
        if self._doubt is not None:
            return
        step, steps, loss = _read(said)
        self._doubt = self._wrong(now_s, step, steps)
        if self._doubt is not None:
            return
        assert isinstance(step, int)
        assert isinstance(steps, int)
        self._steps, self._loss = steps, loss
        if not self._notes or step > self._notes[-1][1]:
            self._notes.append((now_s, step))
            if len(self._notes) > SAMPLES:
                del self._notes[1:-1:2]

    def _wrong(self, now_s: float, step: Any, steps: Any) -> ProgressDoubt | None:
        if not all(isinstance(n, int) and 0 <= n <= MOST_STEPS for n in (step, steps)) or steps < 1:
            return ProgressDoubt.NOT_A_NUMBER
        if step > steps:
            return ProgressDoubt.BEYOND_TOTAL
        if self._steps and steps != self._steps:
            return ProgressDoubt.TOTAL_CHANGED
        if not self._notes:
            return None
        last_s, last = self._notes[-1]
        if step < last:
            return ProgressDoubt.WENT_BACK
        pace = self._pace(last_s)
        if pace is not None and step - last > JUMP * (now_s - last_s) / max(pace, 1e-9) + JUMP_OF_ALL * steps:
            return ProgressDoubt.JUMPED
        return None

    def _window(self, now_s: float) -> list[tuple[float, int]]:
        """The notes of the last half of the time, and the one before them; two at least."""
        since_s = (self._notes[0][0] + now_s) / 2
        first = next((n for n, (at_s, _) in enumerate(self._notes) if at_s >= since_s), len(self._notes))
        return self._notes[max(0, min(first - 1, len(self._notes) - 1 - LEAST_PACES)) :]

    def _pace(self, now_s: float) -> float | None:
        """Seconds a step; None: not measured yet. A step that has not come for long makes it slower."""
        if len(self._notes) <= LEAST_PACES:
            return None
        notes = self._window(now_s)
        (first_s, first), (last_s, last) = notes[0], notes[-1]
        measured = (last_s - first_s) / (last - first)
        return max(measured, (now_s - first_s) / (last - first + 1))

    def left(self, now_s: float) -> tuple[float, float] | None:
        """Seconds that are left, as likely more as less, and what nine of ten stay within; None: not known."""
        pace = self._pace(now_s)
        if pace is None or self._doubt is not None:
            return None
        notes = self._window(now_s)
        last_s, last = notes[-1]
        todo = self._steps - last
        left_s = max(0.0, todo * pace - max(0.0, min(now_s - last_s, pace)))
        paces = [(b_s - a_s) / (b - a) for (a_s, a), (b_s, b) in itertools.pairwise(notes)]
        mean = sum(paces) / len(paces)
        varied = sum((p / mean - 1) ** 2 for p in paces) if mean > 0 else 0.0
        spread = math.sqrt((varied + _PRIOR_SPREAD**2) / (len(paces) + 1))
        each = (last - notes[0][1]) / len(paces)
        return left_s, left_s * (1 + _P90 * spread * math.sqrt(1 / len(paces) + each / max(todo, each)))

    def news(self, now_s: float) -> StepProgress | None:
        """What to tell now, if anything; then it counts as told."""
        if self._doubt is None and self._notes and self._runs_on(now_s):
            self._doubt = ProgressDoubt.RUNS_ON
        if self._doubt is not None:
            return None if self._told_doubt else self._tell_doubt()
        left = self.left(now_s)
        if left is None:
            return None
        since_s, end_s = now_s - self._told_s, now_s + left[0]
        moved = abs(end_s - self._told_end_s) > MOVED * max(left[0], self._told_end_s - now_s)
        if since_s < EVERY_S and not (moved and since_s >= LEAST_S):
            return None
        self._told_s, self._told_end_s = now_s, end_s
        return StepProgress(
            step=self._notes[-1][1],
            steps=self._steps,
            loss=self._loss,
            left_s=_short(left[0]),
            left_p90_s=_short(left[1]),
        )

    def _runs_on(self, now_s: float) -> bool:
        (first_s, _), (last_s, last) = self._notes[0], self._notes[-1]
        return last >= self._steps and now_s - last_s > max(OVERDUE_S, OVERDUE * (last_s - first_s))

    def _tell_doubt(self) -> StepProgress:
        self._told_doubt = True
        step = self._notes[-1][1] if self._notes else 0
        return StepProgress(step=step, steps=max(self._steps, step, 1), doubt=self._doubt)


def _short(seconds: float) -> float:
    return min(1e10, float(f"{seconds:.4g}"))


def _read(said: Any) -> tuple[Any, Any, Any]:
    if not isinstance(said, dict) or "step" not in said or "steps" not in said:
        raise ValueError('is not {"step": <integer>, "steps": <integer>}, with "loss": <number> if there is one')
    step, steps, loss = said["step"], said["steps"], said.get("loss")
    if any(isinstance(value, bool) or not isinstance(value, int | float | None) for value in (step, steps, loss)):
        raise ValueError("has a value that is no number; write step and steps as integers, and loss as a number")
    return _whole(step), _whole(steps), _shown(loss)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _shown(loss: Any) -> float | None:
    """None for one that no chart could show: a run that diverges still goes through its steps."""
    try:
        return float(loss) if loss is not None and math.isfinite(loss) else None
    except OverflowError:
        return None
