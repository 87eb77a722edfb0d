"""Checkpoints that a part's processes acknowledge: which are new, and which are reported when."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.inbox import CheckpointTaken, SeenOfPart
from schemas.jobs import Checkpoint
from schemas.nodes import DesiredPart
from services.agent.acknowledge import Acknowledgement, BadAcknowledgement
from services.agent.attempt_launch import AttemptLaunch

log = logging.getLogger("baton.agent")

CHECKPOINT_LEAST_S = 10.0
"""The least interval between reported checkpoints of a running attempt, since each is a permanent record; the newest
counts. After a request to save, and at the end, they are reported at once."""


@dataclass(eq=False, slots=True)
class PartCheckpoints:
    """The acknowledgements of one part: one file per rank. Any rank may acknowledge for this node; rank 0 alone reports
    for the whole job."""

    part: DesiredPart
    launch: AttemptLaunch
    report: Callable[[SeenOfPart], None]
    acknowledged: bool = False
    """Any rank has acknowledged; reset by `asked`."""
    rests_until: float = 0.0
    """On the loop's clock: acknowledgements are not read before, unless the part ends or was asked for one."""
    _files: list[Acknowledgement] = field(default_factory=list)
    _unreported: Checkpoint | None = None
    """An acknowledged checkpoint that is not reported yet. It is reported with the end, unless a newer one is reported
    before."""

    def begin(self) -> None:
        """Starts reading. After an adoption, files that existed when the job was asked to save are not new."""
        seen = (self.launch.adopted or {}).get("seen") or [None] * len(self.launch.commands)
        self._files = [
            Acknowledgement(command.acknowledgement, None if old is None else tuple(old))
            for command, old in zip(self.launch.commands, seen, strict=True)
        ]

    def asked(self) -> list[tuple[int, int, int] | None]:
        """The job is about to be asked to save, and an earlier checkpoint does not count. Returns the versions seen."""
        self.acknowledged = False
        return [one.seen for one in self._files]

    def keep_news(self) -> None:
        """Reads the files, and keeps a new checkpoint unreported."""
        self._read(self._keep)

    def report_news(self) -> None:
        """Reads the files, and reports a new checkpoint."""
        self._read(self._report)

    def report_last(self) -> None:
        """Call it right before reporting the end. What is reported with the end counts, however soon it follows
        another."""
        if self._unreported is not None:
            self._report(self._unreported)

    def _read(self, take: Callable[[Checkpoint], None]) -> None:
        try:
            self._read_files(take)
        except BadAcknowledgement as e:
            self.rests_until = asyncio.get_running_loop().time() + CHECKPOINT_LEAST_S
            log.warning("attempt %d of %s: bad acknowledgement: %s", self.part.attempt, self.part.job_id, e)

    def _read_files(self, take: Callable[[Checkpoint], None]) -> None:
        if self.part.spec.checkpoint is None:
            return
        for command, acknowledgement in zip(self.launch.commands, self._files, strict=False):
            if (checkpoint := acknowledgement.news()) is not None:
                self.acknowledged = True
                if command.rank == 0:
                    take(checkpoint)

    def _report(self, checkpoint: Checkpoint) -> None:
        self.rests_until = asyncio.get_running_loop().time() + CHECKPOINT_LEAST_S
        self._unreported = None
        self.report(CheckpointTaken(job_id=self.part.job_id, attempt=self.part.attempt, checkpoint=checkpoint))

    def _keep(self, checkpoint: Checkpoint) -> None:
        self._unreported = checkpoint
