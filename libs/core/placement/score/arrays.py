"""What the compiled loops of scoring work on: named tuples of arrays, field by field the structs of `native/arrays.h`."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from libs.core.state.fleet import Bools, Ints

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Shorts = npt.NDArray[np.int16]
Words = npt.NDArray[np.uint64]

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
    ceilings: Ints


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


class Buyers(NamedTuple):
    """Who buys from classes: which each accepts (shape (K, C)), and its share of the compute asked for (shape (K,))."""

    access: Bools
    demand: Doubles
