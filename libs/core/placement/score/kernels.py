"""The inner loops of scoring, compiled (`native/kernels.c`). What decides lies in `scorer`, every weight in `weights`, and
what the loops work on in `arrays`.

A node's *state* is its free processors (thousandths), the free compute of each of its devices (thousandths) and its
class (an index: nodes of one class accept the same requests). A state's *value* is how much compute (milli) of the
requests to come it would still serve: the mean over R streams, each a sample of L requests, of what a first-fit walk
of the stream accepts; less a tenth of its fragmentation (Weng et al., USENIX ATC '23, section 4). The streams are the
same for all states, so differences between values are far less noisy than the values are.
"""

import ctypes

import numpy as np

from libs.core.placement.compiled import Packed, address, function, packed
from libs.core.placement.score.arrays import (
    Buyers,
    Doubles,
    Drops,
    Free,
    Kinds,
    Market,
    NodeArrays,
    NodeStates,
    Request,
    ShadowPrices,
    Valuation,
    Words,
)
from libs.core.state.fleet import Bools, Ints

_STRUCT, _ARRAY, _COUNT = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64
_node_keys = function("node_keys", _STRUCT, _STRUCT, _ARRAY)
_drops = function("drops", _STRUCT, _STRUCT, _STRUCT, _ARRAY, _STRUCT, _STRUCT)
_charge = function("charge", _STRUCT, _STRUCT, _STRUCT, _STRUCT, _STRUCT, _ARRAY)
_stock = function("stock", _STRUCT, _STRUCT, _ARRAY, _ARRAY, _COUNT, _ARRAY, _ARRAY, _COUNT)
_clear = function("clear", _STRUCT, ctypes.c_double, _STRUCT, _ARRAY, _ARRAY, _ARRAY, _ARRAY, _ARRAY, _COUNT)
_acceptance = function("acceptance", _STRUCT, _STRUCT, _COUNT, _ARRAY, _COUNT, _COUNT, _STRUCT, _ARRAY)


def node_keys(nodes: Packed[NodeArrays], room: Packed[Free], out: Words) -> None:
    """A hash of each node's state into `out` (shape (N,)). Device order counts: equal nodes may differ in it."""
    _node_keys(nodes.words, room.words, address(out, "Q"))


def drops(
    nodes: Packed[NodeArrays],
    states: Packed[NodeStates],
    request: Packed[Request],
    accepted: Bools,
    valuation: Packed[Valuation],
    out: Packed[Drops],
) -> None:
    """What one request would take from each node's value, into `out`; computed only where the state has changed.

    accepted: classes of nodes that serve it (mask of shape (C,)).
    """
    _drops(nodes.words, states.words, request.words, address(accepted, "?"), valuation.words, out.words)


def charge(
    nodes: Packed[NodeArrays],
    room: Packed[Free],
    request: Packed[Request],
    known: Packed[Drops],
    prices: Packed[ShadowPrices],
    out: Doubles,
) -> None:
    """The cost of the request on each node into `out` (shape (N,)): drop, plus the prices of its class's devices and of
    the blocks (idle devices with the processors that such requests need) that it breaks."""
    _charge(nodes.words, room.words, request.words, known.words, prices.words, address(out, "d"))


def stock(
    nodes: Packed[NodeArrays], room: Packed[Free], size: Ints, block_cpu: Doubles, classes: int
) -> tuple[Doubles, Doubles]:
    """Per class: free compute (milli, shape (C,)), and blocks of each `size` (shape (B, C))."""
    compute, whole = np.zeros(classes), np.zeros((len(size), classes))
    sizes = address(size), address(block_cpu, "d"), len(size)
    _stock(nodes.words, room.words, *sizes, address(compute, "d"), address(whole, "d"), classes)
    return compute, whole


def clear(room: Doubles, buyers: Buyers, rho: Doubles, headroom: float, market: Market) -> Doubles:
    """Prices in [0, 1] per class (shape (C,)) at which demand meets room, by damped price adjustment.

    Each buyer k spreads its demand (a share of all, shape (K,)) over the classes it accepts (`access`, (K, C)) in
    proportion to room * exp(-(price - its lowest price) / taste); a class asked for more than its room gets dearer
    (tatonnement). The mean of the last half of the rounds is returned; `rho` is the start.
    """
    price, mean, weight, load = rho.copy(), np.zeros(len(room)), np.empty(len(room)), np.empty(len(room))
    own = [address(one, "d") for one in (room, price, mean, weight, load)]
    _clear(packed(buyers).words, headroom, packed(market).words, *own, len(room))
    return mean


def acceptance(
    nodes: Packed[NodeArrays], room: Packed[Free], every: int, drawn: Ints, kinds: Packed[Kinds], served: Doubles
) -> None:
    """How many requests of each kind the pool would accept if each node got a stream of its own: into `served` (K,).

    drawn: kinds by stream, shape (R, L); K means no request. Every `every`-th node counts, each with an eighth of the
    streams in turn, which is enough for a sum over nodes.
    """
    _acceptance(nodes.words, room.words, every, address(drawn), *drawn.shape, kinds.words, address(served, "d"))
