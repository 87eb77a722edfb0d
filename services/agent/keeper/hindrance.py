"""Why no walls can be put up here, for whoever runs the agent: what refuses, and what lets it be."""

import os
from pathlib import Path

from services.agent.keeper import contain

NO_NAMESPACE, NO_MOUNTS, NO_PROC = 1, 3, 4
"""Where the trial of a namespace ended (`native/main.c`)."""
_NAMED = 3
"""Of mounts over /proc so many are named."""


def of_namespaces(root: Path = Path("/")) -> str:
    """Tries one; "" where it can be had. `root`: where /proc is."""
    return told(contain.namespace_tried(), os.geteuid() == 0, root / "proc")


def told(tried: int, is_root: bool, proc: Path) -> str:
    """What the trial's end means on the machine that `proc` tells of."""
    match tried:
        case 0:
            return ""
        case _ if is_root:
            return "root lacks CAP_SYS_ADMIN here: a container is given it by deploy/compose.full.yaml"
        case _ if tried in (NO_NAMESPACE, NO_MOUNTS) and (setting := _setting(proc)):
            return setting
        case 1:
            return f"namespaces are refused {_by(proc)}"
        case 3:
            return f"mounts are refused {_by(proc)}"
        case 4:
            return (
                f"something lies over parts of /proc ({_covers(proc)}), so the kernel lets no other be mounted: "
                "a container needs systempaths=unconfined, or with GPUs deploy/compose.gpus.yaml"
            )
        case _:
            return "the program that starts jobs does not run"


def _setting(proc: Path) -> str:
    """The machine's setting that refuses it to whoever is not root."""
    for name, refusing, text in (
        ("user/max_user_namespaces", "0", "the machine has no user namespaces (sysctl user.max_user_namespaces is 0)"),
        (
            "kernel/unprivileged_userns_clone",
            "0",
            "the machine lets only root make user namespaces: sysctl kernel.unprivileged_userns_clone=1",
        ),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor leaves user namespaces no rights here: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a "
            "profile with `userns,`",
        ),
    ):
        if _read(proc / "sys" / name).strip() == refusing:
            return text
    return ""


def _by(proc: Path) -> str:
    """What refuses it, and in a container how it is let in."""
    profile = _read(proc / "self/attr/current").strip("\0\n ")
    if profile.endswith("(enforce)"):
        return f"by the AppArmor profile {profile}: a container needs apparmor=unconfined, or a profile that lets it"
    if "Seccomp:\t2" in _read(proc / "self/status"):
        return "by a filter of system calls: a container needs seccomp=deploy/agent-calls.json"
    return "by the kernel"


def _covers(proc: Path) -> str:
    over = [line.split()[4] for line in _read(proc / "self/mountinfo").splitlines()]
    found = sorted(at for at in over if at.startswith("/proc/"))
    return ", ".join([*found[:_NAMED], *(["..."] if len(found) > _NAMED else [])]) or "it cannot be told which"


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
