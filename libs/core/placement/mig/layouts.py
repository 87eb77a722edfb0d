"""MIG by its real geometry: which sets of instances a board allows, and where the next one goes.

An instance is (profile, start): it takes `memory_slices` slices from `start` on, and only the driver's starts are legal.
At most one instance with media extensions (`+me`) fits on a board, and never more compute slices than it has. Everything
here is pure and exact: a board has few enough layouts (723 without media extensions) to look at all of them.

What a placement costs is what it makes impossible. `potential` of a taken set is, over all profiles, the slices that the
most further instances of it would use, weighted by demand: 4g and 3g count by their size, so a 1g goes where it leaves
the large ones whole (slice 6 of an empty board, which keeps 4g at 0), as NVIDIA's driver would not always do.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from libs.core.accelerators.mig_boards import Geometry
from schemas.resources import MigBoard, MigProfile

Instance = tuple[str, int]
"""Profile name and first memory slice."""

Layout = tuple[Instance, ...]
"""Instances of one board, by start."""

ProfileDemand = Mapping[str, float]
"""Profile name -> how many more instances of it are wanted (or expected); an empty one wants every profile alike."""

_MEDIA = "+me"


def geometry_of(board: MigBoard) -> Geometry:
    """A board's geometry as its own driver told it. Compute slices are those of its largest profile."""
    return _geometry_of(board.slices, board.profiles)


def layouts(geometry: Geometry) -> tuple[Layout, ...]:
    """Every legal set of instances, the empty one included."""
    return tuple(_layout(geometry, bits) for bits in _table(geometry).legal)


def legal(geometry: Geometry, instances: Iterable[Instance]) -> bool:
    """Whether these instances can exist together."""
    table, given = _table(geometry), list(instances)
    bits = 0
    for instance in given:
        bit = table.bit.get(instance)
        if bit is None or bits & bit or not table.free_for(bits) & bit:
            return False
        bits |= bit
    return True


def fits(geometry: Geometry, taken: Iterable[Instance], profile: str) -> tuple[int, ...]:
    """The starts at which an instance of `profile` may be added to `taken`, lowest first."""
    table = _table(geometry)
    free = table.free_for(table.bits_of(taken))
    return tuple(start for (name, start), bit in table.bit.items() if name == profile and free & bit)


def potential(geometry: Geometry, taken: Iterable[Instance], demand: ProfileDemand) -> float:
    """What could still be made beside `taken`: over all profiles, the memory slices of the most further instances of it,
    times its weight. Profiles outside a demand that is not empty weigh nothing."""
    table = _table(geometry)
    return table.weigh(table.bits_of(taken), demand)


def instance_cost(geometry: Geometry, busy: Iterable[Instance], instance: Instance, demand: ProfileDemand) -> float:
    """What using the existing idle `instance` makes impossible on its board while it runs, idle ones counting as free to
    be repartitioned. 0 is the cheapest; larger is worse; comparable between boards of one geometry."""
    taken = list(busy)
    return potential(geometry, taken, demand) - potential(geometry, [*taken, instance], demand)


def best_layout(
    geometry: Geometry, busy: Iterable[Instance], demand: ProfileDemand, now_free: Iterable[Instance]
) -> Layout:
    """How to repartition a board around its `busy` instances: as many wanted instances as possible, largest profile first
    (`demand` counts instances), then as many of the idle ones (`now_free`) kept as they are, then the fewest slices left
    over, then the most that stays possible. Always legal and always contains all of `busy`.
    """
    table, fixed = _table(geometry), list(busy)
    taken, idle = table.bits_of(fixed), table.bits_of(now_free)
    wanted = [(table.all_of(p.name), demand[p.name]) for p in _largest_first(geometry) if demand.get(p.name, 0) > 0]

    def worth(bits: int) -> tuple[tuple[float, ...], int, int, int]:
        fresh = bits & ~taken
        served = tuple([min(float((fresh & bits_of_it).bit_count()), most) for bits_of_it, most in wanted])
        return served, (fresh & idle).bit_count(), table.slices(fresh), -(fresh & ~idle).bit_count()

    def starts(bits: int) -> tuple[int, ...]:
        return tuple(sorted((start for _, start in table.layout(bits & ~taken)), reverse=True))

    worths = {bits: worth(bits) for bits in table.legal if bits & taken == taken}
    most = max(worths.values())
    return table.layout(max((bits for bits, of in worths.items() if of == most), key=starts))


def _largest_first(geometry: Geometry) -> list[MigProfile]:
    return sorted(geometry.profiles, key=lambda p: (-p.memory_slices, -p.compute_slices, p.name))


@lru_cache(maxsize=64)
def _geometry_of(slices: int, profiles: tuple[MigProfile, ...]) -> Geometry:
    return Geometry(slices, max((p.compute_slices for p in profiles), default=0), profiles)


def _layout(geometry: Geometry, bits: int) -> Layout:
    return _table(geometry).layout(bits)


@dataclass(frozen=True, slots=True)
class _ProfileKind:
    """A profile among the table's bits: `all` are its instances', by start."""

    profile: MigProfile
    all: int
    bits: tuple[int, ...]


class _Table:
    """All instances of a geometry as bits of an integer, and what excludes what."""

    def __init__(self, geometry: Geometry) -> None:
        self._compute = geometry.compute
        self._profiles = {p.name: p for p in geometry.profiles}
        every = [(p.name, start) for p in _largest_first(geometry) for start in p.starts]
        self._names = every
        self.bit: dict[Instance, int] = {instance: 1 << i for i, instance in enumerate(every)}
        self._everything = (1 << len(every)) - 1
        self._span = [((1 << self._profiles[name].memory_slices) - 1) << start for name, start in every]
        self._compute_of = [self._profiles[name].compute_slices for name, _ in every]
        self._kinds = {
            p.name: _ProfileKind(
                p,
                sum(self.bit[p.name, s] for s in p.starts),
                tuple(self.bit[p.name, s] for s in sorted(p.starts)),
            )
            for p in geometry.profiles
        }
        self._media = sum(bit for (name, _), bit in self.bit.items() if name.endswith(_MEDIA))
        self._excludes = [self._excluded_by(i) for i in range(len(every))]
        self._free: dict[int, int] = {}
        self._most: dict[tuple[int, str], int] = {}
        self._slices: dict[int, int] = {}
        self.legal = tuple(self._search(0, 0))

    def _excluded_by(self, i: int) -> int:
        overlap = sum(1 << j for j, span in enumerate(self._span) if span & self._span[i])
        return overlap | (self._media if self._media >> i & 1 else 0)

    def _search(self, bits: int, first: int) -> Iterator[int]:
        """Every legal set that adds to `bits` instances from number `first` on."""
        yield bits
        free = self.free_for(bits)
        for i in range(first, len(self._names)):
            if free >> i & 1:
                yield from self._search(bits | 1 << i, i + 1)

    def free_for(self, bits: int) -> int:
        """The instances that may be added to `bits`."""
        known = self._free.get(bits)
        if known is None:
            known, compute = self._everything, self._compute
            for i in _ones(bits):
                known &= ~self._excludes[i]
                compute -= self._compute_of[i]
            for kind in self._kinds.values():
                if kind.profile.compute_slices > compute or (bits & kind.all).bit_count() >= kind.profile.limit:
                    known &= ~kind.all
            self._free[bits] = known
        return known

    def bits_of(self, instances: Iterable[Instance]) -> int:
        """Raises ValueError, naming the instance, when the board cannot have it."""
        bits = 0
        for instance in instances:
            bit = self.bit.get(instance)
            if bit is None:
                raise ValueError(f"no instance {instance[0]} at slice {instance[1]} exists on such a board")
            bits |= bit
        return bits

    def layout(self, bits: int) -> Layout:
        return tuple(sorted((self._names[i] for i in _ones(bits)), key=lambda instance: (instance[1], instance[0])))

    def all_of(self, profile: str) -> int:
        kind = self._kinds.get(profile)
        return kind.all if kind else 0

    def slices(self, bits: int) -> int:
        """Of instances that can exist together."""
        known = self._slices.get(bits)
        if known is None:
            known = self._slices[bits] = sum(self._span[i].bit_count() for i in _ones(bits))
        return known

    def most(self, bits: int, profile: str) -> int:
        """The most instances of `profile` that can be added to `bits`: intervals of one length, so earliest first."""
        known = self._most.get((bits, profile))
        if known is None:
            known, now = 0, bits
            for bit in self._kinds[profile].bits:
                if self.free_for(now) & bit:
                    now, known = now | bit, known + 1
            self._most[bits, profile] = known
        return known

    def weigh(self, bits: int, demand: ProfileDemand) -> float:
        return sum(
            weight * kind.profile.memory_slices * self.most(bits, name)
            for name, kind in self._kinds.items()
            if (weight := demand.get(name, 0.0) if demand else 1.0) > 0
        )


def _ones(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


@lru_cache(maxsize=128)
def _table(geometry: Geometry) -> _Table:
    return _Table(geometry)
