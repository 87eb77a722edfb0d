"""The queue tree: who is guaranteed what, who borrows how much of the rest, and who may have how much at most."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Fact, Name
from schemas.jobs import LONGEST_TIME_LIMIT_S

AmountKey = Annotated[str, Field(pattern=r"^(\*|[^:*]{1,64}(:[^:*]{1,32})?)$")]
"""What an amount is of: `*` accelerators of any type, a device type (`H100`), or a type and a MIG profile (`H100:1g.10gb`)."""

Amounts = Annotated[dict[AmountKey, Annotated[int, Field(ge=0, le=1_000_000_000)]], Field(max_length=16)]
"""Thousandths of what each key names."""


QueueOrder = Literal["fifo", "fair-share", "least-attained", "shortest-remaining"]
"""Which jobs of one class and queue come first (docs/scheduling.md)."""


HalfLife = Annotated[
    int | None,
    Field(ge=60, le=366 * 86_400, description="how long until what a queue held counts half, s; null: only now counts"),
]


MOST_SHARE_GRACE_S = 31 * 86_400
ShareGrace = Annotated[
    Annotated[int, Field(ge=0, le=MOST_SHARE_GRACE_S)] | Literal["never"] | None,
    Field(
        description="a job runs so long, s, before it goes so that what is lent is even; null: a twentieth of the half-life, "
        "and without one never"
    ),
]


MOST_PER_JOB = 32
"""Preemptions of one job that are remembered."""
LONGEST_PER_POOL_S = 3600
"""So long are preemptions of a pool remembered, s."""


class JobPreemptionRate(Fact):
    """A job gives way so often within any such time."""

    most: int = Field(default=6, ge=1, le=MOST_PER_JOB)
    within_s: int = Field(default=3600, ge=1, le=7 * 86_400, description="s")


class PoolPreemptionRate(Fact):
    """So many jobs of a pool give way within any such time."""

    most: int = Field(default=600, ge=1, le=10_000)
    within_s: int = Field(default=600, ge=1, le=LONGEST_PER_POOL_S, description="s")


class PreemptionLimits(Fact):
    """What keeps a pool from thrashing: how long jobs run before they give way, and how often they do. A plan that alone has
    more victims than `per_pool` allows is carried out when none was within that time."""

    min_run_s: int = Field(
        default=0, ge=0, le=7 * 86_400, description="a job runs so long before it gives way, s; a queue may say another"
    )
    reclaim_grace_s: int = Field(
        default=0, ge=0, le=86_400, description="on what its queue borrowed it runs at most so long before, s"
    )
    share_grace_s: ShareGrace = None
    per_job: JobPreemptionRate = JobPreemptionRate()
    per_pool: PoolPreemptionRate = PoolPreemptionRate()


MOST_BOOSTS = 64
"""Of a team, that are remembered."""
LONGEST_BOOST_S = 31 * 86_400


class BoostBudget(Fact):
    """How often, and for how long, jobs of a team may be raised above their class. Each team of a queue has its own."""

    most: int = Field(default=4, ge=0, le=MOST_BOOSTS, description="boosts within any such time; 0: none")
    within_s: int = Field(default=7 * 86_400, ge=60, le=366 * 86_400, description="s")
    longest_s: int = Field(default=86_400, ge=60, le=LONGEST_BOOST_S, description="of one boost, s")


TimeLimit = Annotated[int | None, Field(ge=1, le=LONGEST_TIME_LIMIT_S)]


class Queue(Fact):
    """One queue: an organisation, a team or a project. A queue that is called like a team takes that team's jobs."""

    name: Name
    parent: Name | Literal[""] = Field(default="", description="the queue above; empty: none")
    guaranteed: Amounts = Field(default_factory=dict, description="what it gets back whenever it has work for it")
    weight_milli: int = Field(
        default=1000,
        ge=0,
        le=1_000_000_000,
        description="its part of what nobody is guaranteed or uses, beside siblings",
    )
    limit: Amounts = Field(default_factory=dict, description="what it may hold at most, all queues below it included")
    order: QueueOrder | None = Field(
        default=None,
        description="in which its jobs of one class come; null: as its parent says, at the top as the pool does",
    )
    min_run_s: int | None = Field(
        default=None,
        ge=0,
        le=7 * 86_400,
        description="how long its jobs run before they give way, s; null: as its parent says, at the top as the pool does",
    )
    default_time_limit_s: TimeLimit = Field(
        default=None,
        description="of its jobs that say none, s; null: as its parent says, at the top their class's alone",
    )
    longest_time_limit_s: TimeLimit = Field(
        default=None, description="that its jobs may have, s; null: as its parent says, at the top their class's alone"
    )
    boosts: BoostBudget | None = Field(
        default=None, description="of each team in it; null: as its parent says, at the top the default"
    )
    classes: tuple[Name, ...] | None = Field(
        default=None, max_length=64, description="the priority classes that its jobs may use; null: those of its parent"
    )


Queues = Annotated[tuple[Queue, ...], Field(max_length=1000)]
"""All queues of a pool. Their order does not matter."""
QueuesVersion = Annotated[int, Field(ge=0, le=2**53)]
"""What the writer of a file calls it; it grows with every change."""
