"""Reclaim: who gives back what its queue borrowed, for a job whose queue is within its guarantee.

Two jobs' queues part somewhere in the tree. From there down, every queue of the one that takes must be within its guarantee
with what it asks for, and every queue of the one that gives must be beyond its own. What two have in common above stays as it
was: one takes what the other gives. So

- a guarantee can be had whenever it is asked for, from those that borrow, whose jobs are of no higher class;
- nobody is asked for what is guaranteed to it, but for the rest of a gang that stands astride its guarantee (a gang gives way
  as a whole);
- nothing goes to and fro: what was taken back lies within a guarantee, and that nobody may take back.

The rule is KAI-Scheduler's (reclaim from over deserved quota to within deserved quota, at the level where two queues part),
with Baton's strict classes above it. Pure: reads a state, and is told what plans make of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from libs.core.scheduling.queues.standing import Standings
from libs.core.state.model import Job, State, running
from schemas.jobs import JobState

_GIVING = (JobState.PREEMPTING, JobState.STOPPING)


class Reclaim:
    """What queues hold as plans are made: who gives way already holds nothing any more."""

    def __init__(self, state: State) -> None:
        self._state, self._tree = state, state.tree
        self._standings = Standings(state.tree, state.all_committed(), state.fleet.capacity())
        for job in running(state):
            if job.state in _GIVING:
                self.gave(job)

    def gave(self, victim: Job) -> None:
        """It gives way: its queues hold so much less."""
        self._standings.took(victim.team, {kind: -milli for kind, milli in self._holds(victim).items()})

    def got(self, team: str, kinds: Mapping[str, int]) -> None:
        """A job of the team will hold these: kind of device -> thousandths."""
        self._standings.took(team, kinds)

    def entitled(self, team: str, asked: Sequence[str], *options: Mapping[str, int]) -> int | None:
        """From which level of the team's line of queues on (0: the top) all are within their guarantees of the kinds `asked`
        (none: of any accelerator) with any of `options` more (kind, or "" -> thousandths); None: not even its own is."""
        line, first = self._tree.line(team), None
        for level in range(len(line) - 1, -1, -1):
            if not all(self._standings.within(line[level], asked, gets) for gets in options):
                break
            first = level
        return first

    def lends(self, victim: Job, job: Job, asked: Sequence[str], entitled: int) -> bool:
        """Whether `victim` runs on what its queues borrowed from those of `job`, which asks for the kinds `asked` (none: any)
        and is entitled from a level on: then it may have to give way."""
        if victim.priority > job.priority or victim.team == job.team:
            return False
        own, other = self._tree.line(job.team), self._tree.line(victim.team)
        parted = next(level for level, (one, two) in enumerate(zip(own, other, strict=False)) if one != two)
        return parted >= entitled and all(self._standings.beyond(name, asked) for name in other[parted:])

    def lenders(
        self, victims: Iterable[Job], job: Job, asked: Sequence[str], entitled: int, lower: Callable[[Job], bool]
    ) -> list[Job]:
        """Those of `victims` that are `lower` (their class gives way to that of `job`), or lend to it when those before them
        have given way. Of what this gives any part may be left out: the others lend all the more."""
        taken = []
        for victim in victims:
            if lower(victim) or self.lends(victim, job, asked, entitled):
                self.gave(victim)
                taken.append(victim)
        for victim in taken:
            self.got(victim.team, self._holds(victim))
        return taken

    def _holds(self, job: Job) -> dict[str, int]:
        held: dict[str, int] = {}
        fleet = self._state.fleet
        for part in job.current.parts.values() if job.current is not None else ():
            for claim in () if part.freed else part.claims:
                kind = fleet.kind(fleet.row(claim.device))
                held[kind] = held.get(kind, 0) + claim.milli
        return held
