#include "sockets.h"

enum { OF_SOCKETS = 1, RIGHTS = 1, NO_SIGNAL = 0x4000, CLOSE_ON_EXEC = 0x40000000 };

/* As the kernel takes and gives them. */
struct piece {
    void *at;
    size_t bytes;
};
struct message {
    void *name;
    u32 name_bytes;
    struct piece *pieces;
    size_t count;
    void *beside;
    size_t beside_bytes;
    u32 flags;
};
struct beside {
    size_t bytes; /* of all that follows, too */
    int level, type, descriptors[MOST_DESCRIPTORS + 1];
};
#define BESIDE(count) (offsetof(struct beside, descriptors) + (count) * sizeof(int))

long receive(int from, void *message, size_t room, int descriptors[MOST_DESCRIPTORS], int *count)
{
    struct beside beside = {0};
    struct piece piece = {message, room};
    struct message whole = {NULL, 0, &piece, 1, &beside, BESIDE(MOST_DESCRIPTORS), 0};
    long bytes = CALL3(recvmsg, from, &whole, CLOSE_ON_EXEC);
    *count = 0;
    if (bytes <= 0 || whole.beside_bytes < BESIDE(0) || beside.level != OF_SOCKETS || beside.type != RIGHTS)
        return bytes;
    while (*count < MOST_DESCRIPTORS && BESIDE(*count + 1) <= beside.bytes) {
        descriptors[*count] = beside.descriptors[*count];
        ++*count;
    }
    return bytes;
}

bool say(int to, const void *message, size_t bytes)
{
    return CALL6(sendto, to, message, bytes, NO_SIGNAL, NULL, 0) >= 0;
}

bool say_with(int to, const void *message, size_t bytes, int descriptor)
{
    struct beside beside = {BESIDE(1), OF_SOCKETS, RIGHTS, {descriptor}};
    struct piece piece = {(void *)message, bytes};
    struct message whole = {NULL, 0, &piece, 1, &beside, sizeof beside, 0};
    whole.beside_bytes = BESIDE(1) + sizeof(int); /* as a whole number of words */
    return CALL3(sendmsg, to, &whole, NO_SIGNAL) >= 0;
}
