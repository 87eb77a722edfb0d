"""What a ledger's use costs, by brute force: every claim is cut at every moment at which anything may change, each piece is
priced by looking at all of the book, and every later book is worked out from the first record again. It shares no code with the
bill; it is slow, and easy to believe.
"""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from schemas import ledger as led
from schemas.ledger import LedgerRecord
from schemas.prices import ClosedPeriod, RateBook

HOUR = 3_600_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Held(NamedTuple):
    """One claim: whose, of what, from when until when in ledger time, and the record that freed it."""

    team: str
    klass: str
    kind: str
    milli: int
    start: int
    end: int
    freed: int
    name: tuple[str, int, str]


class Posted(NamedTuple):
    """What was posted for a claim's hour by one record, in sum. `unpriced`: units without a price."""

    units: int
    unpriced: int
    listed: int
    cost: int


Key = tuple[tuple[str, int, str], int, int, int]
"""(job, attempt, device), hour, the record that posted it, when it is billed (by the wall)."""


def posted(records: list[LedgerRecord], closed: list[ClosedPeriod]) -> dict[Key, Posted]:
    """Everything that is posted."""
    claims = _claims(records)
    offsets = [(r.t_us, (r.wall_us if r.wall_us is not None else r.t_us) - r.t_us) for r in records]
    out: dict[Key, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    book: RateBook | None = None
    billed: dict[tuple[Any, int], tuple[int, int, bool]] = {}  # (claim, hour) -> list, cost, whether it was billed
    spent: dict[Any, int] = {}
    for number, record in enumerate(records, 1):
        over = max((period.to_us for period in closed if period.upto_seq < number), default=0)
        now = max(record.t_us + offsets[number - 1][1], over)
        for claim in (c for c in claims if c.freed == number):
            for hour, pieces in _rated(claim, book, offsets, spent).items():
                for units, listed, cost in pieces:
                    row = out[claim.name, hour, number, hour * HOUR if hour * HOUR >= over else now]
                    row[1 if listed is None else 0] += units
                    row[2] += listed or 0
                    row[3] += cost
                billed[claim.name, hour] = _sum(pieces)
        for event in record.events:
            if isinstance(event, led.PricesApplied):
                book, spent = event.book, {}
                for claim in (c for c in claims if c.freed <= number):
                    for hour, pieces in _rated(claim, book, offsets, spent).items():
                        listed, cost, priced = _sum(pieces)
                        was = billed[claim.name, hour]
                        billed[claim.name, hour] = (listed, cost, was[2] or priced)
                        if (listed, cost) == was[:2] and (was[2] or not priced):
                            continue
                        row = out[claim.name, hour, number, now]
                        row[0] += 0 if was[2] else sum(units for units, of, _ in pieces if of is not None)
                        row[2] += listed - was[0]
                        row[3] += cost - was[1]
    return {key: Posted(*row) for key, row in out.items()}


def costs(records: list[LedgerRecord]) -> dict[tuple[tuple[str, int, str], int], tuple[int, list[int]]]:
    """Each hour of each claim by the book that is applied at the end: microseconds, and what each of its pieces costs."""
    books = [e.book for record in records for e in record.events if isinstance(e, led.PricesApplied)]
    offsets = [(r.t_us, (r.wall_us if r.wall_us is not None else r.t_us) - r.t_us) for r in records]
    spent: dict[Any, int] = {}
    return {
        (claim.name, hour): (sum(units for units, _, _ in pieces) // claim.milli, [cost for _, _, cost in pieces])
        for claim in _claims(records)
        for hour, pieces in _rated(claim, books[-1] if books else None, offsets, spent).items()
    }


def used(records: list[LedgerRecord]) -> int:
    """All units of all claims that were freed."""
    return sum((claim.end - claim.start) * claim.milli for claim in _claims(records))


def _sum(pieces: list[tuple[int, int | None, int]]) -> tuple[int, int, bool]:
    return sum(p[1] or 0 for p in pieces), sum(p[2] for p in pieces), any(p[1] is not None for p in pieces)


def _claims(records: list[LedgerRecord]) -> list[Held]:
    """All claims that were freed, in the order of the ledger."""
    kinds: dict[str, str] = {}
    jobs: dict[str, tuple[str, str]] = {}
    grants: dict[tuple[str, int], tuple[Any, int]] = {}
    out = []
    for number, record in enumerate(records, 1):
        for e in record.events:
            if isinstance(e, led.NodeJoined | led.BoardCutDone):
                for d in e.inventory.devices:
                    kinds[d.id] = f"{d.model}:{d.mig_profile}" if d.mig_profile else d.model
            elif isinstance(e, led.JobQueued):
                jobs[e.job_id] = (e.team, e.spec.priority_class)
            elif isinstance(e, led.JobGranted):
                grants[e.job_id, e.attempt] = (e.claims, record.t_us)
            elif isinstance(e, led.DevicesFreed):
                told, since = grants[e.job_id, e.attempt]
                for c in told:
                    if c.device in e.devices and c.node == e.node:
                        out.append(
                            Held(
                                *jobs[e.job_id], kinds[c.device], c.milli, since, record.t_us, number,
                                (e.job_id, e.attempt, c.device),
                            )
                        )  # fmt: skip
    return out


def _rated(
    claim: Held, book: RateBook | None, offsets: list[tuple[int, int]], spent: dict[Any, int]
) -> dict[int, list[tuple[int, int | None, int]]]:
    """Hour -> pieces of (units, list millionths or None without a price, millionths). `spent`: what contracts have used."""
    sums: dict[Any, int] = defaultdict(int)
    jumps = sorted({claim.start, claim.end, *(t for t, _ in offsets if claim.start < t < claim.end)})
    for low, high in pairwise(jumps):
        offset = next(add for t, add in reversed(offsets) if t <= low)
        start, end = low + offset, high + offset
        entries = (*book.prices, *book.contracts) if book is not None else ()
        moments = {moment for e in entries for moment in (e.from_us, e.to_us) if moment is not None}
        moments |= {hour * HOUR for hour in range(start // HOUR + 1, end // HOUR + 1)} | {start, end}
        for at, until in pairwise(sorted(m for m in moments if start <= m <= end)):
            _piece(claim, book, at, until, sums, spent)
    out: dict[int, list[tuple[int, int | None, int]]] = defaultdict(list)
    for (hour, deal), units in sums.items():
        if deal is None:
            out[hour].append((units, None, 0))
        else:
            out[hour].append(
                (units, round(Fraction(units * deal[1], 1000 * HOUR)), round(Fraction(units * deal[-1], 1000 * HOUR)))
            )
    return out


def _piece(
    claim: Held, book: RateBook | None, at: int, until: int, sums: dict[Any, int], spent: dict[Any, int]
) -> None:
    """A span of the wall's clock within one hour at one price, which tiers may divide."""

    def fits(entry: Any) -> bool:
        return bool(entry.device == claim.kind and entry.from_us <= at and (entry.to_us is None or at < entry.to_us))

    def closest(entries: list[Any]) -> Any:
        exact = [e for e in entries if e.priority_class == claim.klass]
        return next(iter(exact or [e for e in entries if e.priority_class == "*"]), None)

    units = (until - at) * claim.milli
    price = closest([p for p in book.prices if fits(p)]) if book is not None else None
    if book is None or price is None:
        sums[at // HOUR, None] += units
        return
    contract = closest([c for c in book.contracts if c.team == claim.team and fits(c)])
    about = (price.priority_class, price.micros, price.term)
    if contract is None:
        sums[at // HOUR, (*about, price.micros)] += units
        return
    about = (*about, contract.contract, contract.term, contract.tiers)
    moment = EPOCH + timedelta(microseconds=at)
    account = (claim.team, contract.contract, claim.kind, moment.year, moment.month)
    before = spent.get(account, 0)
    if len(contract.tiers) > 1:
        spent[account] = before + units
    for number, tier in enumerate(contract.tiers):
        low = tier.above_hours * 1000 * HOUR if len(contract.tiers) > 1 else 0
        high = (
            contract.tiers[number + 1].above_hours * 1000 * HOUR if number + 1 < len(contract.tiers) else before + units
        )
        part = min(before + units, high) - max(before, low)
        if part > 0:
            sums[at // HOUR, (*about, number, tier.micros)] += part
