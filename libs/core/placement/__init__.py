"""Where a job runs: all its devices at once, as close together as they can be, or not at all.

`find(view, shape)` is what the placement service, preemption, dry-run and explain all call. It decides nothing about
order or priority; it never changes the view it is given.
"""

from libs.core.placement.answer import Blocked, BlockReason, Placed
from libs.core.placement.find import find
from libs.core.placement.view import Context, View

__all__ = ["BlockReason", "Blocked", "Context", "Placed", "View", "find"]
