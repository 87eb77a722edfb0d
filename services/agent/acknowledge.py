"""Reading the acknowledgements that jobs write (docs/checkpoint-protocol.md). A job is not trusted: sizes are bounded."""

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
"""Of a progress report, bytes: one line."""


class BadAcknowledgement(ValueError):
    """The file is not what the protocol asks for; the text says what and how to mend it."""


@dataclass(slots=True)
class Acknowledgement:
    """One rank's file. Its identity changes with each atomic replacement, which is how news is noticed."""

    path: Path
    seen: tuple[int, int, int] | None = None
    """The version that was seen last: inode, time of change in ns, size."""

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
    """Rank 0's word of how far it is: one line of JSON, in a file that it replaces or overwrites as often as it likes."""

    path: Path
    _seen: tuple[int, int, int] | None = None

    def news(self) -> Any:
        """What is written there, if that changed since the last call; else None. A line that is half written is left for the
        next call. Raises BadAcknowledgement for what is no line of this kind."""
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
    """The first bytes of a regular file: of a pipe that its job holds open there is neither something to read nor an end.
    Raises BadAcknowledgement."""
    try:
        with open(path, "rb", opener=lambda p, f: os.open(p, f | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadAcknowledgement(f"{path.name} is not a regular file; write one and rename it")
            return file.read(most)
    except OSError as e:
        raise BadAcknowledgement(f"{path.name} cannot be read ({e.strerror}); write a regular file") from None
