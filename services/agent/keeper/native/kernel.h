/* The kernel's calls, and the little that a C library would give besides. Nothing is linked in: the program is a few pages, so
 * that a fork of it copies few. Every call returns what the kernel returns: minus an errno when it failed. */
#pragma once

#include <asm/unistd.h>
#include <linux/capability.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/mount.h>
#include <linux/poll.h>
#include <linux/prctl.h>
#include <linux/resource.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <linux/seccomp.h>
#include <linux/signalfd.h>
#include <linux/stat.h>
#include <linux/time.h>
#include <linux/wait.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;

enum { KILL = 9, SIGNAL_CHILD = 17, SIGNALS = 64 };
#define EVERY_SIGNAL (~(u64)0)

#if defined(__x86_64__)
static inline long call(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static inline long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#else
#error "The shim is written for x86_64 and aarch64."
#endif

#define CALL6(name, a, b, c, d, e, f) \
    call(__NR_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define CALL5(name, a, b, c, d, e) CALL6(name, a, b, c, d, e, 0)
#define CALL4(name, a, b, c, d) CALL5(name, a, b, c, d, 0)
#define CALL3(name, a, b, c) CALL4(name, a, b, c, 0)
#define CALL2(name, a, b) CALL3(name, a, b, 0)
#define CALL1(name, a) CALL2(name, a, 0)
#define CALL0(name) CALL1(name, 0)

/* As `vfork`, but the child begins in `function(about)` on a stack of its own, and never returns from there. */
long call_on(unsigned long flags, void *stack_end, void (*function)(void *), void *about);

/* ---------------------------------------------------------------------------------------------------- memory */

void *memset(void *at, int value, size_t bytes);
void *memcpy(void *to, const void *from, size_t bytes);
int memcmp(const void *one, const void *other, size_t bytes);
size_t length_of(const char *text);
bool same(const char *one, const char *other);

/* Appends to a text of `room` bytes, as far as there is room; it ends with a NUL all the same. */
struct text {
    char *at;
    size_t length, room;
};
void add(struct text *text, const char *piece);
void add_number(struct text *text, i64 number);

/* -------------------------------------------------------------------------------------------- files, processes */

_Noreturn void leave(int status);
/* What cannot be: ends this process by a signal, so that nobody takes it for an end of its own. */
_Noreturn void broken(void);

long open_file(const char *path, int flags);
void close_file(int fd);
/* Writes the text into a file of the kernel's, made where it is missing. */
long write_file(const char *path, const char *text);
/* The folder, and those above it where they are missing. */
long make_folders(const char *path, int mode);
void sleep_ns(i64 ns);
i64 now_ns(void);
i64 exit_code_of(int status); /* minus n for signal n */
