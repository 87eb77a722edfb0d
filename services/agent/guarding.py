"""The agent's side of the guard process: keeps it alive and tells it where jobs are and until when they may run."""

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("baton.agent")


class Guard:
    """Starts the guard with the first line that it must be told. While it is not `alive`, no process may be started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, str] = {}
        self._until: dict[str, float] = {}

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def watch(self, node: str, marker: str, group: Path | None) -> None:
        """From now on this life of the node is watched; an earlier life of it no longer is."""
        self._nodes[node] = f"node {node} {marker} {group or '-'}\n"
        self._until.pop(node, None)
        self.ensure()
        self._tell(self._nodes[node])

    def until(self, deadlines: Mapping[str, float]) -> None:
        """New deadlines (guard clock, seconds) of watched nodes; others are left out."""
        known = {node: until for node, until in deadlines.items() if node in self._nodes}
        self._until |= known
        if known:
            self.ensure()
            self._tell("".join(map(_deadline, known.items())))

    def needed(self) -> bool:
        return bool(self._nodes)

    def watches(self, node: str) -> bool:
        return node in self._nodes

    def ensure(self) -> None:
        """A guard that died is replaced. The new one is told everything as it starts."""
        if self.alive():
            return
        if self._process is not None:
            log.error("the guard process has died (status %s): starting another", self._process.returncode)
        with tempfile.TemporaryFile() as told:  # before it lives: an agent that stops right after has told it all
            told.write("".join([*self._nodes.values(), *map(_deadline, self._until.items())]).encode())
            told.flush()
            os.lseek(told.fileno(), 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                [sys.executable, "-E", "-s", "-m", "services.agent.guard", str(told.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parents[2],
                env={},
                pass_fds=(told.fileno(),),
                start_new_session=True,
                bufsize=0,
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _tell(self, text: str) -> None:
        """A few hundred bytes a second into a pipe that the guard empties at once. One that lets it fill up is frozen:
        it is killed (which is no end of file to anybody) and replaced before the next line."""
        assert self._process is not None
        assert self._process.stdin is not None
        data = text.encode()
        try:
            if os.write(self._process.stdin.fileno(), data) == len(data):
                return
            problem = "its pipe is full"
        except OSError as e:
            problem = str(e)
        log.error("the guard process does not listen (%s): replacing it", problem)
        self._process.kill()
        self._process.wait()

    async def close(self) -> None:
        """End of file: the guard kills what is left and goes."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await asyncio.to_thread(self._process.wait)
            self._process = None


def _deadline(of: tuple[str, float]) -> str:
    node, until = of
    return f"until {node} {until:.6f}\n"
