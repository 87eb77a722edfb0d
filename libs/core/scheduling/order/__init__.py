"""Which waiting job is considered next: one order for cycle, explain, dry run, preemption and repartition.

Among the jobs that wait, first the class (the higher priority, strictly); in a class first the gangs whose
reservation is due, the oldest first; then the queue of the team that is served worst; of equals the older job, then the
lower id. Without a tree of queues the worst served holds the least, in whole accelerators (`share.py`): a slice is its part
of a board, and a processor counts only between teams that hold as much of them. With one, guarantees and weights decide
(`libs.core.scheduling.queues`), and a due gang comes before other teams only within its queue's guarantee (`may_overtake`).
Beneath the share of its team, a job is compared by what its user holds, where users share (`QueueTree.by_user`).
A queue holds the waiting jobs of one priority, team, user (where users share) and shape in order of age (those
that may preempt apart from the others), and only its front job is considered: what does not fit blocks its own
queue and no other. Jobs for which devices are held come first in their queue, and are passed by: they wait for those.

All of it is pure. `Order` reads one state and changes nothing. It is told what was granted, because shares change within a
cycle. `in_order` lists the waiting jobs as if nothing were granted in between.

The caller decides whether a job fits, what is reserved for it (`reservation`) and how much its team may have.
"""

from libs.core.scheduling.order.ahead import JobsAhead
from libs.core.scheduling.order.rank import JobRank, due_us, front, in_turn, is_due, is_due_alone, rank
from libs.core.scheduling.order.share import NOTHING, Share, Shares, kinds_asked, share_of
from libs.core.scheduling.order.users import UserAmounts
from libs.core.scheduling.order.walk import Order, in_order

__all__ = [
    "NOTHING",
    "JobRank",
    "JobsAhead",
    "Order",
    "Share",
    "Shares",
    "UserAmounts",
    "due_us",
    "front",
    "in_order",
    "in_turn",
    "is_due",
    "is_due_alone",
    "kinds_asked",
    "rank",
    "share_of",
]
