"""The inner loops of scoring, compiled. Plain functions over arrays; everything that decides lies in `scorer`, every weight in
`weights`. What they work on is in `arrays`.

A node's *state* is its free processors (thousandths), the free compute of each of its devices (thousandths) and its
class (an index: nodes of one class accept the same requests). A state's *value* is how much compute (milli) of the
requests to come it would still serve: the mean over R streams, each a sample of L requests, of what a first-fit walk
of the stream accepts; less a tenth of its fragmentation (Weng et al., USENIX ATC '23, section 4). The streams are the
same for all states, so differences between values are far less noisy than the values are.
"""

import numpy as np

from libs.core.placement.score.arrays import (
    CEILINGS,
    MAX_DEVICES,
    WHOLE,
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
    Worth,
    compiled,
)
from libs.core.state.fleet import Bools, Ints


@compiled
def _mix(h: np.uint64, x: np.uint64) -> np.uint64:
    """One round of splitmix64 over a running hash."""
    h = (h ^ x) * np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    return h ^ (h >> np.uint64(32))


@compiled
def _sort(values: Ints, n: int) -> None:
    """Insertion sort of the first n, ascending: n is small and they are nearly sorted."""
    for i in range(1, n):
        x = values[i]
        j = i - 1
        while j >= 0 and values[j] > x:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = x


@compiled
def _key(cls: int, cpu: int, free: Ints, n: int) -> np.uint64:
    h = _mix(np.uint64(cls + 1), np.uint64(cpu))
    for i in range(n):
        h = _mix(h, np.uint64(free[i]))
    key: np.uint64 = h | np.uint64(1)
    return key


@compiled
def _walk(cls: int, cpu: int, free: Ints, n: int, worth: Worth, left: Ints) -> float:
    """Mean over the streams of the compute that the state would serve, milli. `free` is sorted; `left` is scratch."""
    requests, _, least_cpu, least_milli, _ = worth
    s_cpu, s_num, s_milli, s_class, s_from = requests
    streams = s_from.shape[1] - 1
    total = 0
    room = 0
    for i in range(n):
        room += free[i]
    ceiling = 0
    while ceiling + 1 < len(CEILINGS) and (n == 0 or free[n - 1] <= CEILINGS[ceiling + 1]):
        ceiling += 1
    for r in range(streams):
        for i in range(n):
            left[i] = free[i]
        c = cpu
        rest = room
        for k in range(s_from[ceiling, r], s_from[ceiling, r + 1]):
            if c < least_cpu or rest < least_milli:
                break
            need = s_cpu[k]
            if need > c or not s_class[k, cls]:
                continue
            num = s_num[k]
            if num == 0:
                c -= need
                continue
            milli = s_milli[k]
            if milli * num > rest:
                continue
            if milli < WHOLE:
                at = -1
                tightest = WHOLE + 1
                for i in range(n):
                    if milli <= left[i] < tightest:
                        tightest = left[i]
                        at = i
                if at >= 0:
                    left[at] -= milli
                    c -= need
                    total += milli
                    rest -= milli
            else:
                idle = 0
                for i in range(n):
                    if left[i] == WHOLE:
                        idle += 1
                if idle >= num:
                    taken = 0
                    for i in range(n):
                        if left[i] == WHOLE and taken < num:
                            left[i] = 0
                            taken += 1
                    c -= need
                    total += num * WHOLE
                    rest -= num * WHOLE
    return float(total / streams)


@compiled
def _fragmentation(cls: int, cpu: int, free: Ints, n: int, kinds: Kinds) -> float:
    """Expected free compute that a request of the mix cannot use, milli."""
    m_cpu, m_num, m_milli, m_share, m_class = kinds
    room = 0
    for i in range(n):
        room += free[i]
    total = 0.0
    for m in range(len(m_cpu)):
        usable = 0
        if m_num[m] > 0 and m_cpu[m] <= cpu and m_class[m, cls]:
            fits = 0
            for i in range(n):
                if free[i] >= m_milli[m]:
                    fits += 1
                    usable += free[i]
            if fits < m_num[m]:
                usable = 0
        total += m_share[m] * (room - usable)
    return total


@compiled
def _value(cls: int, cpu: int, free: Ints, n: int, valuation: Valuation, left: Ints) -> float:
    """The value of a state whose `free` is sorted; remembered by its hash. `left` is scratch."""
    worth, (keys, values, used) = valuation
    key = _key(cls, cpu, free, n)
    size = np.uint64(len(keys) - 1)
    slot = key & size
    while keys[slot] != 0:
        if keys[slot] == key:
            return float(values[slot])
        slot = (slot + np.uint64(1)) & size
    value: float = _walk(cls, cpu, free, n, worth, left)
    _, kinds, _, _, weight = worth
    value -= weight * _fragmentation(cls, cpu, free, n, kinds)
    if used[0] * 2 > len(keys):
        keys[:] = 0
        used[0] = 0
        slot = key & size
    keys[slot] = key
    values[slot] = value
    used[0] += 1
    return value


@compiled
def node_keys(nodes: NodeArrays, room: Free, out: Words) -> None:
    """A hash of each node's state into `out` (shape (N,)). Device order counts: equal nodes may differ in it."""
    ptr, order, cls = nodes
    free, cpu = room
    for node in range(len(cls)):
        h = _mix(np.uint64(cls[node] + 1), np.uint64(cpu[node] if cpu[node] > 0 else 0))
        for i in range(ptr[node], ptr[node + 1]):
            h = _mix(h, np.uint64(free[order[i]]))
        out[node] = h


@compiled
def drops(
    nodes: NodeArrays, states: NodeStates, request: Request, accepted: Bools, valuation: Valuation, out: Drops
) -> None:
    """What one request would take from each node's value, into `out`; computed only where the state has changed.

    accepted: classes of nodes that serve it (mask of shape (C,)).
    """
    ptr, order, cls = nodes
    (free, cpu), keys = states
    need_cpu, num, milli = request
    seen, drop, pick = out
    before = np.empty(MAX_DEVICES, np.int64)
    after = np.empty(MAX_DEVICES, np.int64)
    left = np.empty(MAX_DEVICES, np.int64)
    for node in range(len(cls)):
        if seen[node] == keys[node]:
            continue
        seen[node] = keys[node]
        drop[node] = np.inf
        c = cpu[node]
        if c < need_cpu or not accepted[cls[node]]:
            continue
        n = 0
        fits = 0
        for i in range(ptr[node], min(ptr[node + 1], ptr[node] + MAX_DEVICES)):
            f = free[order[i]]
            before[n] = f
            n += 1
            if f >= milli:
                fits += 1
        if fits < num:
            continue
        _sort(before, n)
        base = _value(cls[node], c, before, n, valuation, left)
        if num == 0 or milli == WHOLE:
            for i in range(n):
                after[i] = before[i]
            for i in range(num):
                after[n - 1 - i] = 0
            _sort(after, n)
            rest = _value(cls[node], c - need_cpu, after, n, valuation, left)
            drop[node] = base - rest
            pick[node] = WHOLE
            continue
        last = -1
        for j in range(n):
            if before[j] < milli or before[j] == last:
                continue
            last = before[j]
            for i in range(n):
                after[i] = before[i]
            after[j] -= milli
            _sort(after, n)
            rest = _value(cls[node], c - need_cpu, after, n, valuation, left)
            if base - rest < drop[node]:
                drop[node] = base - rest
                pick[node] = last


@compiled
def charge(nodes: NodeArrays, room: Free, request: Request, known: Drops, prices: ShadowPrices, out: Doubles) -> None:
    """The cost of the request on each node into `out` (shape (N,)): drop, plus the prices of its class's devices and of
    the blocks (idle devices with the processors that such requests need) that it breaks."""
    ptr, order, cls = nodes
    free, cpu = room
    need_cpu, num, milli = request
    _, drop, pick = known
    rho, beta, blocks, block_cpu, rho_weight, beta_weight = prices
    for node in range(len(cls)):
        out[node] = drop[node]
        if not np.isfinite(drop[node]):
            continue
        t = cls[node]
        idle = 0
        for i in range(ptr[node], ptr[node + 1]):
            if free[order[i]] == WHOLE:
                idle += 1
        gone = num if milli == WHOLE else (1 if num and pick[node] == WHOLE else 0)
        out[node] += rho_weight * rho[t] * num * milli
        for b in range(len(blocks)):
            if beta[b, t] <= 0:
                continue
            was = min(idle // blocks[b], int(cpu[node] / block_cpu[b]))
            now = min((idle - gone) // blocks[b], int((cpu[node] - need_cpu) / block_cpu[b]))
            out[node] += beta_weight * beta[b, t] * WHOLE * blocks[b] * (was - now)


@compiled
def stock(nodes: NodeArrays, room: Free, size: Ints, block_cpu: Doubles, compute: Doubles, whole: Doubles) -> None:
    """Per class: free compute (milli) into `compute` (shape (C,)), and blocks of each `size` into `whole` (shape (B, C))."""
    ptr, order, cls = nodes
    free, cpu = room
    compute[:] = 0
    whole[:] = 0
    for node in range(len(cls)):
        idle = 0
        for i in range(ptr[node], ptr[node + 1]):
            compute[cls[node]] += free[order[i]]
            if free[order[i]] == WHOLE:
                idle += 1
        for b in range(len(size)):
            whole[b, cls[node]] += min(idle // size[b], int(cpu[node] / block_cpu[b]))


@compiled
def clear(room: Doubles, access: Bools, demand: Doubles, rho: Doubles, headroom: float, market: Market) -> Doubles:
    """Prices in [0, 1] per class (shape (C,)) at which demand meets room, by damped price adjustment.

    Each buyer k spreads its demand (a share of all, shape (K,)) over the classes it accepts (`access`, (K, C)) in
    proportion to room * exp(-(price - its lowest price) / taste); a class asked for more than its room gets dearer
    (tatonnement). The mean of the last half of the rounds is returned; `rho` is the start.
    """
    classes = len(room)
    price, mean = rho.copy(), np.zeros(classes)
    weight, load = np.empty(classes), np.empty(classes)
    stock = room.sum()
    half = market.rounds // 2
    for round_ in range(market.rounds):
        load[:] = 0
        for k in range(len(demand)):
            lowest = np.inf
            for c in range(classes):
                if access[k, c] and price[c] < lowest:
                    lowest = price[c]
            total = 0.0
            for c in range(classes):
                weight[c] = room[c] * np.exp(-(price[c] - lowest) / market.taste) if access[k, c] else 0.0
                total += weight[c]
            if total > 0:
                for c in range(classes):
                    load[c] += headroom * stock * demand[k] * weight[c] / total
        for c in range(classes):
            step = market.step / (1 + market.cooling * round_) * (load[c] / max(room[c], 1e-9) - 1)
            price[c] = min(1.0, max(0.0, price[c] + step))
            if round_ >= half:
                mean[c] += price[c] / (market.rounds - half)
    return mean


@compiled
def acceptance(nodes: NodeArrays, room: Free, every: int, drawn: Ints, kinds: Kinds, served: Doubles) -> None:
    """How many requests of each kind the pool would accept if each node got a stream of its own: into `served` (K,).

    drawn: kinds by stream, shape (R, L); K means no request. Every `every`-th node counts, each with an eighth of the
    streams in turn, which is enough for a sum over nodes.
    """
    ptr, order, cls = nodes
    free, cpu = room
    need, nums, millis, _, accepted = kinds
    left = np.empty(MAX_DEVICES, np.int64)
    streams, nothing = len(drawn), len(need)
    walks = max(1, streams // 8)
    for node in range(0, len(cls), every):
        n = min(ptr[node + 1] - ptr[node], MAX_DEVICES)
        for turn in range(walks):
            r = (node + 8 * turn) % streams
            for i in range(n):
                left[i] = free[order[ptr[node] + i]]
            c = cpu[node]
            for k in drawn[r]:
                if k == nothing or need[k] > c or not accepted[k, cls[node]]:
                    continue
                fits = 0
                tightest = -1
                for i in range(n):
                    if left[i] >= millis[k]:
                        fits += 1
                        if tightest < 0 or left[i] < left[tightest]:
                            tightest = i
                if fits < nums[k]:
                    continue
                c -= need[k]
                served[k] += every / walks
                if nums[k] == 0:
                    continue
                if millis[k] < WHOLE:
                    left[tightest] -= millis[k]
                    continue
                taken = 0
                for i in range(n):
                    if left[i] == WHOLE and taken < nums[k]:
                        left[i] = 0
                        taken += 1
