#include "view.h"

#include "walls.h"

/* Of /proc: settings of the kernel, which bubblewrap covers with themselves, read-only; and where everybody may have it watch
 * itself, which `services.agent.view` covers. */
static const char *const COVERED[] = {"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/pressure"};
/* The locks of all processes of the machine. Who reads that holds up everybody who locks a file, and the more the more there are. */
#define LOCKS "/proc/locks"
enum { MOST_OWN = 64, MOST_CARRIED = 64 };

struct identity identity_of(const char *source)
{
    struct statx found;
    if (CALL5(statx, AT_FDCWD, source, 0, STATX_INO, &found) < 0)
        return (struct identity){0, 0};
    return (struct identity){(u64)found.stx_dev_major << 32 | found.stx_dev_minor, found.stx_ino};
}

static bool unchanged(const struct prepared *prepared)
{
    for (u32 at = 0; at < prepared->sources.count; at++) {
        struct identity shown, there = identity_of(prepared->sources.items[at]);
        memcpy(&shown, prepared->shown + at * sizeof shown, sizeof shown);
        if (shown.device != there.device || shown.inode != there.inode)
            return false;
    }
    return true;
}

/* A copy of what is mounted there, that is nowhere yet. */
static long cut(const char *path, bool recursive)
{
    return CALL3(open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | O_CLOEXEC | (recursive ? AT_RECURSIVE : 0));
}

static long restrict_to(int fd, u64 attributes, bool recursive)
{
    struct mount_attr wanted = {.attr_set = attributes, .propagation = MS_SLAVE};
    return CALL5(mount_setattr, fd, "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0), &wanted, sizeof wanted);
}

static long move(int fd, const char *path)
{
    return CALL5(move_mount, fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
}

static long mount(const char *kind, const char *path, unsigned long flags, const char *options)
{
    return CALL5(mount, kind, path, kind, flags, options);
}

static bool cover(const char *path, const char *with, u64 attributes)
{
    long fd = cut(with, false);
    if (fd == -ENOENT)
        return true;
    bool well = went_well(fd, path) &&
                went_well(restrict_to((int)fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | attributes, false), path) &&
                went_well(move((int)fd, path), path);
    close_file((int)fd);
    return well;
}

/* Mounts what each attempt has for itself. */
static bool complete(const struct prepared *prepared, const int *own)
{
    char buffer[64];
    struct text scratch = {buffer, 0, sizeof buffer};
    add(&scratch, "mode=1777,size=");
    add_number(&scratch, (i64)prepared->scratch);
    if (!went_well(mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "/proc"))
        return false;
    for (size_t at = 0; at < sizeof COVERED / sizeof *COVERED; at++)
        if (!cover(COVERED[at], COVERED[at], MOUNT_ATTR_NOEXEC))
            return false;
    if (!cover(LOCKS, "/dev/null", 0))
        return false;
    if (!went_well(mount("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, TERMINALS), "/dev/pts"))
        return false;
    int carried[MOST_CARRIED];
    for (u32 at = 0; at < prepared->carried.count; at++) {
        long fd = cut(prepared->carried.items[at], true);
        if (fd != -ENOENT && !went_well(fd, prepared->carried.items[at]))
            return false;
        carried[at] = (int)fd;
    }
    if (!went_well(mount("tmpfs", "/tmp", MS_NOSUID | MS_NODEV, buffer), "/tmp") ||
        !went_well(mount("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, buffer), "/dev/shm"))
        return false;
    for (u32 at = 0; at < prepared->carried.count; at++) {
        const char *path = prepared->carried.items[at];
        if (carried[at] < 0)
            continue;
        if (!went_well(make_folders(path, 0755), path) || !went_well(move(carried[at], path), path))
            return false;
        close_file(carried[at]);
    }
    for (u32 at = 0; at < prepared->stems.count; at++)
        if (!went_well(mount("tmpfs", prepared->stems.items[at], MS_NOSUID | MS_NODEV, "mode=755,size=64k"),
                       prepared->stems.items[at]))
            return false;
    for (u32 at = 0; at < prepared->own.count; at++) {
        const char *path = prepared->own.items[at];
        if (!went_well(make_folders(path, 0755), path) || !went_well(move(own[at], path), path))
            return false;
    }
    for (u32 at = 0; at < prepared->stems.count; at++)
        if (!went_well(mount("tmpfs", prepared->stems.items[at], MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, ""),
                       prepared->stems.items[at]))
            return false;
    return true;
}

static bool cut_own(const struct prepared *prepared, int *own)
{
    for (u32 at = 0; at < prepared->own.count; at++) {
        long fd = cut(prepared->own.items[at], true);
        if (!went_well(fd, prepared->own.items[at]))
            return false;
        own[at] = (int)fd;
        u64 attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (prepared->writable[at] ? 0 : MOUNT_ATTR_RDONLY);
        if (!went_well(restrict_to(own[at], attributes, true), "mount_setattr"))
            return false;
    }
    return true;
}

/* What did not work, for the keeper's count of failures. */
static const char *why(void)
{
    static char buffer[4200];
    struct text text = {buffer, 0, sizeof buffer};
    add(&text, failure.about);
    add(&text, ": errno ");
    add_number(&text, failure.number);
    return buffer;
}

const char *copy_view(int view, const struct walls *walls, int before)
{
    const struct prepared *prepared = &walls->prepared;
    if (!walls->can_copy || prepared->own.count > MOST_OWN || prepared->carried.count > MOST_CARRIED)
        return "it has too much of its own";
    if (before < 0)
        return "there is no way back";
    if (!unchanged(prepared))
        return "changed";
    int own[MOST_OWN];
    for (u32 at = 0; at < MOST_OWN; at++)
        own[at] = -1;
    const char *useless = "";
    if (!cut_own(prepared, own) || !went_well(CALL2(setns, view, CLONE_NEWNS), "setns")) {
        useless = why();
    } else {
        long mask = CALL1(umask, 022);
        u32 more = walls->namespaces & OF_IPC ? CLONE_NEWIPC : 0;
        if (!went_well(CALL1(unshare, CLONE_NEWNS | more), "unshare") || !complete(prepared, own)) {
            useless = why();
            if (CALL2(setns, before, CLONE_NEWNS) < 0)
                broken(); /* it sees neither what it saw nor what it should */
        }
        CALL1(umask, mask);
    }
    for (u32 at = 0; at < prepared->own.count; at++)
        close_file(own[at]);
    return useless;
}
