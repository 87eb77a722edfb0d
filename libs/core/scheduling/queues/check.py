"""Everything that is wrong with the queues of a file."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from libs.core.accelerators.kinds import GRAINS, grains, problem_with
from libs.core.accelerators.spelling import meant
from libs.core.state.queue_tree import ROOT, QueueTree
from schemas.queues import Queue
from schemas.resources import ANY_ACCELERATOR, WHOLE_MILLI


class Problem(NamedTuple):
    """What is wrong with one field of one queue, and what to do."""

    queue: str
    field: str
    value: str
    problem: str
    fix: str


def problems(
    queues: Collection[Queue], classes: Collection[str] | None = None, offered: Collection[str] = ()
) -> list[Problem]:
    """Everything that is wrong with a file's queues; empty: they are a tree that can be applied.

    Args:
        classes: the names of the priority classes that there are; None: not known here.
        offered: kinds of device that the pool has, besides those of the catalogue.
    """
    found = list(_names(queues))
    if found:
        return found
    by_name = {queue.name: queue for queue in queues}
    for queue in queues:
        found += _fields(queue, classes, offered)
    cycles = list(_cycles(by_name))
    if not cycles:
        tree = QueueTree.of(queues)
        found += [problem for queue in queues for problem in _against_parent(queue, tree)]
        found += [problem for parent in (ROOT, *by_name) for problem in _siblings(parent, tree)]
    return found + cycles


def _names(queues: Collection[Queue]) -> Iterator[Problem]:
    names = [queue.name for queue in queues]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(name, "name", name, "two queues have this name", "rename one: names are unique in the whole tree")
    for queue in queues:
        if queue.parent != ROOT and queue.parent not in names:
            yield Problem(
                queue.name, "parent", queue.parent, "is no queue of this tree",
                meant(queue.parent, names) + "add it, or leave parent out for a top queue",
            )  # fmt: skip


def _fields(queue: Queue, classes: Collection[str] | None, offered: Collection[str]) -> Iterator[Problem]:
    for where, stated in (("guaranteed", queue.guaranteed), ("limit", queue.limit)):
        for key, milli in stated.items():
            if key != ANY_ACCELERATOR and (wrong := problem_with(key, offered)):
                yield Problem(
                    queue.name, f"{where}.{key}", _shown(milli), wrong, "correct the type, or remove the line"
                )
    for key, milli in queue.guaranteed.items():
        limit = queue.limit.get(key)
        if limit is not None and limit < milli:
            yield Problem(
                queue.name, f"guaranteed.{key}", _shown(milli), f"is above the queue's own limit of {_shown(limit)}",
                "raise the limit or lower the guarantee",
            )  # fmt: skip
    default_s, longest_s = queue.default_time_limit_s, queue.longest_time_limit_s
    if default_s is not None and longest_s is not None and default_s > longest_s:
        yield Problem(
            queue.name, "default_time_limit", f"{default_s} s", f"is above the queue's own longest of {longest_s} s",
            "lower it or raise longest_time_limit",
        )  # fmt: skip
    for name in queue.classes or ():
        if classes is not None and name not in classes:
            yield Problem(
                queue.name, "classes", name, "there is no such priority class",
                meant(name, classes) + f"there are {_list(classes)}",
            )  # fmt: skip


def _cycles(by_name: Mapping[str, Queue]) -> Iterator[Problem]:
    """One problem for each cycle, told at its first queue by name."""
    done: set[str] = set()
    for start in sorted(by_name):
        seen: dict[str, None] = {}
        name = start
        while name != ROOT and name not in done and name not in seen:
            seen[name] = None
            name = by_name[name].parent
        if name in seen:
            ring = list(seen)[list(seen).index(name) :]
            way = " -> ".join([*ring, name])
            yield Problem(
                name, "parent", by_name[name].parent, f"is a cycle: {way}", "give one of them a parent outside"
            )
        done |= seen.keys()


def _against_parent(queue: Queue, tree: QueueTree) -> Iterator[Problem]:
    if queue.parent == ROOT:
        return
    parent = tree[queue.parent]
    for key, milli in queue.guaranteed.items():
        limit = parent.limit.get(key)
        if limit is not None and milli > limit:
            yield Problem(
                queue.name, f"guaranteed.{key}", _shown(milli), f"is above the {_shown(limit)} of its parent's limit",
                "lower it or raise the parent's limit",
            )  # fmt: skip
    longest_s = tree.longest_time_limit_s(queue.parent)
    for field, limit_s in (
        ("longest_time_limit", queue.longest_time_limit_s),
        ("default_time_limit", queue.default_time_limit_s if queue.longest_time_limit_s is None else None),
    ):
        if limit_s is not None and longest_s is not None and limit_s > longest_s:
            yield Problem(
                queue.name, field, f"{limit_s} s", f"is above the longest_time_limit of {longest_s} s that its parent says",
                "lower it or raise the parent's",
            )  # fmt: skip
    above = tree.classes(queue.parent)
    for name in queue.classes or ():
        if above is not None and name not in above:
            yield Problem(
                queue.name, "classes", name, f"its parent {parent.name} may use only {_list(above)}",
                "allow it to the parent, or remove it here",
            )  # fmt: skip


def _siblings(parent: str, tree: QueueTree) -> Iterator[Problem]:
    children = [tree[name] for name in tree.children(parent)]
    if children and not any(child.weight_milli for child in children):
        first = children[0]
        place = f"all queues below {parent}" if parent else "all top queues"
        yield Problem(
            first.name, "weight", "0", f"{place} have weight 0: nobody could use what is idle",
            "give at least one of them a weight above 0",
        )  # fmt: skip
    if parent == ROOT:
        return
    has = tree[parent]
    for key in sorted({key for child in children for key in child.guaranteed}):
        together, own = sum(child.guaranteed.get(key, 0) for child in children), has.guaranteed.get(key, 0)
        if together > own:
            largest = max(children, key=lambda c: (c.guaranteed.get(key, 0), c.name))
            yield Problem(
                largest.name, f"guaranteed.{key}", _shown(largest.guaranteed.get(key, 0)),
                f"its parent {parent} is guaranteed {_shown(own)} and its children {_shown(together)} together",
                f"lower the children's, or raise the parent's to {_shown(together)}",
            )  # fmt: skip


def beyond_the_pool(tree: QueueTree, devices: Mapping[str, int]) -> list[str]:
    """What top queues are guaranteed together that the pool does not have now, a sentence for each kind. It may be meant: nodes
    are away, or will come. `devices`: how many of each kind are up."""
    has = {kind: WHOLE_MILLI * count for kind, count in devices.items()}
    top = [tree[name] for name in tree.children(ROOT)]
    said = []
    for key in sorted({key for queue in top for key in queue.guaranteed}):
        together, there = sum(queue.guaranteed.get(key, 0) for queue in top), grains(key, has)
        if together * GRAINS > there:
            what = "accelerators" if key == ANY_ACCELERATOR else key
            said.append(
                f"{_shown(together)} {what} are guaranteed, and {there / GRAINS / WHOLE_MILLI:g} of the pool are up: not all "
                "can have what they are guaranteed"
            )
    return said


def _shown(milli: int) -> str:
    return f"{milli / WHOLE_MILLI:g}"


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
