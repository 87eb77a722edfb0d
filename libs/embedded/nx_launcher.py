"""Runs NX-27017 with five of its habits changed. Started by path as a script; imported by nobody.

It listens on a TCP port, and knows no users: whoever reaches the port may read and write all. Here it listens on the Unix
socket that `--socket` names, which only its own user may connect to.

Its command line offers INFO or DEBUG only, and INFO writes every command, documents included, to its log. `basicConfig`
does nothing when the root logger is set up already, so the level that is set first wins. And it refuses to start when
its pid file names a live process, which after a `kill -9` and a recycled pid may be anybody: the supervisor holds the
lock of the state directory, so a pid file found here is always stale. And on SIGTERM it logs two tracebacks for each
open connection, of which none means anything.

And SQLite commits each change of a command by itself: table and indexes are written for every document of a bulk. Here a
command's changes are one transaction, and it is answered when that is committed.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Handle = Callable[[Any, dict[str, Any]], tuple[int, dict[str, Any]]]


def main() -> None:
    """Remove the stale pid file, set the log level, and hand over to nx_27017."""
    Path(sys.argv[sys.argv.index("--pid-file") + 1]).unlink(missing_ok=True)
    at = sys.argv.index("--socket")
    socket = Path(sys.argv[at + 1])
    _listen_on(socket)
    del sys.argv[at : at + 2]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncio").addFilter(_is_no_cancellation)
    from nx_27017.handler import NeoSQLiteHandler
    from nx_27017.nx_27017 import main as run

    NeoSQLiteHandler.handle_command = _in_one_transaction(NeoSQLiteHandler.handle_command)
    try:
        run()
    finally:  # before Python 3.13 a server leaves its socket behind
        socket.unlink(missing_ok=True)


def _listen_on(path: Path) -> None:
    """Whatever asks for a TCP server gets one on this socket: NX-27017 asks for one, by `asyncio.start_server`."""
    path.unlink(missing_ok=True)  # one that was killed leaves its own behind

    async def start(serve: Any, *_: Any, **__: Any) -> asyncio.Server:
        before = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(serve, path=path)
        finally:
            os.umask(before)

    asyncio.start_server = start  # type: ignore[assignment]


def _in_one_transaction(handle: Handle) -> Handle:
    """`handle_command` whose `update` is stored as a whole. Some of its changes may fail, as before: it says which."""

    def handle_command(self: Any, message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        body: dict[str, Any] = next((body for kind, body in message["sections"] if kind == "body"), {})
        database = body.get("$db", "test")
        if "update" not in body or "writeConcern" in body:  # a concern is heeded outside of transactions alone
            return handle(self, message)
        with self._lock_for(database):
            sqlite = self.get_database(database).db
            if sqlite.in_transaction:
                return handle(self, message)
            sqlite.execute("BEGIN")
            try:
                answer = handle(self, message)
                if not sqlite.in_transaction:  # SQLite gives it up when the disk is full
                    raise OSError("what it had changed was rolled back")
                sqlite.execute("COMMIT")
            finally:
                if sqlite.in_transaction:
                    sqlite.execute("ROLLBACK")
            return answer

    return handle_command


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is asyncio.CancelledError)


if __name__ == "__main__":
    main()
