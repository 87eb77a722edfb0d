"""Runs NX-27017 with three of its habits changed. Started by path as a script; imported by nobody.

Its command line offers INFO or DEBUG only, and INFO writes every command, documents included, to its log. `basicConfig`
does nothing when the root logger is set up already, so the level that is set first wins. And it refuses to start when
its pid file names a live process, which after a `kill -9` and a recycled pid may be anybody: the supervisor holds the
lock of the state directory, so a pid file found here is always stale. And on SIGTERM it logs two tracebacks for each
open connection, of which none means anything.
"""

import asyncio
import logging
import sys
from pathlib import Path


def main() -> None:
    """Remove the stale pid file, set the log level, and hand over to nx_27017."""
    Path(sys.argv[sys.argv.index("--pid-file") + 1]).unlink(missing_ok=True)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncio").addFilter(_is_no_cancellation)
    from nx_27017.nx_27017 import main as run

    run()


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is asyncio.CancelledError)


if __name__ == "__main__":
    main()
