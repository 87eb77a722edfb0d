"""Simulated work: thousands of parts as entries of one heap, with one timer of the event loop for the earliest.

A timer part runs for the rest of its duration: `resume.step` counts milliseconds already done. With a checkpoint policy
it saves every `interval_s`, at most once a second, and at once on request; without one, a request to save stops it.
"""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from schemas.inbox import CheckpointTaken, Observation, Released, Started
from schemas.jobs import Checkpoint
from schemas.nodes import DesiredPart

SIGTERM_EXIT = 128 + 15
LEAST_INTERVAL_S = 1.0
"""One with an interval of a nanosecond would save all the time, and no other part of the agent's would have its turn."""
Observe = Callable[[Observation], None]


class Timers:
    """Calls back at times of the loop's clock. Cancelled entries stay in the heap until due, and do nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for = 0.0

    def now(self) -> float:
        return self._loop.time()

    def at(self, due: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (due, next(self._order), call))
        if self._armed is None or due < self._armed_for:
            self._arm()

    def __len__(self) -> int:
        return len(self._heap)

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        if self._heap:
            self._armed_for = self._heap[0][0]
            self._armed = self._loop.call_at(self._armed_for, self._due)

    def _due(self) -> None:
        self._armed = None
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()
        self._arm()


class TimerPart:
    """One part of a simulated attempt. Reports Started at once, and Released exactly once."""

    __slots__ = (
        "_attempt",
        "_began",
        "_done_ms",
        "_exit_code",
        "_interval_s",
        "_job_id",
        "_over",
        "_report",
        "_timers",
    )

    def __init__(self, part: DesiredPart, timers: Timers, report: Observe) -> None:
        simulation = part.spec.simulation
        assert simulation is not None, "a timer part needs spec.simulation"
        self._timers, self._report = timers, report
        self._job_id, self._attempt = part.job_id, part.attempt
        self._exit_code = simulation.exit_code
        self._done_ms = part.resume.step if part.resume else 0
        policy = part.spec.checkpoint if part.node_rank == 0 else None
        self._interval_s = max(LEAST_INTERVAL_S, policy.interval_s) if policy is not None else 0.0
        self._over = False
        self._began = timers.now()
        report(Started(job_id=part.job_id, attempt=part.attempt))
        timers.at(self._began + max(0.0, simulation.duration_s - self._done_ms / 1000), self._finish)
        if self._interval_s and self._interval_s < simulation.duration_s:
            timers.at(self._began + self._interval_s, self._interval)

    def save(self) -> None:
        """Acknowledges a checkpoint under a policy (rank 0's node reports for the gang), then ends."""
        if not self._over and self._interval_s:
            self._report(self._checkpoint())
        self._end(SIGTERM_EXIT, "asked to save and stop", own=False)

    def stop(self) -> None:
        self._end(SIGTERM_EXIT, "stopped", own=False)

    def save_early(self) -> None:
        """Nothing to do: a report could save nothing."""

    async def check_limits(self) -> bool:
        """Simulated work uses nothing."""
        return False

    def slow_check_due(self) -> None:
        """No measurement is needed."""

    def shared_use(self) -> None:
        """It uses no common resources."""

    def exceed(self, reason: str) -> None:
        """Never called for simulated work."""

    def ends_by(self, at: float) -> None:
        """Only its agent holds it."""

    def heard(self) -> None:
        """Only the node remembers its end."""

    async def leave(self) -> None:
        """It cannot run without its agent."""
        self._over = True

    async def kill(self) -> None:
        """Ends without a report: the node's next registration is the evidence."""
        self._over = True

    def _checkpoint(self) -> CheckpointTaken:
        step = self._done_ms + round((self._timers.now() - self._began) * 1000)
        return CheckpointTaken(
            job_id=self._job_id,
            attempt=self._attempt,
            checkpoint=Checkpoint(step=step, reference=f"simulated:{self._job_id}:{step}"),
        )

    def _interval(self) -> None:
        if not self._over:
            self._report(self._checkpoint())
            self._timers.at(self._timers.now() + self._interval_s, self._interval)

    def _finish(self) -> None:
        self._end(self._exit_code, "" if self._exit_code == 0 else "simulated failure", own=True)

    def _end(self, exit_code: int, reason: str, own: bool) -> None:
        if not self._over:
            self._over = True
            self._report(
                Released(job_id=self._job_id, attempt=self._attempt, exit_code=exit_code, reason=reason, own_exit=own)
            )
