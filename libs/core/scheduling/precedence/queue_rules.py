"""Which rule orders the jobs of each team: one rule for all of them, or each queue's own."""

from libs.core.scheduling.precedence.rules import EXCHANGING, OrderRule
from libs.core.state.queue_tree import QueueTree


class QueueRules:
    """`fixed`: the rule of every queue; None: each queue's own, as the tree says that is followed."""

    def __init__(self, fixed: OrderRule | None) -> None:
        self.fixed = fixed
        self._tree = QueueTree()
        self._found: dict[str, OrderRule] = {}
        """Team -> its rule, of those that were asked for."""

    def follow(self, tree: QueueTree) -> None:
        """Queues are as this tree says from here on."""
        self._tree, self._found = tree, {}

    @property
    def preempts(self) -> bool:
        """In some queue jobs of one class give way to each other."""
        if self.fixed is not None:
            return self.fixed in EXCHANGING
        return self._tree.order in EXCHANGING or any(queue.order in EXCHANGING for queue in self._tree)

    @property
    def flat(self) -> bool:
        """All jobs of a class come by age, whoever's they are."""
        return self.fixed is OrderRule.FIFO or (
            self.fixed is None and not len(self._tree) and self._tree.order == "fifo"
        )

    def of(self, team: str) -> OrderRule:
        """The rule of a team's jobs."""
        if self.fixed is not None:
            return self.fixed
        found = self._found.get(team)
        if found is None:
            found = self._found[team] = OrderRule(self._tree.order_of(team) or OrderRule.FAIR_SHARE)
        return found

    def by_number(self, team: str) -> bool:
        """A team's jobs come by their numbers, and give way to each other."""
        return self.of(team) in EXCHANGING
