/* Another time for programs of this machine, which nobody else sees. Built twice by clocks.py:

     with -DPRELOADED   a library for programs that ask the C library for the time (LD_PRELOAD)
     without            `clocks TABLE COMMAND...`, for programs that ask the kernel themselves, as nats-server does: COMMAND is
                        started without a vDSO, so that it must ask, and its questions are answered here (seccomp)

   The file TABLE (CLOCKS in the environment of the first) has two numbers: nanoseconds by which CLOCK_REALTIME and
   CLOCK_BOOTTIME are set forward. It may be written at any time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *table;

static void open_table(const char *path) {
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(0, 16, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) table = found;
    if (file >= 0) close(file);
}

static void set_forward(clockid_t clock, struct timespec *at) {
    int64_t by = !table ? 0 : clock == CLOCK_REALTIME ? table[0] : clock == CLOCK_BOOTTIME ? table[1] : 0;
    int64_t ns = at->tv_nsec + by % 1000000000;
    at->tv_sec += by / 1000000000 + (ns >= 1000000000) - (ns < 0);
    at->tv_nsec = ns >= 1000000000 ? ns - 1000000000 : ns < 0 ? ns + 1000000000 : ns;
}

#ifdef PRELOADED

__attribute__((constructor)) static void begin(void) { open_table(getenv("CLOCKS")); }

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed) set_forward(clock, at);
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

#else

#include <errno.h>
#include <elf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

static pid_t child;

static void pass_on(int number) { kill(child, number); }

/* The child: its questions for the wall clock and the boot clock go to whoever has the file that is returned. */
static int be_asked(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLOCK_REALTIME, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLOCK_BOOTTIME, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* The child has just become another program: its auxiliary vector lies behind its arguments and its environment. */
static void hide_vdso(void) {
    struct user_regs_struct registers;
    ptrace(PTRACE_GETREGS, child, 0, &registers);
    unsigned long at = registers.rsp;
    at += 8 * (ptrace(PTRACE_PEEKDATA, child, at, 0) + 2);
    while (ptrace(PTRACE_PEEKDATA, child, at, 0)) at += 8;
    for (at += 8;; at += 16) {
        long kind = ptrace(PTRACE_PEEKDATA, child, at, 0);
        if (kind == AT_NULL) return;
        if (kind == AT_SYSINFO_EHDR) ptrace(PTRACE_POKEDATA, child, at, AT_IGNORE);
    }
}

static void answer(int questions) {
    struct seccomp_notif asked;
    struct seccomp_notif_resp said;
    struct timespec now;
    memset(&asked, 0, sizeof asked);
    memset(&said, 0, sizeof said);
    if (ioctl(questions, SECCOMP_IOCTL_NOTIF_RECV, &asked)) return; /* whoever asked is gone */
    clock_gettime(asked.data.args[0], &now);
    set_forward(asked.data.args[0], &now);
    struct iovec from = {&now, sizeof now}, to = {(void *)asked.data.args[1], sizeof now};
    said.id = asked.id;
    if (process_vm_writev(asked.pid, &from, 1, &to, 1, 0) < 0) said.error = -EFAULT;
    ioctl(questions, SECCOMP_IOCTL_NOTIF_SEND, &said);
}

static int next_stop(void) {
    int status;
    waitpid(child, &status, 0);
    return WIFSTOPPED(status);
}

int main(int count, char **words) {
    int told[2], number;
    if (count < 3 || pipe2(told, O_CLOEXEC)) return 2;
    open_table(words[1]);
    if (!table) return perror(words[1]), 2;
    child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        number = be_asked();
        if (number < 0 || write(told[1], &number, sizeof number) < 0) _exit((perror("clocks"), 126));
        raise(SIGSTOP); /* until the other one has the file */
        execvp(words[2], words + 2);
        _exit((perror(words[2]), 127));
    }
    close(told[1]);
    int process = syscall(SYS_pidfd_open, child, 0);
    if (!next_stop()) return 2;
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    ptrace(PTRACE_CONT, child, 0, 0);
    if (!next_stop() || read(told[0], &number, sizeof number) != sizeof number) return 2;
    int questions = syscall(SYS_pidfd_getfd, process, number, 0);
    if (questions < 0) return perror("clocks"), 2;
    ptrace(PTRACE_CONT, child, 0, 0);
    if (!next_stop()) return 2;
    hide_vdso();
    ptrace(PTRACE_DETACH, child, 0, 0);
    for (const int *one = (int[]){SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, 0}; *one; one++) signal(*one, pass_on);
    for (struct pollfd events[2] = {{questions, POLLIN, 0}, {process, POLLIN, 0}}; !events[1].revents;)
        if (poll(events, 2, -1) > 0 && events[0].revents) answer(questions);
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
