"""How well each queue is served now, as the order of jobs compares siblings: the worst served is next.

Within its guarantee a queue comes before all that are beyond theirs, the emptier the sooner; beyond it the queue comes first
that holds the least over its guarantee for its weight. Granting to the first of this order, device by device, ends at
the division of `division` (progressive filling gives weighted max-min fairness: Bertsekas and Gallager, Data Networks,
6.5.2), and needs no count of what waits. Of several types the one that a queue holds the largest part of the pool of
counts (Dominant Resource Fairness, Ghodsi et al., NSDI 2011).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from libs.core.accelerators.kinds import GRAINS, grains, weight
from libs.core.state.queue_tree import ROOT, QueueTree
from schemas.queues import Queue
from schemas.resources import ANY_ACCELERATOR

WITHIN, BEYOND, WITHOUT_WEIGHT = range(3)


class QueueLevel(NamedTuple):
    """One queue among its siblings: the lower comes first; equals by name, so that jobs of one queue stay together."""

    tier: int
    amount: Fraction
    """Within its guarantee: the part of it that is held. Beyond: the part of the pool held over it, for its weight; where the
    tree has a half-life, with that held over it in the mean of the last time."""
    name: str


Standing = tuple[QueueLevel, ...]
"""From the top queue down to the leaf. Compared from the left: siblings are compared where two paths part."""


class Standings:
    """The standing of every queue while a plan is made. Reads the tree; changes only itself."""

    def __init__(
        self,
        tree: QueueTree,
        held: Mapping[str, Mapping[str, int]],
        capacity: Mapping[str, int],
        lately: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> None:
        """`held`: team -> kind of device -> thousandths held; `capacity`: kind -> thousandths in the pool; `lately`: what teams
        held in the mean of the last time (`libs.core.state.past_use`)."""
        self._tree = tree
        self._capacity = dict(capacity)
        self._held: dict[str, dict[str, int]] = {}
        for team, kinds in held.items():
            self.took(team, kinds)
        self._lately: dict[str, dict[str, int]] = {}
        for team, kinds in lately.items():
            for name in tree.line(team):
                _add(self._lately.setdefault(name, {}), kinds)
        self._owed: dict[str, Fraction] = {}
        """Queue -> what it held lately over its guarantee: that does not change while a plan is made."""

    def took(self, team: str, kinds: Mapping[str, int]) -> None:
        """A job of `team` got these (kind -> thousandths; less than 0: gave back)."""
        for name in self._tree.line(team):
            _add(self._held.setdefault(name, {}), kinds)

    def of(self, team: str, kinds: Iterable[str] = ()) -> Standing:
        """Of a job of `team` that may go to `kinds`; none named: to any accelerator."""
        asked = tuple(kinds)
        return tuple(self._level(name, asked) for name in self._compared(team))

    def _compared(self, team: str) -> Iterator[str]:
        """The queues of a team that are compared with their siblings. All jobs below one that orders by age are one line."""
        above = ROOT
        for name in self._tree.line(team):
            if (self._tree.order_of(above) if above != ROOT else self._tree.order) == "fifo":
                return
            yield name
            above = name

    def within(self, name: str, asked: Sequence[str], gets: Mapping[str, int]) -> bool:
        """Whether the queue stays within its guarantee of the kinds `asked` (none: of any accelerator) with `gets` more: kind,
        or "" where any would do -> thousandths. A queue that is guaranteed nothing of them never is."""
        keys = self._relevant(self._tree[name], asked)
        more = {
            key: sum(milli * (weight(key, kind) if kind else GRAINS) for kind, milli in gets.items()) for key in keys
        }
        return bool(keys) and all(
            self._grains(name, key) + more[key] <= self._tree[name].guaranteed.get(key, 0) * GRAINS for key in keys
        )

    def beyond(self, name: str, asked: Sequence[str]) -> bool:
        """Whether the queue holds more than is guaranteed to it of the kinds `asked` (none: of any accelerator): that is
        borrowed. Of kinds that nothing is guaranteed of, all is."""
        queue = self._tree[name]
        keys = self._relevant(queue, tuple(asked))
        if keys or asked:
            return all(self._grains(name, key) > queue.guaranteed.get(key, 0) * GRAINS for key in keys)
        return self._grains(name, ANY_ACCELERATOR) > self._covered(queue, self._held.get(name, {}))

    def over(self, name: str, gets: Mapping[str, int]) -> int:
        """Accelerators that the queue holds beyond its guarantee with `gets` more (kind, or "" where any would do ->
        thousandths; less than 0: gone), grains."""
        queue, held = self._tree[name], dict(self._held.get(name, {}))
        more = sum(milli * GRAINS for kind, milli in gets.items() if not kind)
        _add(held, {kind: milli for kind, milli in gets.items() if kind})
        of_any = queue.guaranteed.get(ANY_ACCELERATOR)
        covered = self._covered(queue, held) if of_any is None else of_any * GRAINS
        return max(0, grains(ANY_ACCELERATOR, held) + more - covered)

    def spares(self, name: str, kinds: Mapping[str, int]) -> bool:
        """Whether the queue holds all that it is guaranteed without `kinds` as well, of each key that counts one of them."""
        return all(
            not (gone := grains(key, kinds)) or self._grains(name, key) - gone >= milli * GRAINS
            for key, milli in self._tree[name].guaranteed.items()
        )

    def _level(self, name: str, asked: tuple[str, ...]) -> QueueLevel:
        queue = self._tree[name]
        keys = self._relevant(queue, asked)
        if keys and all(self._grains(name, key) < queue.guaranteed.get(key, 0) * GRAINS for key in keys):
            part = max(Fraction(self._grains(name, k), queue.guaranteed.get(k, 0) * GRAINS) for k in keys)
            return QueueLevel(WITHIN, part, name)
        if not queue.weight_milli:
            return QueueLevel(WITHOUT_WEIGHT, Fraction(0), name)
        amount = self._beyond(queue, self._held.get(name, {})) + self._before(name, queue)
        return QueueLevel(BEYOND, amount / queue.weight_milli, name)

    def _before(self, name: str, queue: Queue) -> Fraction:
        if name not in self._owed:
            self._owed[name] = self._beyond(queue, self._lately.get(name, {}))
        return self._owed[name]

    def _relevant(self, queue: Queue, asked: Sequence[str]) -> tuple[str, ...]:
        """The keys of its guarantee that count what is asked for."""
        return tuple(
            key
            for key, milli in queue.guaranteed.items()
            if milli and (any(weight(key, kind) for kind in asked) if asked else key == ANY_ACCELERATOR)
        )

    def _beyond(self, queue: Queue, held: Mapping[str, int]) -> Fraction:
        """The part of the pool that `held` is over the queue's guarantee, of the type of which it is the largest part. A
        guarantee of any accelerators covers each type; one of types covers as much of all as it covers of them."""
        of_any = queue.guaranteed.get(ANY_ACCELERATOR)
        most = Fraction(0)
        for key in (ANY_ACCELERATOR, *self._capacity):
            has, holds = grains(key, self._capacity), grains(key, held)
            if key == ANY_ACCELERATOR and of_any is None:
                covered = self._covered(queue, held)
            else:
                covered = max(queue.guaranteed.get(key, 0), of_any or 0) * GRAINS
            if has and holds > covered:
                most = max(most, Fraction(holds - covered, has))
        return most

    @staticmethod
    def _covered(queue: Queue, held: Mapping[str, int]) -> int:
        """How much of all that is held its guarantees of types cover, grains."""
        return sum(min(grains(key, held), milli * GRAINS) for key, milli in queue.guaranteed.items())

    def _grains(self, name: str, key: str) -> int:
        return grains(key, self._held.get(name, {}))


def largest_part(held: Mapping[str, int], capacity: Mapping[str, int]) -> Fraction:
    """The part of a pool that is held (kind -> thousandths), of the type of which it is the largest part."""
    keys = (ANY_ACCELERATOR, *capacity)
    return max(
        (Fraction(grains(key, held), has) for key in keys if (has := grains(key, capacity))), default=Fraction(0)
    )


def _add(total: dict[str, int], kinds: Mapping[str, int]) -> None:
    for kind, milli in kinds.items():
        total[kind] = total.get(kind, 0) + milli
