"""The system calls that a job behind walls is refused, as two seccomp filters in the kernel's own language. Of what these say
the kernel takes the stricter.

`COMMON` refuses what neither a job nor what makes its walls has a use for. A zygote of root's installs it once, and all shims
inherit it. `LAST` refuses what making walls needs (mounts, namespaces): each shim installs it when its walls are up. The kernel
compiles a filter and tries it with each number there is when it is installed, so what is installed for each attempt is short.

The table is small, so the program is written out here: the bindings of libseccomp are either without the library or kept by
one person (docs/decisions/0032). Refused is what reaches the kernel itself or makes another view of the machine; what a
process may do to its own kind (ptrace, priorities, memory policies) is not, since it sees nobody else.
"""

import errno
import os
import struct
from collections.abc import Sequence

_OF_WALLS: dict[str, tuple[int, int]] = {
    # name: number on x86_64, number on aarch64; -1: it is not there
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
}
"""What bubblewrap and shims call."""
_CALLS: dict[str, tuple[int, int]] = {
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree_attr": (467, 467),
    "file_setattr": (469, 469),
    "listns": (470, 470),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "lookup_dcookie": (212, 18),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_UNSHARE, _CLONE, _IOCTL, _CLONE3 = (272, 97), (56, 220), (16, 29), (435, 435)
_NEW_NAMESPACES = 0x7E02_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_NEWTIME = 0x80
"""For `unshare` alone: `clone` has a signal's number in these bits."""
_PRLIMIT64, _SETRLIMIT, _CORE = (302, 261), (160, 164), 4
"""That nothing writes a core a shim has seen to, and who lowers the limit to 0 would have one piped to a program of root's
(`core_pattern`). Programs that would have none do that, and some end where they cannot: so they are told that it is done."""
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
"""No network namespace holds AF_VSOCK, which reaches the machine's hypervisor; the others are ways into the kernel (AF_ALG,
TIPC, RDS ...) that jobs have no use for."""
PROTOCOLS: dict[int, tuple[int, ...]] = {_INET: (0, 6, 17), _INET6: (0, 6, 17), _NETLINK: (0, 4, 15, 16, 20)}
"""TCP and UDP, whose memory the machine bounds and an agent can see: what is not read of ping and of netlink between processes
(USERSOCK) is no cgroup's and has no bound, and of MPTCP nobody is told who has it. Of netlink ROUTE, SOCK_DIAG, KOBJECT_UEVENT,
GENERIC and RDMA, which libraries ask what the machine has."""
_SETSOCKOPT, _LEVEL, _FILTERS_OF_SOCKETS = (54, 208), 1, (26, 51)
_OPTIONS: dict[int, tuple[int, ...]] = {6: (14, 32, 38), 41: (6, 20, 32, 42, 46, 48)}
"""Options that a socket keeps in memory that is no cgroup's, up to `net.core.optmem_max` (128 KiB) each, so that 8,000 sockets
had 1 GB in a second. Of TCP keys of its signatures (TCP_MD5SIG, TCP_MD5SIG_EXT, TCP_AO_ADD_KEY), which routers use; of IPv6
IPV6_2292PKTOPTIONS, flow labels, and groups, of which a socket of IPv4 has 20 and one of IPv6 as many as it likes."""
MOST_WAITED_FOR = 4096
"""While a thread waits, each file takes 64 bytes that are no cgroup's, also one that is named 65,536 times: a thousand threads
had 5 GB. And a write to that one stops its processor until all who wait have been looked at. So many ranks
meet at a gang's rank 0 where that waits by poll (PyTorch's TCPStore without libuv). Who waits for more has epoll. The kernel
says EINVAL where it is more than the process may have open."""
_FCNTL, _OFD_SETLK, _OFD_SETLKW, _NOTIFY = (72, 25), 37, 38, 1026
"""Locks of an open file itself are no process's while the file is in flight between two: nobody could say whose they are
(`services.agent.filelocks`). And the old way to hear of changes in a folder (dnotify, which inotify replaced in 2005): whoever
opens a file there, or reads one, tells each descriptor that has asked, and nothing bounds how many have. Kernels that lack
them say EINVAL, and programs have another way."""
_SECCOMP, _PRCTL, _SET_FILTER = (317, 277), (157, 167), 1
_PR_SET_SECCOMP, _MODE_FILTER, _PR_SCHED_CORE = 22, 2, 62
"""Filters, of sockets (SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF) and of calls: the kernel compiles each, into memory that is
no cgroup's and of which all of the machine have so much (`net.core.bpf_jit_limit`). When it is used up nobody but root has one
any more: no shim of a plain user's, no sandbox and no login by ssh starts. Who asks is told what a kernel says that knows
none."""
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
"""The first two type into a terminal as if its user did. The third says what the kernel makes of a terminal's bytes, and has it
load a module for that (modems, amateur radio ...): whoever has a terminal of its own may."""
_OF_FILE_SYSTEMS = {
    "FS_IOC_FSSETXATTR": 0x401C_5820,
    "FS_IOC_SET_ENCRYPTION_POLICY": 0x800C_6613,
    "FS_IOC_ADD_ENCRYPTION_KEY": 0xC050_6617,
    "BTRFS_IOC_SNAP_CREATE": 0x5000_9401,
    "BTRFS_IOC_SUBVOL_CREATE": 0x5000_940E,
    "BTRFS_IOC_SNAP_CREATE_V2": 0x5000_9417,
    "BTRFS_IOC_SUBVOL_CREATE_V2": 0x5000_9418,
    "BTRFS_IOC_SUBVOL_SETFLAGS": 0x4008_941A,
}
"""What the owner of a folder may make of it that its agent cannot remove (`services.agent.folders` moves folders up): one of
another project (XFS, ext4), whose quota may be somebody else's; one whose names nobody can read; a subvolume, or a read-only
one."""
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
"""Column of the table, and the kernel's number of the architecture."""
_X32 = 0x4000_0000

_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_LEAF = 4
_PRETENDED, _REFUSED, _MISSING, _UNKNOWN = (_ERRNO | number for number in (0, errno.EPERM, errno.ENOSYS, errno.EINVAL))
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Where in `struct seccomp_data` these are; of arguments the low half, on little-endian machines."""
_WAITING = (((7, -1), _SECOND), ((271, 73), _SECOND), ((23, -1), _FIRST), ((270, 72), _FIRST))
"""poll, ppoll, select, pselect6: and where they say how many files they wait for."""


def common(machine: str) -> bytes:
    """The filter that all shims share, or b"" where the machine's numbers are not known."""
    if machine not in _MACHINES:
        return b""
    column, architecture = _MACHINES[machine]
    out = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),  # another one's numbers, as a 32-bit program has them, mean other calls
        _step(_RETURN, _MISSING),
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        out += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _MISSING)]
    # What clone3 is told lies in memory, where no filter sees it: the C library then takes clone.
    out += [_step(_EQUAL, _CLONE3[column], 0, 1), _step(_RETURN, _MISSING)]
    sockets = _sockets()
    out += [_step(_EQUAL, _SOCKET[column], 1, 0), _step(_EQUAL, _SOCKETPAIR[column], 0, len(sockets)), *sockets]
    refused = (_TIOCSTI, _TIOCLINUX, _TIOCSETD, *_OF_FILE_SYSTEMS.values())
    out += _of_call(_IOCTL[column], [_step(_LOAD, _SECOND), *_if_among(refused, _REFUSED, _ALLOW)])
    out += _of_call(
        _FCNTL[column], [_step(_LOAD, _SECOND), *_if_among((_OFD_SETLK, _OFD_SETLKW, _NOTIFY), _UNKNOWN, _ALLOW)]
    )
    for numbers, count in _WAITING:
        if numbers[column] >= 0:
            at_most = [_step(_LOAD, count), _step(_AT_LEAST, MOST_WAITED_FOR + 1, 0, 1), _step(_RETURN, _UNKNOWN)]
            out += _of_call(numbers[column], [*at_most, _step(_RETURN, _ALLOW)])
    out += _of_call(_SETSOCKOPT[column], _options())
    # Who has a processor to itself (core scheduling) keeps its second thread from all others, and that is nobody's share.
    out += _of_call(_PRCTL[column], [_step(_LOAD, _FIRST), *_if_among((_PR_SCHED_CORE,), _UNKNOWN, _ALLOW)])
    return b"".join((*out, *_among(_numbers(_CALLS, column))))


def last(machine: str) -> bytes:
    """The filter for behind walls that are up, with `common` beside it: that one has seen to other architectures. Or b""."""
    if machine not in _MACHINES:
        return b""
    column, _ = _MACHINES[machine]
    out = [_step(_LOAD, _NUMBER)]
    for numbers, mask in ((_UNSHARE, _NEW_NAMESPACES | _NEWTIME), (_CLONE, _NEW_NAMESPACES)):
        out += [
            _step(_EQUAL, numbers[column], 0, 4),
            _step(_LOAD, _FIRST),
            _step(_BITS, mask, 0, 1),
            _step(_RETURN, _REFUSED),
            _step(_RETURN, _ALLOW),
        ]
    out += [
        _step(_EQUAL, _SETRLIMIT[column], 0, 4),
        _step(_LOAD, _FIRST),
        _step(_EQUAL, _CORE, 0, 1),
        _step(_RETURN, _PRETENDED),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, _PRLIMIT64[column], 0, 8),
        _step(_LOAD, _SECOND),
        _step(_EQUAL, _CORE, 0, 4),
        _step(_LOAD, _THIRD),  # where the new limit is; at no address: it is asked for
        _step(_EQUAL, 0, 0, 3),
        _step(_LOAD, _THIRD + 4),
        _step(_EQUAL, 0, 0, 1),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _PRETENDED),
    ]
    out += [
        *_of_call(
            _SETSOCKOPT[column], _if_told(_SECOND, _LEVEL, _THIRD, _FILTERS_OF_SOCKETS, _ERRNO | errno.ENOPROTOOPT)
        ),
        *_of_call(_SECCOMP[column], [_step(_LOAD, _FIRST), *_if_among((_SET_FILTER,), _UNKNOWN, _ALLOW)]),
        *_of_call(_PRCTL[column], _if_told(_FIRST, _PR_SET_SECCOMP, _SECOND, (_MODE_FILTER,), _UNKNOWN)),
    ]
    return b"".join((*out, *_among(_numbers(_OF_WALLS, column))))


def _sockets() -> list[bytes]:
    """What becomes of a call that makes sockets, by their family and protocol."""
    out = [_step(_LOAD, _FIRST), _step(_EQUAL, _UNIX, 0, 1), _step(_RETURN, _ALLOW)]
    for family, protocols in PROTOCOLS.items():
        asked = [_step(_LOAD, _THIRD), *_if_among(protocols, _ALLOW, _ERRNO | errno.EPROTONOSUPPORT)]
        out += [_step(_EQUAL, family, 0, len(asked)), *asked]
    return [*out, _step(_RETURN, _ERRNO | errno.EAFNOSUPPORT)]


def _options() -> list[bytes]:
    """What becomes of a call that sets an option of a socket, by its level and option."""
    out = [_step(_LOAD, _SECOND)]
    for level, options in _OPTIONS.items():
        asked = [_step(_LOAD, _THIRD), *_if_among(options, _ERRNO | errno.ENOPROTOOPT, _ALLOW)]
        out += [_step(_EQUAL, level, 0, len(asked)), *asked]
    return [*out, _step(_RETURN, _ALLOW)]


def _of_call(number: int, steps: list[bytes]) -> list[bytes]:
    """`steps`, which return, for this call alone."""
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _if_told(at: int, value: int, then_at: int, values: Sequence[int], word: int) -> list[bytes]:
    """`word` where one argument is `value` and another is among `values`; else it is allowed."""
    asked = [_step(_LOAD, then_at), *_if_among(values, word, _ALLOW)]
    return [_step(_LOAD, at), _step(_EQUAL, value, 0, len(asked) - 2), *asked]


def _if_among(values: Sequence[int], then: int, otherwise: int) -> list[bytes]:
    found = [_step(_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]
    return [*found, _step(_RETURN, otherwise), _step(_RETURN, then)]


def _numbers(calls: dict[str, tuple[int, int]], column: int) -> list[int]:
    return sorted(numbers[column] for numbers in calls.values() if numbers[column] >= 0)


def _among(numbers: list[int]) -> list[bytes]:
    """Refuses what is among the numbers (in order) and allows the rest, by halves."""
    if len(numbers) > _LEAF:
        half = len(numbers) // 2
        below = _among(numbers[:half])
        return [_step(_AT_LEAST, numbers[half], len(below), 0), *below, *_among(numbers[half:])]
    return _if_among(numbers, _REFUSED, _ALLOW)


def _step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)


COMMON, LAST = common(os.uname().machine), last(os.uname().machine)
"""Of this machine."""


def known() -> bool:
    """Whether there are filters for this machine."""
    return bool(COMMON)
