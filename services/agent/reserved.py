"""Processors that all jobs of this machine together leave to everything else, as a setting of the agent says."""

import os
from pathlib import Path

from services.agent import tree
from services.agent.keeper import proc

_UNSET = "or leave BATON_AGENT_RESERVED_CPUS unset"
_LEAST = 0.01
"""Of a processor, that jobs have: the kernel takes no smaller quota."""


def reserve(
    reserved: float, group: Path | None, *, cgroups: bool = True, processors: int = os.cpu_count() or 1
) -> None:
    """Bounds the group of all attempts (`tree.limit_base`; None: there is none), or takes its bound away.

    Several agents of a machine may share it: the last one says. Raises ValueError where it cannot be done.
    """
    asked = f"BATON_AGENT_RESERVED_CPUS is {reserved:g}, and "
    if processors - reserved < _LEAST:
        raise ValueError(
            f"{asked}this machine has {processors} processors: say less, so that jobs have at least {_LEAST:g}, {_UNSET}"
        )
    if not cgroups:
        raise ValueError(f"{asked}BATON_AGENT_CGROUPS is false: jobs are bounded by a cgroup. Set it to true, {_UNSET}")
    if group is None:
        raise ValueError(
            f"{asked}no cgroup with the cpu controller can be made here for jobs alone: run the agent as root, on a machine "
            f"whose kernel has that controller, {_UNSET}"
        )
    if os.getpid() in proc.group_members(str(group)):
        raise ValueError(
            f"{asked}jobs have their cgroups in the agent's own ({group}), which would be bounded with them: run the agent as "
            f"root outside of a container, {_UNSET}"
        )
    try:
        tree.leave_processors(group, reserved, processors)
    except OSError as e:
        raise ValueError(
            f"{asked}the kernel does not bound {group} so ({e.strerror or e}): say another number, {_UNSET}"
        ) from e
