#include "shim.h"

#include "sockets.h"
#include "walls.h"

/* What is said to the keeper, and what it says; see services/agent/keeper/spec.py. */
enum { STARTED = 's', FAILED = 'f', EXITED = 'x', GONE = 'g', SIGNAL = 'n', KILL_ALL = 'k' };
enum { TRACE_ME = 0, DETACH = 17, TRAP = 5 }; /* of ptrace */
enum {
    LARGEST = 65536, /* bytes of one message */
    LARGEST_SPEC = 16 * 1024 * 1024,
    MOST_CODES = 1024, /* in one message */
    CHUNK = 65536,
    DEEPEST = 32, /* folders in one another that are removed */
    MOST_BELOW = 1 << 18, /* processes of the machine that are looked at */
};
static const i64 PAUSE_NS = 10 * 1000000, LONGEST_PAUSE_NS = 50 * 1000000;
/* What comes after the cut of an output is read slowly, `CHUNK` per `PAUSE_NS`: a job that floods its output is held back by its
 * own pipe instead of taking a processor. */

struct told_code {
    u32 rank;
    i32 code;
};

static struct {
    const struct setup *setup;
    struct spec spec;
    int control, ends, above; /* above: the folder that holds the one to be removed; behind walls that is not there any more */
    u32 running, untold;
    bool root;  /* of the machine */
    bool empty; /* no child is left */
    struct pollfd *watched;
} shim;

static u8 buffer[LARGEST];

/* ------------------------------------------------------------------------------------------------------------ saying */

/* One that does not hear it is gone: the next look at the socket says so. */
static void say_failed(void)
{
    struct text text = {(char *)buffer, 1 + sizeof failure.number, sizeof buffer / 2};
    buffer[0] = FAILED;
    memcpy(buffer + 1, &failure.number, sizeof failure.number);
    add(&text, failure.text);
    text.length++; /* the NUL between the two */
    text.room = sizeof buffer;
    add(&text, failure.about);
    say(shim.control, buffer, text.length);
}

static void say_started(const char *useless)
{
    struct text text = {(char *)buffer, 1, sizeof buffer / 2};
    buffer[0] = STARTED;
    buffer[1] = 0;
    add(&text, useless);
    say(shim.control, buffer, text.length);
}

/* Exit codes that were not told yet, `what` with the last of them. */
static void say_codes(u8 what)
{
    static u8 message[1 + MOST_CODES * sizeof(struct told_code)];
    size_t bytes = 1;
    message[0] = what;
    for (u32 at = 0; at < shim.spec.count && shim.untold; at++) {
        struct rank *rank = &shim.spec.ranks[at];
        if (!rank->untold)
            continue;
        if (bytes == sizeof message) {
            message[0] = EXITED;
            say(shim.control, message, bytes);
            bytes = 1, message[0] = what;
        }
        struct told_code told = {rank->number, rank->code};
        memcpy(message + bytes, &told, sizeof told);
        bytes += sizeof told;
        rank->untold = false;
        shim.untold--;
    }
    say(shim.control, message, bytes);
}

/* ------------------------------------------------------------------------------------------------------------ output */

/* A write that is short is tried again: of a full disk the next says so. */
static bool write_all(int fd, const u8 *from, size_t bytes)
{
    while (bytes) {
        long written = CALL3(write, fd, from, bytes);
        if (written <= 0)
            return false;
        from += written;
        bytes -= (size_t)written;
    }
    return true;
}

static void keep(struct rank *rank, size_t bytes)
{
    if (bytes > rank->room)
        bytes = (size_t)rank->room;
    rank->room -= bytes;
    bool well = write_all(rank->file, buffer, bytes);
    if (well && rank->room == 0) {
        char line[96];
        struct text text = {line, 0, sizeof line};
        add(&text, "\n[baton] output cut here: the limit of ");
        add_number(&text, (i64)shim.spec.log_limit);
        add(&text, " bytes is reached\n");
        well = write_all(rank->file, (const u8 *)line, text.length);
    }
    if (!well)
        rank->room = 0; /* a full disk must cost the job its log and nothing else */
}

static void close_output(struct rank *rank)
{
    close_file(rank->read);
    close_file(rank->file);
    rank->read = rank->file = -1;
}

/* Takes what the pipe still holds and closes both ends. */
static void end_output(struct rank *rank)
{
    while (rank->read >= 0 && rank->room > 0) {
        long bytes = CALL3(read, rank->read, buffer, CHUNK);
        if (bytes <= 0)
            break;
        keep(rank, (size_t)bytes);
    }
    close_output(rank);
}

static void read_output(struct rank *rank, struct pollfd *watched)
{
    long bytes = CALL3(read, rank->read, buffer, CHUNK);
    if (bytes == -EAGAIN || bytes == -EINTR)
        return;
    if (bytes <= 0) { /* the last writer has closed it */
        watched->fd = -1;
        close_output(rank);
    } else if (rank->room > 0) {
        keep(rank, (size_t)bytes);
    } else {
        rank->rests_until = now_ns() + PAUSE_NS;
        watched->fd = -1;
    }
}

static bool open_output(struct rank *rank)
{
    int ends[2];
    if (!went_well(CALL2(pipe2, ends, O_CLOEXEC), "pipe"))
        return false;
    rank->read = ends[0], rank->written = ends[1];
    if (!went_well(CALL3(fcntl, rank->read, F_SETFL, O_NONBLOCK), "pipe"))
        return false;
    const struct walls *walls = &shim.spec.walls;
    if (shim.spec.behind && shim.root && /* its user opens it by name, too: /dev/stdout */
        !went_well(CALL3(fchown, rank->written, walls->uid, walls->gid), "pipe"))
        return false;
    long file = CALL4(openat, AT_FDCWD, rank->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (!went_well(file, rank->log))
        return false;
    rank->file = (int)file;
    rank->room = shim.spec.log_limit;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- starting */

struct start {
    const char **command, **environment;
    int written;
    bool waits; /* its program does not run before `let_go_on` */
    struct failure failure;
    char path[4096];
    u8 stack[16384];
};

/* The file that a command's first word means, as a shell finds it; NULL: nowhere, as `start->failure` says. */
static const char *program_of(struct start *start)
{
    static const char PATH[] = "PATH=";
    const char *name = start->command[0], *search = "/bin:/usr/bin";
    size_t length = length_of(name);
    bool denied = false;
    for (size_t at = 0; at < length; at++)
        if (name[at] == '/')
            return name;
    for (const char **one = start->environment; *one != NULL; one++)
        if (length_of(*one) >= sizeof PATH - 1 && memcmp(*one, PATH, sizeof PATH - 1) == 0) {
            search = *one + sizeof PATH - 1;
            break;
        }
    for (;; search++) {
        size_t folder = 0;
        while (search[folder] && search[folder] != ':')
            folder++;
        if (folder + length + 3 <= sizeof start->path) {
            struct statx found;
            char *path = start->path;
            memcpy(path, folder ? search : ".", folder ? folder : 1);
            path += folder ? folder : 1;
            *path++ = '/';
            memcpy(path, name, length + 1);
            if (CALL5(statx, AT_FDCWD, start->path, 0, STATX_TYPE, &found) == 0 && (found.stx_mode & 0170000) == 0100000) {
                if (CALL3(faccessat, AT_FDCWD, start->path, 1) == 0)
                    return start->path;
                denied = true;
            }
        }
        search += folder;
        if (*search == 0)
            break;
    }
    start->failure = denied ? (struct failure){EACCES, "it is in PATH, and not executable for this job", name}
                            : (struct failure){ENOENT, "", name};
    return NULL;
}

/* Why the kernel does not execute a file, where the text of its number says something else, or too little; or "". */
static const char *why_not_executed(long result, const char *path)
{
    struct statx found;
    if (result == -ENOEXEC)
        return "it is no program for this machine, and no script either: its first line does not begin with #!";
    if (CALL5(statx, AT_FDCWD, path, 0, STATX_TYPE, &found) < 0)
        return "";
    if (result == -ENOENT)
        return "it is there, but the interpreter that it names is not";
    if (result == -EACCES && (found.stx_mode & 0170000) == 0040000)
        return "it is a directory";
    if (result == -EACCES && CALL3(faccessat, AT_FDCWD, path, 1) < 0)
        return "it is not executable for this job";
    return "";
}

/* In a child that shares this process's memory until it executes the program: it changes nothing there but `about`. This
 * process waits for that, and hears nobody. So of several ranks none runs before all have executed theirs: one that runs may
 * stop the next, which is of the same user, and with it this process for ever. Each is traced, and so stops when it has
 * executed its program, until `reap` finds it. */
static void started(void *about)
{
    struct start *start = about;
    const struct walls *walls = &shim.spec.walls;
    u64 none = 0;
    long result;
    const char *what = "setsid", *why = "";
    if ((result = CALL0(setsid)) < 0)
        goto wrong;
    what = "output";
    if ((result = CALL3(dup3, start->written, 1, 0)) < 0 || (result = CALL3(dup3, start->written, 2, 0)) < 0)
        goto wrong;
    if (shim.spec.behind && CALL0(geteuid) != (long)walls->uid) { /* for good: what is executed has no user to go back to */
        char user[24]; /* who it is in the kernel's records (audit): until that is said, once, anybody may say it of himself */
        struct text line = {user, 0, sizeof user};
        add_number(&line, walls->uid);
        write_file("/proc/self/loginuid", user); /* who has started the agent by hand is known already, and stays */
        what = "setgroups";
        if ((result = CALL2(setgroups, 0, NULL)) < 0)
            goto wrong;
        what = "setresgid";
        if ((result = CALL3(setresgid, walls->gid, walls->gid, walls->gid)) < 0)
            goto wrong;
        what = "setresuid";
        if ((result = CALL3(setresuid, walls->uid, walls->uid, walls->uid)) < 0)
            goto wrong;
        CALL5(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0); /* nobody of that user looks into what is the shim's as well */
    }
    what = shim.spec.workdir;
    if ((result = CALL1(chdir, what)) < 0)
        goto wrong;
    if ((what = program_of(start)) == NULL)
        leave(127);
    if (start->waits)
        CALL4(ptrace, TRACE_ME, 0, 0, 0); /* a machine may forbid that (Yama): the keeper's patience is left then */
    if ((result = CALL4(rt_sigprocmask, 2, &none, NULL, sizeof none)) >= 0) {
        result = CALL3(execve, what, start->command, start->environment);
        why = why_not_executed(result, what);
    }
wrong:
    start->failure = (struct failure){(i32)-result, why, what};
    leave(127);
}

static bool start_rank(struct rank *rank)
{
    static struct start start;
    start.command = shim.spec.command.items, start.environment = rank->environment.items;
    start.written = rank->written;
    start.waits = shim.spec.count > 1;
    start.failure = (struct failure){0};
    long pid = call_on(CLONE_VM | CLONE_VFORK | SIGNAL_CHILD, start.stack + sizeof start.stack, started, &start);
    close_file(rank->written);
    rank->written = -1;
    if (!went_well(pid, "clone"))
        return false;
    if (start.failure.number != 0) {
        failure = start.failure; /* its child is reaped with all others */
        return false;
    }
    rank->pid = (int)pid;
    shim.running++;
    return true;
}

/* The file by which a cgroup is entered. A failure names it. */
static bool open_door(const char *group, int *door)
{
    static char path[4096];
    struct text procs = {path, 0, sizeof path};
    add(&procs, group);
    add(&procs, "/cgroup.procs");
    *door = (int)open_file(path, O_WRONLY);
    return went_well(*door, path);
}

/* Of a cgroup; the kernel may be without the file. */
static long set_in(const char *group, const char *name, u64 number)
{
    char path[4096], text[24];
    struct text file = {path, 0, sizeof path}, value = {text, 0, sizeof text};
    add(&file, group);
    add(&file, "/");
    add(&file, name);
    add_number(&value, (i64)number);
    long fd = open_file(path, O_WRONLY);
    if (fd < 0)
        return fd;
    long written = CALL3(write, fd, text, value.length);
    close_file((int)fd);
    return written;
}

/* Of version 1 of the memory controller, or else 2. Swap counts as memory, where the kernel counts it. */
static bool limit_memory(const char *group, u64 bytes)
{
    long set = set_in(group, "memory.limit_in_bytes", bytes);
    if (set == -ENOENT) {
        set = set_in(group, "memory.max", bytes);
        set_in(group, "memory.swap.max", 0);
    } else {
        set_in(group, "memory.memsw.limit_in_bytes", bytes);
    }
    return went_well(set, group);
}

/* As version 2 counts it, of version 1 or 2. A new group has the usual one. */
static bool weigh(const char *group, u64 weight)
{
    enum { USUAL = 100, USUAL_SHARES = 1024 };
    if (weight == USUAL)
        return true;
    long set = set_in(group, "cpu.shares", weight * USUAL_SHARES / USUAL);
    if (set == -ENOENT)
        set = set_in(group, "cpu.weight", weight);
    return went_well(set, group);
}

enum { GROUPS = 4, OF_OURS = 1 /* the shim */ };

/* Of version 2 one group may do several things. */
static bool is_before(const char *const groups[GROUPS], int at)
{
    for (int before = 0; before < at; before++)
        if (length_of(groups[before]) == length_of(groups[at]) &&
            memcmp(groups[before], groups[at], length_of(groups[at])) == 0)
            return true;
    return false;
}

/* With their limits, and a door of each, -1 where there is none. */
static bool make_groups(int doors[GROUPS])
{
    const struct spec *spec = &shim.spec;
    for (int at = 0; at < GROUPS; at++)
        doors[at] = -1;
    const char *const groups[GROUPS] = {spec->group, spec->memory, spec->pids, spec->cpu};
    for (int at = 0; at < GROUPS; at++) {
        const char *group = groups[at];
        if (!*group)
            continue;
        if (length_of(group) > 3800)
            return failed(ENAMETOOLONG, "", "group");
        bool made = is_before(groups, at);
        if (!made && !went_well(make_folders(group, 0777), group))
            return false;
        if (at == 1 && !limit_memory(group, spec->memory_bytes))
            return false;
        if (at == 2 && !went_well(set_in(group, "pids.max", spec->pids_most + OF_OURS), group))
            return false;
        if (at == 3 && !weigh(group, spec->cpu_weight))
            return false;
        if (!made && !open_door(group, &doors[at]))
            return false;
    }
    return true;
}

static bool enter_groups(const int doors[GROUPS])
{
    for (int at = 0; at < GROUPS; at++) {
        if (doors[at] < 0)
            continue;
        if (!went_well(CALL3(write, doors[at], "0", 1), "cgroup.procs"))
            return false;
        close_file(doors[at]);
    }
    return true;
}

/* Where the folder lies that is to be removed. */
static bool open_above(const char *folder)
{
    static char path[4096]; /* a failure names it */
    size_t length = length_of(folder);
    if (length >= sizeof path)
        return failed(ENAMETOOLONG, "", folder);
    memcpy(path, folder, length + 1);
    while (length && path[length - 1] != '/')
        length--;
    if (length == 0)
        return failed(EINVAL, "", folder);
    path[length] = 0;
    long fd = open_file(path, O_RDONLY | O_DIRECTORY);
    shim.above = (int)fd;
    return went_well(fd, path);
}

/* False: `failure` says why; what was started before that is still there. */
static bool start(int view, const char **useless)
{
    struct spec *spec = &shim.spec;
    int doors[GROUPS];
    /* Where no job sees them. */
    for (u32 at = 0; at < spec->count; at++)
        if (!open_output(&spec->ranks[at]))
            return false;
    if (!make_groups(doors))
        return false;
    if (shim.setup->kind == NAMESPACE) {
        if (!spec->behind && !mount_own_proc())
            return false;
    } else {
        if (spec->behind)
            return failed(EINVAL, "walls need a pid namespace", "walls");
        if (shim.setup->kind != NONE &&
            !went_well(CALL5(prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)"))
            return false;
    }
    if (*spec->remove && !open_above(spec->remove))
        return false;
    bool ahead = *spec->cpu; /* else a job that computes in many processes would delay what it is told, and its own end */
    if (spec->behind && !put_up(shim.setup, &spec->walls, view, ahead, useless))
        return false;
    if (ahead && !spec->behind)
        go_ahead();
    close_file(view);
    /* Not before: what the kernel makes for files and mounts would count as the job's memory, and part of it stays, with the group
     * that it counts for, when nothing of the job is left. */
    if (!enter_groups(doors) || !gain_no_rights())
        return false;
    for (u32 at = 0; at < spec->count; at++)
        if (!start_rank(&spec->ranks[at]))
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ ending */

/* A process that asked to be traced by its parent (PTRACE_TRACEME), which is this one, has stopped with a signal: it is traced no
 * more, and goes on as the signal means. The trap after it executed a program means nothing. Ranks ask for it (`started`), and
 * jobs may. */
static void let_go_on(long pid, int number)
{
    CALL4(ptrace, DETACH, pid, 0, number == TRAP ? 0 : number);
}

/* Takes the exit codes of all children that have ended, adopted ones too. */
static void reap(void)
{
    for (;;) {
        int status = 0;
        long pid = CALL4(wait4, -1, &status, WNOHANG, NULL);
        if (pid == -ECHILD)
            shim.empty = true;
        if (pid <= 0)
            return;
        if ((status & 0xff) == 0x7f) { /* not the end of it */
            let_go_on(pid, (status >> 8) & 0xff);
            continue;
        }
        for (u32 at = 0; at < shim.spec.count; at++) {
            struct rank *rank = &shim.spec.ranks[at];
            if (rank->pid != pid)
                continue;
            rank->pid = 0;
            rank->code = (i32)exit_code_of(status);
            rank->untold = true;
            shim.running--, shim.untold++;
            break;
        }
    }
}

struct entry { /* of a folder, as the kernel writes it */
    u64 inode;
    i64 next;
    unsigned short length;
    u8 type;
    char name[];
};

static bool is_dots(const char *name)
{
    return same(name, ".") || same(name, "..");
}

/* As far as it can be: what resists stays. Returns whether all of it is gone. */
static bool remove_folder(int above, const char *name, int depth)
{
    _Alignas(struct entry) u8 entries[2048];
    long fd = CALL4(openat, above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    bool some = fd >= 0 && depth < DEEPEST;
    while (some) { /* once more as long as something goes: who removes while it reads may be shown less than there is */
        long bytes;
        some = false;
        while ((bytes = CALL3(getdents64, fd, entries, sizeof entries)) > 0) {
            for (long at = 0; at < bytes;) {
                struct entry *entry = (struct entry *)(entries + at);
                at += entry->length;
                if (is_dots(entry->name))
                    continue;
                some = CALL3(unlinkat, fd, entry->name, 0) == 0 || remove_folder((int)fd, entry->name, depth + 1) || some;
            }
        }
        CALL3(lseek, fd, 0, 0);
    }
    close_file((int)fd);
    return CALL3(unlinkat, above, name, AT_REMOVEDIR) == 0;
}

static const char *last_of(const char *path)
{
    const char *name = path;
    for (; *path; path++)
        if (*path == '/')
            name = path + 1;
    return name;
}

/* The parent of a process, as /proc says; 0: it is gone. */
static u32 parent_of(const char *pid)
{
    char path[64], line[512];
    struct text text = {path, 0, sizeof path};
    add(&text, "/proc/");
    add(&text, pid);
    add(&text, "/stat");
    long fd = open_file(path, O_RDONLY), bytes = fd < 0 ? fd : CALL3(read, fd, line, sizeof line - 1);
    close_file((int)fd);
    if (bytes <= 0)
        return 0;
    const char *at = line + bytes;
    line[bytes] = 0;
    while (at > line && *at != ')') /* a name may hold anything; after it come the state and the parent */
        at--;
    u32 parent = 0;
    for (at += 4; at < line + bytes && *at >= '0' && *at <= '9'; at++)
        parent = parent * 10 + (u32)(*at - '0');
    return parent;
}

struct process {
    u32 pid, parent;
    bool below;
};

/* Among processes in the order of their numbers. */
static bool is_below(const struct process *found, u32 count, u32 pid)
{
    u32 first = 0, end = count;
    while (first < end) {
        u32 middle = first + (end - first) / 2;
        if (found[middle].pid == pid)
            return found[middle].below;
        if (found[middle].pid < pid)
            first = middle + 1;
        else
            end = middle;
    }
    return false;
}

/* Kills all that descends from this process. Who forks meanwhile is seen the next time. */
static void kill_descendants(void)
{
    static struct process found[MOST_BELOW];
    _Alignas(struct entry) u8 entries[4096];
    u32 count = 0, own = (u32)CALL0(getpid);
    long fd = open_file("/proc", O_RDONLY | O_DIRECTORY), bytes;
    if (fd < 0)
        return;
    while ((bytes = CALL3(getdents64, fd, entries, sizeof entries)) > 0) { /* in the order of their numbers */
        for (long at = 0; at < bytes;) {
            struct entry *entry = (struct entry *)(entries + at);
            at += entry->length;
            u32 pid = 0;
            const char *digit = entry->name;
            while (*digit >= '0' && *digit <= '9')
                pid = pid * 10 + (u32)(*digit++ - '0');
            if (*digit || pid == 0 || count == MOST_BELOW)
                continue;
            found[count++] = (struct process){pid, parent_of(entry->name), false};
        }
    }
    close_file((int)fd);
    for (bool more = true; more;) {
        more = false;
        for (u32 at = 0; at < count; at++) {
            if (found[at].below || (found[at].parent != own && !is_below(found, count, found[at].parent)))
                continue;
            found[at].below = more = true;
            CALL2(kill, found[at].pid, KILL);
        }
    }
}

/* Kills everything below until nothing is left: however long, never ended by a timeout. */
static _Noreturn void finish(void)
{
    i64 pause = 1000000;
    for (;;) {
        reap();
        if (shim.empty)
            break;
        if (shim.setup->kind == NAMESPACE)
            CALL2(kill, -1, KILL); /* all of this namespace but its first process */
        else
            kill_descendants();
        sleep_ns(pause);
        pause = pause * 2 < LONGEST_PAUSE_NS ? pause * 2 : LONGEST_PAUSE_NS;
    }
    for (u32 at = 0; at < shim.spec.count; at++)
        end_output(&shim.spec.ranks[at]);
    if (*shim.spec.remove && shim.above >= 0) /* secrets: also when there is no agent any more */
        remove_folder(shim.above, last_of(shim.spec.remove), 0);
    say_codes(GONE);
    leave(0);
}

/* ----------------------------------------------------------------------------------------------------------- holding */

static void send_signals(const u8 *from, size_t bytes)
{
    struct {
        i32 number;
        u32 whole_session, count;
    } told;
    if (bytes < sizeof told)
        return;
    memcpy(&told, from, sizeof told);
    if (told.number < 1 || told.number > SIGNALS || (bytes - sizeof told) / sizeof(u32) != told.count)
        return;
    for (u32 at = 0; at < shim.spec.count; at++) {
        const struct rank *rank = &shim.spec.ranks[at];
        bool meant = false;
        for (u32 each = 0; each < told.count && !meant; each++) {
            u32 number;
            memcpy(&number, from + sizeof told + each * sizeof number, sizeof number);
            meant = number == rank->number;
        }
        if (meant && rank->pid)
            CALL2(kill, told.whole_session ? -rank->pid : rank->pid, told.number);
    }
}

static void obey(void)
{
    long bytes = CALL6(recvfrom, shim.control, buffer, sizeof buffer, 0, NULL, NULL);
    if (bytes == -EINTR)
        return;
    if (bytes <= 0 || buffer[0] == KILL_ALL)
        finish(); /* the keeper is gone, or said so */
    if (buffer[0] == SIGNAL)
        send_signals(buffer + 1, (size_t)bytes - 1);
}

/* How long the next look may wait, for those that rest; NULL: for ever. */
static struct __kernel_timespec *until_rested(struct __kernel_timespec *wait)
{
    i64 now = 0, first = 0;
    for (u32 at = 0; at < shim.spec.count; at++) {
        struct rank *rank = &shim.spec.ranks[at];
        if (rank->rests_until == 0)
            continue;
        now = now ? now : now_ns();
        if (rank->rests_until <= now) {
            rank->rests_until = 0;
            shim.watched[2 + at].fd = rank->read;
        } else if (first == 0 || rank->rests_until < first) {
            first = rank->rests_until;
        }
    }
    if (first == 0)
        return NULL;
    *wait = (struct __kernel_timespec){(first - now) / 1000000000, (first - now) % 1000000000};
    return wait;
}

static void turn(void)
{
    struct __kernel_timespec wait;
    if (CALL5(ppoll, shim.watched, 2 + shim.spec.count, until_rested(&wait), NULL, 0) <= 0)
        return;
    for (u32 at = 0; at < shim.spec.count; at++)
        if (shim.watched[2 + at].fd >= 0 && shim.watched[2 + at].revents)
            read_output(&shim.spec.ranks[at], &shim.watched[2 + at]);
    if (shim.watched[0].revents) {
        struct signalfd_siginfo news;
        CALL3(read, shim.ends, &news, sizeof news);
        reap();
        if (shim.untold && shim.running) /* the last of them is told with the end of all */
            say_codes(EXITED);
    }
    if (shim.watched[1].revents)
        obey();
}

static bool watch(void)
{
    u64 children = (u64)1 << (SIGNAL_CHILD - 1);
    long ends = CALL4(signalfd4, -1, &children, sizeof children, O_CLOEXEC | O_NONBLOCK);
    if (!went_well(ends, "signalfd"))
        return false;
    shim.ends = (int)ends;
    shim.watched = allocate((2 + shim.spec.count) * sizeof *shim.watched);
    if (shim.watched == NULL)
        return failed(ENOMEM, "", "ranks");
    shim.watched[0] = (struct pollfd){shim.ends, POLLIN, 0};
    shim.watched[1] = (struct pollfd){shim.control, POLLIN, 0};
    for (u32 at = 0; at < shim.spec.count; at++)
        shim.watched[2 + at] = (struct pollfd){shim.spec.ranks[at].read, POLLIN, 0};
    return true;
}

/* ------------------------------------------------------------------------------------------------------ what is asked */

/* The spec: a file of the keeper's, or the first message. NULL: there is none that could be one. */
static const u8 *read_spec(int control, int large, size_t *bytes)
{
    if (large < 0) {
        static u8 spec[LARGEST];
        long received = CALL6(recvfrom, control, spec, sizeof spec, 0x20 /* MSG_TRUNC */, NULL, NULL);
        if (received <= 0 || received > (long)sizeof spec)
            return NULL;
        *bytes = (size_t)received;
        return spec;
    }
    struct statx found;
    if (CALL5(statx, large, "", AT_EMPTY_PATH, STATX_SIZE, &found) < 0 || found.stx_size == 0 || found.stx_size > LARGEST_SPEC)
        return NULL;
    long at = CALL6(mmap, 0, found.stx_size, 3, 0x22, -1, 0);
    if (at < 0 && at > -4096)
        return NULL;
    size_t have = 0;
    while (have < found.stx_size) {
        long more = CALL4(pread64, large, (u8 *)at + have, found.stx_size - have, have);
        if (more <= 0)
            return NULL;
        have += (size_t)more;
    }
    close_file(large);
    *bytes = have;
    return (const u8 *)at;
}

static bool read_asked(int control, int large)
{
    size_t bytes = 0;
    const u8 *from = read_spec(control, large, &bytes);
    if (from != NULL && take_spec(&shim.spec, from, bytes))
        return true;
    shim.spec.count = 0, shim.spec.remove = "";
    if (from == NULL)
        return failed(EINVAL, "no spec came that could be one", "");
    return failed(EINVAL, "its spec is not as this version writes it", broken_field);
}

/* Without root the first process of the pid namespace is a child: this one waits for it, and ends it with itself. */
static void go_inside(const struct spec *spec)
{
    if (!own_user_and_pid_namespace(spec->behind)) {
        say_failed();
        say_codes(GONE);
        leave(0);
    }
    long inner = CALL5(clone, SIGNAL_CHILD, 0, 0, 0, 0);
    if (inner < 0)
        broken();
    if (inner) {
        close_file(shim.control);
        int status;
        while (CALL4(wait4, inner, &status, 0, NULL) == -EINTR) {
        }
        leave(0);
    }
    CALL5(prctl, PR_SET_PDEATHSIG, KILL, 0, 0, 0);
}

_Noreturn void hold(const struct setup *setup, int control, int view, int large)
{
    const char *useless = "";
    shim.setup = setup;
    shim.control = control;
    shim.ends = shim.above = -1;
    shim.root = CALL0(geteuid) == 0;
    bool well = read_asked(control, large);
    if (well && setup->kind == NAMESPACE && !shim.root)
        go_inside(&shim.spec);
    if (!well || !start(view, &useless) || !watch()) {
        say_failed();
        finish();
    }
    say_started(useless);
    while (shim.running)
        turn();
    finish();
}

/* ---------------------------------------------------------------------------------------------------- making a view */

_Noreturn void make_view(const struct setup *setup, int control, int large)
{
    struct making making;
    int handles[MOST_NAMESPACES];
    size_t bytes = 0;
    const u8 *from = read_spec(control, large, &bytes);
    if (from == NULL || !take_making(&making, from, bytes))
        leave(1);
    struct identity *shown = allocate(making.sources.count * sizeof *shown);
    if (shown == NULL)
        leave(1);
    for (u32 at = 0; at < making.sources.count; at++)
        shown[at] = identity_of(making.sources.items[at]);
    if (!made(setup->bwrap, &making.arguments, OF_MOUNTS, handles))
        leave(1);
    leave(!say_with(control, shown, making.sources.count * sizeof *shown, handles[0]));
}
