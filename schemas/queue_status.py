"""Waiting jobs, the shares of queues, and budgets. Answered by queries."""

from pydantic import Field

from schemas.base import Fact, JobId, Micros, Name, Strict, User
from schemas.budgets import SpendingBudget, TimeZone
from schemas.proofs import Hash
from schemas.queues import HalfLife, PreemptionLimits, Queue, QueueOrder, QueuesVersion


class ExpectedStart(Fact):
    """When a job that waits is expected to start."""

    p50_us: Micros
    p90_us: Micros | None = Field(default=None, description="in nine of ten cases before this; null: unknown even so")
    basis: str = Field(description="in words: what has to happen first")


class QueueListQuery(Strict):
    """The waiting jobs in the order in which they are considered. Answered by queries (`queue.list`)."""

    limit: int = Field(default=200, ge=1, le=5000)


class QueuedJob(Fact):
    """One waiting job and the reason why it still waits."""

    job_id: JobId
    team: Name
    name: str
    priority_class: str
    priority: int
    devices: int
    waiting_since_us: Micros
    reason: str = ""
    position: int = Field(default=0, ge=0, description="among those that the asker may see; 0: not told")
    start: ExpectedStart | None = Field(default=None, description="of the first ones: when they are expected to start")


class QueueList(Fact):
    """The head of the queue. Sent by queries as the answer to `QueueListQuery`."""

    jobs: tuple[QueuedJob, ...]
    total: int = Field(ge=0, description="of what the asker may see, 5000 at the most")
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")


class QueuesQuery(Strict):
    """How the pool is shared: what each queue is guaranteed, holds and should have. Answered by queries (`queues.list`)."""


class UserShare(Fact):
    """One user of a team whose order is fair share, beside the others of whom jobs run or wait. Amounts are thousandths of
    accelerators."""

    user: User = Field(description="as the subject said; empty: jobs of whom it is not known")
    place: int = Field(ge=1, description="who is next: 1 has the least, now and lately, as a part of the pool")
    held_milli: int = Field(default=0, ge=0)
    recent_milli: int = Field(default=0, ge=0, description="held in the mean of the last time; 0 without a half-life")
    share_milli: int = Field(default=0, ge=0, description="its part of the team's fair share, divided evenly")
    waiting_jobs: int = Field(default=0, ge=0)


class QueueShare(Fact):
    """One queue: what is said of it, and how it stands. Amounts are thousandths; without a key they are of accelerators."""

    queue: Queue
    applied: bool = Field(default=True, description="false: a team that no queue was given; it has weight 1")
    holds: dict[str, int] = Field(default_factory=dict, description="kind of device -> what its jobs hold")
    held_milli: int = Field(default=0, ge=0, description="of whole accelerators; a MIG slice is its part of one")
    borrowed_milli: int = Field(default=0, ge=0, description="of it, what is above the guarantee of `*`")
    share_milli: int = Field(
        default=0,
        ge=0,
        description="its fair share now: guarantees first, the rest by weight; to a team: as if all others wanted all, "
        "and 0 while it is not applied",
    )
    recent_milli: int = Field(
        default=0, ge=0, description="what it held in the mean of the last time, by the half-life; 0 without one"
    )
    boosts_left: int | None = Field(default=None, ge=0, description="of its budget for now; null: not told")
    waiting_jobs: int = Field(default=0, ge=0)
    waiting_milli: int = Field(default=0, ge=0, description="accelerators that they ask for")
    next_start: ExpectedStart | None = Field(
        default=None,
        description="of the first gang of it that was promised a start; null: none waits, or none was told yet",
    )
    users: tuple[UserShare, ...] = Field(
        default=(), description="where its users share: who is next, the first; at most 64"
    )


class QueuesReply(Fact):
    """The queues in order, each right before those below it. The operator sees all, a team its own and those below it. Sent by
    queries."""

    version: QueuesVersion = Field(default=0, description="of the queues that were applied last; 0: none were")
    order: QueueOrder | None = Field(default=None, description="of queues that say none; null: fair-share")
    half_life_s: HalfLife = None
    preemption: PreemptionLimits | None = Field(default=None, description="against thrash; null: the defaults")
    shares: tuple[QueueShare, ...] = ()
    classes: tuple[str, ...] = Field(
        default=(), description="priority classes that a queue may name; told to operators"
    )
    priorities: dict[str, int] = Field(
        default_factory=dict, description="class -> its priority, the higher first; told to operators"
    )
    kinds: tuple[str, ...] = Field(default=(), description="kinds of device that the pool has; told to operators")
    book: Hash | None = Field(
        default=None, description="digest of the price book that is applied; null: there is none; told to operators"
    )
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")


class BudgetsQuery(Strict):
    """What was given to budgets, and what is spent and held of them. Answered by queries (`budgets.list`)."""


class BudgetStanding(Fact):
    """One budget in its present period. Amounts are millionths of a GPU-hour or of the currency unit; what is counted is exact,
    and rounded down here, but what is held, which is rounded up."""

    budget: SpendingBudget
    from_us: int = Field(default=0, description="when the period began, by the calendar")
    to_us: Micros = Field(default=0, description="when it ends")
    carried: int = Field(default=0, description="from the period before; negative: it was overdrawn")
    topped_up: int = Field(default=0, ge=0)
    spent: int = Field(default=0, ge=0, description="up to now, by what runs as well")
    held: int = Field(default=0, ge=0, description="of what runs, beside what it has spent")
    available: int | None = Field(
        default=None, description="what a new grant may hold; negative: overdrawn; null: without limit"
    )
    soft_reached: bool = False
    jobs: int = Field(default=0, ge=0, description="that hold something of it")


class BudgetsReply(Fact):
    """Budgets by their keys. The operator sees all, a team those that count what it spends. Sent by queries."""

    version: int = Field(default=0, ge=0, description="of those that were applied last; 0: none were")
    time_zone: TimeZone = "UTC"
    renewal_s: int = Field(default=0, ge=0)
    budgets: tuple[BudgetStanding, ...] = ()
    currency: str = Field(default="", description="of the price book; empty: there is none")
    queues: tuple[str, ...] = Field(default=(), description="names of the pool's queues; told to operators")
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")
