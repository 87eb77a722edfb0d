"""Secrets of attempts: requested from vault with the node's credential, delivered to the processes, and removed at
their end.

The answer is sealed to a key that this agent creates at start and keeps in memory only. Inside the seal are the attempt
and the question's nonce, so an answer to another or an earlier question is useless.

A value becomes a file in the attempt's own folder, in memory (tmpfs) if the machine has such a place, or an environment
variable if the job asked for that. The keeper passes the environment on and stores none of it. The folder is removed by
the attempt's shim, even without an agent, and by the agent, also after a crash.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nats.aio.client import Client
from nats.errors import Error as NatsError
from pydantic import ValidationError

from libs.bus.asking import NOT_FOUND, NoAnswer, QueryError, ask
from libs.bus.boxes import BoxKey, CannotOpen, ForNode
from libs.ports.clock import boot_s
from schemas.catalog import BY_TYPE
from schemas.nodes import DesiredPart
from schemas.secrets import NodeSecrets, NodeSecretsQuery
from services.agent.folders import remove_tree

log = logging.getLogger("baton.agent")

_QUESTION = BY_TYPE["io.baton.node.secrets.query.v1"]
_ANSWER_S = 3.0
_PAUSE_S = 0.5
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


class SecretMissing(RuntimeError):
    """The team has no such secret, or it cannot be delivered as requested. The job's fault; the text gives the remedy."""


class SecretsUnavailable(RuntimeError):
    """Vault did not answer in time. The pool's fault."""


class NotWanted(RuntimeError):
    """The attempt was asked to end while waiting for its secrets."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """An attempt's delivered secrets. `repr` shows no value."""

    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


NOTHING = Delivered()


class SecretSource:
    """Asks vault, one per agent. `wait_s`: how long vault may be unreachable before an attempt is given up."""

    def __init__(self, nats: Client, pool: str, wait_s: float, pause_s: float = _PAUSE_S) -> None:
        self._nats, self._pool, self._wait_s, self._pause_s = nats, pool, wait_s, pause_s
        self._key: BoxKey | None = None

    async def of(self, part: DesiredPart, node: str, at_least: int, wanted: Callable[[], bool]) -> dict[str, bytes]:
        """Name -> value of the part's secrets. `at_least`: the ledger record of the node's desired state; `wanted`:
        whether the part should still run. Raises SecretMissing, SecretsUnavailable, NotWanted."""
        deadline, problem = boot_s() + self._wait_s, ""
        while True:
            try:
                return await self._ask(part, node, at_least)
            except (NoAnswer, QueryError, NatsError, CannotOpen, ValidationError) as e:
                problem = str(e)[:300] or type(e).__name__
                if isinstance(e, QueryError) and e.status == NOT_FOUND:
                    log.warning("vault gives no secrets for attempt %d of %s: %s", part.attempt, part.job_id, problem)
            if not wanted():
                raise NotWanted("it was asked to end while its secrets were waited for")
            if boot_s() >= deadline:
                raise SecretsUnavailable(f"its secrets were not to be had within {self._wait_s:g} s: {problem}")
            await asyncio.sleep(self._pause_s)

    async def _ask(self, part: DesiredPart, node: str, at_least: int) -> dict[str, bytes]:
        key = self._key = self._key or BoxKey.new()
        query = NodeSecretsQuery(job_id=part.job_id, attempt=part.attempt, key=key.public, nonce=secrets.token_hex(16))
        answer: NodeSecrets = await ask(
            self._nats, _QUESTION, query, timeout_s=_ANSWER_S, at_least=max(0, at_least), pool=self._pool, node=node
        )
        if answer.missing:
            raise SecretMissing(
                f"secret-missing: job.secrets: team {part.team} has no secret {', '.join(answer.missing)}; "
                f"`baton secret set {answer.missing[0]}`, then submit the job again"
            )
        inside: ForNode = key.open_as(answer.sealed, ForNode)
        about = (inside.pool, inside.node, inside.job_id, inside.attempt, inside.nonce)
        if about != (self._pool, node, part.job_id, part.attempt, query.nonce):
            raise CannotOpen("the answer is to another question")
        return {name: secret.plain() for name, secret in inside.secrets.items()}


class SecretFolders:
    """One folder per attempt with secrets, below the agent's own folder. `root` is where that may be created."""

    def __init__(self, state_dir: Path, root: Path | None = None) -> None:
        """Creates nothing before the first delivery."""
        named = hashlib.sha256(str(state_dir).encode()).hexdigest()[:16]
        parent = root or memory_folder()
        if parent is None:
            log.warning("this machine has no folder in memory (tmpfs): secrets of jobs lie on disk while they run")
        self._root = state_dir / "secrets" if parent is None else parent / f"baton-secrets-{os.getuid()}-{named}"

    def folder(self, kept: str) -> Path:
        """The folder of the attempt with this keeper id."""
        return self._root / hashlib.sha256(kept.encode()).hexdigest()[:32]

    def deliver(self, kept: str, part: DesiredPart, values: Mapping[str, bytes]) -> Delivered:
        """Writes the files and returns the environment variables. Raises SecretMissing, SecretsUnavailable. Blocks."""
        environment: dict[str, str] = {}
        files: dict[str, bytes] = {}
        for use in part.spec.secrets:
            value = values.get(use.secret)
            if value is None:
                raise SecretsUnavailable(f"vault's answer has no secret {use.secret}")
            if use.env is not None:
                if b"\0" in value:
                    raise SecretMissing(
                        f"secret {use.secret} has a NUL byte, which no environment variable can hold: leave out `env`"
                    )
                environment[use.env] = os.fsdecode(value)
            if use.file_name is not None:
                files[use.file_name] = value
        try:
            self._write(kept, files)
        except OSError as e:
            self.remove(kept)
            raise SecretsUnavailable(
                f"its secrets cannot be written to {e.filename or self._root}: {e.strerror}"
            ) from e
        return Delivered(environment)

    def _write(self, kept: str, files: Mapping[str, bytes]) -> None:
        _own_folder(self._root)
        self.remove(kept)
        folder = self.folder(kept)
        folder.mkdir(mode=0o700)
        for name, value in files.items():
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
                file.write(value)

    def remove(self, kept: str) -> None:
        """Removes an ended attempt's folder, if any. Without walls the job may have written there."""
        remove_tree(self.folder(kept))

    def sweep(self, kept: Collection[str]) -> int:
        """Removes folders of all other attempts; returns their number. Raises OSError."""
        if not self._root.is_dir():
            return 0
        _own_folder(self._root)
        known = {self.folder(one).name for one in kept}
        gone = [folder for folder in self._root.iterdir() if folder.name not in known]
        for folder in gone:
            remove_tree(folder)
        return len(gone)

    def leave(self) -> None:
        """The agent ends: removes its own folder, unless an attempt that runs on has secrets there."""
        with suppress(OSError):
            self._root.rmdir()


def memory_folder() -> Path | None:
    """Where this user may create folders in memory: $XDG_RUNTIME_DIR, /run, /dev/shm."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), "/run", "/dev/shm"]
    return next((Path(p) for p in places if p and os.access(p, os.W_OK | os.X_OK) and _in_memory(Path(p))), None)


def _in_memory(path: Path) -> bool:
    """Whether the file system at `path` is in memory, by this process's mounts."""
    real, best = os.path.realpath(path), ("", "")
    with suppress(OSError), open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, at, kind, *_ = line.split(" ")
            if (real == at or real.startswith(at.rstrip("/") + "/")) and len(at) >= len(best[0]):
                best = (at, kind)
    return best[1] in _IN_MEMORY


def _own_folder(path: Path) -> None:
    """Creates it with mode 0700. Raises PermissionError when another user has put something there."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(13, "it belongs to somebody else: remove it", str(path))
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
