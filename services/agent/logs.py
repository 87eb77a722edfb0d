"""The output of jobs: one file per rank, capped, and read in pieces.

A job's output is data of its team: it goes to the file byte for byte, and never into Baton's own log.
"""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

from schemas.queries import LogPiece, LogQuery
from schemas.subjects import OPERATOR

_CHUNK = 65_536
_PAUSE_S = 0.01
META = "attempt.json"


class LogSink:
    """Copies a pipe into a file up to `limit` bytes, then says that it was cut and lets the rest go.

    What comes after the cut is read slowly (`_CHUNK` per `_PAUSE_S`): a job that floods its output is held back by its
    own pipe instead of taking the agent's processor.
    """

    def __init__(self, path: Path, read_fd: int, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        self._fd, self._limit, self._room, self._open = read_fd, limit, limit, True
        os.set_blocking(read_fd, False)
        self._loop.add_reader(read_fd, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
        elif self._room > 0:
            self._keep(data)
        else:
            self._loop.remove_reader(self._fd)
            self._loop.call_later(_PAUSE_S, self._again)

    def _again(self) -> None:
        if self._open:
            self._loop.add_reader(self._fd, self._readable)

    def _keep(self, data: bytes) -> None:
        kept = data[: self._room]
        self._room -= len(kept)
        try:
            os.write(self._file, kept)
            if self._room == 0:
                os.write(
                    self._file, f"\n[baton] output cut here: the limit of {self._limit} bytes is reached\n".encode()
                )
        except OSError:  # a full disk must cost the job its log, never the node its lease
            self._room = 0

    def close(self) -> None:
        """Takes what the pipe still holds and closes both ends. May be called twice."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        with suppress(OSError):
            while self._room > 0 and (data := os.read(self._fd, _CHUNK)):
                self._keep(data)
        os.close(self._fd)
        os.close(self._file)


class LogStore:
    """Where attempts keep their files: `<root>/<job id>/<attempt>/`. Old ones are removed, newest `keep` stay."""

    def __init__(self, root: Path, keep: int) -> None:
        self._root, self._keep = root, keep
        self._live: set[tuple[str, int, int]] = set()

    def attempt(self, job_id: str, attempt: int) -> Path:
        return self._root / job_id / str(attempt)

    def begin(self, job_id: str, attempt: int, team: str) -> Path:
        """Makes the attempt's folder and remembers whose it is. Raises OSError."""
        folder = self.attempt(job_id, attempt)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / META).write_text(json.dumps({"team": team}))
        return folder

    def log(self, job_id: str, attempt: int, rank: int) -> Path:
        return self.attempt(job_id, attempt) / "logs" / f"rank-{rank}.log"

    def set_live(self, job_id: str, attempt: int, rank: int, live: bool) -> None:
        (self._live.add if live else self._live.discard)((job_id, attempt, rank))

    def prune(self) -> list[Path]:
        """The folders of ended attempts beyond the newest `keep`, for removal by the caller (it may take long)."""
        busy = {(job_id, attempt) for job_id, attempt, _ in self._live}
        ended = []
        for meta in self._root.glob(f"job-*/*/{META}"):
            folder = meta.parent
            if (folder.parent.name, int(folder.name)) not in busy:
                with suppress(OSError):
                    ended.append((meta.stat().st_mtime_ns, folder))
        return [folder for _, folder in sorted(ended, reverse=True)[self._keep :]]

    def read(self, query: LogQuery, team: str) -> LogPiece | None:
        """The piece asked for, or None when this agent does not have it, or not for this team."""
        attempt = query.attempt or self._latest(query.job_id, query.rank)
        if not attempt:
            return None
        path = self.log(query.job_id, attempt, query.rank)
        if team != OPERATOR and team != self._team(query.job_id, attempt):
            return None
        ended = (query.job_id, attempt, query.rank) not in self._live
        try:
            with path.open("rb") as file:
                file.seek(query.offset)
                data = file.read(query.limit + 1)
        except OSError:
            return None
        more = len(data) > query.limit
        piece = _whole_characters(data[: query.limit], at_end=ended and not more)
        return LogPiece(
            job_id=query.job_id,
            attempt=attempt,
            rank=query.rank,
            text=piece.decode("utf-8", "replace"),
            next_offset=query.offset + len(piece),
            ended=ended and not more,
        )

    def _latest(self, job_id: str, rank: int) -> int:
        numbers = [int(path.parent.parent.name) for path in (self._root / job_id).glob(f"*/logs/rank-{rank}.log")]
        return max(numbers, default=0)

    def _team(self, job_id: str, attempt: int) -> str:
        try:
            return str(json.loads((self.attempt(job_id, attempt) / META).read_text())["team"])
        except (OSError, ValueError, KeyError):
            return ""


def _whole_characters(data: bytes, at_end: bool) -> bytes:
    """`data` without a UTF-8 sequence that its end cuts in two, unless nothing follows (or nothing would be left)."""
    if at_end:
        return data
    for back in range(1, min(3, len(data) - 1) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if need > back else data
    return data
