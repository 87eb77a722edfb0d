/* What the compiled loops of placement work on. Each struct is a named tuple of `score/arrays.py` or `search/sieve.py`, field by
 * field: an array is its first item's address and its shape, a number is eight bytes (`compiled.py` packs them so). */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int64_t i64;
typedef uint64_t u64;

/* Counts up when a struct or a function changes: like compiled.ABI. */
enum { ABI = 1 };
enum { WHOLE = 1000 };
/* Devices of a node that scoring looks at: more are a node of that many. */
enum { MAX_DEVICES = 64 };

struct ints { i64 *at; i64 count; };
struct ints_2d { i64 *at; i64 rows, columns; };
struct shorts { int16_t *at; i64 count; };
struct words { u64 *at; i64 count; };
struct floats { float *at; i64 count; };
struct doubles { double *at; i64 count; };
struct doubles_2d { double *at; i64 rows, columns; };
struct bools { bool *at; i64 count; };
struct bools_2d { bool *at; i64 rows, columns; };

struct nodes { struct ints ptr, order, cls; };
struct room { struct ints milli, cpu; };
struct request { i64 cpu, num, milli; };
struct streams { struct ints cpu, num, milli; struct bools_2d accepted; struct ints_2d starts; struct ints ceilings; };
struct kinds { struct ints cpu, num, milli; struct floats share; struct bools_2d accepted; };
struct worth { struct streams streams; struct kinds kinds; i64 least_cpu, least_milli; double fragmentation; };
struct memo { struct words keys; struct doubles values; struct ints used; };
struct valuation { struct worth worth; struct memo memo; };
struct node_states { struct room room; struct words keys; };
struct drops { struct words seen; struct floats drop; struct shorts pick; };
struct shadow_prices {
    struct doubles rho;
    struct doubles_2d beta;
    struct ints size;
    struct doubles block_cpu;
    double rho_weight, beta_weight;
};
struct market { i64 rounds; double step, cooling, taste; };
struct buyers { struct bools_2d access; struct doubles demand; };
struct device_states { struct ints free_milli, free_mib, memory_mib, held; struct bools blocked; };

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 most(i64 a, i64 b) { return a > b ? a : b; }
