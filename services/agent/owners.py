"""Records which team owns the checkpoints on this machine, or in a folder that nodes share. A job's name does not
contain its team; its attempts' names do, but attempts are pruned."""

import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from schemas.base import NAME_PATTERN
from schemas.ids import JOB_ID_PATTERN
from services.agent.folders import remove_tree
from services.agent.logs import OWN, make_folder
from services.agent.private import FOLDER, open_file

log = logging.getLogger("baton.agent")

TEAM = re.compile(NAME_PATTERN)
_JOB = re.compile(JOB_ID_PATTERN)
_TRIES, _TRY_AGAIN_S = 50, 0.01
"""The most tries to lock. If another node's agent freezes while it holds the lock, this one continues without; what the
other writes at that moment may be lost."""


class Removal(Enum):
    """The result of removing a job's checkpoints."""

    GONE = "nothing is left of them"
    RESISTS = "something is left"
    NOTED_SINCE = "another node has noted them with a later sequence: they stay, as far as is known"


class Owners:
    """Owners of the checkpoints in `root`: `<root>/.agent/<pool>/<team>/<job id>`, a file with a ledger sequence at
    which the job was granted. Only the agent's user may enter `.agent`, and files of other users there are not read.

    A note at an attempt's start would delay it by one more file. So the note is written within a minute, once something
    was saved. It is written for all jobs if the folder is `shared` by several agents, since the folder outlives this
    one.

    Threads of this agent and, in a shared folder, other agents change notes concurrently. So a note's sequence only
    grows; it is replaced as a whole, under a lock (`flock`). A job's folder is moved away for removal under the same
    lock."""

    def __init__(self, root: Path, pool: str, shared: bool) -> None:
        self._root, self._own, self._shared = root, root / OWN / pool, shared
        self._noted: set[str] = set()

    def note(self, teams: Mapping[str, str], seq: int) -> None:
        """`teams`: job -> team. Failed writes are logged. Blocks."""
        self._noted &= teams.keys()
        for job_id, team in teams.items():
            if job_id not in self._noted and TEAM.fullmatch(team) and self._saved(job_id):
                self._note(job_id, team, seq)

    def _note(self, job_id: str, team: str, seq: int) -> None:
        try:
            self._write(job_id, team, seq)
        except OSError as e:
            log.error("the owner of the checkpoints of %s cannot be recorded: %s", job_id, e)

    def note_older(self, team_of: Callable[[int], str], seq: int) -> None:
        """Notes checkpoints of an earlier version, if their user determines the team. Blocks."""
        known = {job_id for team in self.teams() for job_id in self.jobs(team)}
        for job_id in _names(self._root, _JOB):
            with suppress(OSError):
                if job_id not in known and (team := team_of((self._root / job_id).lstat().st_uid)):
                    self._write(job_id, team, seq)

    def teams(self) -> list[str]:
        """Teams with notes. Blocks."""
        return list(_names(self._own, TEAM))

    def jobs(self, team: str) -> dict[str, int]:
        """Job -> noted sequence. Blocks."""
        found = {job_id: self._seq(job_id, team) for job_id in _names(self._own / team, _JOB)}
        return {job_id: seq for job_id, seq in found.items() if seq is not None}

    def _seq(self, job_id: str, team: str) -> int | None:
        with suppress(OSError, ValueError), open(open_file(self._own, team, job_id), "rb") as file:
            return int(file.read(32))
        return None

    def on_start(self, job_id: str, team: str, seq: int, *, saved: bool) -> None:
        """Called when an attempt begins; `saved`: whether checkpoints exist. An existing note may be of another job
        with this id, from before the team left and came back. If other agents may remove the files, it is renewed at
        once. The folder may be moved away until then, so create it after this."""
        if saved:
            self._noted.discard(job_id)
        if self._shared and TEAM.fullmatch(team) and (saved or os.path.lexists(self._own / team / job_id)):
            self._note(job_id, team, seq)

    def remove(self, job_id: str, team: str, seq: int) -> Removal:
        """Removes this job's checkpoints. In a shared folder, those noted meanwhile with a later sequence than `seq`
        stay. Blocks."""
        try:
            return self._remove(job_id, team, seq)
        except OSError as e:
            log.error("checkpoints of %s cannot be removed: %s", job_id, e)
            return Removal.RESISTS

    def _remove(self, job_id: str, team: str, seq: int) -> Removal:
        """Raises OSError when it cannot lock. If other agents may begin the job again, the folder is moved away first:
        at once, unlike its removal."""
        folder, away = self._root / job_id, self._own / f".{job_id}"
        remove_tree(away)  # left by an interrupted removal
        with self._alone():
            if self._noted_since(job_id, team, seq):
                return Removal.NOTED_SINCE
            if self._shared and folder.is_dir() and not folder.is_symlink():
                with suppress(OSError):
                    os.rename(folder, away)
        for one in (away, folder) if not self._shared else (away,):
            remove_tree(one)
        with self._alone():
            if self._noted_since(job_id, team, seq):
                return Removal.NOTED_SINCE
            if os.path.lexists(folder) or os.path.lexists(away):
                return Removal.RESISTS
            self._forget(job_id, team)
        return Removal.GONE

    def _noted_since(self, job_id: str, team: str, seq: int) -> bool:
        return self._shared and (self._seq(job_id, team) or 0) > seq

    def forget(self, job_id: str, team: str) -> None:
        """Removes the note: the folder is gone."""
        with suppress(OSError), self._alone():
            self._forget(job_id, team)

    def _forget(self, job_id: str, team: str) -> None:
        self._noted.discard(job_id)
        with suppress(OSError):
            os.unlink(self._own / team / job_id)
            os.rmdir(self._own / team)  # fails while other notes remain

    def _saved(self, job_id: str) -> bool:
        """Whether there is something to note. A folder that cannot be read counts."""
        try:
            with os.scandir(self._root / job_id) as found:
                return self._shared or next(found, None) is not None
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _write(self, job_id: str, team: str, seq: int) -> None:
        """Raises OSError. After a team came back an id may be reused: the later sequence wins."""
        with self._alone():
            make_folder(str(self._own / team))
            if (self._seq(job_id, team) or 0) < seq:
                draft = self._own / ".draft"
                draft.write_text(str(seq))
                os.replace(draft, self._own / team / job_id)
            self._noted.add(job_id)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Excludes all other writers of notes, threads and agents. Raises OSError."""
        make_folder(str(self._root / OWN))
        make_folder(str(self._own))
        lock = os.open(self._own / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(_TRIES):
                if _locked(lock):
                    break
                time.sleep(_TRY_AGAIN_S)
            yield
        finally:
            os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(folder: Path, form: re.Pattern[str]) -> Iterator[str]:
    """Names of this form in `folder`; none if it is a link or unreadable."""
    names: list[str] = []
    with suppress(OSError):
        at = os.open(folder, FOLDER)
        try:
            names = os.listdir(at)
        finally:
            os.close(at)
    yield from filter(form.fullmatch, names)
