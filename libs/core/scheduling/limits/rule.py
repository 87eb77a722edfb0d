"""The comparison of a request with its team's limits, in grains (`libs.core.accelerators.kinds`), so exactly.

A request without roles goes to one device model, so each model it may go to has a room of its own: the least of what the
limits that count this model leave. Roles of a nested gang may go to different ones, so there each limit caps the devices
of all models that it counts, together.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from libs.core.accelerators.kinds import GRAINS, grains, weight
from libs.core.placement.answer import Blocked, BlockReason
from libs.core.placement.search.gang import shrink
from libs.core.scheduling.limits.budget_headroom import BudgetHeadroom, BudgetShort
from libs.core.state.limits import Cap, Limits, Usage
from libs.core.state.shape import Shape
from schemas.resources import ANY_ACCELERATOR, WHOLE_MILLI, kind_of, parts_of

OVER_BUDGET = Blocked(BlockReason.BUDGET, ((BlockReason.BUDGET, 0),), 0)
"""The outcome for a request whose hold no budget covers: no device was looked at."""
OVER_LIMIT = Blocked(BlockReason.QUOTA, ((BlockReason.QUOTA, 0),), 0)
"""The outcome for a request that the limits leave nothing: no device was looked at."""
UNLIMITED = 1 << 40
"""Stands for no limit: more devices than any request."""
_NAMELESS = ("",)
"""Used while the pool has no model: stands for any accelerator."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A limit that leaves a request less than it asks for. `used` and `asked` are grains of what `key` names."""

    key: str
    limit_milli: int
    used: int
    asked: int
    """What the smallest useful part of the request would add, in grains."""
    queue: str = ""
    """Whose limit it is, when it is that of a queue; empty: the team's own."""

    def text(self, team: str) -> str:
        """For people: "team vision holds 7 of its limit of 8 H100 and the job needs 2"."""
        used, asked = _shown(self.used), _shown(self.asked)
        who = f"queue {self.queue}" if self.queue else f"team {team}"
        return f"{who} holds {used} of its limit of {self.limit} and the job needs {asked}"

    @property
    def limit(self) -> str:
        """How much of what, for people: `8 H100`."""
        count, what = self.limit_milli / WHOLE_MILLI, noun(self.key)
        return f"{count:g} {what.removesuffix('s') if count == 1 and self.key == ANY_ACCELERATOR else what}"

    @property
    def needs(self) -> str:
        """What the request would add, for people, in what the key names."""
        return _shown(self.asked)


@dataclass(frozen=True, slots=True)
class Room:
    """What limits leave of a request.

    `request`: the shape as large as they allow, with caps on the models that allow less; None when not even its least is
    allowed. `reached`: the limits that leave it less than it asks for, on some model; the one to tell first. `caps`: what
    they leave, of each model where that is less than it asks for.
    """

    request: Shape | None
    reached: tuple[Reached | BudgetShort, ...] = ()
    caps: tuple[Cap, ...] = ()

    @property
    def outcome(self) -> Blocked:
        """Why it leaves nothing."""
        return OVER_BUDGET if self.reached and isinstance(self.reached[0], BudgetShort) else OVER_LIMIT


class KeptUse(NamedTuple):
    """What is kept for one job. `leaving`: what those that give way for it, under the same limit, still hold. It counts as far
    as it is more than that: the rest counts as theirs until they are gone, and nothing counts twice."""

    kinds: Usage
    leaving: Usage = MappingProxyType({})

    def counted(self, key: str) -> int:
        """Grains of `key`."""
        return max(0, grains(key, self.kinds) - grains(key, self.leaving))


class LimitsUse(NamedTuple):
    """Limits, and what counts against them. `queue`: whose they are; empty: the team's own."""

    limits: Limits
    used: Usage
    queue: str = ""
    kept: Sequence[KeptUse] = ()
    """What is kept for jobs, beside what is used."""


class _Line(NamedTuple):
    """One limit, and what counts against it, grains."""

    key: str
    limit_milli: int
    held: int
    queue: str


def noun(key: str) -> str:
    """What a limit on `key` counts, for people."""
    model, profile = parts_of(key)
    if key == ANY_ACCELERATOR:
        return "accelerators"
    return f"{profile} instances of {model}" if profile else model


def room(
    limits: Limits | None, used: Usage, shape: Shape, models: Collection[str], kept: Usage = MappingProxyType({})
) -> Room:
    """How much of `shape` a team may have beside what it holds.

    Args:
        limits: the team's; None: it has none.
        used: what it holds and what is kept for it, without what is kept for this request.
        shape: the request.
        models: device models that a request (or role) without types of its own may go to.
        kept: what is kept for this request: its own, also when a limit was lowered since.
    """
    return room_within(() if limits is None else (LimitsUse(limits, used),), shape, models, kept)


def room_within(
    bounds: Sequence[LimitsUse],
    shape: Shape,
    models: Collection[str],
    kept: Usage = MappingProxyType({}),
    headrooms: Sequence[BudgetHeadroom] = (),
) -> Room:
    """As `room`, within all of `bounds` at once: a team's own and those of the queues that it is in; and within what all of
    `headrooms` cover."""
    if not bounds and not headrooms:
        return Room(shape)
    lines = _lines(bounds)
    if shape.roles:
        return _nested(lines, shape, models, kept, headrooms)
    return _single(lines, shape, models, kept, headrooms)


def exceeded(bounds: Sequence[LimitsUse], added: Usage) -> Reached | None:
    """The first limit that `added` would lift one above which holds what its bound says; None when none."""
    for key, limit_milli, held, queue in _lines(bounds):
        more = grains(key, added)
        if more and held + more > limit_milli * GRAINS:
            return Reached(key, limit_milli, held, more, queue)
    return None


def _lines(bounds: Sequence[LimitsUse]) -> list[_Line]:
    return [
        _Line(key, limit_milli, grains(key, bound.used) + sum(kept.counted(key) for kept in bound.kept), bound.queue)
        for bound in bounds
        for key, limit_milli in bound.limits
    ]


def _single(
    lines: list[_Line], shape: Shape, models: Collection[str], kept: Usage, headrooms: Sequence[BudgetHeadroom]
) -> Room:
    """Each model's room, and the limit that makes it so small; the model with the most room decides the size."""
    rooms: dict[str, int] = {}
    reached: list[tuple[int, Reached | BudgetShort]] = []
    for model in shape.types or models or _NAMELESS:
        devices, limit = _on(model, lines, shape)
        rooms[model] = max(devices, kept.get(kind_of(model, shape.profile), 0) // shape.milli)
        if limit is not None and rooms[model] < shape.devices:
            reached.append((rooms[model], limit))
        for headroom in headrooms:
            covered = headroom.devices(model, shape)
            if covered < shape.devices and covered < rooms[model]:
                reached.append((covered, headroom.short(model, shape)))
            rooms[model] = min(rooms[model], covered)
    told = _told(reached)
    caps = tuple(Cap((model,), devices) for model, devices in rooms.items() if devices < shape.devices)
    request = shrink(shape, max(rooms.values()))
    if request is not None and (some := tuple(cap for cap in caps if cap.devices < request.devices)):
        request = replace(request, caps=some)
    return Room(request, told, caps)


def _on(model: str, lines: list[_Line], shape: Shape) -> tuple[int, Reached | None]:
    """Devices of `model` that all limits allow, and the limit that allows the fewest; None when none counts this model."""
    kind, fewest, told = kind_of(model, shape.profile), UNLIMITED, None
    for key, limit_milli, held, queue in lines:
        each = weight(key, kind) * shape.milli
        if not each:
            continue
        devices = max(0, limit_milli * GRAINS - held) // each
        if devices < fewest:
            fewest, told = devices, Reached(key, limit_milli, held, shape.least * each, queue)
    return fewest, told


def _nested(
    lines: list[_Line], shape: Shape, models: Collection[str], kept: Usage, headrooms: Sequence[BudgetHeadroom]
) -> Room:
    """A cap for each limit, over the models that it counts. Whether roles can share what the caps leave, `find` sees. A budget
    must cover all roles on the dearest model that any of them may go to."""
    options = [role.types or tuple(models) or _NAMELESS for role in shape.roles]
    least = [role.min_count * role.devices for role in shape.roles]
    most = [role.count * role.devices for role in shape.roles]
    request: Shape | None = shape
    caps: list[Cap] = []
    reached: list[tuple[int, Reached | BudgetShort]] = []
    everywhere = tuple(dict.fromkeys(model for names in options for model in names))
    for headroom in headrooms:
        dearest = min(everywhere, key=lambda model: headroom.devices(model, shape))
        covered = headroom.devices(dearest, shape)
        if covered < sum(most):
            caps.append(Cap(everywhere, covered))
            reached.append((covered, headroom.short(dearest, shape)))
            request = None if covered < sum(least) or request is None else shrink(request, covered)
    for key, limit_milli, held, queue in lines:
        counted = tuple(dict.fromkeys(m for names in options for m in names if weight(key, m)))
        if not counted:
            continue
        own = sum(kept.get(model, 0) for model in counted) // WHOLE_MILLI
        devices = max(max(0, limit_milli * GRAINS - held) // (GRAINS * WHOLE_MILLI), own)
        only = [set(names) <= set(counted) for names in options]
        some = [not set(names).isdisjoint(counted) for names in options]
        needed = sum(n for n, bound in zip(least, only, strict=True) if bound)
        if devices < sum(n for n, touched in zip(most, some, strict=True) if touched):
            caps.append(Cap(counted, devices))
            asked = needed or min(n for n, touched in zip(least, some, strict=True) if touched)
            reached.append((devices, Reached(key, limit_milli, held, asked * GRAINS * WHOLE_MILLI, queue)))
        if devices < needed:
            request = None
        elif all(only) and request is not None:
            request = shrink(request, devices)
    for names, need in zip(options, least, strict=True):
        if all(min((cap.devices for cap in caps if model in cap.models), default=UNLIMITED) < need for model in names):
            request = None
    return Room(None if request is None else replace(request, caps=tuple(caps)), _told(reached), tuple(caps))


def _told(reached: list[tuple[int, Reached | BudgetShort]]) -> tuple[Reached | BudgetShort, ...]:
    """Without repetition, the one that leaves the most first: the nearest to being enough."""
    return tuple(dict.fromkeys(limit for _, limit in sorted(reached, key=lambda r: -r[0])))


def _shown(amount: int) -> str:
    """Grains as a number with at most three decimals."""
    return f"{round(amount / (GRAINS * WHOLE_MILLI), 3):g}"
