"""What the compiled loops of scoring work on: named tuples of arrays, and how a function is compiled.

Arguments come as named tuples, so that a call reads like a sentence; numba passes them as plain structs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from libs.core.state.fleet import Bools, Ints

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Shorts = npt.NDArray[np.int16]
Words = npt.NDArray[np.uint64]

MAX_DEVICES = 64
"""Devices of a node that scoring looks at: more are a node of that many."""
WHOLE = 1000
CEILINGS = (1000, 999, 500, 200)
"""A state whose freest device has no more than this skips the requests for more: most states late in the day."""


class NodeArrays(NamedTuple):
    """The nodes of a fleet (N) and their devices (D): node n has `order[ptr[n]:ptr[n + 1]]`, rows in index order."""

    ptr: Ints
    order: Ints
    cls: Ints
    """Class of each node, shape (N,)."""


class Free(NamedTuple):
    """What is free: compute of each device (milli, shape (rows,)), processors of each node (thousandths, shape (N,))."""

    milli: Ints
    cpu: Ints


class Request(NamedTuple):
    """One request on one node: processors in all (thousandths), devices, compute of each (milli)."""

    cpu: int
    num: int
    milli: int


class Streams(NamedTuple):
    """Requests to come, R streams, once per ceiling of `CEILINGS` without what no device below the ceiling could serve:
    arrays over all of these requests (S). `starts` (shape (ceilings, R + 1)) says where each stream begins."""

    cpu: Ints
    num: Ints
    milli: Ints
    accepted: Bools
    """Shape (S, classes)."""
    starts: Ints


class Kinds(NamedTuple):
    """The mix: arrays over its kinds of request (K). `share` of all requests, `accepted` of shape (K, classes)."""

    cpu: Ints
    num: Ints
    milli: Ints
    share: Floats
    accepted: Bools


class Worth(NamedTuple):
    """What the value of a state rests on. `least_*`: the smallest request of the mix; `fragmentation`: its weight."""

    streams: Streams
    kinds: Kinds
    least_cpu: int
    least_milli: int
    fragmentation: float


class Memo(NamedTuple):
    """Values by hash of the state, an open-addressed table of 2^n places; `used` (shape (1,)) of them hold one."""

    keys: Words
    values: Doubles
    used: Ints


class Valuation(NamedTuple):
    """What states are valued by, and the values found so far."""

    worth: Worth
    memo: Memo


class NodeStates(NamedTuple):
    """What is free on each node, and a hash of that (`kernels.node_keys`), shape (N,)."""

    room: Free
    keys: Words


class Drops(NamedTuple):
    """Per node, what one kind of request takes from its value (milli, inf: it does not fit), the free compute of the
    device that a share should go to, and the hash of the state of which that was `seen`."""

    seen: Words
    drop: Floats
    pick: Shorts


class ShadowPrices(NamedTuple):
    """What a placement pays beside the drop: prices of classes `rho` (shape (C,)) and of blocks `beta` (shape (B, C)),
    both in [0, 1], times their weights. A block is `size` idle devices (shape (B,)) and `block_cpu` processors for each
    (thousandths)."""

    rho: Doubles
    beta: Doubles
    size: Ints
    block_cpu: Doubles
    rho_weight: float
    beta_weight: float


class Market(NamedTuple):
    """How prices are found: see `libs.core.placement.score.weights`."""

    rounds: int
    step: float
    cooling: float
    taste: float


F = TypeVar("F", bound=Callable[..., Any])
N = TypeVar("N", bound=tuple[Any, ...])


def plain(named: N) -> N:
    """The same as plain tuples, for a call from Python: numba tells what those are much faster, and a decision makes three
    such calls. So kernels that decide take their arguments apart by place."""
    return cast(N, tuple(plain(part) if isinstance(part, tuple) else part for part in named))


def compiled(function: F) -> F:
    """Compiled at its first call, and from then on read from numba's cache beside its file."""
    return cast(F, njit(cache=True, nogil=True)(function))
