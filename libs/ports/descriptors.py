"""How many files and connections this process may have open (RLIMIT_NOFILE)."""

import errno
import resource
from contextlib import suppress
from typing import Final

SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""This process, or the machine, has no descriptor or no memory left: that says nothing of what was to be opened."""


def allow_most() -> None:
    """As many as it may ask for; shells and systemd start with 1,024, for the sake of programs that use `select`. What this
    process starts may have as many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
