"""The agent's state on disk across its lives: the incarnation of each node."""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from libs.ports.private_files import write_private
from services.agent import tree
from services.agent.keeper import proc

_HIGHEST = 2**63 - 2
"""The highest incarnation that the pool can read, less one."""
_SWEEP_S = 0.05
_SWEEPS = 1200
"""A minute: a process that survives SIGKILL for longer hangs in the kernel, and the node must not register with it."""


class StateInUse(RuntimeError):
    """Another agent uses the state directory."""


class NotEmpty(RuntimeError):
    """Processes of an earlier life cannot be killed."""


def folder_in(state_dir: Path) -> Path:
    """Folder of the files of an agent and its keeper."""
    return state_dir / "agent"


class AgentState:
    """Files under `<state dir>/agent`. Only one agent at a time may hold them (a lock that dies with its process)."""

    def __init__(self, state_dir: Path) -> None:
        self.path = folder_in(state_dir)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StateInUse(
                f"another agent runs on {self.path}; stop it, or give this one a BATON_STATE_DIR of its own"
            ) from None

    def close(self) -> None:
        os.close(self._lock)

    def incarnations(self) -> dict[str, int]:
        """The last incarnation of each node begun by this agent or an earlier one. A damaged file counts as lost."""
        try:
            known = json.loads((self.path / "incarnations.json").read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        rows = known.items() if isinstance(known, dict) else ()
        return {node: number for node, number in rows if type(number) is int and 0 < number <= _HIGHEST}

    def next_incarnations(
        self, nodes: Iterable[str], above: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, int]:
        """New incarnations, each larger than all before and than the node's in `above`, on disk before they are
        returned.

        They are at least the Unix time in seconds. A life lasts longer than a second, so after the state directory was
        lost or restored from an old copy, a new incarnation still exceeds every earlier one, and none that the pool
        knows is reused. If the clock was set back, the pool's answer gives a lower bound.
        """
        wanted = list(nodes)
        if not wanted:  # an agent that continues all lives needs no disk space
            return {}
        path = self.path / "incarnations.json"
        known = self.incarnations()
        now_s = int(time.time())
        fresh = {node: max(known.get(node, 0) + 1, now_s, above.get(node, 0) + 1) for node in wanted}
        write_private(path, json.dumps(known | fresh), durable=True)
        return fresh

    def kill_leftovers(self, marker_roots: Iterable[str], group_base: Path | None) -> int:
        """Kills whatever an earlier life of these nodes left; returns the number of processes.

        Finds them by their cgroup, by the marker in their environment, and by the name of their shims. Blocks until
        none is left. Raises NotEmpty naming the processes that do not die.
        """
        roots, killed = list(marker_roots), set[int]()
        for _ in range(_SWEEPS):
            found: set[int] = set()
            for root in roots:
                if group_base is not None and (group := group_base / group_name(root)).is_dir():
                    found |= proc.kill_group(str(group))
                    proc.remove_group(str(group))
                found |= proc.kill_all(tree.marked(root + "/"))
            found |= proc.kill_all(tree.named(proc.shim_name(str(self.path))))
            killed |= found
            if not found:
                return len(killed)
            time.sleep(_SWEEP_S)
        raise NotEmpty(
            f"processes {sorted(found)} of an earlier life do not die; restart the machine to free its devices"
        )


def group_name(marker_root: str) -> str:
    return "baton-" + marker_root.replace("@", "-")
