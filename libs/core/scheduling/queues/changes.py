"""What applying a new tree would change."""

from typing import NamedTuple

from libs.core.state.queue_tree import QueueTree
from schemas.queues import Queue
from schemas.resources import WHOLE_MILLI


class Change(NamedTuple):
    """One field of what `name` names, a queue here. `field` is empty for one that comes or goes as a whole; "": nothing was or
    is said."""

    name: str
    field: str
    before: str
    after: str

    def text(self) -> str:
        """For people, one line: `~ vision  weight: 1 -> 2`."""
        if not self.field:
            return f"+ {self.name}  {self.after}" if self.after else f"- {self.name}  {self.before}"
        return f"~ {self.name}  {self.field}: {self.before or 'none'} -> {self.after or 'none'}"


def changes(before: QueueTree, after: QueueTree) -> list[Change]:
    """Queue by queue, in the order of their names; empty when both say the same (versions are not compared)."""
    found: list[Change] = []
    if before.order != after.order:
        found.append(Change("(the pool)", "order", before.order or "", after.order or ""))
    if before.half_life_s != after.half_life_s:
        found.append(Change("(the pool)", "half_life", _seconds(before.half_life_s), _seconds(after.half_life_s)))
    was, now = _limits(before), _limits(after)
    found += [Change("(the pool)", field, was[field], now[field]) for field in now if was[field] != now[field]]
    for name in sorted({*before.queues, *after.queues}):
        old, new = before.queues.get(name), after.queues.get(name)
        if old is None and new is not None:
            found.append(Change(name, "", "", _summary(new)))
        elif new is None and old is not None:
            found.append(Change(name, "", _summary(old), ""))
        elif old is not None and new is not None:
            was, now = _fields(old), _fields(new)
            found += [
                Change(name, field, was.get(field, ""), now.get(field, ""))
                for field in dict.fromkeys([*was, *now])
                if was.get(field, "") != now.get(field, "")
            ]
    return found


def _fields(queue: Queue) -> dict[str, str]:
    said = {"parent": queue.parent, "weight": _shown(queue.weight_milli)}
    said |= {f"guaranteed.{key}": _shown(milli) for key, milli in sorted(queue.guaranteed.items())}
    said |= {f"limit.{key}": _shown(milli) for key, milli in sorted(queue.limit.items())}
    if queue.order is not None:
        said["order"] = queue.order
    if queue.min_run_s is not None:
        said["min_run"] = _seconds(queue.min_run_s)
    if queue.default_time_limit_s is not None:
        said["default_time_limit"] = _seconds(queue.default_time_limit_s)
    if queue.longest_time_limit_s is not None:
        said["longest_time_limit"] = _seconds(queue.longest_time_limit_s)
    if queue.boosts is not None:
        budget = queue.boosts
        said["boosts"] = f"{budget.most} within {_seconds(budget.within_s)}, {_seconds(budget.longest_s)} each"
    if queue.classes is not None:
        said["classes"] = ", ".join(queue.classes) or "(none)"
    return said


def _limits(tree: QueueTree) -> dict[str, str]:
    """Those of preemption that hold, said or not: what is not said is no change."""
    limits = tree.preemption_limits
    return {
        "preemption.min_run": _seconds(limits.min_run_s),
        "preemption.reclaim_grace": _seconds(limits.reclaim_grace_s),
        "preemption.share_grace": _share_grace(limits.share_grace_s),
        "preemption.per_job": f"{limits.per_job.most} within {_seconds(limits.per_job.within_s)}",
        "preemption.per_pool": f"{limits.per_pool.most} within {_seconds(limits.per_pool.within_s)}",
    }


def _summary(queue: Queue) -> str:
    return ", ".join(f"{field} {value}" for field, value in _fields(queue).items() if value)


def _shown(milli: int) -> str:
    return f"{milli / WHOLE_MILLI:g}"


def _share_grace(said: int | str | None) -> str:
    return said if isinstance(said, str) else _seconds(said)


def _seconds(span_s: int | None) -> str:
    """As a file says it, in the largest unit that leaves no rest: `7d`, `36h`, `90s`."""
    if span_s is None:
        return ""
    unit, size = next((one for one in _UNITS if span_s and span_s % one[1] == 0), ("s", 1))
    return f"{span_s // size}{unit}"


_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))
