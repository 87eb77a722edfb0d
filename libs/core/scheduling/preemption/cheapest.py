"""The cheapest set of victims that lets a job in: a search within each group of devices, with bounded effort.

Within a group the victims come lowest class first, then the cheapest per device that they free. As many of them as suffice
are taken; then a cheaper one is tried in place of the last, and whoever turns out not to be needed stays.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import numpy as np

from libs.core.placement.answer import Placed
from libs.core.scheduling.preemption.cost import ClassCosts
from libs.core.scheduling.preemption.index import VictimIndex
from libs.core.state.fleet import Bools, Ints
from libs.core.state.job import Job
from schemas.inbox import MOST_VICTIMS

_TRIES = 32
"""The clean-up tries to spare each of up to so many victims. With more, it tries so many of the highest class, then drops
all at once those whose devices the beneficiary would not get, then tries a quarter of so many."""

_SWAPS = 4
"""So many cheaper victims are tried in place of the last one that was taken."""


def cheapest(index: VictimIndex, groups: list[Ints]) -> tuple[list[Job], Placed] | None:
    """The best victims within one of `groups` (rows each), and where the job then runs; the most promising group is searched
    first. More than a plan may name are none: the beneficiary waits."""
    best: list[Job] | None = None
    where: Placed | None = None
    bounds = sorted(
        ((bound, group) for group in groups if (bound := index.bound(group)) is not None), key=lambda found: found[0]
    )
    for (least, _, _), group in bounds:
        if best is not None and least >= index.costs(best):
            break
        found = _within(index, group)
        if found is None or len(found[0]) > MOST_VICTIMS:
            continue
        if best is None or _rank(index, found[0]) < _rank(index, best):
            best, where = found
    return None if best is None or where is None else (best, where)


def _rank(index: VictimIndex, victims: list[Job]) -> tuple[ClassCosts, int, tuple[str, ...]]:
    return (index.costs(victims), len(victims), tuple(v.id for v in victims))


def groups_of(rows: Ints, codes: Ints, least: int) -> list[Ints]:
    """`rows` of each code that has at least `least` of them."""
    order = np.argsort(codes, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(codes[order])) + 1, len(rows))
    starts = np.append(0, ends[:-1])
    large = (ends - starts >= least) & (ends > starts)
    return [rows[order[start:end]] for start, end in zip(starts[large].tolist(), ends[large].tolist(), strict=True)]


def _within(index: VictimIndex, rows: Ints) -> tuple[list[Job], Placed] | None:
    """The best victims found that let the job run on the devices `rows` alone, and where it then runs."""
    inside = np.zeros(len(index.possible), dtype=np.bool_)
    inside[rows] = True
    frees, missing = index.frees(rows), index.missing(rows)
    far = index.elsewhere(rows)
    victims = index.admitted(index.victims[v] for v in (*index.in_order(frees), *far))
    frees |= dict.fromkeys(far, 0)
    freed = list(accumulate(frees[v.id] for v in victims))
    least = bisect_left(freed, missing) + 1  # fewer cannot suffice
    count = _fewest(lambda n: index.fits(victims[:n], inside) is not None, max(1, least), len(victims))
    if count is None:
        return None
    options = [victims[:count]]
    instead = _instead_of_last(index, victims, count, frees, missing, inside)
    if instead is not None:
        options.append([*victims[: count - 1], instead])
    chosen = min((_cleaned(index, option, inside, frees, missing) for option in options), key=partial(_rank, index))
    placed = index.fits(chosen, inside)
    assert placed is not None
    return chosen, placed


def _instead_of_last(
    index: VictimIndex, victims: list[Job], count: int, frees: dict[str, int], missing: int, inside: Bools
) -> Job | None:
    """A victim of the same class that costs less than the last of the first `count` and serves as well; None: none found.

    The last one is cheap per device that it frees, and may free more than is needed."""
    first, last = victims[: count - 1], victims[count - 1]
    lacking = missing - sum(frees[v.id] for v in first)
    cheaper = [
        v
        for v in victims[count:]
        if v.priority == last.priority and index.cost[v.id] < index.cost[last.id] and frees[v.id] >= lacking
    ]
    for victim in sorted(cheaper, key=lambda v: (index.cost[v.id], v.id))[:_SWAPS]:
        if index.fits([*first, victim], inside) is not None:
            return victim
    return None


def _cleaned(index: VictimIndex, chosen: list[Job], inside: Bools, frees: dict[str, int], missing: int) -> list[Job]:
    """`chosen`, in order of classes, without those that are not needed."""
    if len(chosen) <= _TRIES:
        return _give_back(index, chosen, inside, frees, missing, tries=_TRIES)
    highest = chosen[-1].priority
    if chosen[0].priority < highest:
        chosen = _give_back(index, chosen, inside, frees, missing, tries=_TRIES, at_least=highest)
    return _give_back(index, _touched(index, chosen, inside), inside, frees, missing, tries=_TRIES // 4)


def _give_back(
    index: VictimIndex,
    chosen: list[Job],
    inside: Bools,
    frees: dict[str, int],
    missing: int,
    *,
    tries: int,
    at_least: int | None = None,
) -> list[Job]:
    """`chosen` without those that are not needed: highest class first, then the most expensive. At most `tries` searches;
    `at_least`: only victims of this priority and above are tried."""
    spare = sum(frees[v.id] for v in chosen) - missing
    for victim in sorted(chosen, key=lambda v: (-v.priority, -index.cost[v.id])):
        if not tries or (at_least is not None and victim.priority < at_least):
            break
        rest = [v for v in chosen if v is not victim]
        if rest and frees[victim.id] <= spare:  # else the others would free too few devices
            tries -= 1
            if index.fits(rest, inside) is not None:
                chosen, spare = rest, spare - frees[victim.id]
    return chosen


def _touched(index: VictimIndex, victims: list[Job], inside: Bools) -> list[Job]:
    """Those of `victims` on whose devices the job would be placed, if they suffice."""
    placed = index.fits(victims, inside)
    assert placed is not None
    touched = index.holds(placed.rows)
    held = [v for v in victims if v.id in touched]
    return held if index.fits(held, inside) is not None else victims


def _fewest(works: Callable[[int], bool], least: int, most: int) -> int | None:
    """The least n of `least`..`most` for which `works`, which never stops working as n grows; None when it never does."""
    if least > most:
        return None
    if works(least):
        return least
    bad, good = least, most
    if bad == good or not works(good):
        return None
    while good - bad > 1:
        middle = (bad + good) // 2
        bad, good = (bad, middle) if works(middle) else (middle, good)
    return good
