"""When a gang that waits will start: the promise to the first gang that does not fit.

**What it promises.** Of the gangs that wait, the first in the order (of each class and team) is told a time. By then it starts:
shortly before, it falls due like a job that has waited too long, comes before all of its class, and others give way to it. So
smaller jobs may use the hole until then and may overstay, because they can be stopped in time. It may start earlier. A
gang that has a promise keeps it also when others come to stand before it.

**How the time is found.** On each node the gang needs what is neither free nor with jobs that give way to it now to be given
back by the jobs that stand before it. They end in the order of what is left of them: where that is not known, the median of
what jobs that got so far still took. The soonest nodes that suffice decide.
"""

import numpy as np

from libs.core.placement.search.gang import usable
from libs.core.placement.view import NOBODY, View
from libs.core.scheduling.precedence.moves import needs
from libs.core.scheduling.precedence.served import Floats, Ints
from libs.core.scheduling.precedence.turns import Precedence
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas.resources import WHOLE_MILLI

_SOONEST_S = 1.0
"""Nobody is told the present moment: who is due at it comes first."""


def expected_start_us(state: State, precedence: Precedence, job: Job, number: float, t_us: int) -> int | None:
    """When enough of what stands before the gang has ended, if nothing else came; None: not a gang that this can tell of."""
    need = needs(job.shape)
    if need is None:
        return None
    fleet, served = state.fleet, precedence.served
    mask = usable(View.of(fleet), job.shape)
    rows = np.flatnonzero(mask)
    slots = served.owner[rows] if len(served.owner) else np.full(len(rows), -1, dtype=np.int64)
    left_s = np.full(len(rows), np.inf)
    left_s[(fleet.free_milli[rows] == WHOLE_MILLI) & (fleet.held[rows] == NOBODY)] = 0.0
    owned = slots >= 0
    if owned.any():
        holders = np.unique(slots[owned])
        ends_s = precedence.numbers.left_s(holders, t_us)
        guard_s = np.maximum(0.0, (served.guarded_us[holders] - t_us) / 1e6)
        gives_way = precedence.numbers.limits_unguarded(holders, t_us) > number
        ends_s = np.where(gives_way, np.minimum(ends_s, guard_s), ends_s)
        later_s = np.minimum(
            precedence.numbers.until_known_s(holders, t_us), precedence.numbers.until_dear_s(holders, number, t_us)
        )
        ends_s = np.minimum(ends_s, np.maximum(later_s, guard_s))
        left_s[owned] = ends_s[np.searchsorted(holders, slots[owned])]
    for holder, devices in state.holds.items():  # these go to somebody at once, who gives them back
        slot = served.slots.get(holder)
        if slot is not None and holder != job.id:
            at = np.array([slot], dtype=np.int64)
            held = np.isin(rows, [fleet.row(device) for device in devices])
            later = np.minimum(
                precedence.numbers.until_known_s(at, t_us), precedence.numbers.until_dear_s(at, number, t_us)
            )
            left_s[held] = float(np.minimum(precedence.numbers.left_s(at, t_us), later)[0])
    latest_s = soonest_s(need, fleet.node[rows], left_s, len(fleet.node_names))
    if not np.isfinite(latest_s):
        return None
    return t_us + int(max(_SOONEST_S, latest_s * precedence.knobs.promise_margin) * 1e6)


def soonest_s(need: tuple[tuple[int, int], ...], nodes: Ints, free_s: Floats, count: int) -> float:
    """When each group of a gang has its devices free on a node of its own, s; infinite: never. `need` as `moves.needs` says,
    `nodes` and `free_s` of each device, shape (n,), of `count` nodes."""
    order = np.lexsort((free_s, nodes))
    nodes, free_s = nodes[order], free_s[order]
    begin = np.searchsorted(nodes, np.arange(count + 1))
    taken = np.zeros(count, dtype=np.bool_)
    latest_s = 0.0
    for groups, size in need:
        at = begin[:-1] + size - 1
        able = np.flatnonzero((at < begin[1:]) & ~taken)
        if len(able) < groups:
            return float("inf")
        ready_s = free_s[at[able]]
        best = np.argsort(ready_s, kind="stable")[:groups]
        taken[able[best]] = True
        latest_s = max(latest_s, float(ready_s[best].max()))
    return latest_s
