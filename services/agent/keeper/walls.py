"""The walls around an attempt, as its shim puts them up and goes behind them.

bubblewrap makes the view: namespaces of mounts and IPC (and network), a /proc, a /dev and a /tmp of the attempt's own. It runs
`true` there and ends; the shim enters what it made and starts the processes itself. So they are the shim's children, with
their exit codes and signals as without walls, and all ranks of an attempt share memory and /tmp. Then the shim gives up
what it does not need: capabilities, new privileges, system calls. The processes are another user's.

The tiers:

- `full`: the keeper is root. Each team's processes have a user id of their own.
- `namespaces`: it is not, but may make user namespaces. Same view; the processes have the agent's user id.
- `none`: neither. What a job may read is what the agent may read.
"""

import ctypes
import errno
import marshal
import os
import resource
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from services.agent.keeper import callfilter, contain, prepared, proc

FULL, NAMESPACES, NONE = "full", "namespaces", "none"
TIERS = (FULL, NAMESPACES, NONE)
"""From the strongest to the weakest."""
TRUE = "/usr/bin/true"
OPEN_FILES = 65_536
"""Descriptors that one process of a job may have."""
OF_OURS = 2
"""Threads of the shim and of what makes its view, which count as the user's where there is no other."""

_INFO, _BLOCK = 100, 101
_MOST_SAID = 4096
_CLONE_NEWUSER = 0x1000_0000
_PR_CAPBSET_DROP, _PR_SET_DUMPABLE = 24, 4
_CAP_VERSION_3 = 0x2008_0522
_KEPT = (1, 5, 6, 7)
"""CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID: for what the shim still does. It removes what is its team's."""
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_SCOPES_SINCE = 6
"""Version of landlock that knows scopes: abstract Unix sockets and signals of others."""
_SCOPE_SOCKETS, _SCOPE_SIGNALS = 1, 2
_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_CAPABILITIES = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0), (ctypes.c_uint32 * 6)(*[sum(1 << each for each in _KEPT)] * 2)
"""Of this process: for `capset`, effective and permitted those that are kept, and none is inherited."""
_SCOPES = (ctypes.c_uint64 * 3)(0, 0, _SCOPE_SOCKETS | _SCOPE_SIGNALS)
"""Made once, as the types are: to make one takes longer than the call, and each child would do it for itself."""
_syscall, _prctl, _capset, _setns, _unshare = _LIBC.syscall, _LIBC.prctl, _LIBC.capset, _LIBC.setns, _LIBC.unshare
"""Looked up once: each child would do it for itself."""

Spec = dict[str, Any]
"""`args`: bubblewrap's, which describe the view, or the same marshalled; `namespaces`: names of those to enter; `root`: whether
the keeper is root;
`uid`, `gid`: of the processes; `processes`: how many, threads too, that user may have; `files`: how many each may have open;
`prepared`: how the view is had from one that is prepared, see there, or nothing: then it is not."""

HeldView = tuple[int, prepared.Identities]
"""A namespace's descriptor, and what it shows."""


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


# ---------------------------------------------------------------------------------------------- going behind walls


def enter(bwrap: str, spec: Spec) -> None:
    """This process, which has one thread and a /proc of its own pid namespace, sees from now on what the job sees.
    Raises OSError: what the walls lack is the node's."""
    args = spec["args"]
    handles = made(bwrap, marshal.loads(args) if isinstance(args, bytes) else args, spec["namespaces"])
    try:
        for handle in handles:
            _checked(_setns(handle, 0), "setns")
    finally:
        for fd in handles:
            os.close(fd)


def made(bwrap: str, arguments: Sequence[str], namespaces: Sequence[str]) -> list[int]:
    """Descriptors of those namespaces, as bubblewrap has made them. Raises OSError."""
    info, told = os.pipe2(os.O_CLOEXEC)
    blocked, go_on = os.pipe2(os.O_CLOEXEC)
    said, says = os.pipe2(os.O_CLOEXEC)
    handles: list[int] = []
    try:
        pid = os.posix_spawn(
            bwrap,
            [bwrap, "--info-fd", str(_INFO), "--block-fd", str(_BLOCK), *arguments, "--", TRUE],
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, told, _INFO),
                (os.POSIX_SPAWN_DUP2, blocked, _BLOCK),
                (os.POSIX_SPAWN_DUP2, says, 2),
            ],
            setsigmask=(),
        )
        for fd in (told, blocked, says):
            os.close(fd)
        inside = _child(info)
        if inside:
            handles = [os.open(f"/proc/{inside}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in namespaces]
            with suppress(BrokenPipeError):
                os.write(go_on, b"!")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code or not inside:
            why = os.read(said, _MOST_SAID).decode(errors="replace").strip() if _readable(said) else ""
            raise OSError(errno.EIO, f"the walls could not be made: {why or f'bubblewrap ended with {code}'}")
    except OSError:
        for fd in handles:
            os.close(fd)
        raise
    finally:
        for fd in (info, go_on, said):
            os.close(fd)
    return handles


def _child(info: int) -> int:
    """The process id that bubblewrap says its child has, which waits for our word; 0 when it has none."""
    text = b""
    while b"child-pid" not in text or b"," not in text.partition(b"child-pid")[2]:
        piece = os.read(info, _MOST_SAID)
        if not piece:
            return 0
        text += piece
    return int(text.partition(b"child-pid")[2].split(b":")[1].split(b",")[0])


def _readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def own_user(uid: int, gid: int) -> None:
    """Without root: this process is root of the user namespace that its view belongs to. In one below it, it is the agent's
    user again, and what it starts owns nothing of the view. Raises OSError."""
    _checked(_unshare(_CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} 0 1"), ("gid_map", f"{gid} 0 1")):
        proc.write_text(f"/proc/self/{name}", text)


def give_up(processes: int, files: int) -> None:
    """Of this process, and so of all that it starts: capabilities beyond the few that a shim needs, new privileges, calls that
    reach the kernel itself, abstract sockets and signals of others. Raises OSError."""
    contain.gain_no_rights()
    for capability in range(64):
        if _prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # the kernel knows no more
    _checked(_capset(*_CAPABILITIES), "capset")
    _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _scope()
    callfilter.install()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = files if hard == resource.RLIM_INFINITY else min(files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def scopes_known() -> bool:
    return int(_syscall(_LANDLOCK_CREATE, None, 0, 1)) >= _SCOPES_SINCE


def _scope() -> None:
    if not scopes_known():
        return
    fd = _checked(int(_syscall(_LANDLOCK_CREATE, _SCOPES, ctypes.sizeof(_SCOPES), 0)), "landlock_create_ruleset")
    try:
        _checked(int(_syscall(_LANDLOCK_RESTRICT, fd, 0)), "landlock_restrict_self")
    finally:
        os.close(fd)


@contextmanager
def as_user(uid: int, gid: int) -> Iterator[None]:
    """What is started meanwhile is this user's for good: a program that is executed has no saved user to go back to. This
    process has. Raises OSError."""
    if os.geteuid() == uid:
        yield
        return
    os.setgroups([])
    os.setresgid(gid, gid, 0)
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


# ------------------------------------------------------------------------------------------------------- the probe


class Behind(NamedTuple):
    """What a keeper can do. `bwrap`: the program that makes the walls; `why` the tier is no higher."""

    bwrap: str
    tier: str
    why: str


NO_WALLS = Behind("", NONE, "none were asked for")


def probe(kind: str, asked: str, bwrap: str, spec: Spec) -> Behind:
    """The best tier that this process can give. It really starts `true` behind walls. Blocks.

    Raises ValueError when it is asked for another one than it can give.
    """
    best = NO_WALLS if asked == NONE else _probe(kind, bwrap, spec)
    if asked not in ("auto", best.tier):
        raise ValueError(f"walls {asked!r} cannot be had here, but {best.tier!r}: {best.why}; choose auto, or that")
    return best


def _probe(kind: str, bwrap: str, spec: Spec) -> Behind:
    if kind != contain.NAMESPACE:
        return Behind("", NONE, f"jobs are held together by {kind!r}, and walls need a pid namespace")
    if not bwrap:
        return Behind("", NONE, "there is no program bwrap: install Baton's requirements, or bubblewrap")
    why = _tried(bwrap, spec)
    if why:
        return Behind("", NONE, why)
    if os.geteuid() == 0:
        return Behind(bwrap, FULL, "")
    return Behind(bwrap, NAMESPACES, "the agent is not root: the processes of all teams have its user id")


def _tried(bwrap: str, spec: Spec) -> str:
    """ "" when it works, else what was in the way."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            _try(bwrap, spec, write)
        except BaseException as e:
            os.write(write, f"{e}".encode()[:_MOST_SAID])
        finally:
            os._exit(1)
    os.close(write)
    pieces = []
    while piece := os.read(read, _MOST_SAID):
        pieces.append(piece)
    os.close(read)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return b"".join(pieces).decode(errors="replace") or (f"the trial ended with {code}" if code else "")


def _try(bwrap: str, spec: Spec, problems: int) -> None:
    if os.geteuid() == 0:
        _checked(_unshare(contain.CLONE_NEWPID), "unshare")
    else:
        contain.own_user_and_pid_namespace(0)
    inner = os.fork()
    if inner:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    try:
        contain.die_with_parent()
        put_up(bwrap, spec)
        with as_user(spec["uid"], spec["gid"]):
            pid = os.posix_spawn(TRUE, [TRUE], {}, setsigmask=(), setsigdef=(signal.SIGPIPE,))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    except BaseException as e:
        os.write(problems, f"{e}".encode()[:_MOST_SAID])
        os._exit(1)


def put_up(bwrap: str, spec: Spec, view: HeldView | None = None) -> str:
    """All of it, for the first process of a pid namespace. What it starts from now on is to be started `as_user`. `view`: one
    that is prepared. Returns why that was of no use, or ""."""
    root, useless = spec["root"], ""
    if view is not None:
        useless = prepared.copy(*view, spec["prepared"], spec["namespaces"])
    if view is None or useless:
        contain.mount_own_proc()
        enter(bwrap, spec)
    if not root:
        own_user(spec["uid"], spec["gid"])
    give_up(spec["processes"], spec.get("files", OPEN_FILES))
    return useless
