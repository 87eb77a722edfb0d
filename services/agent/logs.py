"""The output of jobs: one file per rank, which the keeper writes (`keeper.sink`), read in pieces.

A job's output is data of its team: it goes to the file byte for byte, and never into Baton's own log.

A job's folder holds nothing that the agent relies on: its output, and whose it is, lie in a tree that only the agent's user may
enter. What is read there is read without following a link.
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
"""Below the root, beside the jobs' folders: on the same disk."""
ACKNOWLEDGEMENT = ".baton-rank-{rank}.json"
"""In an attempt's home: a folder for it would cost as much as the home (docs/decisions/0094)."""
_META = "attempt.json"
"""Earlier versions had a file for whose an attempt is, and a folder for each job, attempt and output."""
MOST_ANSWERED, _LONGEST = 256 * 1024, 6
"""Bytes of output in an answer, as JSON writes them: a piece of 256 KiB would have 1.5 MB, which takes its readers 12 ms. The
most that it writes for one byte."""
_Ended = tuple[str, int, str]
"""Job, attempt, team."""
_NAMED = re.compile(rf"({JOB_ID_PATTERN})\.([1-9][0-9]{{0,17}})\.([a-z0-9-]*)")


def folder_name(job_id: str, attempt: int, team: str) -> str:
    """Of the one folder that the agent makes for an attempt. It says whose it is: a file for that would cost as much again
    (`docs/keeper.md`)."""
    return f"{job_id}.{attempt}.{team}"


class Begun(NamedTuple):
    """`own`: an attempt's own folders, its home first, of which `fresh` were made just now; and the pattern of its
    acknowledgements."""

    own: list[Path]
    fresh: list[Path]
    acknowledgement: str


class LogStore:
    """Where attempts keep their files: the job's in `<root>/<job id>.<attempt>/`, the agent's in
    `<root>/.agent/<job id>.<attempt>.<team>/`. Of those that ended so many stay, `keep`, and so much of their output, `bytes`;
    of more the oldest of the team that has most are removed, so that no team's many short jobs take away what others' wrote."""

    def __init__(self, root: Path, keep: int, bytes: int = sys.maxsize) -> None:
        self._root, self._keep, self._bytes = root, keep, bytes
        self._own = root / OWN
        self._live: set[tuple[str, int, int]] = set()
        self._teams: dict[tuple[str, int], str] = {}
        """Of the attempts that this agent began or adopted, in that order: it need not ask a file whose they are."""
        self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._own.chmod(0o700)
        self._take_over()

    def _take_over(self) -> None:
        """Agents of before kept their files in the jobs' folders, and later in several of their own. Who writes to an output
        that is open goes on. What is half taken over when the agent ends, the next one completes."""
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
        """What an earlier version made of it: a folder with `home` and `acknowledge`."""
        return self._root / job_id / str(attempt)

    def begin(self, job_id: str, attempt: int, team: str) -> Begun:
        """Makes the attempt's folders and remembers whose it is. Raises OSError."""
        home = self.attempt(job_id, attempt)
        made = make_folder(str(home))
        self._remember(job_id, attempt, team)
        return Begun([home], [home] if made else [], f"{home}/{ACKNOWLEDGEMENT}")

    def adopt(self, job_id: str, attempt: int, team: str) -> Begun:
        """The same of an attempt that an earlier agent began, maybe of an earlier version. Raises OSError."""
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
        """The folders of ended attempts that are too many, for removal by the caller (it may take long)."""
        by_team: dict[str, deque[_Ended]] = {}
        for _, job_id, attempt, team in sorted(self._ended()):
            by_team.setdefault(team, deque()).append((job_id, attempt, team))
        old = _beyond(by_team, self._keep, lambda _: 1)
        old += _beyond(by_team, self._bytes, self._written)
        for job_id, attempt, _ in old:
            self._teams.pop((job_id, attempt), None)
        return [folder for one in old for folder in self.folders(*one)]

    def _written(self, one: _Ended) -> int:
        """Bytes of an attempt's output."""
        with suppress(OSError), os.scandir(self._own / folder_name(*one)) as found:
            return sum(file.stat(follow_symlinks=False).st_size for file in found)
        return 0

    def folders(self, job_id: str, attempt: int, team: str) -> tuple[Path, ...]:
        """All that may lie here of an attempt. The last one says whose it is: it is to be removed after the others."""
        own = self._own / folder_name(job_id, attempt, team)
        return self.attempt(job_id, attempt), self.earlier(job_id, attempt), own

    def kept(self) -> dict[tuple[str, int], str]:
        """Job and attempt -> team, of those here that are not pruned, running or ended."""
        return {(job_id, attempt): team for job_id, attempt, team in self._kept().values()}

    def left(self) -> list[Path]:
        """What ended attempts left beside their output: their jobs' own folders."""
        return [
            folder
            for _, job_id, attempt, _ in self._ended()
            for folder in (self.attempt(job_id, attempt), self.earlier(job_id, attempt) / "home")
            if folder.is_dir()
        ]

    def _ended(self) -> list[tuple[tuple[bool, int], str, int, str]]:
        """What is larger the later it began; job, attempt, team. Those that this agent began are later than all others, in its
        order: a clock that is set back makes no old ones of them. Of the others their files say when. May run in a thread."""
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
        """The agent's folders whose names begin so: job, attempt, team of each."""
        try:
            names = os.listdir(self._own)
        except OSError:
            return {}
        found = ((name, _NAMED.fullmatch(name)) for name in names if name.startswith(beginning))
        return {name: (match[1], int(match[2]), match[3]) for name, match in found if match is not None}

    def read(self, query: LogQuery, team: str) -> LogPiece | None:
        """The piece asked for, or None when this agent does not have it, or not for this team."""
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
        part = _answerable(data[: query.limit])
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
        """ "" where this agent has no such attempt."""
        if (known := self._teams.get((job_id, attempt))) is not None:
            return known
        return next((team for _, _, team in self._kept(f"{job_id}.{attempt}.").values()), "")


def _beyond(by_team: Mapping[str, deque[_Ended]], most: int, weighs: Callable[[_Ended], int]) -> list[_Ended]:
    """Takes the oldest, which are first, of whichever team has most, until all together weigh no more than `most`."""
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
    """Whose an attempt is by the file of an earlier version."""
    try:
        with open(open_file(root, job_id, attempt, _META), "rb") as file:
            return str(json.loads(file.read(4096))["team"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def make_folder(path: str) -> bool:
    """`Path.mkdir(parents=True)` without its detours, for the agent's user alone. Returns whether it was made: one that is
    there stays. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:  # somebody has removed the one that it is in
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return make_folder(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    return True


def _answerable(data: bytes) -> bytes:
    """`data`, or its beginning where an answer with all of it would be too large: JSON writes six bytes for a control
    character, and what is no UTF-8 takes three."""
    if len(data) * _LONGEST <= MOST_ANSWERED:
        return data
    written = json.dumps(data.decode("utf-8", "replace"), ensure_ascii=False).encode()
    return data if len(written) <= MOST_ANSWERED + 2 else data[: MOST_ANSWERED // _LONGEST]


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
