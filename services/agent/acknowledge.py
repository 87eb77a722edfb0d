"""Reads the acknowledgements that jobs write (docs/checkpoint-protocol.md). Jobs are not trusted: sizes are bounded."""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.jobs import Checkpoint, unusable

_LARGEST = 16_384
_LINE = 1_024
"""The most bytes of a progress report, one line."""


class BadAcknowledgement(ValueError):
    """The file violates the protocol. The text names the problem and the fix."""


@dataclass(slots=True)
class Acknowledgement:
    """One rank's file. An atomic replacement changes its identity, which shows that it is new."""

    path: Path
    seen: tuple[int, int, int] | None = None
    """The last version seen: inode, change time in ns, size."""

    def news(self) -> Checkpoint | None:
        """The checkpoint, if the file was replaced since the last call. Raises BadAcknowledgement, once per version."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return None
        identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        if identity == self.seen:
            return None
        self.seen = identity
        return self._read(found.st_size)

    def _read(self, size: int) -> Checkpoint:
        if size > _LARGEST:
            raise BadAcknowledgement(f"{self.path.name} has {size} bytes; write at most {_LARGEST}, in one rename")
        try:
            said = Checkpoint.model_validate(json.loads(_written(self.path, _LARGEST)))
        except ValidationError as e:
            error = e.errors()[0]
            field = ".".join(str(part) for part in error["loc"]) or "the whole"
            raise BadAcknowledgement(
                f'{self.path.name}: {field}: {error["msg"]}; write {{"step": <integer>, "reference": <text>}}'
            ) from None
        except BadAcknowledgement:
            raise
        except (ValueError, RecursionError) as e:
            raise BadAcknowledgement(
                f"{self.path.name} is not JSON ({e}); write to another name and rename it, so that it is never half there"
            ) from None
        if problem := unusable(said):
            raise BadAcknowledgement(f"{self.path.name}: {problem}")
        return said


@dataclass(slots=True)
class ProgressFile:
    """Rank 0's progress: one line of JSON in a file that it may replace or overwrite at any rate."""

    path: Path
    _seen: tuple[int, int, int] | None = None

    def news(self) -> Any:
        """The file's content if it changed since the last call, else None. An incomplete line is left for the next
        call. Raises BadAcknowledgement for a line of another form."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return None
        identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        if identity == self._seen:
            return None
        if found.st_size > _LINE:
            self._seen = identity
            raise BadAcknowledgement(f"{self.path.name} has {found.st_size} bytes; write one line of at most {_LINE}")
        try:
            said = json.loads(_written(self.path, _LINE))
        except BadAcknowledgement:
            self._seen = identity
            raise
        except (ValueError, RecursionError):
            return None
        self._seen = identity
        return said


def _written(path: Path, most: int) -> bytes:
    """The first bytes of a regular file. A pipe that its job holds open would neither give data nor end. Raises
    BadAcknowledgement."""
    try:
        with open(path, "rb", opener=lambda p, f: os.open(p, f | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadAcknowledgement(f"{path.name} is not a regular file; write one and rename it")
            return file.read(most)
    except OSError as e:
        raise BadAcknowledgement(f"{path.name} cannot be read ({e.strerror}); write a regular file") from None
