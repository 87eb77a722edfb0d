"""Exit codes, and the form of errors: what happened, why, what to do; on stderr; never a traceback for a user's error.

    0 ok   1 failed   2 usage   3 not found   4 denied or rejected   5 conflict   6 nobody answers, or busy
    7 cancelled   8 lost   130 interrupted   141 output not read

`baton wait` and `baton submit --wait` also return the job's own exit code.
"""

import errno
import os
import sys
from collections.abc import Sequence
from enum import IntEnum

from libs.cli.output import hint


class Exit(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    CONFLICT = 5
    UNREACHABLE = 6
    CANCELLED = 7
    """The awaited job was cancelled."""
    LOST = 8
    """The awaited job ended with its node or a device, and had no further attempt."""
    INTERRUPTED = 130
    NOT_READ = 141
    """The reader of the output has gone (`| head`): a shell's code for tools that end by SIGPIPE."""


class Ended(Exception):
    """Ends a command with this code; everything has been printed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code


class UsageFault(Exception):
    """The command line or the job file is wrong. The text gives each problem with its fix, one per line."""


def code_of(error: BaseException) -> int | None:
    """The exit code of an error that users can understand; None for a bug."""
    if isinstance(error, Ended):
        return error.code
    if isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
        return Exit.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Exit.NOT_READ
    if _credential_refused(error):
        return Exit.DENIED
    # By name, so that `baton --help` need not import them; the nearest known ancestor decides.
    for kind in type(error).__mro__:
        if kind.__name__ in _CODES:
            return _CODES[kind.__name__]
    if not isinstance(error, OSError):
        return None
    if error.errno in _WRONG_PATH and error.filename is not None:
        return Exit.USAGE
    return Exit.FAILED if error.errno in _NOT_WRITTEN else None


def _credential_refused(error: BaseException) -> bool:
    """Whether a broker answers but refuses the credential. The bus reports that as unreachable; only the text tells
    (`libs.bus.connect`)."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"Unreachable", "BusUnavailable"}) and "refused the credential" in str(error)


_WRONG_PATH = {
    errno.ENOENT: "name one that exists; a new file needs a folder that exists",
    errno.ENXIO: "name a file that can be read",
    errno.EISDIR: "name a file",
    errno.EACCES: "name one that you may use",
    errno.EPERM: "name one that you may use",
    errno.ELOOP: "name one whose links do not go in a circle",
    errno.ENAMETOOLONG: "name a shorter one",
    errno.ENOTDIR: "name one below a folder, and not below a file",
    errno.EEXIST: "name a new one",
    errno.ENOTEMPTY: "name a new one",
}
"""Why a path is unusable, and what to do. The error does not say whether it was to be read or written."""

_NOT_WRITTEN = {
    errno.ENOSPC: "make room, or name a folder that has it",
    errno.EDQUOT: "make room, or name a folder that has it",
    errno.EROFS: "name a folder that may be written",
}
"""Why nothing can be written there, and what to do."""


_CODES: dict[str, int] = {
    # libs.client.errors; Conflict precedes Rejected, its ancestor
    "Conflict": Exit.CONFLICT, "Rejected": Exit.DENIED, "NotCancelled": Exit.DENIED, "Denied": Exit.DENIED,
    "NotFound": Exit.NOT_FOUND, "Invalid": Exit.USAGE, "Busy": Exit.UNREACHABLE,
    "Unreachable": Exit.UNREACHABLE, "TimedOut": Exit.UNREACHABLE, "TimeoutError": Exit.UNREACHABLE, "ClientError": Exit.FAILED,
    # the command line and its files
    "UsageFault": Exit.USAGE, "FleetError": Exit.USAGE, "JobFileError": Exit.USAGE, "FileNotFoundError": Exit.NOT_FOUND,
    "PermissionError": Exit.DENIED, "IsADirectoryError": Exit.USAGE, "UnicodeDecodeError": Exit.USAGE,
    "NoSuchPerson": Exit.NOT_FOUND, "NewerKeys": Exit.CONFLICT,
    "NotCopied": Exit.FAILED, "NotFenced": Exit.CONFLICT,
    "NoCredential": Exit.NOT_FOUND, "BadCredential": Exit.USAGE, "NotTold": Exit.UNREACHABLE, "NoKeyLibrary": Exit.FAILED,
    # the bus, the ledger, the embedded servers
    "BadAddress": Exit.USAGE,
    "BusUnavailable": Exit.UNREACHABLE, "NotStored": Exit.UNREACHABLE, "NoAnswer": Exit.UNREACHABLE,
    "StreamsMissing": Exit.UNREACHABLE, "StreamDrift": Exit.CONFLICT, "CannotProvision": Exit.FAILED,
    "NoLedger": Exit.NOT_FOUND, "LedgerStopped": Exit.FAILED, "BadLedgerFile": Exit.FAILED, "BrokenBook": Exit.FAILED,
    "StateDirLocked": Exit.CONFLICT, "UnfitStateDir": Exit.USAGE, "PortInUse": Exit.CONFLICT, "MissingBinary": Exit.FAILED,
    "StartFailed": Exit.FAILED, "NotReady": Exit.FAILED,
}  # fmt: skip


def tell(error: BaseException) -> None:
    """Prints the error on stderr."""
    if isinstance(error, Ended):
        return
    if isinstance(error, KeyboardInterrupt):
        hint("interrupted")
        return
    if isinstance(error, BrokenPipeError):
        # The reader has gone; redirect stdout so that the interpreter's last flush does not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if isinstance(error, UnicodeDecodeError):
        hint(f"baton: the file is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8")
        return
    if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:
        where = error.filename2 or error.filename or "the disk"  # for a copy, the second name: the first could be read
        hint(f"baton: {where}: {error.strerror}: {_NOT_WRITTEN[error.errno]}")
        return
    if isinstance(error, OSError) and error.filename is not None:
        fix = _WRONG_PATH.get(error.errno or 0, "name another path")
        hint(f"baton: {error.filename}: {error.strerror}: {fix}")
        return
    what, why, fix = (getattr(error, name, "") for name in ("what", "why", "fix"))
    if not (what or why or fix):
        late = (
            "nobody answered in time: check that Baton runs, and that this credential may ask that (an operator's may)"
        )
        hint(f"baton: {late if isinstance(error, TimeoutError) else error}")
        return
    causes = getattr(error, "causes", (why,) if why else ())
    if any(fix in cause for cause in causes):  # the error already contains the fix
        fix = ""
    hint("\n  ".join([f"baton: {what}", *_lines("because", causes), *_lines("try", (fix,) if fix else ())]))


def _lines(label: str, texts: Sequence[str]) -> list[str]:
    """The first text beside the label, the others below it."""
    return [f"{'' if i else f'{label}:':{len(label) + 1}} {text}" for i, text in enumerate(texts)]
