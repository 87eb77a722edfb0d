"""A machine whose clocks are set: all processes of a stack, the broker's too, see another time, and nothing else here does.

    with clocks.machine(folder) as machine:   # what is started in the block
        machine.wall(hours=3)                 # sees this, at once and while it runs

Linux on x86-64 (`clocks.c`, which the compiler of jobs' shim compiles); `why_not` says so elsewhere.
"""

import os
import platform
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from libs.embedded import binaries

_SOURCE = Path(__file__).with_suffix(".c")
_COMPILER = (sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu")
_HOUR_NS = 3_600_000_000_000


def why_not() -> str:
    """Why no clock can be set here; "" when it can."""
    known = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    return "" if known else "clocks.c is for Linux on x86-64"


class Machine:
    """By `table` its programs know how far their clocks are set forward."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._ahead = [0, 0]
        self._write()

    def wall(self, hours: float) -> None:
        """The wall clock is so far ahead of the true one; less than 0: behind it."""
        self._ahead[0] = int(hours * _HOUR_NS)
        self._write()

    def boot(self, hours: float) -> None:
        """The same of the clock that counts from the boot."""
        self._ahead[1] = int(hours * _HOUR_NS)
        self._write()

    def _write(self) -> None:
        with self._table.open("r+b" if self._table.exists() else "wb") as file:  # never shorter: it is mapped
            file.write(struct.pack("qq", *self._ahead))


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """For what is started in the block: `folder` is where its files lie."""
    table, library, launcher, broker = (folder / name for name in ("table", "clocks.so", "clocks", "nats-server"))
    made = Machine(table)
    for options in (("-shared", "-fPIC", "-DPRELOADED", "-o", library), ("-o", launcher)):
        subprocess.run(
            [*_COMPILER, "-O1", "-Wall", *map(str, options), _SOURCE],
            env=os.environ | {"ZIG_LOCAL_CACHE_DIR": str(folder), "ZIG_GLOBAL_CACHE_DIR": str(folder)},
            check=True,
        )
    words = map(shlex.quote, map(str, (launcher, table, binaries.nats_server())))
    broker.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {" ".join(words)} "$@"\n')
    broker.chmod(0o755)
    with (
        patch.dict(os.environ, {"LD_PRELOAD": str(library), "CLOCKS": str(table)}),
        patch.object(binaries, "nats_server", lambda: broker),
    ):
        yield made
