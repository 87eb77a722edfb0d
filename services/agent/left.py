"""Files of teams that have left the pool are removed from this machine.

What lies here of a team are homes and output of its attempts, whose names say the team (`services.agent.logs`), and its jobs'
checkpoints, whose teams are noted beside them (`Owners`). The agent asks which of these teams have left: at its start, and
then every `left_s`, so one that was off meanwhile misses nothing. It is told of no team that it does not name, so nothing
grows with the teams that are gone.

An answer is of one ledger record. What was granted before that to a team that has left has ended by then; what it is granted
after it came back stays, however old the answer is: an answer counts if it knows what this node had followed when the files
were found, and for checkpoints also what is noted with them, for other nodes may have jobs in the same folder. Nothing is
removed of a job that runs here, as on a node that was cut off.
"""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nats.aio.client import Client
from nats.errors import Error as NatsError
from pydantic import ValidationError

from libs.bus.queries import NoAnswer, NobodyAnswers, QueryError, ask
from schemas.catalog import BY_TYPE
from schemas.ids import JOB_ID_PATTERN
from schemas.nodes import STATE_ANSWER_S, TEAMS_PER_QUESTION, TeamsLeft, TeamsLeftQuery
from services.agent.folders import remove_tree
from services.agent.launcher import prune
from services.agent.logs import OWN, LogStore, make_folder
from services.agent.private import open_file

log = logging.getLogger("baton.agent")

_QUESTION = BY_TYPE["io.baton.node.left.query.v1"]
_JOB = re.compile(JOB_ID_PATTERN)
_TEAM = re.compile(r"[A-Za-z0-9_-]{1,63}")
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
            if job_id not in self._noted and self._saved(job_id):
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
        return list(_names(self._own, _TEAM))

    def jobs(self, team: str) -> dict[str, int]:
        """Job -> the sequence that is noted with it. Blocks."""
        found: dict[str, int] = {}
        for job_id in _names(self._own / team, _JOB):
            with suppress(OSError, ValueError), open(open_file(self._own, team, job_id), "rb") as file:
                found[job_id] = int(file.read(32))
        return found

    def remove(self, job_id: str, team: str) -> bool:
        """Removes the checkpoints of this job of `team`; whether nothing is left of them. Blocks."""
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


class LeftTeams:
    """Asks which teams have left, and removes what lies here of them. `node`: on whose subject it asks; `runs`: the jobs that
    run here."""

    def __init__(
        self, nats: Client, pool: str, node: str, logs: LogStore, owners: Owners, runs: Callable[[], set[str]]
    ) -> None:
        self.ledger_seq: int | None = None
        """As of this ledger record nothing of a team that has left is kept here; None: not known yet."""
        self.removed = 0
        """Jobs whose files were removed."""
        self.kept = 0
        """Jobs of teams that have left whose files resist, or which run here still."""
        self._nats, self._pool, self._node = nats, pool, node
        self._logs, self._owners, self._runs = logs, owners, runs

    async def look(self, followed: int) -> bool:
        """Asks of all teams that have files here, and removes what is to be removed. `followed`: the ledger sequence up to
        which this node knows of what is granted to it. Returns whether all was answered."""
        attempts: dict[str, dict[str, list[int]]] = {}
        for (job_id, attempt), team in self._logs.kept().items():
            attempts.setdefault(team, {}).setdefault(job_id, []).append(attempt)
        teams = sorted({*filter(_TEAM.fullmatch, attempts), *await asyncio.to_thread(self._owners.teams)})
        seqs, kept = [followed], 0
        for start in range(0, len(teams), TEAMS_PER_QUESTION):
            asked = teams[start : start + TEAMS_PER_QUESTION]
            answer = await self._ask(asked)
            if answer is None or answer.ledger_seq < followed:
                return False
            seqs.append(answer.ledger_seq)
            for team in set(answer.left).intersection(asked):
                kept += await self._remove(team, attempts.get(team, {}), answer.ledger_seq)
        self.kept = kept
        if not kept:
            self.ledger_seq = min(seqs[1:] or seqs)
        return True

    async def _ask(self, teams: Sequence[str]) -> TeamsLeft | None:
        query = TeamsLeftQuery(teams=tuple(teams))
        try:
            answer: TeamsLeft = await ask(
                self._nats, _QUESTION, query, pool=self._pool, node=self._node, timeout_s=STATE_ANSWER_S
            )
        except NobodyAnswers:  # placement is away, or of an earlier version
            return None
        except (NoAnswer, QueryError, NatsError, ValidationError) as e:
            log.warning("placement does not say which teams have left: %s", str(e)[:300] or type(e).__name__)
            return None
        return answer

    async def _remove(self, team: str, here: Mapping[str, Sequence[int]], seq: int) -> int:
        """Of how many jobs something stays. `here`: job -> its attempts."""
        noted = await asyncio.to_thread(self._owners.jobs, team)
        removed, resist, runs = 0, [], 0
        for job_id in sorted(here.keys() | {job_id for job_id, noted_at in noted.items() if noted_at <= seq}):
            if job_id in self._runs():
                runs += 1
            elif await asyncio.to_thread(self._remove_job, team, job_id, here.get(job_id, ())):
                removed += 1
            else:
                resist.append(job_id)
        self.removed += removed
        if removed:
            log.info("team %s has left: what was kept here of %d of its jobs is removed", team, removed)
        if resist:
            log.error("team %s has left, and files of %d of its jobs resist, e.g. %s", team, len(resist), resist[0])
        if runs:
            log.warning("team %s has left, and %d of its jobs run here still: their files stay so long", team, runs)
        return len(resist) + runs

    def _remove_job(self, team: str, job_id: str, attempts: Sequence[int]) -> bool:
        """Whether nothing is left of it. The attempts' folders go last: they say whose the checkpoints are. Blocks."""
        if not self._owners.remove(job_id, team):
            return False
        folders = [folder for attempt in attempts for folder in self._logs.folders(job_id, attempt, team)]
        prune(folders)
        return not any(map(os.path.lexists, folders))


def _names(folder: Path, form: re.Pattern[str]) -> Iterator[str]:
    """Of what lies in `folder`, which is no link, the names of this form."""
    try:
        at = os.open(folder, _FOLDER)
    except OSError:
        return
    try:
        names = os.listdir(at)
    finally:
        os.close(at)
    yield from filter(form.fullmatch, names)
