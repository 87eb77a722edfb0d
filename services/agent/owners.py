"""Whose the checkpoints are that lie on this machine, or in a folder that nodes share: noted beside them, as a job's name does
not say it, and its attempts, whose names do, are pruned."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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


class Owners:
    """Whose the checkpoints in `root` are: `<root>/.agent/<pool>/<team>/<job id>`, a file with a ledger sequence by which the
    job was granted. Only the agent's user may enter `.agent`, and what another user put there is not read.

    At its start an attempt would wait for one more file. So it is noted within a minute, once something was saved; and of all
    jobs where the folder is `shared` by several agents, for there it outlives this one."""

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
            log.error("whose the checkpoints of %s are cannot be noted: %s", job_id, e)

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

    def again(self, job_id: str, team: str, seq: int) -> None:
        """Another attempt begins where something is saved already. The note of before may be of another job with this id, from
        before the team left and came back: where other agents may remove what lies there, it is renewed at once."""
        self._noted.discard(job_id)
        if self._shared and TEAM.fullmatch(team):
            self._note(job_id, team, seq)

    def remove(self, job_id: str, team: str, seq: int) -> bool:
        """Removes the checkpoints of this job of `team`; whether nothing is left of them. Where other agents have attempts,
        too, those stay that are noted with a later sequence than `seq` by now. Blocks."""
        if self._shared and (self._seq(job_id, team) or 0) > seq:
            return False
        remove_tree(self._root / job_id)
        if os.path.lexists(self._root / job_id):
            return False
        self.forget(job_id, team)
        return True

    def forget(self, job_id: str, team: str) -> None:
        """Its folder is gone."""
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
        make_folder(str(self._root / OWN))
        make_folder(str(self._own))
        make_folder(str(self._own / team))
        (self._own / team / job_id).write_text(str(seq))
        self._noted.add(job_id)


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
