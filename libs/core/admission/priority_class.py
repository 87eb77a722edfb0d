"""Priority classes: what a job's class gives it and asks of it."""

from pydantic import Field

from schemas.base import Name, Strict
from schemas.jobs import DEFAULT_LEASE_S, LONGEST_TIME_LIMIT_S, JobLimits, Latency, Network


class PriorityClass(Strict):
    """A class of jobs. Classes are data: deploy/classes.yaml."""

    name: Name
    priority: int = Field(ge=-1_000_000, le=1_000_000, description="higher goes first")
    preempts: bool = Field(description="may take devices from jobs of lower priority")
    latency: Latency = Field(
        default=Latency.NORMAL, description="fast: placed at the tightest fit at once, without the score"
    )
    lease: str = Field(
        default=f"{DEFAULT_LEASE_S:.0f}s",
        pattern=r"^(keep|[1-9][0-9]{0,5}[smh])$",
        description="how long its jobs run on after their node's last renewal: `30s`, `5m`, or `keep`: no silence ends them",
    )
    network: Network = Field(
        default=Network.HOST,
        description="none: its jobs have no network but their own loopback; gangs of nodes need host",
    )
    limits: JobLimits | None = Field(
        default=None, description="what its jobs may take of a node, where they say nothing themselves"
    )
    longest_grace_s: float = Field(
        default=3600, gt=0, le=3600, description="the most time that a job may take to save or to stop, s"
    )
    default_time_limit_s: int | None = Field(
        default=None, ge=1, le=LONGEST_TIME_LIMIT_S, description="of its jobs that say none, s"
    )
    longest_time_limit_s: int | None = Field(
        default=None, ge=1, le=LONGEST_TIME_LIMIT_S, description="that its jobs may ask for, s"
    )
    description: str = Field(min_length=1)

    @property
    def lease_s(self) -> float:
        """As jobs carry it: seconds, 0 for `keep`."""
        if self.lease == "keep":
            return 0.0
        return float(self.lease[:-1]) * {"s": 1, "m": 60, "h": 3600}[self.lease[-1]]


DEFAULT_CLASSES: tuple[PriorityClass, ...] = (
    PriorityClass(
        name="serving", priority=300, preempts=True, latency=Latency.FAST, lease="30s", longest_grace_s=600,
        description="Answers users: takes devices from every lower class, gives none away.",
    ),
    PriorityClass(
        name="production", priority=200, preempts=True, longest_grace_s=600,
        description="Trainings with a date: takes devices from experiments, gives way to serving.",
    ),
    PriorityClass(
        name="experiment", priority=100, preempts=False, longest_grace_s=300,
        description="Everything else: runs on what is free, gives way to both.",
    ),
)  # fmt: skip
