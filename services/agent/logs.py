"""The output of jobs: one file per rank, which the keeper writes (`keeper.sink`), read in pieces.

A job's output is data of its team: it goes to the file byte for byte, and never into Baton's own log.
"""

import json
from contextlib import suppress
from pathlib import Path

from schemas.queries import LogPiece, LogQuery
from schemas.subjects import OPERATOR

META = "attempt.json"


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
