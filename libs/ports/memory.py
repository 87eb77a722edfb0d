"""Memory that was used for a moment, and is given back to the system."""

import ctypes
import sys

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
"""Of glibc; None: another C library, which gives back what it will."""


def give_back() -> None:
    """What was freed and lies among what is used. Takes milliseconds for each hundred MiB that this process has."""
    if _TRIM is not None:
        _TRIM(0)
