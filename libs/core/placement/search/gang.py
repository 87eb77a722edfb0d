"""Nested gangs: every group of a role within one group of the role's level, the whole job within one of its own level.

    pipeline stages of 8 devices on one NVLink island each, 64 of them within one spine, and one parameter server beside

A group of the job's level (the nearest that it may span, tightest first) is tried by packing the roles into it, the ones
with the largest groups first: whole groups of the nearest level that the role may span, then of the next. Packing one
role is exact: each group takes `devices` wherever it goes, so a near group never costs a far one. Several roles that
compete for the same devices are bin packing; there other orders of the roles are tried too (`_ORDERS` in all), and what
none of them solves waits. Nothing is granted unless everything fits.

Elastic roles are first tried in full. When that fails and the fewest of all roles fit, each role in turn gets the most
that still fits (bisection).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice, permutations

import numpy as np

from libs.core.placement.answer import Blocked, BlockReason, Placed, dominant
from libs.core.placement.search.choice import NodeCosts
from libs.core.placement.search.constraints import EACH, candidates, fitting, fitting_of, under_caps
from libs.core.placement.search.links import link_gb_s, slowest
from libs.core.placement.search.models import models_in_order
from libs.core.placement.search.topology import (
    allowed_levels,
    below,
    confined,
    emptied,
    fill,
    in_order,
    place_gang,
    span_of,
    spans_at,
)
from libs.core.placement.view import Context, View
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.lasting import remembered
from libs.core.state.levels import LEVELS, distance, grouped
from libs.core.state.shape import RoleShape, Shape
from schemas.resources import Level, Span

_ORDERS = 6
"""Orders of the roles that are tried per group of the job's level."""
_TRIES = 64
"""Groups of one level that are tried: each could hold every role by itself, and only their competition can fail."""

_LOOKS = 500_000
"""Search budget of one nested gang, in devices examined by its packings times its roles, shared by the levels: beyond it the
best so far is taken, or none. At each level one packing is always tried. Seen: sixteen elastic roles on 9,000 devices were
packed for minutes."""

SEARCH_BUDGET = 150_000
"""The same for all of a team's nested gangs that fit nowhere in a cycle; each further one is packed once, at its widest level.
Seen: with twenty gangs that only their packing shows not to fit, each device that was freed cost 1.9 s, in which nobody's job
was decided."""

Counts = tuple[int, ...]
"""Groups wanted of each role."""


def place_nested(view: View, shape: Shape, beneficiary: int, context: Context) -> Placed | Blocked:
    """All roles of `shape` at once in `view`, or why not."""
    nest = _Nest(view, shape, beneficiary, context)
    blocked = nest.short()
    if blocked is not None:
        return blocked
    full: Counts = tuple(role.count for role in shape.roles)
    elastic = shape.least < shape.devices
    placed = None if elastic and nest.hurried else nest.place(full)
    if placed is None and elastic:
        placed = nest.most()
    if placed is not None:
        return placed
    if context.search_budget is not None:
        context.search_budget.left -= nest.looked
    tied = confined(shape, context) or any(confined(s, context) for s in nest.shapes)
    return Blocked(BlockReason.TOPOLOGY if tied else BlockReason.BUSY, nest.removed, nest.left)


@lru_cache(maxsize=1024)
def role_shape(shape: Shape, role: RoleShape, count: int = 1) -> Shape:
    """What `count` groups of one role ask for, as a shape of its own."""
    return replace(
        shape,
        roles=(),
        devices=role.devices * count,
        min_devices=0,
        types=role.types,
        memory_mib=role.memory_mib,
        cpu_milli=role.cpu_milli,
        host_mib=role.host_mib,
        level=role.level,
        required=role.required,
        widen_us=role.widen_us,
    )


def shrink(shape: Shape, devices: int) -> Shape | None:
    """`shape` asking for at most `devices`, elastic parts made smaller (in whole units; the last role first). None when
    that is below its least."""
    if devices >= shape.devices:
        return shape
    devices = shape.whole_units(devices)
    if devices < shape.least:
        return None
    if not shape.roles:
        return replace(shape, devices=devices)
    surplus, roles = shape.devices - devices, list(shape.roles)
    for i in reversed(range(len(roles))):
        fewer = min(roles[i].count - roles[i].min_count, -(-surplus // roles[i].devices))
        if fewer > 0:
            roles[i] = replace(roles[i], count=roles[i].count - fewer)
            surplus -= fewer * roles[i].devices
    return replace(shape, devices=sum(r.count * r.devices for r in roles), roles=tuple(roles))


def usable(view: View, shape: Shape) -> Bools:
    """Devices (mask of shape (D,)) that some rank of `shape` could run on if all were free, of models that it may get."""
    if not shape.roles:
        mask = fitting(view, shape)
        return mask & under_caps(view.fleet, shape, shape.least) if shape.caps else mask
    either = np.zeros(len(view.fleet.up), dtype=np.bool_)
    for role in shape.roles:
        either |= fitting(view, role_shape(shape, role)) & under_caps(view.fleet, shape, role.devices)
    return either


def usable_of(fleet: Fleet, shape: Shape, rows: Ints) -> Bools:
    """`usable` of a few devices: which of `rows` (mask of shape (n,)). No pass over the fleet."""
    if not shape.roles:
        return fitting_of(fleet, shape, rows)
    either: Bools = np.logical_or.reduce([fitting_of(fleet, role_shape(shape, role), rows) for role in shape.roles])
    return either


def gap(view: View, shape: Shape, placed: Placed) -> Span:
    """How much worse `placed` is than requested, and than the best of the same size and models on the empty pool."""
    steps = max(0, distance(placed.level) - distance(shape.level))
    return Span(
        level=placed.level.value,
        wanted=grouped(shape.level).value,
        widened=steps > 0,
        steps=steps,
        link_gb_s=placed.link_gb_s,
        best_link_gb_s=max(_best_link(view, shape, placed), placed.link_gb_s),
    )


def _best_link(view: View, shape: Shape, placed: Placed) -> float:
    """GB/s one way. Remembered in the fleet until devices or nodes come or go: it says nothing of what is free, and
    searching it costs as much as a decision. Nothing beats neighbours: a slice of a torus, or the nearest level."""
    fleet = view.fleet
    models = tuple(np.unique(fleet.model[placed.rows]).tolist())
    nearest = min(link_gb_s(fleet.models.names[model], LEVELS[0]) for model in models)
    if shape.torus or placed.link_gb_s >= nearest:
        return placed.link_gb_s
    sizes = (len(placed.rows),) if placed.roles is None else tuple(np.bincount(placed.roles).tolist())
    return remembered(fleet, ("best link", shape, sizes, models), lambda: _ideal(emptied(view), shape, placed))


def _ideal(empty: View, shape: Shape, placed: Placed) -> float:
    fleet, free = empty.fleet, Context()
    if placed.roles is None:
        same = fitting(empty, shape) & (fleet.model == fleet.model[placed.rows[0]])
        found = place_gang(
            empty, replace(shape, devices=len(placed.rows), min_devices=0), np.flatnonzero(same), free
        )  # fmt: skip
        return found.link_gb_s if found is not None else 0.0
    names = fleet.models.names
    got = np.bincount(placed.roles, minlength=len(shape.roles)).tolist()
    roles = tuple(
        replace(role, count=n // role.devices, min_count=n // role.devices, types=(names[int(fleet.model[first])],))
        for i, (role, n) in enumerate(zip(shape.roles, got, strict=True))
        for first in placed.rows[placed.roles == i][:1]
    )
    same_size = replace(shape, roles=roles, devices=len(placed.rows))
    outcome = place_nested(empty, same_size, -1, free)
    return outcome.link_gb_s if isinstance(outcome, Placed) else 0.0


class _Nest:
    """One request of a nested gang against one view: candidates per role, tried in the job's groups."""

    def __init__(self, view: View, shape: Shape, beneficiary: int, context: Context) -> None:
        self.view, self.shape, self.beneficiary, self.context = view, shape, beneficiary, context
        self.most_looks = _LOOKS if context.search_budget is None else max(0, min(_LOOKS, context.search_budget.left))
        self.left_to_look = self.most_looks
        self.of_level = 0
        """What is left of that for the level at hand."""
        self.shapes = [role_shape(shape, role, role.count) for role in shape.roles]
        self.shared = any(s.cpu_milli or s.host_mib for s in self.shapes) or bool(view.fleet.rack_w.any())
        found = [
            candidates(view, s, beneficiary, context, together=role.devices)
            for s, role in zip(self.shapes, shape.roles, strict=True)
        ]
        self.counts = [int(np.count_nonzero(mask)) for mask, _ in found]
        self.reasons = [removed for _, removed in found]
        self.removed = self.reasons[self.counts.index(min(self.counts))]
        # Which devices go without processors or power depends on what the roles before took: nothing is cut yet.
        self.masks = (
            [candidates(view, s, beneficiary, context, together=EACH)[0] for s in self.shapes]
            if self.shared
            else [mask for mask, _ in found]
        )
        self.any: Bools = np.logical_or.reduce(self.masks)
        self.left = int(np.count_nonzero(self.any))

    @property
    def hurried(self) -> bool:
        return not self.most_looks and self.context.search_budget is not None

    @property
    def looked(self) -> int:
        return self.most_looks - self.left_to_look

    def short(self) -> Blocked | None:
        """Why it cannot fit wherever its devices are: a role, or all together, has too few."""
        for role, left, removed in zip(self.shape.roles, self.counts, self.reasons, strict=True):
            if left < (need := role.min_count * role.devices):
                return Blocked(dominant(removed, left, need), removed, left)
        if self.left < (need := self.shape.least):
            return Blocked(dominant(self.removed, self.left, need), self.removed, self.left)
        return None

    def most(self) -> Placed | None:
        """The largest gang found that is not below the fewest of any role."""
        counts = [role.min_count for role in self.shape.roles]
        best = self.place(tuple(counts))
        for i, role in enumerate(self.shape.roles):
            low, high = counts[i], role.count
            while best is not None and low < high and self.left_to_look > 0:
                middle = (low + high + 1) // 2
                placed = self.place((*counts[:i], middle, *counts[i + 1 :]))
                if placed is None:
                    high = middle - 1
                else:
                    low, best = middle, placed
            counts[i] = low
        return best

    def place(self, counts: Counts) -> Placed | None:
        """The job with `counts` groups of each role in the tightest group of the nearest level that holds all of it."""
        fleet = self.view.fleet
        rows = np.flatnonzero(self.any)
        levels = allowed_levels(self.shape, self.context)
        if self.hurried:
            levels = levels[-1:]
        for number, level in enumerate(levels):
            codes = spans_at(fleet, level, rows, within=levels[-1])
            self.of_level = max(self.left_to_look // (len(levels) - number), len(rows) * len(counts))
            for inside in islice(self._groups(rows, codes, counts), _TRIES):
                placed = self._pack(rows[inside], counts, level)
                if placed is not None:
                    return placed
        return None

    def _groups(self, rows: Ints, codes: Ints, counts: Counts) -> Iterator[Bools]:
        """The groups that could hold each role by itself and the devices of all, tightest first (masks over `rows`)."""
        totals = np.bincount(codes)
        need = sum(role.devices * n for role, n in zip(self.shape.roles, counts, strict=True))
        enough = totals >= need
        for role, role_request, mask, n in zip(self.shape.roles, self.shapes, self.masks, counts, strict=True):
            mine = mask[rows]
            inner = self._inner(role_request)[-1]
            spans = spans_at(self.view.fleet, inner, rows[mine], within=inner)
            outer_of = np.zeros(int(spans.max(initial=0)) + 1, dtype=np.int64)
            outer_of[spans] = codes[mine]
            if bool((outer_of[spans] == codes[mine]).all()):  # each group of the role lies in one of the job's
                slots = np.bincount(outer_of, weights=np.bincount(spans) // role.devices, minlength=len(totals))
            else:
                slots = np.bincount(codes[mine], minlength=len(totals)) // role.devices
            enough &= slots >= n
        for group in np.flatnonzero(enough)[np.argsort(totals[enough], kind="stable")].tolist():
            yield codes == group

    def _inner(self, request: Shape) -> tuple[Level, ...]:
        """The levels that one group of a role may span; a single device needs no link, so no island either."""
        return allowed_levels(request, self.context)

    def _pack(self, inside: Ints, counts: Counts, level: Level) -> Placed | None:
        """All roles on the devices `inside`, the largest groups first, then in other orders."""
        largest_first = sorted(
            (i for i, n in enumerate(counts) if n),
            key=lambda i: (-self.shape.roles[i].devices, int(np.count_nonzero(self.masks[i][inside])), i),
        )
        for order in islice(permutations(largest_first), _ORDERS):
            looks = len(inside) * len(counts)
            if looks > self.of_level:
                return None
            self.of_level, self.left_to_look = self.of_level - looks, self.left_to_look - looks
            taken = self._pack_in(order, inside, counts)
            if taken is not None:
                return self._placed(taken, level)
        return None

    def _pack_in(self, order: tuple[int, ...], inside: Ints, counts: Counts) -> dict[int, Ints] | None:
        view, free = self.view, np.zeros(len(self.view.fleet.up), dtype=np.bool_)
        free[inside] = True
        taken: dict[int, Ints] = {}
        for i in order:
            request, size = self.shapes[i], self.shape.roles[i].devices
            if self.shared:  # what the roles before it draw on their nodes is gone
                mask, _ = candidates(view, request, self.beneficiary, self.context, together=size, within=free)
            else:
                mask = self.masks[i] & free
            rows = self._role(request, self.shape.roles[i].devices, counts[i], mask, taken)
            if rows is None:
                return None
            taken[i] = rows
            free[rows] = False
            if self.shared:
                view = view.copy()
                view.take(rows, request)
        return taken

    def _role(self, request: Shape, size: int, count: int, mask: Bools, taken: dict[int, Ints]) -> Ints | None:
        """`count` groups of `size` devices of one model, group by group; None when they do not fit, or would be more than
        caps leave beside what other roles have `taken`."""
        fleet = self.view.fleet
        able = np.flatnonzero(mask)
        for model in models_in_order(self.view, request, able, NodeCosts(self.view, request, self.context)):
            rows = able[fleet.model[able] == model]
            if len(rows) < size * count or size * count > self._left_of(model, taken):
                continue
            packed = pack_groups(fleet, rows, size, count, self._inner(request))
            if packed is not None:
                return packed
        return None

    def _left_of(self, model: int, taken: dict[int, Ints]) -> int:
        """Devices of a model that the request's caps leave beside those of other roles."""
        left, fleet = self.shape.devices, self.view.fleet
        for cap in self.shape.caps:
            codes = [fleet.models.find(name) for name in cap.models]
            if model in codes:
                others = sum(int(np.count_nonzero(np.isin(fleet.model[rows], codes))) for rows in taken.values())
                left = min(left, cap.devices - others)
        return left

    def _placed(self, taken: dict[int, Ints], level: Level) -> Placed:
        """Rank order: role by role as the job lists them, group by group, neighbours together."""
        order = sorted(taken)
        rows = np.concatenate([taken[i] for i in order])
        roles = np.concatenate([np.full(len(taken[i]), i, dtype=np.int64) for i in order])
        span = span_of(self.view.fleet, rows) if len(rows) > 1 else Level.NODE
        return Placed(rows, min(level, span, key=distance), slowest(self.view.fleet, rows, span), roles)


def pack_groups(fleet: Fleet, rows: Ints, size: int, count: int, levels: tuple[Level, ...]) -> Ints | None:
    """`count` groups of `size` of `rows`, each within one group of the nearest of `levels` that still has room.

    Returns rows of shape (count * size,), group by group along the tree; None when fewer groups fit.
    """
    if size == 1:
        return in_order(fleet, fill(fleet, rows, count, below(Level.POOL))) if len(rows) >= count else None
    groups: list[Ints] = []
    left = count
    for level in levels:
        codes = spans_at(fleet, level, rows, within=levels[-1])
        slots = np.bincount(codes) // size
        if not slots.any():
            continue
        chosen = _slots(fleet, rows, codes, slots, min(left, int(slots.sum())))
        used: list[Ints] = []
        for code in np.flatnonzero(chosen).tolist():
            here = rows[codes == code]
            part = in_order(fleet, fill(fleet, here, int(chosen[code]) * size, below(level)))
            used.append(part.reshape(-1, size))
        groups += used
        left -= int(chosen.sum())
        if left == 0:
            ordered = np.concatenate(groups)
            return _along(fleet, ordered).ravel()
        rows = np.setdiff1d(rows, np.concatenate([g.ravel() for g in used]), assume_unique=True)
    return None


def _slots(fleet: Fleet, rows: Ints, codes: Ints, slots: Ints, need: int) -> Ints:
    """How many groups to put where (shape as `slots`), so that the remainder falls where it fits tightest."""
    some_row = np.zeros(len(slots), dtype=np.int64)
    some_row[codes] = rows
    units = np.repeat(np.flatnonzero(slots), slots[slots > 0])
    if len(units) == need:
        return slots
    # A slot stands where a device of its group stands, so `fill` over slots spares the tree as it does over devices.
    tickets = _fill_slots(fleet, some_row[units], units, np.bincount(codes), need)
    return np.bincount(units[tickets], minlength=len(slots))


def _fill_slots(fleet: Fleet, rows: Ints, units: Ints, totals: Ints, need: int) -> Ints:
    """Which slots to take: level by level the sub-groups with the most slots whole, then the tightest for the rest."""
    open_ = np.arange(len(rows))
    picked: list[Ints] = []
    for level in (Level.ZONE, Level.SPINE, Level.LEAF, None):  # None: the groups that the slots stand for
        if need == len(open_):
            break
        key = units[open_] if level is None else spans_at(fleet, level, rows[open_])
        sums = np.bincount(key)
        order = np.argsort(-sums, kind="stable")
        whole = order[: int(np.searchsorted(np.cumsum(sums[order]), need))]
        rest = need - int(sums[whole].sum())
        others = order[len(whole) :]
        others = others[sums[others] >= rest]
        ties = others[sums[others] == sums[others].min()]
        last = ties[int(np.argmin(totals[ties]))] if level is None else ties[0]
        picked.append(open_[np.isin(key, whole)])
        open_, need = open_[key == last], rest
    picked.append(open_[:need])
    return np.concatenate(picked)


def _along(fleet: Fleet, groups: Ints) -> Ints:
    """Groups (shape (g, size)) in order along the tree, by their first device."""
    nodes = fleet.node[groups[:, 0]]
    order = np.lexsort((fleet.index[groups[:, 0]], nodes, fleet.leaf[nodes], fleet.spine[nodes], fleet.zone[nodes]))
    ordered: Ints = groups[order]
    return ordered
