/* The walls around an attempt, as its shim puts them up and goes behind them; see services/agent/keeper/walls.py. */
#pragma once

#include "spec.h"

/* What went wrong: an errno (0: none), what to say if it is more than that errno's text, and what it was about. */
struct failure {
    i32 number;
    const char *text, *about;
};
extern struct failure failure;

/* Of an attempt: a machine has 4,096 for all, and keeps a thousand of them for its own. */
#define TERMINALS "newinstance,ptmxmode=0666,mode=620,max=256"

/* Whether the call went well; else `failure` says what did not. */
bool went_well(long result, const char *about);
bool failed(i32 number, const char *text, const char *about);

/* All of it, for the first process of a pid namespace. `view`: a descriptor of one that is prepared, or -1. `ahead`: whether to
 * `go_ahead`. `useless`: why that view was of no use, or "". False: `failure` says what the walls lack. */
bool put_up(const struct setup *setup, const struct walls *walls, int view, bool ahead, const char **useless);

/* Of the processor, this process has its turn before others of its group, and what it starts has not. Not without root. */
void go_ahead(void);

/* The next child of this process is the first of a pid namespace, for users without root. `as_root`: it sees itself as root. */
bool own_user_and_pid_namespace(bool as_root);
/* The first process of a pid namespace gets a /proc that shows it. */
bool mount_own_proc(void);
bool gain_no_rights(void);

/* By a zygote of root's, for all shims: no program that is executed gains capabilities by the kernel's bounds, but those of this
 * process are inherited, which bubblewrap needs; a shim gives these up with all others. False: nothing has changed that matters,
 * and each shim does it for itself. */
bool give_up_bounds(void);

/* Of this process, and all that it makes, for good. */
bool filter_calls(const struct filter *filter);

/* Makes what bubblewrap makes of these arguments. Fills in descriptors of the namespaces that are named by `namespaces`, in the
 * order of their bits; -1 for others. */
enum { MOST_NAMESPACES = 3 };
bool made(const char *bwrap, const struct list *arguments, u32 namespaces, int handles[MOST_NAMESPACES]);

/* Device and inode of a source; may block, on a disk of the network. */
struct identity identity_of(const char *source);
