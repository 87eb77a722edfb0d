"""What a placement costs the requests to come: the score by which `find` chooses among nodes that fit.

    cost(request, node) = V(state) - V(state after)                what the node could still have served, milli
                        + CLASS_PRICE * rho[class] * compute       devices of a class that others need more
                        + BLOCK_PRICE * sum over b of beta[b, class] * 1000 b * (blocks of b broken)

V is a Monte-Carlo value over the learned mix (`kernels`), rho and beta are prices in [0, 1] that follow the remaining
stock: rho clears the market of device classes, where each kind of request buys from the classes it accepts, at the
lowest price; beta grows when the blocks that are left are few beside the requests for them. A price must follow the
stock: dual values of a fixed plan say nothing, since all classes are worth the same until one runs out.
Reference points: fragmentation gradient descent (Weng et al., USENIX ATC '23), which V with one-request streams becomes;
rollout values (Bertsekas, "Rollout algorithms for discrete optimization"). Measured against both in docs/placement.md.

Scores depend on the view's arrays and on the mix alone: what is kept between decisions is keyed by the node's state. The
weights are named, with their sources, in `weights`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.core.placement.compiled import Packed, packed
from libs.core.placement.score import arrays, kernels, weights
from libs.core.placement.score.mix import Mix, RequestKind, kind_of, sample
from libs.core.placement.view import NOBODY, View
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.shape import Shape

Floats = npt.NDArray[np.float64]

_SAMPLED_NODES = 2000
_KINDS = 1024
"""Of which it is remembered what they may run on, at the most."""
BLOCKS = np.array(weights.BLOCKS, dtype=np.int64)
MARKET = arrays.Market(weights.MARKET_ROUNDS, weights.MARKET_STEP, weights.MARKET_COOLING, weights.MARKET_TASTE)


@dataclass(frozen=True, slots=True)
class Settings:
    """Constants of the score. Sizes trade time for noise; the rest was set once, see docs/placement.md."""

    streams: int = 64
    length: int = 48
    headroom: float = 1.05
    """Demand to come, relative to the room left: the remaining requests are taken to just overfill it."""
    scarce: float = 0.625
    """Requests expected per block from which a block has a price; at twice that it costs its full price."""
    whole_blocks: float = 0.1
    """Least price of a block where places come back, by the turnover. Blocks are then worth keeping at any time: to fill
    up a broken node first costs nothing, and a gang may come tomorrow. Where nothing leaves, it costs half a point."""
    price_every: int = 64
    block_every: int = 16
    thinnings: int = 2
    first_build: int = 64
    relearn_every: int = 512
    """Arrivals between new values at most; the first come at 256, by doubling."""
    values_ahead: int = 20_000
    """Most states valued at once when values are learned anew; one takes some 10 us."""
    memo: int = 1 << 18
    cached_bytes_per_device: int = 512


@dataclass(slots=True)
class _Classes:
    """Nodes by what they accept, for one version of the fleet."""

    version: int
    nodes: arrays.NodeArrays
    packed: Packed[arrays.NodeArrays]
    """`nodes` for the kernels."""
    contents: list[frozenset[tuple[str, str]]] = field(default_factory=list)
    _accepting: dict[RequestKind, Bools] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet) -> "_Classes":
        n = len(fleet.node_names)
        rows = np.flatnonzero(fleet.up & ~fleet.cpu)
        order = rows[np.lexsort((fleet.index[rows], fleet.node[rows]))]
        ptr = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(np.bincount(fleet.node[rows], minlength=n)[:n], out=ptr[1:])
        codes: dict[frozenset[tuple[str, str]], int] = {}
        of_node = np.zeros(n, dtype=np.int64)
        for node in range(n):
            mine = order[ptr[node] : ptr[node + 1]]
            content = frozenset(
                (fleet.models.names[m], fleet.profiles.names[p])
                for m, p in set(zip(fleet.model[mine].tolist(), fleet.profile[mine].tolist(), strict=True))
            )
            of_node[node] = codes.setdefault(content, len(codes))
        nodes = arrays.NodeArrays(ptr, order, of_node)
        return cls(fleet.version, nodes, packed(nodes), list(codes))

    def accepting(self, kind: RequestKind) -> Bools:
        """Classes (mask of shape (C,), to be read only) that a kind of request may run on."""
        if (known := self._accepting.get(kind)) is None:
            if len(self._accepting) >= _KINDS:
                self._accepting.clear()
            known = self._accepting[kind] = np.array(
                [not kind.num or any(_accepts(kind, m, p) for m, p in c) for c in self.contents], dtype=np.bool_
            )
        return known


def _accepts(kind: RequestKind, model: str, profile: str) -> bool:
    return profile == kind.profile and (not kind.types or model in kind.types)


class Scorer:
    """Scores placements by a mix. `observe` each request, `upkeep` between decisions, `costs` for a decision."""

    def __init__(self, mix: Mix | None = None, settings: Settings = Settings()) -> None:
        self.mix = mix if mix is not None else Mix()
        self.settings = settings
        self._classes: _Classes | None = None
        self._tables: _Tables | None = None
        self._built_at = -1
        self._priced_at = self._blocked_at = -1
        self._cache: dict[RequestKind, Packed[arrays.Drops]] = {}
        self._keep_memo(0)
        self._profiles: dict[str, float] = {}
        self._rho: Floats = np.zeros(0)
        self._beta: Floats = np.zeros((len(BLOCKS), 0))

    def _keep_memo(self, entries: int) -> None:
        self._memo = arrays.Memo(np.zeros(entries, np.uint64), np.zeros(entries, np.float64), np.zeros(1, np.int64))
        self._valuation: Packed[arrays.Valuation] | None = None

    @property
    def profiles(self) -> Mapping[str, float]:
        """MIG instances that the requests to come ask for, by profile: each one's part of all devices asked for. Those that
        wait count like those that were served. Empty while nothing is known."""
        return self._profiles

    @property
    def ready(self) -> bool:
        """False until the mix is known well enough to score with."""
        return self._tables is not None

    def observe(self, shape: Shape) -> None:
        """A request arrived."""
        self.mix.observe(kind_of(shape))

    def departed(self) -> None:
        """A request gave its place back."""
        self.mix.left += 1

    def dump(self) -> Any:
        """The mix, as plain data for a snapshot."""
        return self.mix.dump()

    def restore(self, learned: Any) -> None:
        """The inverse of `dump`; values and prices follow at the next `upkeep`."""
        self.mix, self._tables = Mix.load(learned), None

    def due(self, fleet: Fleet) -> bool:
        """Whether `upkeep` has something to do."""
        if self._tables is None or self._classes is None or self._classes.version != fleet.version:
            return bool(self.mix.prior) or self.mix.arrived >= self.settings.first_build
        return self.mix.arrived >= min(self._blocked_at + self.settings.block_every, self._rebuild_at())

    def upkeep(self, view: View) -> None:
        """Learns: values every few hundred arrivals (or when devices changed), prices every few."""
        if not self.due(view.fleet):
            return
        if self._classes is None or self._classes.version != view.fleet.version:
            self._classes, self._tables = _Classes.of(view.fleet), None
        arrived = self.mix.arrived
        if self._tables is None or arrived >= self._rebuild_at():
            shares = self.mix.shares()
            self._profiles = _profiles(shares)
            self._tables = _Tables.of(shares, self._classes, self.settings, _free(view))
            self._built_at, self._priced_at, self._blocked_at = arrived, -1, -1
            recent = list(self._cache)
            self._cache.clear()
            if not len(self._memo.keys):  # megabytes, which one that is never asked to score does not take
                self._keep_memo(self.settings.memo)
            self._memo.keys[:] = 0
            self._memo.used[:] = 0
            self._rho = np.zeros(len(self._classes.contents))
            self._beta = np.zeros((len(BLOCKS), len(self._classes.contents)))
            free = _free(view)
            keys = _keys(self._classes, free)
            for kind in recent[::-1]:  # what came last will come next: valued here, and not in a decision
                if self._memo.used[0] < self.settings.values_ahead:
                    self._drops(kind, self._classes, self._tables, free, keys)
        if self._priced_at < 0 or arrived - self._blocked_at >= self.settings.block_every:
            self._price(view, arrived)

    def _rebuild_at(self) -> int:
        return min(max(2 * self._built_at, 256), self._built_at + self.settings.relearn_every)

    def costs(self, view: View, shape: Shape) -> tuple[Floats, npt.NDArray[np.int16]] | None:
        """Cost of `shape` on each node (shape (N,), milli; inf where it does not fit as a whole), and for a share the free
        compute of the device it should go to. None while nothing is known of the mix or the fleet has changed."""
        classes, tables = self._classes, self._tables
        if classes is None or tables is None or classes.version != view.fleet.version:
            return None
        kind, free = kind_of(shape), _free(view)
        known = self._drops(kind, classes, tables, free, _keys(classes, free))
        prices = arrays.ShadowPrices(
            self._rho, self._beta, BLOCKS, tables.block_cpu, weights.CLASS_PRICE, weights.BLOCK_PRICE
        )
        out = np.empty(len(classes.nodes.cls))
        kernels.charge(classes.packed, free, _request(kind), known, packed(prices), out)
        return out, known.of.pick

    def _drops(
        self, kind: RequestKind, classes: _Classes, tables: "_Tables", free: Packed[arrays.Free], keys: arrays.Words
    ) -> Packed[arrays.Drops]:
        """What `kind` takes from each node's value, computed anew where the state has changed."""
        known = self._cached(kind, len(classes.nodes.cls))
        accepted = classes.accepting(kind)
        if self._valuation is None or self._valuation.of.worth is not tables.worth:
            self._valuation = packed(arrays.Valuation(tables.worth, self._memo))
        states = packed(arrays.NodeStates(free.of, keys))
        kernels.drops(classes.packed, states, _request(kind), accepted, self._valuation, known)
        return known

    def _cached(self, kind: RequestKind, nodes: int) -> Packed[arrays.Drops]:
        entry = self._cache.pop(kind, None)
        if entry is None:
            devices = max(1, len(self._classes.nodes.order)) if self._classes is not None else 1
            while self._cache and (len(self._cache) + 1) * nodes * 14 > max(
                1 << 24, devices * self.settings.cached_bytes_per_device
            ):
                self._cache.pop(next(iter(self._cache)))
            entry = packed(
                arrays.Drops(np.zeros(nodes, np.uint64), np.full(nodes, np.inf, np.float32), np.zeros(nodes, np.int16))
            )
        self._cache[kind] = entry
        return entry

    def _price(self, view: View, arrived: int) -> None:
        classes, tables = self._classes, self._tables
        assert classes is not None
        assert tables is not None
        room, whole = kernels.stock(classes.packed, _free(view), BLOCKS, tables.block_cpu, len(classes.contents))
        if self._priced_at < 0 or arrived - self._priced_at >= self.settings.price_every:
            cleared = kernels.clear(room, tables.buyers, self._rho, self.settings.headroom, MARKET)
            self._rho = np.maximum(cleared, self.mix.turnover * _bound(room, tables, self.settings.headroom))
            self._priced_at = arrived
        self._blocked_at = arrived
        expected = self.settings.headroom * room.sum() / max(tables.mean_milli, 1e-9)
        pressure = np.zeros_like(whole)
        for b in range(len(BLOCKS)):
            for mask, per_request in tables.blocks_wanted[b]:
                pressure[b, mask] += expected * per_request / max(0.5, whole[b, mask].sum())
        floor = self.settings.whole_blocks * self.mix.turnover
        self._beta = np.clip(pressure / self.settings.scarce - 1.0, floor, 1.0)


def _bound(room: Floats, tables: "_Tables", headroom: float) -> Floats:
    """The part of each class's room (shape (C,), 0 to 1) that requests which do not accept every class will ask for."""
    asked = np.zeros(len(room))
    for accepts, demand in zip(*tables.buyers, strict=True):
        if not accepts.all():
            asked += demand * accepts * room / max(float(room[accepts].sum()), 1e-9)
    return np.clip(headroom * float(room.sum()) * asked / np.maximum(room, 1e-9), 0.0, 1.0)


def _profiles(shares: Mapping[RequestKind, float]) -> dict[str, float]:
    """MIG profile -> instances of it for each device that an average request asks for."""
    asked = sum(share * kind.num for kind, share in shares.items())
    out: dict[str, float] = {}
    for kind, share in shares.items():
        if kind.profile and asked > 0:
            out[kind.profile] = out.get(kind.profile, 0.0) + share * kind.num / asked
    return out


def _keys(classes: _Classes, free: Packed[arrays.Free]) -> arrays.Words:
    keys = np.empty(len(classes.nodes.cls), np.uint64)
    kernels.node_keys(classes.packed, free, keys)
    return keys


def _free(view: View) -> Packed[arrays.Free]:
    """Free compute per device and free processors per node, as a request that nothing is kept for sees them."""
    closed = (view.held != NOBODY) | view.blocked
    milli = np.where(closed, 0, view.free_milli) if closed.any() else view.free_milli
    return packed(arrays.Free(milli, view.free_cpu))


def _request(kind: RequestKind) -> Packed[arrays.Request]:
    return packed(arrays.Request(kind.cpu, kind.num, kind.milli if kind.num else 0))


@dataclass(frozen=True, slots=True)
class _Tables:
    """A mix as arrays, for one set of classes."""

    worth: arrays.Worth
    buyers: arrays.Buyers
    """By distinct set of acceptable classes."""
    mean_milli: float
    block_cpu: Floats
    blocks_wanted: tuple[tuple[tuple[Bools, float], ...], ...]

    @classmethod
    def of(
        cls, shares: Mapping[RequestKind, float], classes: _Classes, settings: Settings, free: Packed[arrays.Free]
    ) -> "_Tables":
        kinds: list[RequestKind] = list(shares)
        share = np.array(list(shares.values()))
        cpu = np.array([k.cpu for k in kinds], np.int64)
        num = np.array([k.num for k in kinds], np.int64)
        milli = np.array([k.milli if k.num else 0 for k in kinds], np.int64)
        accepted = np.array([classes.accepting(k) for k in kinds], np.bool_).reshape(len(kinds), -1)
        mix = arrays.Kinds(cpu, num, milli, share.astype(np.float32), accepted)
        asked = share * num * milli
        to_come = settings.headroom * float(free.of.milli[classes.nodes.order].sum()) / max(float(asked.sum()), 1e-9)
        drawn = _consistent(share, to_come, classes, settings, free, mix)
        groups: dict[bytes, float] = {}
        wanted: list[dict[bytes, float]] = [{} for _ in BLOCKS]
        for i, kind in enumerate(kinds):
            if not kind.num:
                continue
            mask = accepted[i].tobytes()
            groups[mask] = groups.get(mask, 0.0) + float(asked[i])
            for b, size in enumerate(BLOCKS.tolist()):
                if kind.num >= size:
                    wanted[b][mask] = wanted[b].get(mask, 0.0) + float(share[i]) * kind.num / size
        total = sum(groups.values())
        return cls(
            worth=arrays.Worth(
                streams=_streams(drawn, mix),
                kinds=mix,
                least_cpu=int(cpu.min()),
                least_milli=int(min((m for m in milli.tolist() if m), default=1)),
                fragmentation=weights.FRAGMENTATION,
            ),
            buyers=arrays.Buyers(
                access=np.array([np.frombuffer(g, np.bool_) for g in groups], np.bool_).reshape(
                    len(groups), -1 if groups else 0
                ),
                demand=np.array([v / total for v in groups.values()]) if total else np.zeros(0),
            ),
            mean_milli=float(asked.sum()),
            block_cpu=np.array([_mean_cpu(kinds, share, b) for b in BLOCKS.tolist()]),
            blocks_wanted=tuple(tuple((np.frombuffer(m, np.bool_), v) for m, v in by.items()) for by in wanted),
        )


def _consistent(
    share: Floats,
    to_come: float,
    classes: _Classes,
    settings: Settings,
    free: Packed[arrays.Free],
    kinds: arrays.Kinds,
) -> Ints:
    """Streams of kinds, shape (R, L), that agree with what is to come: K stands for no request.

    Each node is valued as if the streams were its own, but all nodes draw on the same arrivals. So a kind of which the pool
    would accept more than will come (small requests, for which many nodes have room) is thinned until both agree.
    """
    kept, size = np.ones(len(share)), settings.streams * settings.length
    every = max(1, len(classes.nodes.cls) // _SAMPLED_NODES)
    for _ in range(settings.thinnings):
        drawn = _draw(share * kept, size).reshape(settings.streams, -1)
        served = np.zeros(len(share))
        kernels.acceptance(classes.packed, free, every, drawn, packed(kinds), served)
        kept = np.clip(kept * share * to_come / np.maximum(served, 1e-9), 0.0, 1.0)
    return _draw(share * kept, size).reshape(settings.streams, -1)


def _draw(share: Floats, size: int) -> Ints:
    return sample(np.append(share, max(0.0, 1.0 - float(share.sum()))), size)


def _streams(drawn: Ints, kinds: arrays.Kinds) -> arrays.Streams:
    """The streams (kinds, shape (R, L)) once per ceiling, as `kernels` walks them."""
    real = drawn < len(kinds.num)
    drawn = np.where(real, drawn, 0)
    kept = [real & ((kinds.num[drawn] == 0) | (kinds.milli[drawn] <= ceiling)) for ceiling in arrays.CEILINGS]
    order = np.concatenate([drawn[keep] for keep in kept])
    lengths = np.stack([keep.sum(axis=1) for keep in kept])
    ends = np.cumsum(lengths.ravel()).reshape(lengths.shape)
    starts = np.concatenate([(ends - lengths)[:, :1], ends], axis=1)
    ceilings = np.array(arrays.CEILINGS, np.int64)
    return arrays.Streams(
        kinds.cpu[order], kinds.num[order], kinds.milli[order], kinds.accepted[order], starts, ceilings
    )


def _mean_cpu(kinds: Iterable[RequestKind], share: Floats, block: int) -> float:
    """Mean processors (thousandths, at least 1) of the requests for a block of this size."""
    mine = [(float(s), k.cpu) for k, s in zip(kinds, share, strict=True) if k.num == block]
    weight = sum(s for s, _ in mine)
    return max(1.0, sum(s * c for s, c in mine) / weight) if weight else 1.0
