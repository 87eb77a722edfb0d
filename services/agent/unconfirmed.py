"""Reports that placement's desired state does not show yet, so they may have to be repeated."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.inbox import Observation
from services.agent.reconcile import Key
from services.agent.running_part import RunningPart


@dataclass(eq=False, slots=True)
class Unconfirmed:
    """Starts and ends of one node's parts, each with the time of its last report."""

    starts: dict[Key, tuple[float, Observation]] = field(default_factory=dict)
    ends: dict[Key, tuple[float, Observation]] = field(default_factory=dict)
    _ended: dict[Key, RunningPart] = field(default_factory=dict)
    """Ended parts, which the keeper keeps until their end is confirmed."""

    def clear(self) -> None:
        self.starts.clear()
        self.ends.clear()
        self._ended.clear()

    def any_end(self) -> bool:
        return bool(self.ends or self._ended)

    def started(self, key: Key, seen: Observation, now: float) -> None:
        self.starts[key] = (now, seen)

    def ended(self, key: Key, part: RunningPart | None, seen: Observation, now: float) -> None:
        """`part`: None if it never ran."""
        if part is not None:
            self._ended[key] = part
        self.starts.pop(key, None)
        self.ends[key] = (now, seen)

    def start_shown(self, key: Key) -> None:
        self.starts.pop(key, None)

    def end_shown(self, key: Key) -> None:
        self.ends.pop(key, None)
        if (part := self._ended.pop(key, None)) is not None:
            part.heard()

    def to_repeat(self, older_than_s: float, now: float) -> Iterator[Observation]:
        """Reports last made at least so long ago, starts first. Each counts as reported now."""
        for reports in (self.starts, self.ends):
            for key, (at, seen) in list(reports.items()):
                if now - at >= older_than_s:
                    reports[key] = (now, seen)
                    yield seen
