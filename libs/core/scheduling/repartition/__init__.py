"""Which idle MIG boards are repartitioned into other instances, and when. Pure: events for the caller to emit."""

from libs.core.scheduling.repartition.overdue import overdue
from libs.core.scheduling.repartition.planner import plan_repartitions

__all__ = ["overdue", "plan_repartitions"]
