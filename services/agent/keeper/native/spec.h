/* What the keeper asks for, as `services/agent/keeper/spec.py` writes it: numbers as the machine has them, a text with its
 * length and a NUL, a list of texts with its length. */
#pragma once

#include "kernel.h"

enum { VERSION = 3, MOST_RANKS = 4096 };
enum { NAMESPACE, CGROUP, SUBREAPER, NONE }; /* how an attempt is held together, see contain.py */
enum { OF_MOUNTS = 1, OF_IPC = 2, OF_NETWORK = 4 };

/* `items`: ends with NULL, as a program's arguments do. */
struct list {
    u32 count;
    const char **items;
};

struct identity {
    u64 device, inode; /* both 0: it is not there */
};

/* How the view is had from one that is prepared, see prepared.py. */
struct prepared {
    u64 scratch;
    struct list sources, carried, stems, own;
    const u8 *shown, *writable; /* an identity for each source, and a byte for each of `own` */
};

struct walls {
    u32 root, uid, gid, namespaces;
    u64 processes, files, oom_score;
    struct list arguments; /* bubblewrap's */
    bool can_copy;
    struct prepared prepared;
};

struct rank {
    u32 number;
    const char *log;
    struct list environment;
    int pid;     /* 0: it does not run */
    int written; /* where its output goes, until it is started */
    i32 code;
    bool untold;
    int read, file; /* its output's way to the log; -1: closed */
    u64 room;
    i64 rests_until; /* ns; 0: it does not rest */
};

struct spec {
    u64 log_limit, memory_bytes, pids_most, cpu_weight;
    const char *group, *memory, *pids, *cpu, *workdir, *remove;
    struct list command;
    bool behind;
    struct walls walls;
    u32 count;
    struct rank *ranks;
};

/* What a maker of a view is asked for. */
struct making {
    struct list sources, arguments;
};

/* Of system calls, in the kernel's language; of no bytes where none is known for this processor, as the agent says. */
struct filter {
    const u8 *at;
    u32 bytes;
};

/* What a zygote is told first; `bwrap`: "" where there are no walls. What it has done since for all shims: `mounts`, a descriptor
 * of the mount namespace that they begin in, or -1; whether they are `bounded`, see `give_up_bounds`, and have the `common`
 * filter already. */
struct setup {
    u32 kind;
    const char *name, *bwrap;
    struct filter common, last;
    int mounts;
    bool bounded, filtered;
};

/* All are taken from `bytes` bytes, to which they point: false, and `broken_field` says what is not as it must be. */
extern const char *broken_field;
bool take_spec(struct spec *spec, const u8 *from, size_t bytes);
bool take_making(struct making *making, const u8 *from, size_t bytes);
bool take_setup(struct setup *setup, const u8 *from, size_t bytes);

/* Memory of this process, zeroed, that is never given back; NULL when there is none. */
void *allocate(size_t bytes);
