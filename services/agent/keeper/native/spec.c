#include "spec.h"

const char *broken_field;

/* What is not read yet. After the first thing that is wrong nothing is read any more. */
struct reader {
    const u8 *at, *end;
};

static char *arena, *arena_end;

void *allocate(size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if ((size_t)(arena_end - arena) < bytes)
        return NULL;
    void *given = arena;
    arena += bytes;
    return given;
}

/* One arena for all that a spec of so many bytes can need: each text of a list is a byte at least, and has a pointer. */
static bool make_arena(size_t bytes)
{
    size_t size = bytes * sizeof(char *) + 65536 + MOST_RANKS * (sizeof(struct rank) + sizeof(struct pollfd));
    long at = CALL6(mmap, 0, size, 3 /* read, write */, 0x4022 /* private, anonymous, not reserved */, -1, 0);
    if (at < 0 && at > -4096)
        return false;
    arena = (char *)at;
    arena_end = arena + size;
    return true;
}

static bool wrong(struct reader *reader, const char *field)
{
    if (broken_field == NULL)
        broken_field = field;
    reader->at = reader->end;
    return false;
}

static const u8 *take(struct reader *reader, size_t bytes, const char *field)
{
    if (broken_field != NULL || (size_t)(reader->end - reader->at) < bytes) {
        wrong(reader, field);
        return NULL;
    }
    const u8 *from = reader->at;
    reader->at += bytes;
    return from;
}

static u32 take_u32(struct reader *reader, const char *field)
{
    u32 number = 0;
    const u8 *from = take(reader, sizeof number, field);
    if (from != NULL)
        memcpy(&number, from, sizeof number);
    return number;
}

static u64 take_u64(struct reader *reader, const char *field)
{
    u64 number = 0;
    const u8 *from = take(reader, sizeof number, field);
    if (from != NULL)
        memcpy(&number, from, sizeof number);
    return number;
}

static const u8 *take_block(struct reader *reader, u32 *bytes, const char *field)
{
    *bytes = take_u32(reader, field);
    return take(reader, *bytes, field);
}

static const char *take_text(struct reader *reader, const char *field)
{
    u32 bytes;
    const u8 *from = take_block(reader, &bytes, field);
    if (from == NULL || bytes == 0 || from[bytes - 1] != 0 || length_of((const char *)from) != bytes - 1) {
        wrong(reader, field);
        return "";
    }
    return (const char *)from;
}

static struct list take_list(struct reader *reader, const char *field)
{
    struct list list = {0, NULL};
    u32 count = take_u32(reader, field), bytes, found = 0;
    const u8 *from = take_block(reader, &bytes, field);
    if (from == NULL || count > bytes || (bytes != 0 && from[bytes - 1] != 0)) {
        wrong(reader, field);
        return list;
    }
    list.items = allocate((count + (size_t)1) * sizeof(char *));
    if (list.items == NULL) {
        wrong(reader, field);
        return list;
    }
    for (const u8 *at = from; at < from + bytes; at++) {
        if (at != from && at[-1] != 0)
            continue;
        if (found == count)
            break;
        list.items[found++] = (const char *)at;
    }
    u32 ends = 0;
    for (u32 at = 0; at < bytes; at++)
        ends += from[at] == 0;
    if (found != count || ends != count) {
        wrong(reader, field);
        return (struct list){0, NULL};
    }
    list.count = count;
    return list;
}

static bool begun(struct reader *reader, const u8 *from, size_t bytes)
{
    *reader = (struct reader){from, from + bytes};
    broken_field = NULL;
    if (take_u32(reader, "version") != VERSION)
        return wrong(reader, "version");
    return true;
}

static bool ended(struct reader *reader)
{
    if (broken_field == NULL && reader->at != reader->end)
        broken_field = "end";
    return broken_field == NULL;
}

static void take_prepared(struct reader *reader, struct prepared *prepared)
{
    u32 bytes;
    prepared->scratch = take_u64(reader, "scratch");
    prepared->sources = take_list(reader, "sources");
    prepared->shown = take_block(reader, &bytes, "shown");
    if (bytes != prepared->sources.count * sizeof(struct identity))
        wrong(reader, "shown");
    prepared->carried = take_list(reader, "carried");
    prepared->stems = take_list(reader, "stems");
    prepared->own = take_list(reader, "own");
    prepared->writable = take_block(reader, &bytes, "writable");
    if (bytes != prepared->own.count)
        wrong(reader, "writable");
}

static void take_walls(struct reader *reader, struct walls *walls)
{
    walls->root = take_u32(reader, "root");
    walls->uid = take_u32(reader, "uid");
    walls->gid = take_u32(reader, "gid");
    walls->namespaces = take_u32(reader, "namespaces");
    if (!(walls->namespaces & OF_MOUNTS) || (walls->namespaces & ~(u32)(OF_MOUNTS | OF_IPC | OF_NETWORK)))
        wrong(reader, "namespaces");
    if (walls->root && (walls->uid == 0 || walls->gid == 0))
        wrong(reader, "uid"); /* root behind walls is root */
    walls->processes = take_u64(reader, "processes");
    walls->files = take_u64(reader, "files");
    walls->oom_score = take_u64(reader, "oom_score");
    walls->arguments = take_list(reader, "args");
    walls->can_copy = take_u32(reader, "prepared") == 1;
    if (walls->can_copy)
        take_prepared(reader, &walls->prepared);
}

bool take_spec(struct spec *spec, const u8 *from, size_t bytes)
{
    struct reader reader;
    if (!begun(&reader, from, bytes))
        return false;
    if (!make_arena(bytes))
        return wrong(&reader, "memory");
    spec->log_limit = take_u64(&reader, "log_limit");
    spec->group = take_text(&reader, "group");
    spec->memory = take_text(&reader, "memory");
    spec->memory_bytes = take_u64(&reader, "memory");
    spec->pids = take_text(&reader, "pids");
    spec->pids_most = take_u64(&reader, "pids");
    spec->cpu = take_text(&reader, "cpu");
    spec->cpu_weight = take_u64(&reader, "cpu");
    spec->workdir = take_text(&reader, "workdir");
    spec->remove = take_text(&reader, "remove");
    spec->command = take_list(&reader, "command");
    if (spec->command.count == 0)
        wrong(&reader, "command");
    u32 behind = take_u32(&reader, "walls");
    if (behind > 1)
        wrong(&reader, "walls");
    spec->behind = behind == 1;
    if (spec->behind)
        take_walls(&reader, &spec->walls);
    spec->count = take_u32(&reader, "ranks");
    if (broken_field == NULL && (spec->count == 0 || spec->count > MOST_RANKS))
        wrong(&reader, "ranks");
    if (broken_field != NULL)
        return false;
    spec->ranks = allocate(spec->count * sizeof *spec->ranks);
    if (spec->ranks == NULL)
        return wrong(&reader, "ranks");
    for (u32 at = 0; at < spec->count; at++) {
        struct rank *rank = &spec->ranks[at];
        rank->number = take_u32(&reader, "rank");
        rank->log = take_text(&reader, "log");
        rank->environment = take_list(&reader, "environment");
        rank->read = rank->file = rank->written = -1;
    }
    return ended(&reader);
}

bool take_making(struct making *making, const u8 *from, size_t bytes)
{
    struct reader reader;
    if (!begun(&reader, from, bytes))
        return false;
    if (!make_arena(bytes))
        return wrong(&reader, "memory");
    making->sources = take_list(&reader, "sources");
    making->arguments = take_list(&reader, "args");
    return ended(&reader);
}

static struct filter take_filter(struct reader *reader, const char *field)
{
    struct filter filter;
    filter.at = take_block(reader, &filter.bytes, field);
    if (filter.bytes % sizeof(struct sock_filter) || filter.bytes / sizeof(struct sock_filter) > BPF_MAXINSNS)
        wrong(reader, field);
    return filter;
}

bool take_setup(struct setup *setup, const u8 *from, size_t bytes)
{
    struct reader reader;
    if (!begun(&reader, from, bytes))
        return false;
    setup->kind = take_u32(&reader, "kind");
    if (setup->kind > NONE)
        wrong(&reader, "kind");
    setup->name = take_text(&reader, "name");
    setup->bwrap = take_text(&reader, "bwrap");
    setup->common = take_filter(&reader, "common");
    setup->last = take_filter(&reader, "last");
    return ended(&reader);
}
