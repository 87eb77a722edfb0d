"""Where the capacity was: a picture of all accounts over time, and a table of their sums. Strings only."""

from collections import Counter
from html import escape
from typing import Final

from libs.core.billing.accounts import DEVICE_UNITS, Account, Posting
from libs.report.document import Report

_WIDTH, _HEIGHT = 1000, 160
_COLOURS: Final = {
    Account.BILLED: "#3a8f72", Account.HELD: "#c9822f", Account.RESERVED: "#94527f", Account.CLEANING: "#6694cf",
    Account.MAINTENANCE: "#5d6470", Account.FAULTY: "#b8433d", Account.UNCONFIRMED: "#d9a5a0", Account.IDLE: "#c9c6c0",
}  # fmt: skip
"""From the bottom of the picture up: what somebody uses first, what nobody does last."""


class AccountCurves:
    """How many units were in each account when: postings as changes at their two ends. Grows with the postings."""

    def __init__(self) -> None:
        self._changes: dict[Account, Counter[int]] = {account: Counter() for account in Account}

    def add(self, posting: Posting) -> None:
        change = self._changes[posting.account]
        change[posting.start_us] += posting.units
        change[posting.end_us] -= posting.units

    def shares(self, columns: int) -> dict[Account, list[float]]:
        """Account -> its units, as the exact mean over each of so many equal spans from the first posting to the last end."""
        times = [t for change in self._changes.values() for t in change]
        if not times:
            return {}
        first, span = min(times), max(times) - min(times)
        return {account: _means(change, first, span, columns) for account, change in self._changes.items() if +change}


def _means(change: Counter[int], first: int, span: int, columns: int) -> list[float]:
    areas = [0.0] * columns
    level, since = 0, first
    for t in sorted(change):
        _fill(areas, (since - first) * columns / span, (t - first) * columns / span, level)
        level, since = level + change[t], t
    return areas


def _fill(areas: list[float], left: float, right: float, level: int) -> None:
    """Adds a level that holds from `left` to `right`, in columns."""
    if not level:
        return
    for column in range(int(left), min(len(areas), int(right) + 1)):
        areas[column] += level * (min(right, column + 1) - max(left, column))


def figure(report: Report, curves: AccountCurves | None) -> str:
    """A section of the page; empty when no accounts were kept."""
    if not report.accounts:
        return ""
    total = sum(report.accounts.values())
    exact = total == report.capacity_unit_us
    rows = "".join(_row(name, amount, total) for name, amount in report.accounts.items())
    rows += _row("fragmented", report.fragmented_unit_us, total)
    said = "exactly what existed" if exact else f"NOT what existed ({report.capacity_unit_us:,})"
    foot = f"<tr><td>All: {said}</td><td>{total:,}</td><td>{_device_s(total)}</td><td></td></tr>"
    head = "<tr><th>Account</th><th>Unit-microseconds</th><th>Device-seconds</th><th>Share</th></tr>"
    return (
        f'<section id="accounts"><h2>Where every device-second is</h2>{_picture(curves)}<div class="scroll">'
        f"<table><thead>{head}</thead><tbody>{rows}</tbody><tfoot>{foot}</tfoot></table></div></section>"
    )


def _row(name: str, amount: int, total: int) -> str:
    """Of an account, or of the split of one, which is in no sum and has no colour."""
    colour = _COLOURS[Account(name)] if name in set(Account) else ""
    share = f"{amount / total:.2%}" if total else ""
    cells = (
        f'<i class="swatch" style="background:{colour}"></i>{escape(name)}' if colour else f"of idle: {escape(name)}",
        f"{amount:,}",
        _device_s(amount),
        share,
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _device_s(unit_us: int) -> str:
    return f"{unit_us / DEVICE_UNITS / 1e6:,.3f}"


def _picture(curves: AccountCurves | None) -> str:
    shares = curves.shares(_WIDTH // 2) if curves is not None else {}
    if not shares:
        return ""
    columns = range(_WIDTH // 2)
    top = max(sum(values[i] for values in shares.values()) for i in columns) or 1.0
    base, areas = [0.0] * len(columns), []
    for account, colour in _COLOURS.items():
        if account not in shares:
            continue
        above = [base[i] + shares[account][i] for i in columns]
        forth = "".join(f"L{2 * i} {_y(above[i], top)}H{2 * i + 2}" for i in columns)
        back = "".join(f"L{2 * i + 2} {_y(base[i], top)}H{2 * i}" for i in reversed(columns))
        areas.append(
            f'<path fill="{colour}" d="M0 {_y(base[0], top)}{forth}{back}Z"><title>{account.value}</title></path>'
        )
        base = above
    label = "Capacity over time, stacked by account; the top is what existed"
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" style="width:100%;height:{_HEIGHT}px"'
    return f'<svg {box} role="img" aria-label="{label}">{"".join(areas)}</svg><p class="caption">{label}.</p>'


def _y(units: float, top: float) -> str:
    return f"{_HEIGHT * (1 - units / top):.1f}".removesuffix(".0")
