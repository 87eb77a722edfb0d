#include "arrays.h"

/* Like view.NOBODY. */
enum { NOBODY = -1 };

void open_devices(bool *mask, const struct device_states *devices, i64 milli, i64 least_mib, i64 beneficiary, i64 gone[3])
{
    i64 busy = 0, others = 0, reserved = 0;
    const i64 *free_milli = devices->free_milli.at, *free_mib = devices->free_mib.at, *held = devices->held.at;
    for (i64 d = 0; d < devices->free_milli.count; d++) {
        if (!mask[d])
            continue;
        bool enough = free_milli[d] >= milli;
        if (milli == WHOLE)
            enough = free_milli[d] == WHOLE;
        else if (least_mib > 0)
            enough = enough && free_mib[d] >= least_mib;
        else
            enough = enough && devices->memory_mib.at[d] * milli < (free_mib[d] + 1) * WHOLE;
        if (!enough)
            busy++;
        else if (held[d] != NOBODY && (beneficiary == NOBODY || held[d] != beneficiary))
            others++;
        else if (devices->blocked.at[d])
            reserved++;
        else
            continue;
        mask[d] = false;
    }
    gone[0] = busy, gone[1] = others, gone[2] = reserved;
}

i64 served(bool *mask, i64 devices, const i64 *where, const i64 *limit, i64 *left)
{
    i64 gone = 0;
    for (i64 d = 0; d < devices; d++) {
        if (!mask[d])
            continue;
        if (limit[where[d]] > 0) {
            left[where[d]]++;
        } else {
            mask[d] = false;
            gone++;
        }
    }
    return gone;
}

i64 first_of_each(bool *mask, i64 count, const i64 *rows, const i64 *group, const i64 *most_of)
{
    i64 gone = 0, place = 0;
    for (i64 i = 0; i < count; i++) {
        place = i > 0 && group[i] == group[i - 1] ? place + 1 : 0;
        if (place >= most_of[i]) {
            mask[rows[i]] = false;
            gone++;
        }
    }
    return gone;
}
