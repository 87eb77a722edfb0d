"""Why an attempt ends, in four words: what frees its devices, what ended it, what kind of end that was, how it is booked.

    Evidence   what a node, or its absence, shows: nothing of the attempt is left there
    Cause      what ended the attempt first: a decision, or a part that ended before the others
    Category   what kind of end that was; it says which budget of retries pays (`libs.core.scheduling.retry`)
    Outcome    how the attempt is booked, for people and statistics

An agent may say a category itself where it knows more than an exit code tells: `KNOWN_BY_AGENTS`.
"""

from enum import StrEnum
from typing import Literal


class Evidence(StrEnum):
    """What shows that nothing of an attempt is left on a node."""

    RELEASED = "released"
    """The agent saw the last process go."""
    REFUSED = "refused"
    """The agent never started it."""
    LEASE_ENDED = "lease-ended"
    """The node was silent for so long that it has surely stopped its work by itself."""
    NEW_INCARNATION = "new-incarnation"
    """The node's agent began a new life, after ending all that ran before."""
    NODE_LEFT = "node-left"
    """The node's agent was stopped in good order, after ending all that ran."""


class Cause(StrEnum):
    """What ended an attempt: the first of these that came about."""

    CANCELLED = "cancelled"
    TIME_LIMIT = "time-limit"
    PREEMPTED = "preempted"
    PART_FAILED = "part-failed"
    """The processes of a part ended by themselves, and not with exit code 0."""
    PART_LOST = "part-lost"
    """A node was lost, or stopped its part without being asked."""
    PART_REFUSED = "part-refused"
    NODE_LEFT = "node-left"
    SUSPENDED = "team-suspended"
    """An operator suspended its team and asked what runs to save its work."""
    BUDGET_SPENT = "budget-spent"
    """Its hold fell due and a hard budget of its team does not cover another one."""


StopCause = Literal[
    Cause.CANCELLED,
    Cause.TIME_LIMIT,
    Cause.PART_FAILED,
    Cause.PART_LOST,
    Cause.PART_REFUSED,
    Cause.NODE_LEFT,
    Cause.SUSPENDED,
    Cause.BUDGET_SPENT,
]
"""Every cause but preemption, which has an event of its own."""


class Outcome(StrEnum):
    """How an attempt is booked."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time-limit"
    REFUSED = "refused"
    DRAINED = "drained"


class Category(StrEnum):
    """What kind of end an attempt came to."""

    SUCCESS = "success"
    """All of its processes ended by themselves with exit code 0."""
    CANCELLED = "cancelled"
    TIME_LIMIT = "time-limit"
    PREEMPTED = "preempted"
    """It gave way to a job of a higher class."""
    DRAINED = "drained"
    """Its node left in good order, its team was suspended, or its budget was spent: none is a fault of anybody's."""
    NODE_LOST = "node-lost"
    """A node fell silent, began a new life, or stopped its part without being asked."""
    HARDWARE = "hardware"
    """A device was gone or broken, or the node lacked what starting a process takes."""
    REFUSED = "refused"
    """A node did not start its part, for a reason that passes: a stale epoch, a device that was still occupied."""
    INPUT_MISSING = "input-missing"
    """The command, image, working directory or another input is not there."""
    OUT_OF_MEMORY = "out-of-memory"
    """The kernel killed it for the memory that it took."""
    DISK_LIMIT = "disk-limit"
    """Its folders held more than its job, or its node, allows."""
    USER_ERROR = "user-error"
    """The job itself failed: an exit code that says no more, or a description that cannot be run."""


KnownOfPart = Literal[
    Category.HARDWARE, Category.INPUT_MISSING, Category.OUT_OF_MEMORY, Category.USER_ERROR, Category.DISK_LIMIT
]
"""What the ledger may say that an agent knew."""
KnownByAgent = Literal[Category.HARDWARE, Category.INPUT_MISSING, Category.OUT_OF_MEMORY, Category.USER_ERROR]
"""The categories that an agent may say of a part. The others are placement's to know: an agent that said `preempted`
would give a job retries without end."""
