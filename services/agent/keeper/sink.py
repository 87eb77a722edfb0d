"""The output of one process: from its pipe into a file, capped."""

import os
import time

CHUNK = 65_536
PAUSE_S = 0.01


class Sink:
    """Copies a pipe into a file up to `limit` bytes, then says that it was cut and lets the rest go.

    What comes after the cut is read slowly (`CHUNK` per `PAUSE_S`): a job that floods its output is held back by its
    own pipe instead of taking a processor.
    """

    __slots__ = ("_file", "_limit", "_room", "fd", "resting_until")

    def __init__(self, path: str, fd: int, limit: int) -> None:
        """Raises OSError when the file cannot be opened."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o640)
        self.fd, self._limit, self._room = fd, limit, limit
        self.resting_until = 0.0
        """On `time.monotonic`: the pipe is not to be read before."""
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Takes one piece; returns False once the last writer has closed the pipe."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            return False
        if self._room > 0:
            self._keep(data)
        else:
            self.resting_until = time.monotonic() + PAUSE_S
        return True

    def _keep(self, data: bytes) -> None:
        kept = data[: self._room]
        self._room -= len(kept)
        try:
            os.write(self._file, kept)
            if self._room == 0:
                cut = f"\n[baton] output cut here: the limit of {self._limit} bytes is reached\n"
                os.write(self._file, cut.encode())
        except OSError:  # a full disk must cost the job its log and nothing else
            self._room = 0

    def close(self) -> None:
        """Takes what the pipe still holds and closes both ends."""
        try:
            while self._room > 0 and (data := os.read(self.fd, CHUNK)):
                self._keep(data)
        except OSError:
            pass
        os.close(self.fd)
        os.close(self._file)
