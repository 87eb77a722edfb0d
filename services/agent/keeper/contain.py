"""How all processes of an attempt are held together, whatever they do to get away.

- `namespace`: the shim is the first process of a pid namespace. When it dies, the kernel kills all others, and the shim is
  reaped only when the last of them is gone. Nothing inside sees a process outside. Needs root, or the right to make user
  namespaces.
- `cgroup`: the shim is in a cgroup of its own, and so is everything that it starts. All members are killed at once.
- `subreaper`: the shim becomes the parent of every orphan below it, so nothing leaves its tree by a double fork, a session
  of its own or an empty environment. A process of the same user may kill the shim; then the orphans are the keeper's,
  which kills them.
- `none`: the system has none of these. A process that detaches can outlive its attempt.
"""

import ctypes
import os
import signal

from services.agent.keeper import proc

NAMESPACE, CGROUP, SUBREAPER, NONE = "namespace", "cgroup", "subreaper", "none"
KINDS = (NAMESPACE, CGROUP, SUBREAPER, NONE)
"""From the strongest to the weakest."""

CLONE_NEWPID = 0x2000_0000
_CLONE_PARENT, _CLONE_NEWNS, _CLONE_NEWUSER = 0x8000, 0x0002_0000, 0x1000_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x4_0000
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 15, 36, 38
_SIGCHLD = int(signal.SIGCHLD)
_SYS_CLONE = {"x86_64": 56, "ppc64le": 120}.get(os.uname().machine, 220)
"""Of most machines, as the kernel numbers its calls."""
_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_syscall, _prctl, _unshare, _mount = _LIBC.syscall, _LIBC.prctl, _LIBC.unshare, _LIBC.mount
"""Looked up once: each child would read a part of the symbol table for them."""


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def die_with_parent(number: int = int(signal.SIGKILL)) -> None:
    """This process is sent the signal when its parent dies. Raises OSError."""
    _checked(_prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def gain_no_rights() -> None:
    """No program that is started from here gains rights by a set-user-id bit or file capabilities. Raises OSError."""
    _checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def become_subreaper() -> None:
    """Orphans below this process become its children. Raises OSError."""
    _checked(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def name_process(name: str) -> None:
    """What `ps` shows of this process, at most 15 bytes. Raises OSError."""
    _checked(_prctl(_PR_SET_NAME, name.encode(), 0, 0, 0), "prctl(PR_SET_NAME)")


def fork_sibling(flags: int = 0) -> int:
    """As `os.fork`, but the child is a child of this process's parent. `flags`: `CLONE_NEWPID` makes it the first process
    of a new pid namespace. For processes with one thread, where the interpreter's preparations (locks of other threads,
    `os.register_at_fork`) are for nothing, and their child's part alone takes a third of a fork. Raises OSError."""
    pid = int(_syscall(_SYS_CLONE, _CLONE_PARENT | flags | _SIGCHLD, 0, 0, 0, 0))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "clone")
    return pid


def own_user_and_pid_namespace(inner: int | None = None) -> None:
    """The next child of this process is the first process of a pid namespace; for users without root. `inner`: the user and
    group that it sees itself as, by default as outside. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    _checked(_unshare(_CLONE_NEWUSER | CLONE_NEWPID), "unshare(CLONE_NEWUSER)")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user if inner is None else inner} {user} 1"),
        ("gid_map", f"{group if inner is None else inner} {group} 1"),
    ):
        proc.write_text(f"/proc/self/{name}", text)


def mount_own_proc() -> None:
    """The first process of a pid namespace gets a /proc that shows it: programs look themselves up there. Raises OSError."""
    _checked(_unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _checked(_mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount(/, private)")
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _checked(_mount(b"proc", b"/proc", b"proc", flags, None), "mount(/proc)")


def works(kind: str) -> bool:
    """Tries this kind in a child process. Blocks for some milliseconds."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _try(kind)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _try(kind: str) -> None:
    if kind == SUBREAPER:
        become_subreaper()
        return
    if os.geteuid() == 0:
        _checked(_unshare(CLONE_NEWPID), "unshare")
    else:
        own_user_and_pid_namespace()
    inner = os.fork()
    if inner == 0:
        try:
            mount_own_proc()
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]):
        raise OSError("no /proc of its own may be mounted")


def best(group: str | None, asked: str = "auto") -> str:
    """The kind that attempts are held by here: the one asked for, or the strongest that works.

    Args:
        group: where cgroups may be made, if anywhere.

    Raises ValueError when the kind that is asked for does not work here.
    """
    there = {
        NAMESPACE: lambda: works(NAMESPACE),
        CGROUP: lambda: group is not None,
        SUBREAPER: lambda: works(SUBREAPER),
    }
    if asked != "auto":
        if asked in there and not there[asked]():
            raise ValueError(f"containment {asked!r} does not work on this machine; choose auto, or one of {KINDS}")
        return asked
    return next((kind for kind, works_here in there.items() if works_here()), NONE)
