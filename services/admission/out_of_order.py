"""Bookkeeping for requests that are decided out of order, so that no team waits behind another team's burst. Pure.

REQUESTS is one queue: its durable consumer delivers the oldest message first. With ten thousand requests of one team in it,
another team's request would wait for all of them (head-of-line blocking). So while the queue is long, requests of every team
are taken from further back, round robin between teams and in order within each team. When the consumer reaches such a request
it is skipped.

This state is in memory only. After a restart the consumer decides those requests again, which does no harm: a known job is not
admitted twice, and answers have the same message ids.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

_EACH: Final = 3
"""Each request of another team that is decided out of order takes so many places in the stream from the burst."""
_LEAST_ROOM: Final = 1 / 8
"""A burst always keeps this share of its places, or the queue would not move."""
_OVERTAKES: Final = 1 / 4
"""A team is no burst if it has this share of the requests that the leading team has had decided out of order."""
_BACK_S: Final = 20.0
"""A burst gets its places back linearly within this time. All at once would come when nothing of it is left: it would fill
them again in a moment, and block the others again."""
_HELD_S: Final = 2.0
"""Its places are taken away linearly within this time: a team whose request is first in the queue for a moment is no burst."""


class OutOfOrder:
    """`reached` is the stream sequence up to which the consumer has come. `most` bounds the requests decided beyond it."""

    def __init__(self, most: int = 500_000) -> None:
        self.reached = 0
        self._most = most
        self._done: set[int] = set()
        self._read: dict[str, int] = {}  # team -> sequence of its last request that was decided
        self._held: dict[
            str, int
        ] = {}  # team -> sequence of a request that must wait for the consumer; later ones wait, too
        self._ahead: dict[
            str, deque[int]
        ] = {}  # team -> sequences decided out of order and still in the stream, oldest first
        self._kept: dict[str, tuple[float, float]] = {}  # team with a burst -> (share of places taken away, when)
        self._next = ""

    def __len__(self) -> int:
        return len(self._done)

    @property
    def longest(self) -> int:
        """The largest number of one team's decided requests that are still in the stream, where they count against its
        limit."""
        return max(map(len, self._ahead.values()), default=0)

    def came_to(self, seq: int) -> None:
        """The consumer has come to `seq`: everything up to it is being decided, or was."""
        self.reached = max(self.reached, seq)
        self._held = {team: held for team, held in self._held.items() if held > self.reached}
        self._read = {team: read for team, read in self._read.items() if read > self.reached}

    def turns(self, teams: Iterable[str], most: int) -> list[tuple[str, int]]:
        """At most `most` teams whose requests may be taken now, each with the sequence after which they begin. Round robin: it
        begins behind the team that was served last."""
        if len(self._done) >= self._most:
            return []
        names = sorted(team for team in teams if team not in self._held)
        start = next((i for i, team in enumerate(names) if team > self._next), 0)
        served = (names[start:] + names[:start])[:most]
        if served:
            self._next = served[-1]
        return [(team, self.after(team)) for team in served]

    def may_go_on(self, team: str) -> bool:
        """Whether more requests of the team may be taken."""
        return len(self._done) < self._most and team not in self._held

    def after(self, team: str) -> int:
        """The sequence behind which the team's next requests lie."""
        return max(self.reached, self._read.get(team, 0))

    def took(self, team: str, seq: int) -> None:
        """The team's request at `seq` was decided, and its outcome is stored."""
        self._read[team] = max(seq, self._read.get(team, 0))
        if seq > self.reached:
            self._done.add(seq)
            self._ahead.setdefault(team, deque()).append(seq)

    def hold(self, team: str, seq: int) -> None:
        """The team's request at `seq` could not be decided out of order: nothing more of the team is taken until the consumer
        has come there."""
        self._held[team] = seq
        self._read.pop(team, None)

    def settled(self, floor: int) -> None:
        """Everything up to `floor` is answered, by this process or another: it is forgotten."""
        for team, seqs in list(self._ahead.items()):
            while seqs and seqs[0] <= floor:
                self._done.discard(seqs.popleft())
            if not seqs:
                del self._ahead[team]

    def held_back(self, team: str, most: int, now: float) -> float:
        """The share of its places in the stream that a team loses at `now` (seconds of one clock); a sender has `most` places.

        A request that was decided out of order stays in the stream, and counts against its sender's limit, until the burst's
        older requests are answered. A large burst would so use up the limits of the teams behind it. So the more requests of
        another team were decided out of order, the fewer places a team with a burst has: its oldest request is answered sooner,
        and the others' places are free again."""
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
        """Whether the request was decided out of order."""
        return seq in self._done

    def done(self, seq: int) -> bool:
        """As `is_done`, and forgets it. Call it once, when the consumer has come to the request."""
        if seq not in self._done:
            return False
        self._done.discard(seq)
        return True


def _left(share: float, since: float, now: float) -> float:
    """What is still taken away of a share that was taken away at `since`."""
    return max(0.0, share - (now - since) / _BACK_S)
