"""Ends in a row: how long a job waits after them, and, where it was lost by what it runs on, when that is the end.

A node that dies costs a job nothing, and it runs again at once. Naively that is all. But some jobs break what they run on: a
power spike, a driver bug, memory of the host. Such a job would go through the pool, node by node, at full speed and for
ever. So losses in a row are counted; after the second the job waits, each time twice as long; after the ninth it ends. A run
of ten minutes shows that it is not the job, and the count begins anew.

A job that fails by itself has a budget of its own (`retry.on_failure`) and waits by the same steps, as a container of
Kubernetes that crashes again and again does. Failures are counted apart from losses.
"""

from schemas.attempts import Category
from schemas.jobs import RetryPolicy

GOOD_RUN_US = 600_000_000
"""An attempt that ran for so long before it was lost was not lost because of its job."""
IN_A_ROW = 8
"""Losses in a row that every job survives, but one that must not run twice (`retry.on_lost: 0`)."""
FIRST_WAIT_US = 5_000_000
"""After the second in a row; the first costs no time."""
LONGEST_WAIT_US = 300_000_000


def in_a_row(before: int, ran_us: int, again: bool) -> int:
    """The losses, or failures, in a row after an attempt that ran for `ran_us` (0: it never did), with `before` of them before
    it. `again`: it is one, too.

    An attempt that ended in another way and after a short run shows nothing: the count stays."""
    return (0 if ran_us >= GOOD_RUN_US else before) + again


def survived(losses: int, retry: RetryPolicy) -> bool:
    """Whether a job runs again after so many losses in a row."""
    return bool(retry.on_lost) and losses <= max(retry.on_lost, IN_A_ROW)


def wait_us(times: int) -> int:
    """How long a job waits after so many losses, or failures, in a row, us."""
    return min(FIRST_WAIT_US << min(times - 2, 16), LONGEST_WAIT_US) if times > 1 else 0


def why_it_ends(category: Category, losses: int, retry: RetryPolicy) -> str:
    """What is told of a job that ends for its losses."""
    if not retry.on_lost:
        return f"{category.value}, and retry.on_lost is 0: it is not run again"
    return f"{losses} attempts in a row were lost ({category.value}), none after {GOOD_RUN_US // 60_000_000} minutes of work"
