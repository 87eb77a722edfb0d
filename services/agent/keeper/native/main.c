/* The zygote: a small process below the keeper that forks all shims, so that the keeper itself never does; and the shims, which
 * are forks of it. A shim is the *keeper's* child all the same: the keeper reaps it, and its parent-death signal is the
 * keeper's. So the zygote holds nothing, and when it dies the next start makes another.
 *
 * It is told on its socket (descriptor 3): first a setup (`struct setup`), then what to fork, with the descriptors that this one
 * gets. It answers with the process id, or minus an errno. */
#include "shim.h"
#include "sockets.h"
#include "walls.h"

enum { REQUESTS = 3, SHIM = 1, MAKER = 2, WITH_VIEW = 4, WITH_FILE = 8 };

static struct setup setup;
static u8 setup_message[16384];

static _Noreturn void become(u8 what, const int *descriptors)
{
    int next = 1;
    int view = what & WITH_VIEW ? descriptors[next++] : -1;
    int large = what & WITH_FILE ? descriptors[next++] : -1;
    close_file(REQUESTS);
    if (setup.kind == NAMESPACE || what & MAKER) /* and all with it; without a namespace it must live to end them */
        CALL5(prctl, PR_SET_PDEATHSIG, KILL, 0, 0, 0);
    CALL0(setsid);
    if (what & MAKER)
        make_view(&setup, descriptors[0], large);
    hold(&setup, descriptors[0], view, large);
}

static bool understood(u8 what, long bytes, int count)
{
    int wanted = 1 + !!(what & WITH_VIEW) + !!(what & WITH_FILE);
    bool known = (what & ~(WITH_VIEW | WITH_FILE)) == SHIM || (what & ~WITH_FILE) == MAKER;
    return bytes == 1 && known && count == wanted;
}

static _Noreturn void serve(void)
{
    bool inside = setup.kind == NAMESPACE && CALL0(geteuid) == 0;
    for (;;) {
        int descriptors[MOST_DESCRIPTORS], count;
        u8 asked[2], what; /* room for more than there may be, so that more is seen */
        long bytes = receive(REQUESTS, asked, sizeof asked, descriptors, &count);
        if (bytes == -EINTR)
            continue;
        if (bytes <= 0)
            leave(0);
        i32 answer = -EINVAL;
        what = asked[0];
        if (understood(what, bytes, count)) {
            unsigned long flags = CLONE_PARENT | SIGNAL_CHILD | (inside && what & SHIM ? CLONE_NEWPID : 0);
            answer = (i32)CALL5(clone, flags, 0, 0, 0, 0);
        }
        if (answer == 0)
            become(what, descriptors);
        for (int at = 0; at < count; at++)
            close_file(descriptors[at]);
        say(REQUESTS, &answer, sizeof answer);
    }
}

/* Signals mean to it, and to what it forks, nothing: all wait, and no handler or refusal of the keeper's is left. */
static void forget_signals(void)
{
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        u64 mask;
    } usual = {0};
    u64 all = EVERY_SIGNAL;
    for (int number = 1; number <= SIGNALS; number++)
        CALL4(rt_sigaction, number, &usual, NULL, sizeof(u64));
    if (CALL4(rt_sigprocmask, 2, &all, NULL, sizeof all) < 0)
        broken();
}

/* How far the trial came, for `keeper.hindrance`. */
enum { NO_NAMESPACE = 1, NO_MOUNTS = 3, NO_PROC = 4 };

/* Whether jobs can be held together by a namespace here: tried, by a child that is let into one. 0: they can. */
static int try_namespace(void)
{
    int status = 0;
    bool well = CALL0(geteuid) == 0 ? CALL1(unshare, CLONE_NEWPID) == 0 : own_user_and_pid_namespace(false);
    if (!well)
        return NO_NAMESPACE;
    long inner = CALL5(clone, SIGNAL_CHILD, 0, 0, 0, 0);
    if (inner == 0)
        leave(mount_own_proc() ? 0 : same(failure.about, "mount(/proc)") ? NO_PROC : NO_MOUNTS);
    if (inner < 0 || CALL4(wait4, inner, &status, 0, NULL) < 0)
        return NO_NAMESPACE;
    return status == 0 ? 0 : exit_code_of(status) == NO_PROC ? NO_PROC : NO_MOUNTS;
}

/* `stack`: as the kernel leaves it, the number of arguments and the arguments. */
_Noreturn __attribute__((used)) void begin(const long *stack)
{
    int none[MOST_DESCRIPTORS], count;
    const char *const *arguments = (const char *const *)(stack + 1);
    if (stack[0] == 2 && same(arguments[1], "try-namespace"))
        leave(try_namespace());
    if (stack[0] != 1)
        leave(2);
    CALL5(prctl, PR_SET_PDEATHSIG, KILL, 0, 0, 0);
    CALL3(close_range, REQUESTS + 1, ~0u, 0);
    forget_signals();
    long bytes = receive(REQUESTS, setup_message, sizeof setup_message, none, &count);
    if (bytes <= 0 || count || !take_setup(&setup, setup_message, (size_t)bytes))
        leave(2);
    if (CALL5(prctl, PR_SET_NAME, setup.name, 0, 0, 0) < 0)
        leave(2);
    setup.mounts = -1;
    if (*setup.bwrap) {
        setup.mounts = (int)open_file("/proc/self/ns/mnt", O_RDONLY);
        setup.bounded = CALL0(geteuid) == 0 && give_up_bounds();
        setup.filtered = CALL0(geteuid) == 0 && filter_calls(&setup.common);
    }
    serve();
}
