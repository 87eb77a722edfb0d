"""Who may have how much: a tree of queues with guarantees, weights and limits, and how a pool is divided over it.

`tree` holds the queues of one file and what is wrong with them, `division` divides an amount between siblings and down the
tree, `standing` says how well each queue is served now, so that the order of jobs can compare them, `reclaim` who gives back
what its queue borrowed, and `changes` names what a new tree would change.

The semantics are those of KAI-Scheduler (deserved quota, over-quota weight, limit, reclaim): docs/queues.md works one
example through, and a test recomputes it. All of it is pure and exact: amounts are integers.
"""

from libs.core.scheduling.queues.changes import Change, changes
from libs.core.scheduling.queues.check import Problem, beyond_the_pool, problems
from libs.core.scheduling.queues.division import Claimant, divide, divide_tree
from libs.core.scheduling.queues.reclaim import Reclaim
from libs.core.scheduling.queues.standing import WITHIN, QueueLevel, Standing, Standings, largest_part

__all__ = [
    "WITHIN",
    "Change",
    "Claimant",
    "Problem",
    "QueueLevel",
    "Reclaim",
    "Standing",
    "Standings",
    "beyond_the_pool",
    "changes",
    "divide",
    "divide_tree",
    "largest_part",
    "problems",
]
