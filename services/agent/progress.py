"""Progress reported by a part's rank 0: read at a bounded rate, measured, and passed on when it is news."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from libs.core.scheduling.progress import Gauge
from schemas.inbox import ProgressSeen
from schemas.nodes import DesiredPart
from services.agent.acknowledge import BadAcknowledgement, ProgressFile

log = logging.getLogger("baton.agent")


@dataclass(slots=True)
class Progressing:
    """Progress of one attempt. A later agent starts its measurement anew."""

    job_id: str
    attempt: int
    file: ProgressFile
    gauge: Gauge = field(default_factory=Gauge)
    _warned: bool = False

    @classmethod
    def of(cls, part: DesiredPart, path: Path) -> "Progressing":
        return cls(part.job_id, part.attempt, ProgressFile(path))

    def news(self, now_s: float) -> ProgressSeen | None:
        """The progress to report, if any. May be called at any rate; the file is read once a second."""
        if self.gauge.wants(now_s):
            try:
                if (said := self.file.news()) is not None:
                    self.gauge.note(now_s, said)
            except (BadAcknowledgement, ValueError) as e:
                if not self._warned:  # a job may write nonsense for ever
                    log.warning("attempt %d of %s: its progress is not understood: %s", self.attempt, self.job_id, e)
                self._warned = True
        news = self.gauge.news(now_s)
        return ProgressSeen(job_id=self.job_id, attempt=self.attempt, progress=news) if news is not None else None
