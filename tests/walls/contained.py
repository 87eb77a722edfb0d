"""`python -m tests.walls.contained WITHOUT RIGHTS COMMAND`: COMMAND as compose's agent runs in its container, as nearly as a
process without an engine can: a plain user, no capabilities and no way to any, the limit of cores, and
`deploy/agent-calls.json`, by a filter that is made of it here. WITHOUT: calls that the profile lacks then, separated by commas.
RIGHTS: capabilities; then it is root with these alone, as by deploy/compose.full.yaml. Its view is the machine's.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import sys
from collections.abc import Sequence
from typing import Any

from services.agent.view import launcher
from tests.jail.plain import readable_to_all
from tests.walls import agent_calls

USER = 42_425
"""Not the image's own, whose processes may be those of containers that run on this machine."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_NEW_PRIVS, _CAPBSET_DROP, _SET_SECCOMP, _FILTER = 38, 24, 22, 2
_CAPABILITIES = {
    name: number
    for number, name in enumerate(
        ("CHOWN", "DAC_OVERRIDE", "", "FOWNER", "", "KILL", "SETGID", "SETUID", "SETPCAP", "", "", "", "NET_ADMIN")
    )
    if name
} | {"SYS_CHROOT": 18, "SYS_PTRACE": 19, "SYS_ADMIN": 21}


def command(
    words: Sequence[str], *, before: Sequence[str] = (), without: Sequence[str] = (), rights: Sequence[str] = ()
) -> list[str]:
    """For a test: runs this module, and what comes after it. `before`: more arguments of bubblewrap, which lets the user read
    the interpreter. Who is not root already is a plain user."""
    inner = [sys.executable, "-m", "tests.walls.contained", ",".join(without), ",".join(rights), *words]
    if os.geteuid() != 0:
        return inner
    return [launcher(), *readable_to_all(), *before, "--die-with-parent", "--", *inner]


def lacking(known: dict[str, Any], without: Sequence[str]) -> dict[str, Any]:
    """The profile without these calls; of `clone`, without namespaces: nothing runs without the call."""
    rules = []
    for rule in known["syscalls"]:
        kept = [name for name in rule["names"] if name not in without or name == "clone"]
        arguments = rule.get("args", [])
        if "clone" in without and kept == ["clone"]:
            arguments = [one | {"value": 0x7E02_0000} for one in arguments]
        rules.append(rule | {"names": kept} | ({"args": arguments} if arguments else {}))
    return known | {"syscalls": rules}


def _become(without: Sequence[str], rights: Sequence[str]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if os.geteuid() == 0:
        for capability in set(range(64)) - {_CAPABILITIES[name] for name in rights}:
            _LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    if os.geteuid() == 0 and not rights:
        os.setgroups([USER])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
    _must(_LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    known = lacking(json.loads(agent_calls.FILE.read_text()), without)
    steps = agent_calls.compiled(known, platform.machine(), [f"CAP_{name}" for name in rights])
    held = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HxxxxxxQ", len(steps) // 8, ctypes.addressof(held))
    _must(_LIBC.prctl(_SET_SECCOMP, _FILTER, program, 0, 0))


def _must(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    _become(*([name for name in words.split(",") if name] for words in sys.argv[1:3]))
    os.execvp(sys.argv[3], sys.argv[3:])
