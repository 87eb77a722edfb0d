"""How a part's processes ended, or why they could not start: exit codes and words for people."""

import signal
from pathlib import Path

from services.agent.secrets import NotWanted, SecretMissing, SecretsUnavailable

NO_SECRETS = (SecretMissing, SecretsUnavailable, NotWanted)
COULD_NOT_START = 126
NOT_FOUND = 127


def start_failure(error: Exception, program: str, workdir: Path) -> tuple[int, str]:
    """Exit code and reason of a part that could not start."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    what = str(getattr(error, "filename", None) or program)
    reason = f"could not start {what!r}: {getattr(error, 'strerror', None) or error}"
    if isinstance(error, NO_SECRETS):
        reason = f"could not start: {error}"
    if what == str(workdir):
        reason = f"could not start: working directory {what!r} {_no_folder(error)}"
    return NOT_FOUND if missing else COULD_NOT_START, reason


def how_ended(code: int) -> str:
    """`code`: exit code, or -n for signal n."""
    return f"ended with exit code {code}" if code > 0 else f"was ended by {_signal_name(-code)}"


def _no_folder(error: Exception) -> str:
    """Why processes cannot start in a folder."""
    if isinstance(error, FileNotFoundError):
        return "does not exist on this node, or jobs are not shown it"
    if isinstance(error, NotADirectoryError):
        return "is no folder"
    return f"cannot be entered by the job: {getattr(error, 'strerror', None) or error}"


def _signal_name(number: int) -> str:
    """Most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
