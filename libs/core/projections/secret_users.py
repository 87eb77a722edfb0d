"""Which nodes may have which secrets now: all that the service vault reads of the ledger. Pure.

Of jobs that name no secret nothing is kept, and of the others nothing after their end.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from libs.core.state import parts
from schemas import ledger as led
from schemas.base import JobId, Name, NodeName
from schemas.jobs import SecretName


@dataclass(slots=True)
class SecretUser:
    """A job that names secrets. `nodes`: those that hold a part of the attempt that is open and not asked to stop."""

    team: Name
    names: tuple[SecretName, ...]
    attempt: int = 0
    nodes: set[NodeName] = field(default_factory=set)


class SecretUsers:
    """Feed it every valid record; kinds of events that are not `handled` need not be understood."""

    version: ClassVar[int] = 1
    handled: ClassVar[frozenset[str]] = led.kinds_of(
        (
            led.JobQueued, led.JobGranted, led.AttemptStopping, led.AttemptPreempting, led.DevicesFreed,
            led.AttemptClosed, led.JobFinished,
        )
    )  # fmt: skip
    ignored: ClassVar[frozenset[str]] = frozenset(led.EVENT_KINDS) - handled
    """Nodes, quotas, how an attempt fares: a node's part of an attempt begins with its grant and ends when it is freed."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, SecretUser] = {}

    def holder(self, job_id: JobId, attempt: int, node: NodeName) -> SecretUser | None:
        """The job, if `node` holds a part of this attempt of it and is to run it; else None."""
        job = self.jobs.get(job_id)
        return job if job is not None and job.attempt == attempt and node in job.nodes else None

    def apply(self, record: led.LedgerRecord, seq: int) -> None:
        """Folds a valid record."""
        for event in record.events:
            if isinstance(event, led.JobQueued):
                if event.spec.secrets:
                    names = tuple(dict.fromkeys(use.secret for use in event.spec.secrets))
                    self.jobs[event.job_id] = SecretUser(event.team, names)
                continue
            job = self.jobs.get(getattr(event, "job_id", ""))
            if job is None:
                continue
            match event:
                case led.JobGranted():
                    job.attempt, job.nodes = event.attempt, {claim.node for claim in event.claims}
                case led.DevicesFreed() if event.attempt == job.attempt:
                    job.nodes.discard(event.node)
                case led.AttemptStopping() | led.AttemptPreempting() | led.AttemptClosed():
                    if event.attempt == job.attempt:
                        job.nodes.clear()
                case led.JobFinished():
                    del self.jobs[event.job_id]

    def skip(self, seq: int) -> None:
        """A void record says nothing."""

    def dump(self) -> Iterator[bytes]:
        rows = ((id_, job.team, job.names, job.attempt, sorted(job.nodes)) for id_, job in self.jobs.items())
        return parts.write({}, {"jobs": rows})

    @classmethod
    def load(cls, dumped: Iterable[bytes]) -> "SecretUsers":
        made = cls()
        _, tables = parts.read(dumped)
        for _, rows in tables:
            for id_, team, names, attempt, nodes in rows:
                made.jobs[id_] = SecretUser(team, tuple(names), attempt, set(nodes))
        return made
