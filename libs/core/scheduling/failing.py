"""Takes nodes out of use on which every job fails at once: a broken driver, a full disk, a file system that is not mounted.

Such a node is always free first, so it gets the next job, and the next: one such node of four empties the queue of the whole
pool, and every job fails. So it is taken out of use until an operator puts it back. But jobs may also fail by their own fault.
So only consecutive failures of different jobs count, at most `EACH` of one team, so that neither a team with a bad script nor
a hostile one can make a node look broken. Failures are counted for each device, too: where one of eight is broken, that one is
always free.

A job that ends well, or that fails after a minute's work, shows that the node works, and so does one that began since and has
worked for a minute. A job that was ended by a decision (cancelled, preempted) shows nothing. Neither does one that failed
while another job held the port at which its processes meet: a job there could hold those of others.

The counters are in the writer's memory and not folded: a writer that takes over begins anew. An input that is decided again
counts once, because a job does.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from libs.core.state.attempt import Attempt
from libs.core.state.job import Job
from libs.core.state.model import State
from libs.core.state.usable import BY_ITSELF

IN_A_ROW = 10
"""Jobs that failed at once one after the other, from which on a node, or a device, is taken for broken."""
EACH = 4
"""Of one team so many count: there are always three."""
AT_ONCE_US = 60_000_000
"""Who worked for longer before it failed did not fail because of its node."""
MOST_PART = 10
"""One in so many nodes of a pool is taken out of use for this, at least one and never the last: where more fail, it is not the
nodes."""
_KEPT = 20_000
"""Nodes on which something failed last; more are forgotten."""


@dataclass(slots=True)
class _InARow:
    """What failed there since something went well."""

    since_us: int
    teams: dict[str, set[str]] = field(default_factory=dict)
    """Team -> its jobs, `EACH` at the most."""

    def add(self, job: Job) -> bool:
        """Whether these are enough now."""
        jobs = self.teams.setdefault(job.team, set())
        if len(jobs) < EACH:
            jobs.add(job.id)
        return sum(map(len, self.teams.values())) >= IN_A_ROW

    def drop(self, job: Job) -> None:
        """It says nothing of this place after all."""
        jobs = self.teams.get(job.team, set())
        jobs.discard(job.id)
        if not jobs:
            self.teams.pop(job.team, None)


class FailingNodes:
    """Of one writer."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, dict[str, _InARow]] = OrderedDict()
        """Node -> device, or "" for all of it -> what failed there."""

    def well(self, node: str, attempt: Attempt) -> None:
        """The part of `attempt` on `node` ended well, or worked for long enough."""
        if (rows := self._rows.get(node)) is not None:
            for place in _places(node, attempt):
                rows.pop(place, None)

    def failed(self, state: State, node: str, job: Job, attempt: Attempt, t_us: int) -> str:
        """The part of `attempt` on `node` failed by itself, or could not be begun for what is broken there, and nothing had
        been decided of it. Why the node is to be taken out of use; "" when it is not."""
        if attempt.running_us and t_us - attempt.running_us > AT_ONCE_US:
            self.well(node, attempt)
            return ""
        if node in state.cordoned:
            return ""
        rows = self._rows.setdefault(node, {})
        self._rows.move_to_end(node)
        if len(self._rows) > _KEPT:
            self._rows.popitem(last=False)
        enough = {p: row for p in _places(node, attempt) if (row := rows.setdefault(p, _InARow(t_us))).add(job)}
        broken = [place for place, row in enough.items() if not _works(state, node, place, row.since_us, t_us)]
        for place in enough:
            del rows[place]
        if not broken or not _may_spare(state):
            return ""
        del self._rows[node]
        where = f" on its device {broken[0]}" if broken[0] else ""
        teams = len(enough[broken[0]].teams)
        return f"{IN_A_ROW} jobs of {teams} teams in a row failed within a minute{where}: repair it, then uncordon it"

    def forget(self, job: Job, attempt: Attempt) -> None:
        """Others held the port at which the processes of `attempt` meet, so its failure says nothing of its nodes. Of a gang a
        part on another node may have failed first, as it met them."""
        for node in attempt.parts:
            for row in self._rows.get(node, {}).values():
                row.drop(job)


def _places(node: str, attempt: Attempt) -> list[str]:
    return ["", *{claim.device: None for claim in attempt.parts[node].claims}]


def _works(state: State, node: str, place: str, since_us: int, t_us: int) -> bool:
    """Whether a job there began after the first of those that failed, and has worked for long enough."""
    for job_id in state.on_node.get(node, ()):
        attempt = state.jobs[job_id].current
        if (
            attempt is not None
            and since_us < attempt.running_us < t_us - AT_ONCE_US
            and place in _places(node, attempt)
        ):
            return True
    return False


def _may_spare(state: State) -> bool:
    """Whether one node more may be taken out of use for this: of those that are up, and never the last that is heard."""
    used = [name for name, node in state.fleet.nodes.items() if node.up and name not in state.cordoned]
    heard = sum(name not in state.silent for name in used)
    told = [told for name, told in state.cordoned.items() if state.fleet.nodes[name].up]
    out = sum(one.startswith(f"{BY_ITSELF}: ") for one in told)
    return heard > 1 and out < max(1, (len(used) + out) // MOST_PART)
