"""The `category` of a failed part: what the agent knows beyond the exit code.

Placement's retries depend on it (`libs.core.scheduling.retry`): a node's failure must not use up the job's retries.
Without a category the exit code decides.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from schemas.attempts import Category, KnownByAgent
from services.agent.keeper.find import NoKeeper
from services.agent.private import open_file
from services.agent.secrets import SecretMissing, SecretsUnavailable
from services.agent.variables import BadEnvironment

TAIL_BYTES = 16_384
"""The part of a failed process's output that is searched: its end, where programs print errors."""

_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_NODE_LACKS = frozenset(
    {
        errno.EAGAIN,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOSPC,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.ETOOMANYREFS,
    }
)
"""Errors for processes, memory, descriptors or disk that the node should have had."""

_SAYS: tuple[tuple[KnownByAgent, tuple[bytes, ...]], ...] = (
    (
        Category.HARDWARE,
        (
            b"uncorrectable ECC error",  # cudaErrorECCUncorrectable, and HIP's of the same name
            b"uncorrectable NVLink error",  # cudaErrorNvlinkUncorrectable
            b"GPU is lost",  # NVML_ERROR_GPU_IS_LOST
            b"fallen off the bus",  # XID 79
        ),
    ),
    (
        Category.OUT_OF_MEMORY,
        (
            b"OutOfMemoryError",  # PyTorch's class
            b"CUDA out of memory",  # and its message, also of older versions
            b"HIP out of memory",
            b"CUDA_ERROR_OUT_OF_MEMORY",
            b"RESOURCE_EXHAUSTED: Out of memory",  # XLA: JAX, TensorFlow
            b"\nMemoryError",  # Python
            b"std::bad_alloc",  # C++
        ),
    ),
)
"""Messages of drivers and frameworks when they end a process. The first match counts, since a broken device often shows
as lack of memory afterwards."""


def why_not_prepared(error: Exception) -> KnownByAgent:
    """The category of a part that could not be prepared: its environment is the job's, its folders and devices are the
    node's."""
    return Category.USER_ERROR if isinstance(error, BadEnvironment) else Category.HARDWARE


class NotServed(RuntimeError):
    """This node does not run processes of this team. The text gives the reason and the operator's remedy."""


def why_not_started(error: Exception) -> KnownByAgent:
    """The category of a command that could not be executed."""
    if isinstance(error, NotServed | NoKeeper | SecretsUnavailable):
        return Category.HARDWARE
    if isinstance(error, SecretMissing):
        return Category.INPUT_MISSING
    if not isinstance(error, OSError):
        return Category.USER_ERROR
    if error.errno in _MISSING:
        return Category.INPUT_MISSING
    return Category.HARDWARE if error.errno in _NODE_LACKS else Category.USER_ERROR


def why_failed(silent_devices: Sequence[str], oom_kills: int, log: Path) -> KnownByAgent | None:
    """The category of a part whose processes ended by themselves. `silent_devices`: its devices that no longer answer;
    `oom_kills`: its processes killed for memory; `log`: output of the first failed process. Reads the file."""
    if silent_devices:
        return Category.HARDWARE
    if oom_kills:
        return Category.OUT_OF_MEMORY
    said = _tail(log)
    return next((category for category, words in _SAYS if any(word in said for word in words)), None)


def _tail(log: Path) -> bytes:
    try:
        with open(open_file(log.parent, log.name), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError:
        return b""
