"""Fast moves of processes into cgroups.

Each attempt is moved into a cgroup of its own before it starts. A move waits for an RCU grace period (some milliseconds)
unless the cgroup file system has the mount option `favordynmods` (Linux 6.0), which makes forks and exits more expensive. The
option concerns the whole machine, and stays when the agent has ended.
"""

import logging
import os
import subprocess

from services.agent.keeper.proc import read_text

log = logging.getLogger("baton.agent")

OPTION = "favordynmods"
_PATIENCE_S = 5.0


def favour_moves(group: str) -> None:
    """For the hierarchy that this cgroup is in, as root. Where that is not possible, starts are slower and nothing else."""
    try:
        if os.geteuid() != 0 or (asked := remount(read_text("/proc/self/mountinfo"), group)) is None:
            return
        done = subprocess.run(["mount", *asked], timeout=_PATIENCE_S, capture_output=True, text=True, check=False)
        why = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as e:
        why = str(e)
    if why:
        log.info("moves into cgroups take the kernel some milliseconds here: no %s (%s)", OPTION, why)
    else:
        log.info("cgroups of this machine are mounted with %s from now on: BATON_AGENT_QUICK_CGROUPS", OPTION)


def remount(mountinfo: str, group: str) -> list[str] | None:
    """The arguments of `mount` that add the option to what is there already; None: it is there, or nothing is mounted."""
    found = ("", "", "")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        at, options, kind, of_all = left.split()[4], left.split()[5], right.split()[0], right.split()[-1]
        if kind in ("cgroup", "cgroup2") and f"{group}/".startswith(f"{at}/") and len(at) >= len(found[0]):
            found = (at, options, of_all)
    at, options, of_all = found
    if not at or OPTION in of_all.split(","):
        return None
    return ["-o", f"remount,{options},{of_all},{OPTION}", at]
