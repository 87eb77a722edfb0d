"""Finds uses that cost the same under another price book. Most books change only future prices: they correct nothing,
and no use need be rated twice."""

from collections.abc import Mapping, Sequence

from libs.core.billing.prices.lookup import PricedBy, PriceList


class Unchanged:
    """Compares two books, the later applied at a moment of wall time. The cost of a use with tiers depends on all
    earlier use of its team and device kind: either all of it is unchanged, or none."""

    def __init__(
        self, before: PriceList | None, then: PriceList, applied_us: int, used: Mapping[PricedBy, int] | None = None
    ) -> None:
        """`used`: kind of use -> wall time of its last end. None: unknown, and uses with tiers may have changed."""
        self._before, self._then, self._applied_us = before, then, applied_us
        self._used = used
        self._known: dict[PricedBy, bool] = {}
        self._groups: dict[tuple[str, str], bool] = {}

    def of(self, team: str, device: str, priority_class: str, straight: Sequence[tuple[int, int, int]]) -> bool:
        """Whether one use costs the same; `straight` as for `Rater.rate`."""
        about = (team, device, priority_class)
        known = self._known.get(about)
        if known is None:
            known = self._known[about] = self._same(*about)
        return known and all(wall + end - start <= self._applied_us for start, end, wall in straight)

    def of_all(self, spans: Mapping[PricedBy, tuple[int, int]]) -> bool:
        """Whether all uses within spans of wall time cost the same, keyed by what their prices depend on."""
        return all(self.of(*about, ((since, until, since),)) for about, (since, until) in spans.items())

    def with_tiers(self, team: str, device: str) -> bool:
        """Whether all use of a team and device kind costs the same, with or without tiers."""
        if self._used is None:
            return False
        found = self._groups.get((team, device))
        if found is None:
            found = self._groups[team, device] = all(
                until <= self._applied_us and self._equal(*about)
                for about, until in self._used.items()
                if about[:2] == (team, device)
            )
        return found

    def _same(self, team: str, device: str, priority_class: str) -> bool:
        flat = self._before is not None and all(
            quote is None or len(quote.tiers) == 1
            for at, quote in zip(*self._before.series(team, device, priority_class), strict=True)
            if at < self._applied_us
        )
        return self._equal(team, device, priority_class) and (flat or self.with_tiers(team, device))

    def _equal(self, team: str, device: str, priority_class: str) -> bool:
        """Whether both books have the same prices up to then."""
        if self._before is None:
            return False
        was, now = (
            [(at, quote) for at, quote in zip(*book.series(team, device, priority_class), strict=True) if at < self._applied_us]
            for book in (self._before, self._then)
        )  # fmt: skip
        return was == now
