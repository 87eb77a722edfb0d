"""Connects the agent to its keeper: to the one that runs, or to a new one that it starts. Blocks; call it in a thread."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from services.agent.keeper import proc, wire
from services.agent.keeper.__main__ import LOCK, SOCKET
from services.agent.keeper.zygote import missing

START_S = 60.0
"""A keeper that does not answer for so long after its start never will."""
ANSWER_S = 5.0
"""A keeper that takes longer to answer `hello` is frozen."""
_POLL_S = 0.01


class NoKeeper(RuntimeError):
    """The keeper cannot be started; the text says why and where to look."""


@dataclass(slots=True)
class Found:
    """A connection that the keeper has answered on. `process`: the keeper, if this agent started it."""

    sock: socket.socket
    reader: wire.Reader
    welcome: wire.WireMessage
    process: subprocess.Popen[bytes] | None = None


def connect(folder: Path) -> Found | None:
    """The keeper of this folder, or None when none answers. Raises NoKeeper when it speaks another version."""
    try:
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(ANSWER_S)
    try:
        sock.connect(_address(at))
        sock.sendall(wire.pack({"do": "hello", "speaks": [wire.OLDEST, wire.NEWEST]}))
        reader = wire.Reader(wire.LARGEST_TOLD)
        messages: list[wire.WireMessage] = []
        while not messages:
            data = sock.recv(1 << 20)
            if not data:
                raise ConnectionError
            messages = reader.feed(data)
    except (OSError, wire.BadMessage):
        sock.close()
        return None
    finally:
        os.close(at)
    if messages[0].get("is") != "welcome":
        sock.close()
        raise NoKeeper(f"the keeper in {folder} refuses: {messages[0].get('error')}")
    return Found(sock, reader, messages[0])


def kill(folder: Path, known: int = 0) -> bool:
    """Kills the keeper of this folder, if one runs; its shims die with it. Returns when it is gone, and whether one ran.
    `known`: as `running`."""
    pid = running(folder, known)
    if pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    while proc.alive(pid):
        time.sleep(_POLL_S)
    return True


def running(folder: Path, known: int = 0) -> int | None:
    """The process id of the keeper that holds this folder's lock, frozen or not: as it wrote there, or, if the disk was too
    full for that, as the kernel says of its socket. `known`: as it said itself when it was met, so that it is found when
    somebody has removed its files."""
    for pid in (known or None, _written(folder), _listening(folder)):
        if pid is not None and _keeps(pid, folder):
            return pid
    return None


def _keeps(pid: int, folder: Path) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(folder) in command and proc.alive(pid)


def _written(folder: Path) -> int | None:
    try:
        return int((folder / LOCK).read_text())
    except (OSError, ValueError):
        return None


def _listening(folder: Path) -> int | None:
    """Who listens on the keeper's socket; a process that is frozen still does."""
    try:
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(_address(at))
            pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return int(pid) or None
    except OSError:
        return None
    finally:
        os.close(at)


def _address(folder: int) -> str:
    """Of the keeper's socket in an open folder: the path of a Unix socket has at most 107 bytes."""
    return f"/proc/self/fd/{folder}/{SOCKET}"


def _open_for_words(path: Path) -> BinaryIO:
    """A disk that has no room for a new file keeps no keeper from starting: then its words are lost."""
    try:
        return path.open("wb")
    except OSError:
        return Path(os.devnull).open("wb")


def wait(folder: Path, known: int = 0) -> None:
    """Returns when no keeper holds this folder. `known`: as `running`."""
    while running(folder, known) is not None:
        time.sleep(_POLL_S)


def start(folder: Path, kind: str, group: str, behind: str = "") -> Found:
    """Starts a keeper that outlives this process, and connects. `behind`: the walls to try, see `keeper.__main__`. Raises
    NoKeeper."""
    if why := missing():
        raise NoKeeper(why)
    problems = folder / "keeper.log"
    with _open_for_words(problems) as out:
        process = subprocess.Popen(
            [sys.executable, "-E", "-s", "-S", "-m", "services.agent.keeper", str(folder), kind, group, behind],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=Path(__file__).resolve().parents[3],
            env={},
            start_new_session=True,
        )
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        found = connect(folder)
        if found is not None:
            found.process = process
            return found
        time.sleep(_POLL_S)
    process.kill()
    process.wait()
    raise NoKeeper(f"the keeper did not start (exit code {process.returncode}); what it said is in {problems}")
