"""Removes the files of teams that have left the pool from this machine.

A team's files here are the homes and output of its attempts, whose names contain the team (`services.agent.logs`), and its
jobs' checkpoints, with a note of the team beside them (`services.agent.owners`). The agent asks placement which of these teams
have left: at its start and then every `left_s`, so an agent that was off misses nothing. It asks only about teams that have
files here, so nothing grows with the number of teams that have left.

An answer is as of one ledger record. A team that has left has no jobs before that record, but it may come back and have new
ones. So an answer counts only if it is at least as new as the state that this node had followed when the files were listed, and
for checkpoints as new as the note beside them, because other nodes may use the same folder. Files of a job that runs here are
never removed (it may run on a node that was cut off).

A team may come back while its files are being removed, and may submit a job with the id of an old one. The files of an attempt
that began since the listing stay; a start of the very job whose files are being removed waits until that is done.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence

from nats.aio.client import Client
from nats.errors import Error as NatsError
from pydantic import ValidationError

from libs.bus.queries import NoAnswer, NobodyAnswers, QueryError, ask
from schemas.catalog import BY_TYPE
from schemas.nodes import STATE_ANSWER_S, TEAMS_PER_QUESTION, TeamsLeft, TeamsLeftQuery
from services.agent.launcher import Launcher
from services.agent.owners import TEAM, Removal
from services.agent.pruning import prune

log = logging.getLogger("baton.agent")

_QUESTION = BY_TYPE["io.baton.node.left.query.v1"]


class DepartedTeamFiles:
    """Asks which teams have left, and removes their files. `node`: the node on whose subject it asks; `runs`: the jobs
    that run here."""

    def __init__(self, nats: Client, pool: str, node: str, launcher: Launcher, runs: Callable[[], set[str]]) -> None:
        self.ledger_seq: int | None = None
        """Up to this ledger record no file of a departed team is left here; None: unknown."""
        self.removed = 0
        """Number of jobs whose files were removed."""
        self.kept = 0
        """Number of jobs of departed teams with files still here: they cannot be removed, another node noted them
        since, or the job runs."""
        self._nats, self._pool, self._node, self._launcher, self._runs = nats, pool, node, launcher, runs
        self._begun: set[str] | None = None
        """Jobs that began here since the files under removal were listed; None: no removal."""
        self._removed_now = ""

    def begins(self, job_id: str) -> None:
        """An attempt of this job begins here."""
        if self._begun is not None:
            self._begun.add(job_id)

    def removes(self, job_id: str) -> bool:
        """Whether this job's files are being removed. An attempt that begins now would lose its own."""
        return job_id == self._removed_now

    async def look(self, followed: int) -> bool:
        """Asks about all teams with files here, and removes those of departed ones. `followed`: ledger sequence of the
        desired state that this node has followed. Returns whether every question was answered."""
        self._begun = set()
        try:
            return await self._look(followed)
        finally:
            self._begun = None

    async def _look(self, followed: int) -> bool:
        attempts: dict[str, dict[str, list[int]]] = {}
        for (job_id, attempt), team in self._launcher.logs.kept().items():
            attempts.setdefault(team, {}).setdefault(job_id, []).append(attempt)
        teams = sorted({*filter(TEAM.fullmatch, attempts), *await asyncio.to_thread(self._launcher.owners.teams)})
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
        """Returns the number of jobs with remaining files. `here`: job -> its attempts."""
        noted = await asyncio.to_thread(self._launcher.owners.jobs, team)
        ended: dict[Removal, list[str]] = {ending: [] for ending in Removal}
        runs = 0
        for job_id in sorted(here.keys() | {job_id for job_id, noted_at in noted.items() if noted_at <= seq}):
            if job_id in self._runs():
                runs += 1
            elif self._begun is not None and job_id in self._begun:
                continue  # it was granted after the team came back, and has ended
            else:
                ended[await self._removed(team, job_id, here.get(job_id, ()), seq)].append(job_id)
        gone, resist, since = ended[Removal.GONE], ended[Removal.RESISTS], ended[Removal.NOTED_SINCE]
        self.removed += len(gone)
        if gone:
            log.info("team %s has left: what was kept here of %d of its jobs is removed", team, len(gone))
        if resist:
            log.error("team %s has left, and files of %d of its jobs resist, e.g. %s", team, len(resist), resist[0])
        if since:
            log.info(
                "team %s had left as of record %d, and another node has noted checkpoints of %d of its jobs since, e.g. %s: "
                "they stay until it is asked again",
                team, seq, len(since), since[0],
            )  # fmt: skip
        if runs:
            log.warning("team %s has left, and %d of its jobs run here still: their files stay so long", team, runs)
        return len(resist) + len(since) + runs

    async def _removed(self, team: str, job_id: str, attempts: Sequence[int], seq: int) -> Removal:
        self._removed_now = job_id
        try:
            return await asyncio.to_thread(self._remove_job, team, job_id, attempts, seq)
        finally:
            self._removed_now = ""

    def _remove_job(self, team: str, job_id: str, attempts: Sequence[int], seq: int) -> Removal:
        """Attempts' folders go last, because they name the owner of the checkpoints. Blocks."""
        ended = self._launcher.owners.remove(job_id, team, seq)
        if ended is not Removal.GONE:
            return ended
        folders = [folder for attempt in attempts for folder in self._launcher.logs.folders(job_id, attempt, team)]
        prune(folders)
        return Removal.RESISTS if any(map(os.path.lexists, folders)) else Removal.GONE
