"""Which requests are taken out of their turn, so that no team waits behind another's crowd. Pure bookkeeping.

REQUESTS is one queue: the durable consumer hands out the oldest first. With ten thousand requests of one team in it, the
request of another team would wait for all of them. So when the queue is long, some requests of every team are taken from
further back, in turn, each team's in its own order; when the queue comes to them they are done already.

What is known here is lost with the process, and then the queue decides them again: a job that is known is not admitted twice,
and answers have the ids that they had.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

_EACH: Final = 3
"""A request of another team that is done ahead of the queue costs a crowd the room of so many."""
_LEAST_ROOM: Final = 1 / 8
"""A crowd always keeps this share of its room, or the queue would stand."""
_OVERTAKES: Final = 1 / 4
"""Who has so much done ahead, of what the team has that has most there, is no crowd."""
_BACK_S: Final = 20.0
"""A crowd that held others up has all its room back after so long, and part of it sooner, evenly. At once would be all of it
at the moment when nothing of it is left: it would fill its room again in a moment, and hold up the others again."""
_HELD_S: Final = 2.0
"""So long it must have held others up until that is so: whose request is the queue's first for a moment is no crowd."""


class Ahead:
    """`reached` is how far the queue has come (a stream sequence). `most`: how many requests may be done ahead of it."""

    def __init__(self, most: int = 500_000) -> None:
        self.reached = 0
        self._most = most
        self._done: set[int] = set()
        self._read: dict[str, int] = {}  # team -> the last of its requests that was taken
        self._held: dict[str, int] = {}  # team -> one of its requests that must wait its turn, and so all behind it
        self._ahead: dict[str, deque[int]] = {}  # team -> what was done of it and lies behind what is not, oldest first
        self._kept: dict[str, tuple[float, float]] = {}  # crowd -> the share that it goes on without, and when
        self._next = ""

    def __len__(self) -> int:
        return len(self._done)

    @property
    def longest(self) -> int:
        """How many requests of one team lie in the stream done ahead, at the most: they take up its room there."""
        return max(map(len, self._ahead.values()), default=0)

    def came_to(self, seq: int) -> None:
        """The queue decides everything up to `seq` now, or has."""
        self.reached = max(self.reached, seq)
        self._held = {team: held for team, held in self._held.items() if held > self.reached}
        self._read = {team: read for team, read in self._read.items() if read > self.reached}

    def turns(self, teams: Iterable[str], most: int) -> list[tuple[str, int]]:
        """Whose requests may be taken now, and after which sequence: at most `most` teams, beginning behind the last one that
        was served."""
        if len(self._done) >= self._most:
            return []
        names = sorted(team for team in teams if team not in self._held)
        start = next((i for i, team in enumerate(names) if team > self._next), 0)
        served = (names[start:] + names[:start])[:most]
        if served:
            self._next = served[-1]
        return [(team, self.after(team)) for team in served]

    def may_go_on(self, team: str) -> bool:
        """Whether more of a team's requests may be read, whose turn it was before."""
        return len(self._done) < self._most and team not in self._held

    def after(self, team: str) -> int:
        """The sequence behind which the team's next requests lie."""
        return max(self.reached, self._read.get(team, 0))

    def took(self, team: str, seq: int) -> None:
        """The team's request at `seq` was decided, and what follows from it is stored."""
        self._read[team] = max(seq, self._read.get(team, 0))
        if seq > self.reached:
            self._done.add(seq)
            self._ahead.setdefault(team, deque()).append(seq)

    def hold(self, team: str, seq: int) -> None:
        """The team's request at `seq` could not be decided out of its turn: nothing of the team is taken before the queue has
        come there."""
        self._held[team] = seq
        self._read.pop(team, None)

    def settled(self, floor: int) -> None:
        """Everything up to `floor` is answered, by whatever process: it is forgotten, or what another process met in the queue
        would be remembered for ever."""
        for team, seqs in list(self._ahead.items()):
            while seqs and seqs[0] <= floor:
                self._done.discard(seqs.popleft())
            if not seqs:
                del self._ahead[team]

    def held_back(self, team: str, most: int, now: float) -> float:
        """Which share of its room in the stream a team may not have at `now` (seconds of one clock), where a sender may have
        `most` requests.

        What is done ahead of the queue stays in the stream, in its sender's room, until the oldest request of the crowd that it
        overtook is answered. If the crowd had all its room, whoever sends as much as is answered of it would be refused as
        well. So a team of which little is done ahead gets the less room the more of another team lies there; the crowd's oldest
        request is the sooner answered, and that room free."""
        longest = max((len(seqs) for name, seqs in self._ahead.items() if name != team), default=0)
        mine = len(self._ahead.get(team, ()))
        if mine and mine >= longest * _OVERTAKES:
            self._kept.pop(team, None)
            return 0.0
        self._kept = {name: (share, at) for name, (share, at) in self._kept.items() if now - at < _BACK_S}
        share = min(1 - _LEAST_ROOM, _EACH * longest / most)
        before, since = self._kept.get(team, (0.0, now))
        kept = max(_left(before, since, now), min(share, before + (now - since) / _HELD_S))
        self._kept[team] = (kept, now)
        return max(share, kept)

    def is_done(self, seq: int) -> bool:
        """Whether the request was decided ahead of the queue."""
        return seq in self._done

    def done(self, seq: int) -> bool:
        """Whether the queue finds this request done already. To be asked once, when it comes there."""
        if seq not in self._done:
            return False
        self._done.discard(seq)
        return True


def _left(share: float, since: float, now: float) -> float:
    """Of the share that a crowd was without then."""
    return max(0.0, share - (now - since) / _BACK_S)
