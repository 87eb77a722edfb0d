"""The mix of requests: what has arrived, as the best guess of what will.

Scoring asks what a placement takes from the requests to come. Their distribution is learned from those that came, those
that had no room included, on top of a prior where one is given (it counts as `weights.PRIOR_ARRIVALS` arrivals).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from libs.core.placement.score import weights
from libs.core.state.fleet import Ints
from libs.core.state.shape import Shape


class RequestKind(NamedTuple):
    """What of a request matters to scoring: totals on one node."""

    cpu: int
    num: int
    milli: int
    types: tuple[str, ...]
    profile: str


def kind_of(shape: Shape) -> RequestKind:
    """A gang counts as its devices on one node; without devices it is a request for processors alone."""
    return RequestKind(shape.cpu_milli * max(shape.devices, 1), shape.devices, shape.milli, shape.types, shape.profile)


@dataclass(slots=True)
class Mix:
    """Counts of what arrived. `arrived` grows by one with each request, `left` with each that gave its place back."""

    prior: dict[RequestKind, float] = field(default_factory=dict)
    counts: dict[RequestKind, int] = field(default_factory=dict)
    arrived: int = 0
    left: int = 0
    _weight: int = 0

    @classmethod
    def expecting(cls, prior: Iterable[tuple[RequestKind, float]]) -> "Mix":
        """A mix with a prior: kinds and their shares of all requests (any scale)."""
        given: dict[RequestKind, float] = {}
        for kind, share in prior:
            given[kind] = given.get(kind, 0.0) + share
        total = sum(given.values())
        return cls({kind: weights.PRIOR_ARRIVALS * share / total for kind, share in given.items()} if total > 0 else {})

    def observe(self, kind: RequestKind) -> None:
        self.arrived += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._weight += 1
        if self._weight >= weights.MIX_HORIZON:
            self.counts = {known: count // 2 for known, count in self.counts.items() if count > 1}
            self._weight = sum(self.counts.values())

    @property
    def turnover(self) -> float:
        """The share of requests that leave again, 0 to 1: whether places come back or are gone for good. Until shown
        otherwise they come back."""
        return min(1.0, (self.left + weights.TURNOVER_ARRIVALS) / (self.arrived + weights.TURNOVER_ARRIVALS))

    def dump(self) -> dict[str, Any]:
        """Plain data, for a snapshot; equal mixes give equal data."""
        return {
            "prior": [[list(kind), share] for kind, share in sorted(self.prior.items())],
            "counts": [[list(kind), count] for kind, count in sorted(self.counts.items())],
            "arrived": self.arrived,
            "left": self.left,
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> "Mix":
        """The inverse of `dump`."""
        prior, counts = ({_kind(kind): n for kind, n in data[name]} for name in ("prior", "counts"))
        return cls(prior, counts, data["arrived"], data["left"], sum(counts.values()))

    def shares(self) -> Mapping[RequestKind, float]:
        """Each kind's share of all requests, most frequent first; ties in a fixed order. Sums to 1, or is empty."""
        weight = dict(self.prior)
        for kind, count in self.counts.items():
            weight[kind] = weight.get(kind, 0.0) + count
        kept = sorted(weight.items(), key=lambda item: (-item[1], item[0]))[: weights.MOST_KINDS]
        total = sum(share for _, share in kept)
        return {kind: share / total for kind, share in kept} if total > 0 else {}


def _kind(data: list[Any]) -> RequestKind:
    cpu, num, milli, types, profile = data
    return RequestKind(cpu, num, milli, tuple(types), profile)


def sample(shares: Iterable[float], size: int) -> Ints:
    """Indices (shape (size,)) of a systematic sample of a distribution, in a fixed shuffled order.

    The k-th draw is the quantile (k + 1/2) / size, so each kind comes as often as its share says, to within one.
    """
    ends = np.cumsum(np.fromiter(shares, np.float64))
    drawn = np.searchsorted(ends / ends[-1], (np.arange(size) + 0.5) / size)
    return drawn[np.argsort(_scrambled(size), kind="stable")].astype(np.int64)


def _scrambled(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """splitmix64 of 0..size-1 (Steele et al., OOPSLA '14)."""
    with np.errstate(over="ignore"):
        z = (np.arange(size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
