"""Which uses cost by another book, to the millionth, what they cost before. Most books say what holds from now on: they correct
nothing, and nothing need be rated twice."""

from collections.abc import Mapping, Sequence

from libs.core.billing.prices.lookup import PriceList


class Unchanged:
    """Between two books, of which the later one was applied at a moment of the wall. A use with tiers is never unchanged: what
    it costs hangs on all before it."""

    def __init__(self, before: PriceList | None, then: PriceList, applied_us: int) -> None:
        self._before, self._then, self._applied_us = before, then, applied_us
        self._known: dict[tuple[str, str, str], bool] = {}

    def of(self, team: str, device: str, priority_class: str, straight: Sequence[tuple[int, int, int]]) -> bool:
        """Of one use; `straight` as `Rater.rate` takes it."""
        about = (team, device, priority_class)
        known = self._known.get(about)
        if known is None:
            known = self._known[about] = self._same(*about)
        return known and all(wall + end - start <= self._applied_us for start, end, wall in straight)

    def of_all(self, spans: Mapping[tuple[str, str, str], tuple[int, int]]) -> bool:
        """Of all uses within spans of the wall, by (team, device, priority class)."""
        return all(self.of(*about, ((since, until, since),)) for about, (since, until) in spans.items())

    def _same(self, team: str, device: str, priority_class: str) -> bool:
        if self._before is None:
            return False
        was, now = (
            [(at, quote) for at, quote in zip(*book.series(team, device, priority_class), strict=True) if at < self._applied_us]
            for book in (self._before, self._then)
        )  # fmt: skip
        return was == now and all(quote is None or len(quote.tiers) == 1 for _, quote in was)
