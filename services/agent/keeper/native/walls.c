#include "walls.h"

#include "view.h"

struct failure failure;

bool failed(i32 number, const char *text, const char *about)
{
    failure = (struct failure){number, text, about};
    return false;
}

bool went_well(long result, const char *about)
{
    return result >= 0 || failed((i32)-result, "", about);
}

/* ------------------------------------------------------------------------------------------- namespaces of one's own */

static bool map_user(bool as_root, u32 uid, u32 gid, u32 outer_uid, u32 outer_gid)
{
    char buffer[64];
    if (!went_well(write_file("/proc/self/setgroups", "deny"), "/proc/self/setgroups"))
        return false;
    struct text line = {buffer, 0, sizeof buffer};
    add_number(&line, as_root ? 0 : uid);
    add(&line, " ");
    add_number(&line, outer_uid);
    add(&line, " 1");
    if (!went_well(write_file("/proc/self/uid_map", buffer), "/proc/self/uid_map"))
        return false;
    line.length = 0;
    add_number(&line, as_root ? 0 : gid);
    add(&line, " ");
    add_number(&line, outer_gid);
    add(&line, " 1");
    return went_well(write_file("/proc/self/gid_map", buffer), "/proc/self/gid_map");
}

bool own_user_and_pid_namespace(bool as_root)
{
    u32 user = (u32)CALL0(geteuid), group = (u32)CALL0(getegid);
    return went_well(CALL1(unshare, CLONE_NEWUSER | CLONE_NEWPID), "unshare(CLONE_NEWUSER)") &&
           map_user(as_root, user, group, user, group);
}

/* Without root: this process is root of the user namespace that its view belongs to. In one below it, it is the agent's user
 * again, and what it starts owns nothing of the view. */
static bool own_user(u32 uid, u32 gid)
{
    return went_well(CALL1(unshare, CLONE_NEWUSER), "unshare(CLONE_NEWUSER)") && map_user(false, uid, gid, 0, 0);
}

bool mount_own_proc(void)
{
    return went_well(CALL1(unshare, CLONE_NEWNS), "unshare(CLONE_NEWNS)") &&
           went_well(CALL5(mount, "none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "mount(/, private)") &&
           went_well(CALL5(mount, "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount(/proc)");
}

/* ------------------------------------------------------------------------------------------------------- bubblewrap */

enum { INFO = 100, BLOCK = 101, MOST_SAID = 4096 };
static const char *const NAMES[MOST_NAMESPACES] = {"mnt", "ipc", "net"};

struct launch {
    const char *program, **arguments;
    int told, blocked, says;
    u8 stack[16384];
};

static void launched(void *about)
{
    struct launch *launch = about;
    static const char *no_environment[] = {NULL};
    u64 none = 0;
    if (CALL4(rt_sigprocmask, 2, &none, NULL, sizeof none) >= 0 && CALL3(dup3, launch->told, INFO, 0) >= 0 &&
        CALL3(dup3, launch->blocked, BLOCK, 0) >= 0 && CALL3(dup3, launch->says, 2, 0) >= 0)
        CALL3(execve, launch->program, launch->arguments, no_environment);
    leave(127);
}

/* The number that stands after this word, once what ends it is there too; 0: not yet. */
static u32 number_after(const char *text, const char *word)
{
    size_t length = length_of(word);
    for (; length_of(text) >= length; text++) {
        if (memcmp(text, word, length) != 0)
            continue;
        u32 number = 0;
        for (text += length; *text && (*text < '0' || *text > '9'); text++) {
        }
        for (; *text >= '0' && *text <= '9' && number < 100000000; text++)
            number = number * 10 + (u32)(*text - '0');
        return *text ? number : 0;
    }
    return 0;
}

/* The process id that bubblewrap says its child has, which waits for our word; 0 when it has none. */
static u32 child_of(int info)
{
    char text[MOST_SAID + 1];
    size_t length = 0;
    u32 pid = 0;
    while (pid == 0 && length < MOST_SAID) {
        long more = CALL3(read, info, text + length, MOST_SAID - length);
        if (more <= 0)
            return 0;
        length += (size_t)more;
        text[length] = 0;
        pid = number_after(text, "child-pid");
    }
    return pid;
}

static bool pipes(int ends[3][2])
{
    for (int at = 0; at < 3; at++)
        ends[at][0] = ends[at][1] = -1;
    for (int at = 0; at < 3; at++)
        if (!went_well(CALL2(pipe2, ends[at], O_CLOEXEC), "pipe"))
            return false;
    return true;
}

static const char *what_it_said(int said, i64 code)
{
    static char buffer[MOST_SAID + 64];
    struct text text = {buffer, 0, sizeof buffer};
    add(&text, "the walls could not be made: ");
    struct pollfd readable = {said, POLLIN, 0};
    struct __kernel_timespec at_once = {0};
    long length = 0;
    if (CALL5(ppoll, &readable, 1, &at_once, NULL, 0) > 0)
        length = CALL3(read, said, buffer + text.length, MOST_SAID);
    if (length > 0) {
        text.length += (size_t)length;
        while (text.length && (buffer[text.length - 1] == '\n' || buffer[text.length - 1] == ' '))
            text.length--;
        buffer[text.length] = 0;
    } else {
        add(&text, "bubblewrap ended with ");
        add_number(&text, code);
    }
    return buffer;
}

static bool open_namespaces(u32 inside, u32 namespaces, int handles[MOST_NAMESPACES])
{
    for (int at = 0; at < MOST_NAMESPACES; at++) {
        char buffer[64];
        struct text path = {buffer, 0, sizeof buffer};
        if (!(namespaces & (1u << at)))
            continue;
        add(&path, "/proc/");
        add_number(&path, inside);
        add(&path, "/ns/");
        add(&path, NAMES[at]);
        long fd = open_file(buffer, O_RDONLY);
        if (!went_well(fd, "/proc/<bubblewrap>/ns"))
            return false;
        handles[at] = (int)fd;
    }
    return true;
}

bool made(const char *bwrap, const struct list *arguments, u32 namespaces, int handles[MOST_NAMESPACES])
{
    static const char *const BEFORE[] = {"--info-fd", "100", "--block-fd", "101"};
    int ends[3][2]; /* what it tells, what it waits for, what it complains of: the side to read, the side to write */
    for (int at = 0; at < MOST_NAMESPACES; at++)
        handles[at] = -1;
    struct launch *launch = allocate(sizeof *launch);
    const char **all = allocate((arguments->count + 8) * sizeof *all);
    if (launch == NULL || all == NULL)
        return failed(ENOMEM, "", "bubblewrap");
    u32 count = 0;
    all[count++] = bwrap;
    for (size_t at = 0; at < sizeof BEFORE / sizeof *BEFORE; at++)
        all[count++] = BEFORE[at];
    for (u32 at = 0; at < arguments->count; at++)
        all[count++] = arguments->items[at];
    all[count++] = "--";
    all[count++] = "/usr/bin/true";
    bool well = pipes(ends);
    if (well) {
        launch->program = bwrap, launch->arguments = all;
        launch->told = ends[0][1], launch->blocked = ends[1][0], launch->says = ends[2][1];
        long pid = call_on(CLONE_VM | CLONE_VFORK | SIGNAL_CHILD, launch->stack + sizeof launch->stack, launched, launch);
        close_file(ends[0][1]), close_file(ends[1][0]), close_file(ends[2][1]);
        ends[0][1] = ends[1][0] = ends[2][1] = -1;
        well = went_well(pid, bwrap);
        if (well) {
            int status = 0;
            u32 inside = child_of(ends[0][0]);
            bool opened = inside != 0 && open_namespaces(inside, namespaces, handles);
            if (opened)
                CALL3(write, ends[1][1], "!", 1);
            close_file(ends[1][1]);
            ends[1][1] = -1;
            while (CALL4(wait4, pid, &status, 0, NULL) == -EINTR) {
            }
            if (inside == 0 || status != 0)
                well = failed(EIO, what_it_said(ends[2][0], exit_code_of(status)), "");
            else
                well = opened;
        }
    }
    for (int at = 0; at < 3; at++)
        close_file(ends[at][0]), close_file(ends[at][1]);
    for (int at = 0; !well && at < MOST_NAMESPACES; at++) {
        close_file(handles[at]);
        handles[at] = -1;
    }
    return well;
}

/* This process, which has one thread and a /proc of its own pid namespace, sees from now on what the job sees. */
static bool enter(const char *bwrap, const struct walls *walls)
{
    int handles[MOST_NAMESPACES];
    if (!made(bwrap, &walls->arguments, walls->namespaces, handles))
        return false;
    bool well = true;
    for (int at = 0; at < MOST_NAMESPACES; at++) {
        if (handles[at] < 0)
            continue;
        well = well && went_well(CALL2(setns, handles[at], 0), "setns");
        close_file(handles[at]);
    }
    return well;
}

/* --------------------------------------------------------------------------------------------------- rights given up */

/* CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID: for what the shim still does. It removes what is its team's. */
#define KEPT (1u << CAP_DAC_OVERRIDE | 1u << CAP_KILL | 1u << CAP_SETGID | 1u << CAP_SETUID)
enum { SCOPES_SINCE = 6 }; /* version of landlock that knows scopes: abstract Unix sockets and signals of others */

bool gain_no_rights(void)
{
    return went_well(CALL5(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)");
}

static bool drop_bounds(void)
{
    for (int capability = 0; capability < 64; capability++) {
        long dropped = CALL5(prctl, PR_CAPBSET_DROP, capability, 0, 0, 0);
        if (dropped == -EINVAL)
            break; /* the kernel knows no more */
        if (!went_well(dropped, "prctl(PR_CAPBSET_DROP)"))
            return false;
    }
    return true;
}

bool give_up_bounds(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct own[2];
    if (CALL2(capget, &head, own) < 0)
        return false;
    for (int at = 0; at < 2; at++)
        own[at].inheritable = own[at].permitted;
    return CALL2(capset, &head, own) >= 0 && drop_bounds();
}

static bool give_up_capabilities(bool bounded)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct kept[2] = {{KEPT, KEPT, 0}, {0, 0, 0}};
    return (bounded || drop_bounds()) && went_well(CALL2(capset, &head, kept), "capset");
}

/* No abstract sockets and no signals of others, where the kernel knows such scopes. */
static bool scope(void)
{
    if (CALL3(landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) < SCOPES_SINCE)
        return true;
    u64 scopes[3] = {0, 0, LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL}; /* of files, networks, scopes */
    long fd = CALL3(landlock_create_ruleset, scopes, sizeof scopes, 0);
    if (!went_well(fd, "landlock_create_ruleset"))
        return false;
    bool well = went_well(CALL2(landlock_restrict_self, fd, 0), "landlock_restrict_self");
    close_file((int)fd);
    return well;
}

void go_ahead(void)
{
    struct sched_attr wanted = {.size = sizeof wanted, .sched_flags = SCHED_FLAG_RESET_ON_FORK, .sched_nice = -20};
    CALL3(sched_setattr, 0, &wanted, 0);
}

bool filter_calls(const struct filter *filter)
{
    if (filter->bytes == 0)
        return true;
    struct sock_fprog program = {(unsigned short)(filter->bytes / sizeof(struct sock_filter)), (struct sock_filter *)filter->at};
    return went_well(CALL5(prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), "prctl(PR_SET_SECCOMP)");
}

static bool limit(int what, u64 soft, u64 hard, const char *name)
{
    struct rlimit64 wanted = {soft, hard};
    return went_well(CALL4(prlimit64, 0, what, &wanted, NULL), name);
}

/* A limit of 0 bytes keeps a core from files, and not from a program that the kernel starts as root for each (core_pattern with a
 * pipe), outside of all that holds the job. One byte keeps it from both (Linux, fs/coredump.c). */
#define NO_CORE 1

/* The filter keeps it so. Who is root raises a hard limit of 0 to that, while it has the right. Who is not can not, and then cores are
 * kept from files alone (`services.agent.jobwalls` says so). */
static bool limit_core(void)
{
    struct rlimit64 before = {0, 1};
    if (limit(RLIMIT_CORE, NO_CORE, NO_CORE, "prlimit(CORE)"))
        return true;
    return CALL4(prlimit64, 0, RLIMIT_CORE, NULL, &before) >= 0 && before.rlim_max == 0;
}

/* When the machine has no memory left the kernel ends whoever has most, by this, and not the processes of a job that has much in
 * very many: they come before all else. Who may say so (root) also keeps them from having it lower. */
static void go_first(u64 oom_score)
{
    char score[24];
    struct text line = {score, 0, sizeof score};
    add_number(&line, (i64)oom_score);
    write_file("/proc/self/oom_score_adj", score);
}

/* Of this process, and so of all that it starts: capabilities beyond the few that a shim needs, new privileges, calls that reach
 * the kernel itself, abstract sockets and signals of others. */
static bool give_up(const struct setup *setup, const struct walls *walls)
{
    struct rlimit64 open = {0, 0};
    u64 processes = walls->processes, files = walls->files;
    go_first(walls->oom_score);
    /* A user namespace of its own has bounds of its own. */
    if (!gain_no_rights() || !limit_core() || !give_up_capabilities(setup->bounded && walls->root) ||
        !went_well(CALL5(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)") || !scope() ||
        (!setup->filtered && !filter_calls(&setup->common)) || !filter_calls(&setup->last) ||
        !went_well(CALL4(prlimit64, 0, RLIMIT_NOFILE, NULL, &open), "prlimit(NOFILE)"))
        return false;
    u64 most = files < open.rlim_max ? files : open.rlim_max;
    return limit(RLIMIT_NPROC, processes, processes, "prlimit(NPROC)") &&
           limit(RLIMIT_NOFILE, most, most, "prlimit(NOFILE)");
}

bool put_up(const struct setup *setup, const struct walls *walls, int view, bool ahead, const char **useless)
{
    *useless = "";
    if (view >= 0)
        *useless = copy_view(view, walls, setup->mounts);
    if (view < 0 || **useless) {
        if (!(mount_own_proc() && enter(setup->bwrap, walls)))
            return false;
        /* bubblewrap knows no bound. Without root the kernel may refuse to set one. */
        CALL5(mount, "devpts", "/dev/pts", "devpts", MS_REMOUNT | MS_NOSUID | MS_NOEXEC, TERMINALS);
    }
    if (!walls->root && !own_user(walls->uid, walls->gid))
        return false;
    close_file(setup->mounts);
    if (ahead)
        go_ahead();
    return give_up(setup, walls);
}
