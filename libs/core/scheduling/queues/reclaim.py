"""Reclaim: who gives back what its queue borrowed, for a job whose queue is within its guarantee.

Two jobs' queues part somewhere in the tree. From there down, every queue of the one that takes must be within its guarantee
with what it asks for, and every queue of the one that gives must be beyond its own. What two have in common above stays as it
was: one takes what the other gives. So

- a guarantee can be had whenever it is asked for, from those that borrow, whose jobs are of no higher class;
- nobody is asked for what is guaranteed to it, but for the rest of a gang that stands astride its guarantee (a gang gives way
  as a whole);
- nothing goes to and fro: what was taken back lies within a guarantee, and that nobody may take back.

Where the tree has a half-life, what is lent beyond guarantees is evened out as well: a job whose queue holds less beyond its
guarantee, for its weight, than a sibling may have jobs of that give way, as long as the sibling still holds at least as much
beyond its own, for its weight, as the job's queue then does (`evens`). Each such step takes from who has more and leaves it no
less than who gets it, and touches no guarantee: so nothing goes to and fro here either. Accelerators are counted.

The rules are KAI-Scheduler's (reclaim from over deserved quota to within deserved quota, at the level where two queues part;
and of what is above the fair share), with Baton's strict classes above them. Pure: reads a state, and is told what plans make
of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import nlargest
from itertools import pairwise
from math import inf

from libs.core.scheduling.queues.standing import Standings
from libs.core.state.job import Job
from libs.core.state.model import State, running
from libs.core.state.queue_tree import ROOT
from schemas.jobs import JobState

_GIVING = (JobState.PREEMPTING, JobState.STOPPING)


class Reclaim:
    """What queues hold as plans are made: who gives way already holds nothing any more."""

    def __init__(self, state: State) -> None:
        self._state, self._tree = state, state.tree
        self._standings = Standings(state.tree, state.all_committed(), state.fleet.capacity())
        self._tops: dict[str, list[tuple[Fraction | float, str]]] | None = None
        """Queue -> the two below it that hold the most beyond their guarantees, for their weights; None: to be looked up."""
        for job in running(state):
            if job.state in _GIVING:
                self.gave(job)

    def gave(self, victim: Job) -> None:
        """It gives way: its queues hold so much less."""
        self._tops = None
        self._standings.took(victim.team, {kind: -milli for kind, milli in self._holds(victim).items()})

    def got(self, team: str, kinds: Mapping[str, int]) -> None:
        """A job of the team will hold these: kind of device -> thousandths."""
        self._tops = None
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

    def evens(self, victim: Job, job: Job, options: Sequence[Mapping[str, int]]) -> bool:
        """Whether `victim` may have to give way so that what is lent is even: its queue still holds at least as much beyond its
        guarantee, for its weight, as that of `job` does with any of `options` (kind, or "" -> thousandths)."""
        if victim.priority > job.priority or victim.team == job.team:
            return False
        gone = {kind: -milli for kind, milli in self._holds(victim).items()}
        return self._uneven(victim.team, job.team, gone, options)

    def uneven(self, team: str, options: Sequence[Mapping[str, int]]) -> bool:
        """Whether some queue may have to give so that what is lent is even, when one of `team` asks for `options`. Quick, and
        true more often than `givers` names any."""
        if self._tree.evens_after_us is None:
            return False
        if self._tops is None:
            self._tops = self._topmost()
        above = ROOT
        for name in self._tree.line(team):
            weight = self._tree[name].weight_milli
            most = next((level for level, other in self._tops.get(above, ()) if other != name), 0)
            if weight and all(most > Fraction(self._standings.over(name, gets), weight) for gets in options):
                return True
            above = name
        return False

    def _topmost(self) -> dict[str, list[tuple[Fraction | float, str]]]:
        below: dict[str, set[str]] = {}
        for team in self._state.used:
            for above, name in pairwise((ROOT, *self._tree.line(team))):
                below.setdefault(above, set()).add(name)
        return {above: nlargest(2, ((self._lent(name), name) for name in names)) for above, names in below.items()}

    def _lent(self, name: str) -> Fraction | float:
        """What a queue holds beyond its guarantee, for its weight."""
        over, weight = self._standings.over(name, {}), self._tree[name].weight_milli
        return Fraction(over, weight) if weight else inf if over else 0.0

    def givers(self, team: str, options: Sequence[Mapping[str, int]]) -> set[str]:
        """Teams of which some job might give way so that what is lent is even, when one of `team` asks for `options`."""
        return {other for other in self._state.used if other != team and self._uneven(other, team, {}, options)}

    def _uneven(self, giver: str, taker: str, gone: Mapping[str, int], options: Sequence[Mapping[str, int]]) -> bool:
        if self._tree.evens_after_us is None:
            return False
        own, other = self._tree.line(taker), self._tree.line(giver)
        parted = next(level for level, (one, two) in enumerate(zip(own, other, strict=False)) if one != two)
        gets, gives = own[parted], other[parted]
        weight, its = self._tree[gets].weight_milli, self._tree[gives].weight_milli
        leaves = {kind: -milli for kind, milli in gone.items()}
        if not weight or not all(self._standings.spares(name, leaves) for name in other[parted:]):
            return False
        left = self._standings.over(gives, gone)
        return not its or all(left * weight >= self._standings.over(gets, more) * its for more in options)

    def lenders(self, victims: Iterable[Job], lower: Callable[[Job], bool], lends: Callable[[Job], bool]) -> list[Job]:
        """Those of `victims` that are `lower` (their class gives way), or that lend when those before them have given way. Of
        what this gives any part may be left out: the others lend all the more."""
        taken = []
        for victim in victims:
            if lower(victim) or lends(victim):
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
