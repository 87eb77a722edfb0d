"""The seal of a period: totals, and one hash over its rows, equal for every export of them.

rows = SHA-256 over lines `job.attempt device hour units list cost unit-price sku version posted-by`,
       one per charge, in posting order, each ended by a newline
"""

from collections import Counter
from hashlib import sha256

from libs.core.billing.charges import Charge, DeviceUse
from libs.core.billing.prices.rating import money_of
from schemas.prices import PeriodTotal

_AT_ONCE = 256
"""Lines hashed per call; hashing each alone takes twice as long."""


class WrongRow(AssertionError):
    """A row's cost does not follow from its units and price. Nothing of the export may be written."""


class Sealing:
    """Takes the charges of a period in order."""

    def __init__(self) -> None:
        self.rows = 0
        self.unpriced: Counter[tuple[str, str]] = Counter()
        """(team, device kind) -> unpriced units. Negative: units of an earlier period that are priced in this one."""
        self._totals: dict[str, list[int]] = {}
        self._hash = sha256()
        self._lines: list[str] = []
        """Lines not hashed yet."""

    def take(self, charge: Charge) -> bool:
        """Counts a charge. Returns whether it has a price and so is a row. Raises WrongRow."""
        use, amount = charge.use, charge.amount
        hour, units, quote, _, list_micros, cost_micros = amount
        if quote is None:
            self.unpriced[use.team, use.device_kind] += units
            return False
        unit_micros = amount.unit_micros
        if not charge.correction:
            self._check(use, "cost", units, unit_micros, cost_micros)
            if (unit_micros, cost_micros) != (quote.list_micros, list_micros):
                self._check(use, "list cost", units, quote.list_micros, list_micros)
            if units <= 0:
                raise WrongRow(f"{use.job_id}.{use.attempt} on {use.device} has {units} units")
        if charge.priced_later:
            self.unpriced[use.team, use.device_kind] -= units
        self.rows += 1
        total = self._totals.get(use.team) or self._totals.setdefault(use.team, [0, 0, 0, 0])
        total[0] += 1
        total[1] += units
        total[2] += list_micros
        total[3] += cost_micros
        self._lines.append(
            f"{use.job_id}.{use.attempt} {use.device} {hour} {units} {list_micros} {cost_micros} "
            f"{unit_micros} {quote.sku} {charge.version} {charge.posted_seq}\n"
        )
        if len(self._lines) >= _AT_ONCE:
            self._hash_lines()
        return True

    def _check(self, use: DeviceUse, what: str, units: int, unit_micros: int, micros: int) -> None:
        if money_of(units, unit_micros) != micros:
            raise WrongRow(f"{use.job_id}.{use.attempt} on {use.device}: {what} {micros} of {units} at {unit_micros}")

    def _hash_lines(self) -> None:
        self._hash.update("".join(self._lines).encode())
        self._lines.clear()

    @property
    def digest(self) -> str:
        self._hash_lines()
        return self._hash.hexdigest()

    @property
    def totals(self) -> tuple[PeriodTotal, ...]:
        """Totals by team."""
        return tuple(
            PeriodTotal(team=team, charges=n, units=units, list_micros=listed, cost_micros=cost)
            for team, (n, units, listed, cost) in sorted(self._totals.items())
        )
