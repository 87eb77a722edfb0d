"""Records which team owns the checkpoints on this machine, or in a folder that nodes share: a job's name does not say it, and
its attempts, whose names do, are pruned."""

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
from services.agent.private import open_file

log = logging.getLogger("baton.agent")

TEAM = re.compile(NAME_PATTERN)
_JOB = re.compile(JOB_ID_PATTERN)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES, _TRY_AGAIN_S = 50, 0.01
"""So often a lock is tried at the most: another node's agent that is frozen while it holds it must freeze no others. Then it
goes on without: what another writes just then may be lost."""


class Removal(Enum):
    """What became of a job's checkpoints that were to be removed."""

    GONE = "nothing is left of them"
    RESISTS = "something is left"
    NOTED_SINCE = "another node has noted them with a later sequence: they stay, as far as is known"


class Owners:
    """Whose the checkpoints in `root` are: `<root>/.agent/<pool>/<team>/<job id>`, a file with a ledger sequence by which the
    job was granted. Only the agent's user may enter `.agent`, and what another user put there is not read.

    At its start an attempt would wait for one more file. So it is noted within a minute, once something was saved; and of all
    jobs where the folder is `shared` by several agents, for there it outlives this one.

    Threads of this agent and, where it is shared, other agents change notes at the same time. So a note only grows, is
    replaced as a whole, and is changed under a lock (`flock`), under which a job's folder is also moved away to be removed."""

    def __init__(self, root: Path, pool: str, shared: bool) -> None:
        self._root, self._own, self._shared = root, root / OWN / pool, shared
        self._noted: set[str] = set()

    def note(self, teams: Mapping[str, str], seq: int) -> None:
        """`teams`: job -> team. What cannot be written down is logged. Blocks."""
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
        """Of checkpoints that an earlier version left, where the user whose they are tells the team. Blocks."""
        known = {job_id for team in self.teams() for job_id in self.jobs(team)}
        for job_id in _names(self._root, _JOB):
            with suppress(OSError):
                if job_id not in known and (team := team_of((self._root / job_id).lstat().st_uid)):
                    self._write(job_id, team, seq)

    def teams(self) -> list[str]:
        """Those of which something is noted. Blocks."""
        return list(_names(self._own, TEAM))

    def jobs(self, team: str) -> dict[str, int]:
        """Job -> the sequence that is noted with it. Blocks."""
        found = {job_id: self._seq(job_id, team) for job_id in _names(self._own / team, _JOB)}
        return {job_id: seq for job_id, seq in found.items() if seq is not None}

    def _seq(self, job_id: str, team: str) -> int | None:
        with suppress(OSError, ValueError), open(open_file(self._own, team, job_id), "rb") as file:
            return int(file.read(32))
        return None

    def on_start(self, job_id: str, team: str, seq: int, *, saved: bool) -> None:
        """An attempt begins, where something is `saved` already or not. The note of before may be of another job with this id,
        from before the team left and came back: where other agents may remove what lies there, it is renewed at once. The
        folder may have been moved away until then: it is to be made after this."""
        if saved:
            self._noted.discard(job_id)
        if self._shared and TEAM.fullmatch(team) and (saved or os.path.lexists(self._own / team / job_id)):
            self._note(job_id, team, seq)

    def remove(self, job_id: str, team: str, seq: int) -> Removal:
        """Removes the checkpoints of this job of `team`. Where other agents have attempts, too, those stay that are noted with
        a later sequence than `seq` by now. Blocks."""
        try:
            return self._remove(job_id, team, seq)
        except OSError as e:
            log.error("checkpoints of %s cannot be removed: %s", job_id, e)
            return Removal.RESISTS

    def _remove(self, job_id: str, team: str, seq: int) -> Removal:
        """Raises OSError when there can be no lock. Where other agents may begin the job again it is moved away first: in a
        moment, unlike its removal."""
        folder, away = self._root / job_id, self._own / f".{job_id}"
        remove_tree(away)  # of a removal that did not come to its end
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
        """Its folder is gone."""
        with suppress(OSError), self._alone():
            self._forget(job_id, team)

    def _forget(self, job_id: str, team: str) -> None:
        self._noted.discard(job_id)
        with suppress(OSError):
            os.unlink(self._own / team / job_id)
            os.rmdir(self._own / team)  # unless more is noted of it

    def _saved(self, job_id: str) -> bool:
        """Whether there is something whose team must be known. What cannot be looked into counts."""
        try:
            with os.scandir(self._root / job_id) as found:
                return self._shared or next(found, None) is not None
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _write(self, job_id: str, team: str, seq: int) -> None:
        """Raises OSError. A team that came back may have given an id again: the later sequence counts."""
        with self._alone():
            make_folder(str(self._own / team))
            if (self._seq(job_id, team) or 0) < seq:
                draft = self._own / ".draft"
                draft.write_text(str(seq))
                os.replace(draft, self._own / team / job_id)
            self._noted.add(job_id)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No thread, and no other agent, changes notes meanwhile. Raises OSError."""
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
    """Of what lies in `folder`, which is no link, the names of this form; none where it cannot be read."""
    names: list[str] = []
    with suppress(OSError):
        at = os.open(folder, _FOLDER)
        try:
            names = os.listdir(at)
        finally:
            os.close(at)
    yield from filter(form.fullmatch, names)
