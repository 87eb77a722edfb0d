"""What a period's charges come to: totals, and one hash over its rows, the same for every export of them.

rows = SHA-256 over lines `job.attempt device hour units list cost unit-price sku version posted-by`, one for each charge, in
the order in which they were posted, each ended by a newline
"""

from collections import Counter
from hashlib import sha256

from libs.core.billing.charges import Charge
from libs.core.billing.prices.rating import money_of
from schemas.prices import PeriodTotal


class WrongRow(AssertionError):
    """A row is not what its own figures come to: nothing of it may be written."""


class Sealing:
    """Takes the charges of a period, one after the other."""

    def __init__(self) -> None:
        self.rows = 0
        self.unpriced: Counter[tuple[str, str]] = Counter()
        """(team, device kind) -> units that have no price; negative: of another period, and priced in this one."""
        self._totals: dict[str, list[int]] = {}
        self._hash = sha256()

    def take(self, charge: Charge) -> bool:
        """Counts it; whether it has a price, and so is a row. Raises WrongRow."""
        use, amount = charge.use, charge.amount
        if amount.quote is None:
            self.unpriced[use.team, use.device_kind] += amount.units
            return False
        if not charge.correction:
            for what, unit, cost in (
                ("cost", amount.unit_micros, amount.cost_micros),
                ("list cost", amount.quote.list_micros, amount.list_micros),
            ):
                if money_of(amount.units, unit) != cost:
                    raise WrongRow(
                        f"{use.job_id}.{use.attempt} on {use.device}: {what} {cost} of {amount.units} at {unit}"
                    )
            if amount.units <= 0:
                raise WrongRow(f"{use.job_id}.{use.attempt} on {use.device} has {amount.units} units")
        if charge.priced_later:
            self.unpriced[use.team, use.device_kind] -= amount.units
        self.rows += 1
        total = self._totals.setdefault(use.team, [0, 0, 0, 0])
        for place, more in enumerate((1, amount.units, amount.list_micros, amount.cost_micros)):
            total[place] += more
        self._hash.update(
            f"{use.job_id}.{use.attempt} {use.device} {amount.hour} {amount.units} {amount.list_micros} {amount.cost_micros} "
            f"{amount.unit_micros} {amount.quote.sku} {charge.version} {charge.posted_seq}\n".encode()
        )
        return True

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    @property
    def totals(self) -> tuple[PeriodTotal, ...]:
        """By team."""
        return tuple(
            PeriodTotal(team=team, charges=n, units=units, list_micros=listed, cost_micros=cost)
            for team, (n, units, listed, cost) in sorted(self._totals.items())
        )
