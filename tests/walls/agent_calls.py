"""The seccomp profile of compose's agent, `deploy/agent-calls.json`: `python -m tests.walls.agent_calls` writes it.

Docker's own profile lets a container make no namespaces, so an agent in one could put up no walls. An engine cannot be told
"your profile, and these too", so this is a whole one: every call that the kernel's headers name (of `ziglang`, so nothing is
fetched), less what is refused here, and of some only what walls or programs need. What is refused is what Docker's refuses to a
container without capabilities; what is let in beyond it stands in `OF_WALLS`, and a call that no table knows fails a test.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ziglang

from services.agent.keeper import callfilter

FILE = Path(__file__).parents[2] / "deploy/agent-calls.json"
_HEADERS = Path(ziglang.__file__).parent / "lib/libc/include"
_TABLES = {
    "x86_64": _HEADERS / "x86-linux-any/asm/unistd_64.h",
    "aarch64": _HEADERS / "aarch64-linux-any/asm/unistd_64.h",
}
_NEWTIME, _NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x80, 0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000
_NEWUSER, _NEWPID, _NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000

REFUSED: dict[str, tuple[str, ...]] = {
    "the kernel itself": (
        *("acct", "bpf", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
        *("swapon", "swapoff", "iopl", "ioperm", "syslog", "perf_event_open", "lookup_dcookie", "uprobe"),
        *("vhangup", "quotactl", "quotactl_fd", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd"),
        *("lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules"),
    ),
    "what no namespace keeps apart": (
        *("add_key", "request_key", "keyctl", "clock_settime", "settimeofday", "sethostname", "setdomainname"),
    ),
    "files by other ways than their paths": ("open_by_handle_at", "fanotify_init"),
    "mounts by ways that walls do not go": (
        *("chroot", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree_attr", "listns"),
    ),
    "other processes, and where memory lies": (
        *("kcmp", "pidfd_getfd", "process_madvise", "mbind", "get_mempolicy", "set_mempolicy"),
        *("set_mempolicy_home_node", "migrate_pages", "move_pages"),
    ),
    "no kernel has these any more, or no program needs them": (
        *("_sysctl", "afs_syscall", "create_module", "get_kernel_syms", "getpmsg", "nfsservctl", "putpmsg"),
        *("query_module", "security", "sysfs", "tuxcall", "uselib", "ustat", "vserver"),
    ),
    "newer than what was looked at": ("file_getattr", "file_setattr", "rseq_slice_yield"),
}
"""Why, and which. A container's program is told EPERM."""
OF_WALLS = ("mount", "umount2", "pivot_root", "setns", "clone", "unshare")
"""What bubblewrap and shims call and Docker's profile refuses: `strace` of both. Of `clone` and `unshare`, namespaces."""
OF_ROOTS_WALLS = ("open_tree", "move_mount", "mount_setattr")
"""By which a shim of root's copies a view. Docker's profile, too, lets in who has CAP_SYS_ADMIN."""
PERSONALITIES = (0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF)
"""Linux with or without 32-bit addresses and the old names of releases; the last asks which it is."""

LOOKED_AT = 471
"""The last call that somebody has looked at: what a later kernel adds is refused until then. Machines number new ones alike."""

Rule = dict[str, Any]


@cache
def numbers(machine: str) -> dict[str, int]:
    """The calls that the kernel's headers name."""
    found = re.findall(r"^#define __NR_(\w+)\s+(\d+)", _TABLES[machine].read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


def profile() -> dict[str, Any]:
    named = {name for machine in _TABLES for name, number in numbers(machine).items() if number <= LOOKED_AT}
    refused = {name for names in REFUSED.values() for name in names}
    by_rule = {"clone", "clone3", "unshare", "socket", "personality", *OF_ROOTS_WALLS}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        # What a 32-bit program calls has other numbers, none of which is let in: it is told so, and not killed.
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
        ],
        "syscalls": [
            _rule(sorted(named - refused - by_rule)),
            # No shim and no bubblewrap makes namespaces of names, cgroups or clocks.
            _rule(["clone"], _none_of(_NEWCGROUP | _NEWUTS)),
            _rule(["unshare"], _none_of(_NEWCGROUP | _NEWUTS | _NEWNET | _NEWTIME)),
            # What it is told lies in memory, where no filter sees it: the C library then takes clone.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
            *(_rule(["personality"], _is(0, value)) for value in PERSONALITIES),
            # Who is root of a namespace of users may ask a firewall's and others' netlink; so sockets are those that jobs have.
            _rule(["socket"], _is(0, 1)),
            *(
                _rule(["socket"], _is(0, family), _is(2, protocol))
                for family, protocols in callfilter.PROTOCOLS.items()
                for protocol in protocols
            ),
            _rule(OF_ROOTS_WALLS) | {"includes": {"caps": ["CAP_SYS_ADMIN"]}},
        ],
    }


def _rule(names: Iterable[str], *arguments: Rule) -> Rule:
    made: Rule = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    return made | ({"args": list(arguments)} if arguments else {})


def _is(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _none_of(bits: int) -> Rule:
    """Of the first argument."""
    return {"index": 0, "value": bits, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}


# ------------------------------------------------------------------------------------- the profile as the kernel's own filter

_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction; `if_so`, `if_not`: how many are skipped."""

    code: int
    value: int
    if_so: int = 0
    if_not: int = 0


def compiled(known: dict[str, Any], machine: str, capabilities: Sequence[str] = ()) -> bytes:
    """What an engine makes of a profile, for a container with these capabilities. Arguments are compared by their low half: the
    profile has none that is longer."""
    out = [Step(_LOAD, 4), Step(_EQUAL, _ARCHITECTURES[machine], 1, 0), Step(_RETURN, _ERRNO | 1), Step(_LOAD, 0)]
    for rule in known["syscalls"]:
        if not set(rule.get("includes", {}).get("caps", ())) <= set(capabilities):
            continue
        allow = rule["action"] == "SCMP_ACT_ALLOW"
        word = _ALLOW if allow else _ERRNO | rule["errnoRet"]
        for number in sorted(numbers(machine)[name] for name in rule["names"] if name in numbers(machine)):
            steps = [*_of_arguments(rule.get("args", ())), Step(_RETURN, word)]
            out += [Step(_EQUAL, number, 0, len(steps)), *steps]
            if rule.get("args"):
                out.append(Step(_LOAD, 0))  # another rule of the same call may let it in
    out.append(Step(_RETURN, _ERRNO | known["defaultErrnoRet"]))
    return b"".join(struct.pack("=HBBI", step.code, step.if_so, step.if_not, step.value) for step in out)


def _of_arguments(arguments: Sequence[Rule]) -> list[Step]:
    """Goes on behind the rule's last step where one is not met."""
    return [step for left, one in _counted(arguments) for step in _of_argument(one, left)]


def _counted(arguments: Sequence[Rule]) -> Iterator[tuple[int, Rule]]:
    """With how many steps come after those of each, up to the rule's word."""
    lengths = [3 if one["op"] == "SCMP_CMP_MASKED_EQ" else 2 for one in arguments]
    for at, one in enumerate(arguments):
        yield sum(lengths[at + 1 :]) + 1, one


def _of_argument(one: Rule, left: int) -> list[Step]:
    load = Step(_LOAD, 16 + 8 * one["index"])
    if one["op"] == "SCMP_CMP_MASKED_EQ":
        return [load, Step(_AND, one["value"]), Step(_EQUAL, one["valueTwo"], 0, left)]
    if one["op"] == "SCMP_CMP_EQ":
        return [load, Step(_EQUAL, one["value"], 0, left)]
    raise ValueError(f"no filter is made of {one['op']}")


def write() -> None:
    FILE.write_text(json.dumps(profile(), indent=2) + "\n")


if __name__ == "__main__":
    write()
