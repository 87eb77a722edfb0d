#include "arrays.h"

const i64 kernels_abi = ABI;

/* One round of splitmix64 over a running hash. */
static u64 mix(u64 h, u64 x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9;
    return h ^ h >> 32;
}

/* Insertion sort, ascending: there are few, and they are nearly sorted. */
static void sort(i64 *values, i64 n)
{
    for (i64 i = 1; i < n; i++) {
        i64 x = values[i], j = i - 1;
        for (; j >= 0 && values[j] > x; j--)
            values[j + 1] = values[j];
        values[j + 1] = x;
    }
}

static i64 sum(const i64 *values, i64 n)
{
    i64 total = 0;
    for (i64 i = 0; i < n; i++)
        total += values[i];
    return total;
}

/* A node's state. `free` is sorted. */
struct state { i64 cls, cpu, n; const i64 *free; };

static u64 key_of(struct state state)
{
    u64 h = mix((u64)(state.cls + 1), (u64)state.cpu);
    for (i64 i = 0; i < state.n; i++)
        h = mix(h, (u64)state.free[i]);
    return h | 1;
}

/* Takes a share of `milli` from the tightest device that has it; false where none has. */
static bool take_share(i64 *left, i64 n, i64 milli)
{
    i64 at = -1, tightest = WHOLE + 1;
    for (i64 i = 0; i < n; i++) {
        if (milli <= left[i] && left[i] < tightest)
            tightest = left[i], at = i;
    }
    if (at < 0)
        return false;
    left[at] -= milli;
    return true;
}

static void take_first_idle(i64 *left, i64 n, i64 num)
{
    for (i64 i = 0; i < n && num > 0; i++) {
        if (left[i] == WHOLE)
            left[i] = 0, num--;
    }
}

static i64 idle_of(const i64 *left, i64 n)
{
    i64 idle = 0;
    for (i64 i = 0; i < n; i++)
        idle += left[i] == WHOLE;
    return idle;
}

/* Mean over the streams of the compute that the state would serve, milli. */
static double walk(struct state state, const struct worth *worth)
{
    const struct streams *requests = &worth->streams;
    const i64 columns = requests->starts.columns, classes = requests->accepted.columns, streams = columns - 1, n = state.n;
    const i64 room = sum(state.free, n);
    i64 total = 0, ceiling = 0, left[MAX_DEVICES];
    while (ceiling + 1 < requests->ceilings.count && (n == 0 || state.free[n - 1] <= requests->ceilings.at[ceiling + 1]))
        ceiling++;
    const i64 *starts = requests->starts.at + ceiling * columns;
    for (i64 r = 0; r < streams; r++) {
        for (i64 i = 0; i < n; i++)
            left[i] = state.free[i];
        i64 cpu = state.cpu, rest = room;
        for (i64 k = starts[r]; k < starts[r + 1]; k++) {
            if (cpu < worth->least_cpu || rest < worth->least_milli)
                break;
            const i64 need = requests->cpu.at[k], num = requests->num.at[k], milli = requests->milli.at[k];
            if (need > cpu || !requests->accepted.at[k * classes + state.cls])
                continue;
            if (num == 0) {
                cpu -= need;
                continue;
            }
            if (milli * num > rest)
                continue;
            i64 taken = milli;
            if (milli < WHOLE) {
                if (!take_share(left, n, milli))
                    continue;
            } else {
                if (idle_of(left, n) < num)
                    continue;
                take_first_idle(left, n, num);
                taken = num * WHOLE;
            }
            cpu -= need;
            total += taken;
            rest -= taken;
        }
    }
    return (double)total / (double)streams;
}

/* Expected free compute that a request of the mix cannot use, milli. */
static double fragmentation(struct state state, const struct kinds *kinds)
{
    const i64 room = sum(state.free, state.n), classes = kinds->accepted.columns;
    double total = 0;
    for (i64 m = 0; m < kinds->cpu.count; m++) {
        i64 usable = 0, fits = 0;
        if (kinds->num.at[m] > 0 && kinds->cpu.at[m] <= state.cpu && kinds->accepted.at[m * classes + state.cls]) {
            for (i64 i = 0; i < state.n; i++) {
                if (state.free[i] >= kinds->milli.at[m])
                    fits++, usable += state.free[i];
            }
            if (fits < kinds->num.at[m])
                usable = 0;
        }
        total += (double)kinds->share.at[m] * (double)(room - usable);
    }
    return total;
}

/* The value of a state, remembered by its hash. */
static double value_of(struct state state, const struct valuation *valuation)
{
    const struct memo *memo = &valuation->memo;
    const u64 key = key_of(state), last = (u64)memo->keys.count - 1;
    u64 slot = key & last;
    for (; memo->keys.at[slot]; slot = (slot + 1) & last) {
        if (memo->keys.at[slot] == key)
            return memo->values.at[slot];
    }
    const struct worth *worth = &valuation->worth;
    double value = walk(state, worth);
    value -= worth->fragmentation * fragmentation(state, &worth->kinds);
    if (*memo->used.at * 2 > memo->keys.count) {
        for (i64 i = 0; i < memo->keys.count; i++)
            memo->keys.at[i] = 0;
        *memo->used.at = 0;
        slot = key & last;
    }
    memo->keys.at[slot] = key;
    memo->values.at[slot] = value;
    ++*memo->used.at;
    return value;
}

void node_keys(const struct nodes *nodes, const struct room *room, u64 *out)
{
    for (i64 node = 0; node < nodes->cls.count; node++) {
        u64 h = mix((u64)(nodes->cls.at[node] + 1), (u64)most(room->cpu.at[node], 0));
        for (i64 i = nodes->ptr.at[node]; i < nodes->ptr.at[node + 1]; i++)
            h = mix(h, (u64)room->milli.at[nodes->order.at[i]]);
        out[node] = h;
    }
}

void drops(const struct nodes *nodes, const struct node_states *states, const struct request *request, const bool *accepted,
           const struct valuation *valuation, const struct drops *out)
{
    const i64 *ptr = nodes->ptr.at, num = request->num, milli = request->milli;
    i64 before[MAX_DEVICES], after[MAX_DEVICES];
    for (i64 node = 0; node < nodes->cls.count; node++) {
        if (out->seen.at[node] == states->keys.at[node])
            continue;
        out->seen.at[node] = states->keys.at[node];
        out->drop.at[node] = INFINITY;
        const i64 cls = nodes->cls.at[node], cpu = states->room.cpu.at[node], n = least(ptr[node + 1] - ptr[node], MAX_DEVICES);
        if (cpu < request->cpu || !accepted[cls])
            continue;
        i64 fits = 0;
        for (i64 i = 0; i < n; i++) {
            before[i] = states->room.milli.at[nodes->order.at[ptr[node] + i]];
            fits += before[i] >= milli;
        }
        if (fits < num)
            continue;
        sort(before, n);
        const double base = value_of((struct state){cls, cpu, n, before}, valuation);
        const struct state then = {cls, cpu - request->cpu, n, after};
        if (num == 0 || milli == WHOLE) {
            for (i64 i = 0; i < n; i++)
                after[i] = i < n - num ? before[i] : 0;
            sort(after, n);
            out->drop.at[node] = (float)(base - value_of(then, valuation));
            out->pick.at[node] = WHOLE;
            continue;
        }
        i64 last = -1;
        for (i64 j = 0; j < n; j++) {
            if (before[j] < milli || before[j] == last)
                continue;
            last = before[j];
            for (i64 i = 0; i < n; i++)
                after[i] = before[i];
            after[j] -= milli;
            sort(after, n);
            const double drop = base - value_of(then, valuation);
            if (drop < (double)out->drop.at[node]) {
                out->drop.at[node] = (float)drop;
                out->pick.at[node] = (int16_t)last;
            }
        }
    }
}

static i64 idle_on(const struct nodes *nodes, const struct room *room, i64 node)
{
    i64 idle = 0;
    for (i64 i = nodes->ptr.at[node]; i < nodes->ptr.at[node + 1]; i++)
        idle += room->milli.at[nodes->order.at[i]] == WHOLE;
    return idle;
}

/* Idle devices in blocks of `size`, each with the processors that it needs. */
static i64 blocks_in(i64 idle, i64 cpu, i64 size, double block_cpu)
{
    return least(idle / size, (i64)((double)cpu / block_cpu));
}

void charge(const struct nodes *nodes, const struct room *room, const struct request *request, const struct drops *known,
            const struct shadow_prices *prices, double *out)
{
    const i64 classes = prices->beta.columns, num = request->num;
    for (i64 node = 0; node < nodes->cls.count; node++) {
        out[node] = (double)known->drop.at[node];
        if (!isfinite(out[node]))
            continue;
        const i64 cls = nodes->cls.at[node], cpu = room->cpu.at[node], idle = idle_on(nodes, room, node);
        const i64 gone = request->milli == WHOLE ? num : num && known->pick.at[node] == WHOLE;
        out[node] += prices->rho_weight * prices->rho.at[cls] * (double)num * (double)request->milli;
        for (i64 b = 0; b < prices->size.count; b++) {
            const i64 size = prices->size.at[b];
            const double beta = prices->beta.at[b * classes + cls], block_cpu = prices->block_cpu.at[b];
            if (beta <= 0)
                continue;
            const i64 was = blocks_in(idle, cpu, size, block_cpu);
            const i64 now = blocks_in(idle - gone, cpu - request->cpu, size, block_cpu);
            out[node] += prices->beta_weight * beta * WHOLE * (double)size * (double)(was - now);
        }
    }
}

void stock(const struct nodes *nodes, const struct room *room, const i64 *size, const double *block_cpu, i64 sizes,
           double *compute, double *whole, i64 classes)
{
    for (i64 node = 0; node < nodes->cls.count; node++) {
        const i64 cls = nodes->cls.at[node], idle = idle_on(nodes, room, node);
        for (i64 i = nodes->ptr.at[node]; i < nodes->ptr.at[node + 1]; i++)
            compute[cls] += (double)room->milli.at[nodes->order.at[i]];
        for (i64 b = 0; b < sizes; b++)
            whole[b * classes + cls] += (double)blocks_in(idle, room->cpu.at[node], size[b], block_cpu[b]);
    }
}

void clear(const struct buyers *buyers, double headroom, const struct market *market, const double *room, double *price,
           double *mean, double *weight, double *load, i64 classes)
{
    const i64 half = market->rounds / 2;
    double stock = 0;
    for (i64 c = 0; c < classes; c++)
        stock += room[c];
    for (i64 round = 0; round < market->rounds; round++) {
        for (i64 c = 0; c < classes; c++)
            load[c] = 0;
        for (i64 k = 0; k < buyers->demand.count; k++) {
            const bool *access = buyers->access.at + k * classes;
            double lowest = INFINITY, total = 0;
            for (i64 c = 0; c < classes; c++) {
                if (access[c] && price[c] < lowest)
                    lowest = price[c];
            }
            for (i64 c = 0; c < classes; c++) {
                weight[c] = access[c] ? room[c] * exp(-(price[c] - lowest) / market->taste) : 0;
                total += weight[c];
            }
            for (i64 c = 0; total > 0 && c < classes; c++)
                load[c] += headroom * stock * buyers->demand.at[k] * weight[c] / total;
        }
        for (i64 c = 0; c < classes; c++) {
            const double full = room[c] > 1e-9 ? room[c] : 1e-9;
            const double step = market->step / (1 + market->cooling * (double)round) * (load[c] / full - 1);
            const double next = price[c] + step;
            price[c] = next < 0 ? 0 : next > 1 ? 1 : next;
            if (round >= half)
                mean[c] += price[c] / (double)(market->rounds - half);
        }
    }
}

void acceptance(const struct nodes *nodes, const struct room *room, i64 every, const i64 *drawn, i64 streams, i64 length,
                const struct kinds *kinds, double *served)
{
    const i64 nothing = kinds->cpu.count, classes = kinds->accepted.columns;
    const i64 walks = most(1, streams / 8), *ptr = nodes->ptr.at;
    i64 left[MAX_DEVICES];
    for (i64 node = 0; node < nodes->cls.count; node += every) {
        const i64 n = least(ptr[node + 1] - ptr[node], MAX_DEVICES), cls = nodes->cls.at[node];
        for (i64 turn = 0; turn < walks; turn++) {
            const i64 *stream = drawn + (node + 8 * turn) % streams * length;
            for (i64 i = 0; i < n; i++)
                left[i] = room->milli.at[nodes->order.at[ptr[node] + i]];
            i64 cpu = room->cpu.at[node];
            for (i64 at = 0; at < length; at++) {
                const i64 k = stream[at];
                if (k == nothing || kinds->cpu.at[k] > cpu || !kinds->accepted.at[k * classes + cls])
                    continue;
                const i64 num = kinds->num.at[k], milli = kinds->milli.at[k];
                i64 fits = 0, tightest = -1;
                for (i64 i = 0; i < n; i++) {
                    if (left[i] < milli)
                        continue;
                    fits++;
                    if (tightest < 0 || left[i] < left[tightest])
                        tightest = i;
                }
                if (fits < num)
                    continue;
                cpu -= kinds->cpu.at[k];
                served[k] += (double)every / (double)walks;
                if (num == 0)
                    continue;
                if (milli < WHOLE)
                    left[tightest] -= milli;
                else
                    take_first_idle(left, n, num);
            }
        }
    }
}
