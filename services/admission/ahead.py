"""Which requests are taken out of their turn, so that no team waits behind another's crowd. Pure bookkeeping.

REQUESTS is one queue: the durable consumer hands out the oldest first. With ten thousand requests of one team in it, the
request of another team would wait for all of them. So when the queue is long, some requests of every team are taken from
further back, in turn, each team's in its own order; when the queue comes to them they are done already.

What is known here is lost with the process, and then the queue decides them again: a job that is known is not admitted twice,
and answers have the ids that they had.
"""

from collections.abc import Iterable


class Ahead:
    """`reached` is how far the queue has come (a stream sequence). `most`: how many requests may be done ahead of it."""

    def __init__(self, most: int = 500_000) -> None:
        self.reached = 0
        self._most = most
        self._done: set[int] = set()
        self._read: dict[str, int] = {}  # team -> the last of its requests that was taken
        self._held: dict[str, int] = {}  # team -> one of its requests that must wait its turn, and so all behind it
        self._next = ""

    def __len__(self) -> int:
        return len(self._done)

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

    def hold(self, team: str, seq: int) -> None:
        """The team's request at `seq` could not be decided out of its turn: nothing of the team is taken before the queue has
        come there."""
        self._held[team] = seq
        self._read.pop(team, None)

    def is_done(self, seq: int) -> bool:
        """Whether the request was decided ahead of the queue."""
        return seq in self._done

    def done(self, seq: int) -> bool:
        """Whether the queue finds this request done already. To be asked once, when it comes there."""
        if seq not in self._done:
            return False
        self._done.discard(seq)
        return True
