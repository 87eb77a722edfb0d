"""Read-modify-write of files beside the keys, under a lock, by several processes."""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from libs.ports.private_files import open_lock, write_private

M = TypeVar("M", bound=BaseModel)


@contextmanager
def changing(file: Path, read: Callable[[], M]) -> Iterator[M]:
    """What `read` gives, to be changed in the block; written, for its owner alone, when it was. Raises what `read` raises, and
    OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open_lock(file.with_name(f"{file.name}.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = read()
        before = content.model_dump()
        yield content
        if (after := content.model_dump()) != before:
            write_private(file, json.dumps(after, indent=1) + "\n", durable=True)
