"""Invariant I7 in the checker's own books: no grant and no hold lifts a team above a limit.

It shares facts with the scheduler (the catalogue and the MIG table) but no rules: `libs.core.scheduling.limits` counts
in integer grains beforehand, this counts in fractions afterwards. A test compares both over random histories
(tests/core/test_limits_properties.py).

A hold counts only beyond what its victims under the same limit still hold.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType

from libs.core.accelerators.catalog import catalog, find_model
from libs.core.accelerators.mig_boards import GEOMETRIES
from schemas.resources import ANY_ACCELERATOR, DeviceKind

Kind = tuple[str, str]
"""Model and MIG profile of a device."""

Taken = Iterable[tuple[Kind | None, int]]
"""(kind, thousandths) per device; devices of unknown kind do not count."""


class LimitBooks:
    """Holdings of teams, holds for their jobs, and their limits. Methods return violations in words."""

    def __init__(self) -> None:
        self._limits: dict[str, dict[str, int]] = {}
        """Team -> key of a limit (`*`, type, type:profile) -> thousandths of what the key names."""
        self._queue_limits: dict[str, dict[str, int]] = {}
        self._above: dict[str, list[str]] = {}
        """Queue -> itself and all its ancestors."""
        self._used: dict[str, Counter[Kind]] = defaultdict(Counter)
        self._held: dict[str, tuple[str, Counter[Kind]]] = {}
        self._handed_over: tuple[str, str, Counter[Kind]] = ("", "", Counter())
        """The last released hold: job, team, devices. The job's grant takes what was its own already."""
        self._leaving: dict[str, tuple[str, str, Counter[Kind]]] = {}
        """Victim -> its team, its beneficiary, and what it still holds."""

    def set(self, team: str, limit_milli: int | None, by_type: Mapping[str, int]) -> None:
        """Replaces all limits of a team. Present holdings stay."""
        self._limits[team] = dict(by_type) | ({} if limit_milli is None else {"*": limit_milli})

    def set_queues(self, queues: Iterable[tuple[str, str, Mapping[str, int]]]) -> None:
        """Replaces all queues: (name, parent, limits).

        A queue holds what the teams named like it, or like a queue below it, hold."""
        parent: dict[str, str] = {}
        self._queue_limits = {}
        for name, above, limits in queues:
            parent[name], self._queue_limits[name] = above, dict(limits)
        self._above = {name: [name] for name in parent}
        for line in self._above.values():
            while line[-1] in parent and parent[line[-1]] and len(line) <= len(parent):
                line.append(parent[line[-1]])

    def hold(self, team: str, job_id: str, taken: Taken) -> list[str]:
        """Devices are held for a job."""
        before = self._all_counted(team)
        self._held[job_id] = (team, _sum(taken))
        return self._exceeded(team, before)

    def release(self, job_id: str) -> None:
        """A job's hold ends."""
        self._handed_over = (job_id, *self._held.pop(job_id, ("", Counter())))

    def grant(self, team: str, job_id: str, taken: Taken, *, counts_once: bool = True) -> list[str]:
        """A job is granted devices, perhaps those held for it. `counts_once`: what its victims under the same limit
        still hold did not count for it before."""
        own = self._handed_over[1:] if self._handed_over[0] == job_id else None
        who = job_id if counts_once else ""  # nobody is preempted for ""
        before = self._all_counted(team, {who: own} if own is not None else {})
        _add(self._used[team], taken, 1)
        return self._exceeded(team, before)

    def gives_way(self, team: str, job_id: str, beneficiary: str, taken: Taken) -> None:
        """A job is being preempted for another; `taken`: what it still holds."""
        self._leaving[job_id] = (team, beneficiary, _sum(taken))

    def free(self, team: str, job_id: str, taken: Taken) -> None:
        """Devices of a team's job are free again."""
        freed = list(taken)
        _add(self._used[team], freed, -1)
        if job_id in self._leaving:
            _add(self._leaving[job_id][2], freed, -1)

    def gone(self, job_id: str) -> None:
        """A job holds nothing any more."""
        self._leaving.pop(job_id, None)

    def _all_counted(
        self, team: str, more: Mapping[str, tuple[str, Counter[Kind]]] = MappingProxyType({})
    ) -> dict[tuple[str, str], Fraction]:
        """What counts against each limit that applies to the team, by owner (`team NAME` or `queue NAME`) and key.
        `more`: holds to add."""
        found = {}
        for whose, limits, teams in self._limits_on(team):
            held = [(job, kinds) for job, (holder, kinds) in (self._held | dict(more)).items() if holder in teams]
            for key in limits:
                total = sum((part_of(key, self._used.get(name, {})) for name in teams), Fraction(0))
                found[whose, key] = total + sum(
                    (max(Fraction(0), part_of(key, kinds) - self._still_held(key, teams, job)) for job, kinds in held),
                    Fraction(0),
                )
        return found

    def _still_held(self, key: str, teams: Collection[str], beneficiary: str) -> Fraction:
        """What victims of a job, within `teams`, still hold."""
        leaving = (kinds for team, whom, kinds in self._leaving.values() if whom == beneficiary and team in teams)
        return sum((part_of(key, kinds) for kinds in leaving), Fraction(0))

    def _limits_on(self, team: str) -> Iterator[tuple[str, Mapping[str, int], Collection[str]]]:
        """(owner, limits, counted teams) of all limits that apply to a team."""
        if self._limits.get(team):
            yield f"team {team}", self._limits[team], {team}
        for queue in self._above.get(team, ()):
            if self._queue_limits.get(queue):
                yield f"queue {queue}", self._queue_limits[queue], {n for n, up in self._above.items() if queue in up}

    def counted(self, teams: Collection[str]) -> Counter[Kind]:
        """Joint holdings of teams, with holds for their jobs."""
        total: Counter[Kind] = Counter()
        for team in teams:
            total.update(self._used.get(team, {}))
        for holder, kinds in self._held.values():
            if holder in teams:
                total.update(kinds)
        return total

    def _exceeded(self, team: str, before: Mapping[tuple[str, str], Fraction]) -> list[str]:
        """Limits exceeded now by more than `before`. One may have been lowered, so being above is no violation."""
        limit = {(whose, key): milli for whose, limits, _ in self._limits_on(team) for key, milli in limits.items()}
        return [
            f"{whose} holds {float(total):g} milli of {key}, its quota is {limit[whose, key]}"
            for (whose, key), total in self._all_counted(team).items()
            if total > limit[whose, key] and total > before[whose, key]
        ]


def _sum(taken: Taken) -> Counter[Kind]:
    total: Counter[Kind] = Counter()
    _add(total, taken, 1)
    return total


def _add(total: Counter[Kind], taken: Taken, sign: int) -> None:
    for kind, milli in taken:
        if kind is not None:
            total[kind] += sign * milli


def part_of(key: str, kinds: Mapping[Kind, int]) -> Fraction:
    """Thousandths that `kinds` count against `key` of a limit or guarantee."""
    return sum((milli * counts(key, kind) for kind, milli in kinds.items()), Fraction(0))


@cache
def counts(key: str, kind: Kind) -> Fraction:
    """The fraction that one device of a kind counts against `key`."""
    model, profile = kind
    if key == (f"{model}:{profile}" if profile else model):
        return Fraction(1)
    counted = key == model or (key == ANY_ACCELERATOR and not _processors(model))
    return part_of_board(model, profile) if counted else Fraction(0)


def _processors(model: str) -> bool:
    known = find_model(model)
    return known is not None and known.kind is DeviceKind.CPU


@cache
def part_of_board(model: str, profile: str) -> Fraction:
    """An instance's compute slices over its board's; 1 for a whole device and without a known board."""
    known = find_model(model)  # a node may spell it otherwise than the catalogue
    name = known.model if known is not None else model
    boards = sorted({a.mig for a in catalog().values() if a.model == name} & GEOMETRIES.keys())
    if not profile or not boards:
        return Fraction(1)
    for board in boards:
        for one in GEOMETRIES[board].profiles:
            if one.name == profile:
                return Fraction(one.compute_slices, GEOMETRIES[board].compute)
    number, named, _ = profile.partition("g.")
    whole = max(GEOMETRIES[board].compute for board in boards)
    return min(Fraction(1), Fraction(int(number), whole)) if named and number.isdecimal() else Fraction(1)
