"""Jobs' output: one file per rank, written by the keeper (`keeper.sink`), read in pieces.

Output is its team's data. It goes to the file byte for byte, and never into Baton's own log.

The agent relies on nothing in a job's folder. Output and ownership are in a tree that only the agent's user may enter,
and it is read without following links.
"""

import json
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from schemas.ids import JOB_ID_PATTERN
from schemas.queries import LogPiece, LogQuery
from schemas.subjects import OPERATOR
from services.agent.folders import remove_tree
from services.agent.private import is_folder, open_file

OWN = ".agent"
"""Below the root, beside the jobs' folders, on the same disk."""
ACKNOWLEDGEMENT = ".baton-rank-{rank}.json"
"""In an attempt's home, since another folder would cost as much as the home (docs/decisions/0094)."""
_META = "attempt.json"
"""Earlier versions kept the owner in a file, and a folder each per job, attempt and output."""
MOST_ANSWERED, _LONGEST = 256 * 1024, 6
"""Bytes of output in an answer, encoded as JSON; a raw piece of 256 KiB could take 1.5 MB, which costs readers 12 ms.
And the most bytes that one byte takes."""
_Ended = tuple[str, int, str]
"""Job, attempt, team."""
_NAMED = re.compile(rf"({JOB_ID_PATTERN})\.([1-9][0-9]{{0,17}})\.([a-z0-9-]*)")


def folder_name(job_id: str, attempt: int, team: str) -> str:
    """The name of the agent's one folder for an attempt. It contains the team, since a file for that would cost as much
    again (`docs/keeper.md`)."""
    return f"{job_id}.{attempt}.{team}"


class Begun(NamedTuple):
    """`own`: an attempt's folders, home first; `fresh`: those created just now; and the pattern of its
    acknowledgements."""

    own: list[Path]
    fresh: list[Path]
    acknowledgement: str


class LogStore:
    """Files of attempts: the job's in `<root>/<job id>.<attempt>/`, the agent's in `<root>/.agent/<job
    id>.<attempt>.<team>/`. Of ended attempts the newest `keep` stay, and at most `bytes` of output. Beyond that the
    oldest of the team with the most are removed, so that a team's many short jobs do not displace others' output."""

    def __init__(self, root: Path, keep: int, bytes: int = sys.maxsize) -> None:
        self._root, self._keep, self._bytes = root, keep, bytes
        self._own = root / OWN
        self._live: set[tuple[str, int, int]] = set()
        self._teams: dict[tuple[str, int], str] = {}
        """Teams of attempts that this agent began or adopted, in that order; saves reading files."""
        self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._own.chmod(0o700)
        self._take_over()

    def _take_over(self) -> None:
        """Moves the files of earlier versions, which were in jobs' folders, and later in several of the agent's.
        Writers of an open output continue. The next agent completes an interrupted move."""
        taken = {(job_id, attempt) for job_id, attempt, _ in self._kept().values()}
        for root in (self._own, self._root):
            for meta in root.glob(f"job-*/*/{_META}"):
                job_id, number = meta.parts[-3:-1]
                name = f"{job_id}.{number}.{_team_in(root, job_id, number)}"
                if (match := _NAMED.fullmatch(name)) is None:
                    continue
                one = job_id, int(match[2])
                with suppress(OSError):
                    if one not in taken and is_folder(root, (job_id, number, "logs")):
                        (meta.parent / "logs").rename(self._own / name)
                        taken.add(one)
                        meta.unlink()
                if root == self._own and one in taken:
                    remove_tree(meta.parent)
                    with suppress(OSError):
                        meta.parent.parent.rmdir()

    def attempt(self, job_id: str, attempt: int) -> Path:
        """The job's own folder: its home."""
        return self._root / f"{job_id}.{attempt}"

    def earlier(self, job_id: str, attempt: int) -> Path:
        """Its folder in an earlier version, with `home` and `acknowledge`."""
        return self._root / job_id / str(attempt)

    def begin(self, job_id: str, attempt: int, team: str) -> Begun:
        """Creates the attempt's folders and records its team. Raises OSError."""
        home = self.attempt(job_id, attempt)
        made = make_folder(str(home))
        self._remember(job_id, attempt, team)
        return Begun([home], [home] if made else [], f"{home}/{ACKNOWLEDGEMENT}")

    def adopt(self, job_id: str, attempt: int, team: str) -> Begun:
        """The same for an earlier agent's attempt, perhaps of an earlier version. Raises OSError."""
        before = self.earlier(job_id, attempt)
        if not (before / "home").is_dir():
            return self.begin(job_id, attempt, team)
        self._remember(job_id, attempt, team)
        return Begun([before / "home", before / "acknowledge"], [], f"{before}/acknowledge/rank-{{rank}}.json")

    def _remember(self, job_id: str, attempt: int, team: str) -> None:
        make_folder(f"{self._own}/{folder_name(job_id, attempt, team)}")
        self._teams[job_id, attempt] = team

    def log(self, job_id: str, attempt: int, rank: int) -> Path:
        return Path(self.log_name(job_id, attempt, rank))

    def log_name(self, job_id: str, attempt: int, rank: int) -> str:
        return f"{self._own}/{folder_name(job_id, attempt, self._team(job_id, attempt))}/rank-{rank}.log"

    def set_live(self, job_id: str, attempt: int, rank: int, live: bool) -> None:
        (self._live.add if live else self._live.discard)((job_id, attempt, rank))

    def prune(self) -> list[Path]:
        """Folders of ended attempts beyond the limits, for the caller to remove (it may take long)."""
        by_team: dict[str, deque[_Ended]] = {}
        for _, job_id, attempt, team in sorted(self._ended()):
            by_team.setdefault(team, deque()).append((job_id, attempt, team))
        old = _excess(by_team, self._keep, lambda _: 1)
        old += _excess(by_team, self._bytes, self._written)
        for job_id, attempt, _ in old:
            self._teams.pop((job_id, attempt), None)
        return [folder for one in old for folder in self.folders(*one)]

    def _written(self, one: _Ended) -> int:
        """Bytes of an attempt's output."""
        with suppress(OSError), os.scandir(self._own / folder_name(*one)) as found:
            return sum(file.stat(follow_symlinks=False).st_size for file in found)
        return 0

    def folders(self, job_id: str, attempt: int, team: str) -> tuple[Path, ...]:
        """All folders of an attempt. The last one names its team, so remove it last."""
        own = self._own / folder_name(job_id, attempt, team)
        return self.attempt(job_id, attempt), self.earlier(job_id, attempt), own

    def kept(self) -> dict[tuple[str, int], str]:
        """(job, attempt) -> team of everything here that is not pruned, running or ended."""
        return {(job_id, attempt): team for job_id, attempt, team in self._kept().values()}

    def left(self) -> list[Path]:
        """What ended attempts left besides output: their jobs' own folders."""
        return [
            folder
            for _, job_id, attempt, _ in self._ended()
            for folder in (self.attempt(job_id, attempt), self.earlier(job_id, attempt) / "home")
            if folder.is_dir()
        ]

    def _ended(self) -> list[tuple[tuple[bool, int], str, int, str]]:
        """(order, job, attempt, team), order growing with the start. This agent's own attempts come last, in their
        order, so a clock that is set back does not make them old. Others are ordered by their files. May run in a
        thread."""
        busy = {(job_id, attempt) for job_id, attempt, _ in self._live.copy()}
        order = {one: number for number, one in enumerate(list(self._teams))}
        ended = []
        for name, (job_id, attempt, team) in self._kept().items():
            if (job_id, attempt) in busy:
                continue
            if (number := order.get((job_id, attempt))) is not None:
                ended.append(((True, number), job_id, attempt, team))
                continue
            with suppress(OSError):
                began_ns = (self._own / name).stat(follow_symlinks=False).st_mtime_ns
                ended.append(((False, began_ns), job_id, attempt, team))
        return ended

    def _kept(self, beginning: str = "") -> dict[str, tuple[str, int, str]]:
        """(job, attempt, team) of the agent's folders whose names start like this."""
        try:
            names = os.listdir(self._own)
        except OSError:
            return {}
        found = ((name, _NAMED.fullmatch(name)) for name in names if name.startswith(beginning))
        return {name: (match[1], int(match[2]), match[3]) for name, match in found if match is not None}

    def read(self, query: LogQuery, team: str) -> LogPiece | None:
        """The requested piece; None when this agent does not have it, or not for this team."""
        attempt = query.attempt or self._latest(query.job_id, query.rank)
        if not attempt:
            return None
        if team != OPERATOR and team != self._team(query.job_id, attempt):
            return None
        ended = (query.job_id, attempt, query.rank) not in self._live
        try:
            path = self.log(query.job_id, attempt, query.rank)
            with open(open_file(self._own, *path.relative_to(self._own).parts), "rb") as file:
                file.seek(query.offset)
                data = file.read(query.limit + 1)
        except OSError:
            return None
        part = _fitting(data[: query.limit])
        more = len(part) < len(data)
        piece = _whole_characters(part, at_end=ended and not more)
        return LogPiece(
            job_id=query.job_id,
            attempt=attempt,
            rank=query.rank,
            text=piece.decode("utf-8", "replace"),
            next_offset=query.offset + len(piece),
            ended=ended and not more,
        )

    def _latest(self, job_id: str, rank: int) -> int:
        kept = ((self._own / name / f"rank-{rank}.log", of) for name, of in self._kept(f"{job_id}.").items())
        return max((attempt for path, (_, attempt, _) in kept if path.exists()), default=0)

    def _team(self, job_id: str, attempt: int) -> str:
        """ "" if this agent has no such attempt."""
        if (known := self._teams.get((job_id, attempt))) is not None:
            return known
        return next((team for _, _, team in self._kept(f"{job_id}.{attempt}.").values()), "")


def _excess(by_team: Mapping[str, deque[_Ended]], most: int, weighs: Callable[[_Ended], int]) -> list[_Ended]:
    """Takes the oldest (first) of the team with the most, repeatedly, until all weigh at most `most`."""
    weights = {team: deque(map(weighs, theirs)) for team, theirs in by_team.items()}
    have = {team: sum(each) for team, each in weights.items()}
    left, taken = sum(have.values()), list[_Ended]()
    while left > most:
        team = max(have, key=have.__getitem__)
        taken.append(by_team[team].popleft())
        weight = weights[team].popleft()
        have[team] -= weight
        left -= weight
    return taken


def _team_in(root: Path, job_id: str, attempt: str) -> str:
    """An attempt's team from an earlier version's file."""
    try:
        with open(open_file(root, job_id, attempt, _META), "rb") as file:
            return str(json.loads(file.read(4096))["team"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def make_folder(path: str) -> bool:
    """A short `Path.mkdir(parents=True)`, for the agent's user alone. Returns whether it was created; an existing one
    stays. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:  # somebody has removed its parent
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return make_folder(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    return True


def _fitting(data: bytes) -> bytes:
    """`data`, or its beginning if the JSON answer would be too large: a control character takes six bytes, invalid
    UTF-8 three."""
    if len(data) * _LONGEST <= MOST_ANSWERED:
        return data
    written = json.dumps(data.decode("utf-8", "replace"), ensure_ascii=False).encode()
    return data if len(written) <= MOST_ANSWERED + 2 else data[: MOST_ANSWERED // _LONGEST]


def _whole_characters(data: bytes, at_end: bool) -> bytes:
    """`data` without an incomplete UTF-8 sequence at its end, unless nothing follows (or nothing would be left)."""
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
