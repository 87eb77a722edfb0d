"""Removes cgroups of keepers that were killed and whose agent never came back, or came back elsewhere in the machine's tree.

An agent finds what its own keeper left where it makes its groups now. Another session, unit or container has another
place of the tree; and the state folder of a test may be gone for good. Nothing else removes such groups until the next
boot, and the group above them cannot be removed either.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from services.agent import tree
from services.agent.keeper import proc

_NAMED = re.compile(r"baton-.+-([0-9a-f]{12})(?:-.*)?")
"""A group of a node's life or of an attempt: of which agent."""
_ALL_PROCESSES = 0xEFFFFFFC
"""The inode of the machine's first pid namespace (Linux, PROC_PID_INIT_INO): from elsewhere not all keepers are seen."""
_MODULE = b"services.agent.keeper"


@dataclass(frozen=True, slots=True)
class GroupsOfOurs:
    """An agent, and where it makes groups now: there it has removed what was left before its keeper began."""

    agent: str
    bases: Collection[Path]


def remove_left_groups(tops: Iterable[Path], ours: GroupsOfOurs, running: Callable[[], Collection[str] | None]) -> int:
    """Removes empty groups of agents without a keeper, and those of `ours` elsewhere; returns their number. Blocks.

    Args:
        tops: where the trees are mounted.
        running: agents with a keeper; None if not all are known. Asked after the groups were looked up, since a keeper
            begins before its groups.
    """
    groups = [found for top in tops for found in _groups(top)]
    kept = running() if groups else None
    left = [
        group
        for group, agent in groups
        if (group.parent not in ours.bases if agent == ours.agent else kept is not None and agent not in kept)
    ]
    for group in left:
        proc.remove_group(str(group))
    return sum(not group.exists() for group in left)


def _groups(top: Path) -> Iterable[tuple[Path, str]]:
    """Groups of lives and attempts below `top`, and whose they are; not those within one."""
    for folder, below, _ in os.walk(top):
        found = {name: match[1] for name in below if (match := _NAMED.fullmatch(name))}
        below[:] = [name for name in below if name not in found]
        yield from ((Path(folder, name), agent) for name, agent in found.items())


def kept_agents() -> set[str] | None:
    """Agents with a keeper that runs, as groups name them (`tree.agent_of`). None where not all processes are seen."""
    try:
        if os.stat("/proc/self/ns/pid").st_ino != _ALL_PROCESSES:
            return None
    except OSError:
        return None
    found = set[str]()
    for pid in proc.pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if _MODULE in command[:-1]:
            found.add(tree.agent_of(Path(os.fsdecode(command[command.index(_MODULE) + 1])).parent))
    return found
