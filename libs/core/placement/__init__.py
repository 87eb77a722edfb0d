"""Where a job runs: all its devices at once, as close together as they can be, or not at all.

`find(view, shape)` is what the placement service, preemption, dry-run and explain all call. It decides nothing about
order or priority; it never changes the view it is given.
"""

from libs.core.placement.find import Blocked, Placed, Reason, find
from libs.core.placement.view import View

__all__ = ["Blocked", "Placed", "Reason", "View", "find"]
