"""What a ledger's use costs, by brute force: every claim is cut at every moment at which anything may change, each piece is
priced by looking at all of the book, and every later book is worked out from the first record again. So is what is given back:
each span of an attempt that is closed says why it is. It shares no code with the bill; it is slow, and easy to believe.
"""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from schemas import ledger as led
from schemas.attempts import Category, Outcome
from schemas.jobs import PromiseCause
from schemas.ledger import LedgerRecord
from schemas.prices import ClosedPeriod, ContractRate, ListRate, RateBook

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


Name = tuple[str, int, str]
"""Job, attempt, device."""
Key = tuple[Name, int, int, int]
"""Whose, hour, the record that posted it, when it is billed (by the wall)."""
Part = tuple[str, int, int]
"""Why it is given back; from when until when by the wall. Of a claim in the order of its time."""
PAID_FOR_NOTHING = (Category.NODE_LOST, Category.HARDWARE)


class Billed(NamedTuple):
    """An hour of a claim by the last book."""

    listed: int
    cost: int
    priced: bool
    us: int
    costs: list[int]


def posted(
    records: list[LedgerRecord], closed: list[ClosedPeriod]
) -> tuple[dict[Key, Posted], dict[tuple[Key, str], int]]:
    """Everything that is posted, and by cause what is given back, below 0."""
    claims = claims_of(records)
    offsets, nothing = _offsets(records), lost(records)
    out: dict[Key, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    credits: dict[tuple[Key, str], int] = defaultdict(int)
    book: RateBook | None = None
    billed: dict[tuple[Name, int], Billed] = {}
    shares: dict[Name, dict[str, int]] = {}
    spent: dict[Any, int] = {}
    for number, record in enumerate(records, 1):
        over = max((period.to_us for period in closed if period.upto_seq < number), default=0)
        now = max(record.t_us + offsets[number - 1][1], over)
        for claim in (c for c in claims if c.freed == number):
            for hour, pieces in rated(claim, book, offsets, spent).items():
                for units, listed, cost in pieces:
                    row = out[claim.name, hour, number, hour * HOUR if hour * HOUR >= over else now]
                    row[1 if listed is None else 0] += units
                    row[2] += listed or 0
                    row[3] += cost
                billed[claim.name, hour] = _billed(claim, pieces)
        for name in (c.name for c in claims if nothing.get(c.name, (0,))[0] == number):
            shares[name] = {cause.value: share for cause, share in book.credits.items()} if book is not None else {}
            for (whose, hour), was in billed.items():
                for cause, back in _back(was, hour, nothing[name][1], shares[name]) if whose == name else ():
                    credits[(name, hour, number, hour * HOUR if hour * HOUR >= over else now), cause] -= back
        for event in record.events:
            if isinstance(event, led.PricesApplied):
                book, spent = event.book, {}
                for claim in (c for c in claims if c.freed <= number):
                    for hour, pieces in rated(claim, book, offsets, spent).items():
                        was, then = billed[claim.name, hour], _billed(claim, pieces)
                        billed[claim.name, hour] = then._replace(priced=was.priced or then.priced)
                        for sign, of in ((1, was), (-1, then)) if claim.name in shares else ():
                            for cause, back in _back(of, hour, nothing[claim.name][1], shares[claim.name]):
                                credits[(claim.name, hour, number, now), cause] += sign * back
                        if then[:2] == was[:2] and (was.priced or not then.priced):
                            continue
                        row = out[claim.name, hour, number, now]
                        row[0] += 0 if was.priced else sum(units for units, of, _ in pieces if of is not None)
                        row[2] += then.listed - was.listed
                        row[3] += then.cost - was.cost
    return {key: Posted(*row) for key, row in out.items()}, {key: back for key, back in credits.items() if back}


def _billed(claim: Held, pieces: list[tuple[int, int | None, int]]) -> Billed:
    return Billed(
        sum(p[1] or 0 for p in pieces), sum(p[2] for p in pieces), any(p[1] is not None for p in pieces),
        sum(p[0] for p in pieces) // claim.milli, [p[2] for p in pieces],
    )  # fmt: skip


def _back(billed: Billed, hour: int, parts: list[Part], shares: dict[str, int]) -> list[tuple[str, int]]:
    """What these parts come to of an hour: each what the sum so far, rounded, becomes more by it."""
    out, so_far = [], 0
    for cause, start, end in parts:
        before = so_far
        so_far += max(0, min(end, (hour + 1) * HOUR) - max(start, hour * HOUR)) * shares.get(cause, 0)
        assert so_far <= billed.us * 1000, "nothing is given back twice"
        for cost in billed.costs:
            of = Fraction(cost, billed.us * 1000)
            out.append((cause, round(of * so_far) - round(of * before)))
    return out


def lost(records: list[LedgerRecord]) -> dict[Name, tuple[int, list[Part]]]:
    """What attempts that were closed, and by which record, had nothing from."""
    out: dict[Name, tuple[int, list[Part]]] = {}
    claims, offsets = claims_of(records), _offsets(records)
    unknown = _unknown(records)
    for number, record in enumerate(records, 1):
        for e in record.events:
            if not isinstance(e, led.AttemptClosed):
                continue
            mine = [c for c in claims if c.name[:2] == (e.job_id, e.attempt)]
            saved = _last(records[:number], e, led.AttemptCheckpointed)
            told = _last(records[:number], e, led.AttemptPreempting)
            on_time = _on_time(records, e.job_id, e.attempt)
            why = ""
            if e.category in PAID_FOR_NOTHING or (e.category is None and e.outcome is Outcome.LOST):
                why = "hardware-fault"
            elif e.outcome is Outcome.PREEMPTED and told > 0 and saved < told:
                why = "preempted-unsaved"
            for c in mine:
                silent = unknown.get(c.name, c.end)
                points = {c.start, c.end, silent, saved, on_time, *(t for t, _ in offsets)}
                parts = list[Part]()
                for low, high in pairwise(sorted(t for t in points if c.start <= t <= c.end)):
                    cause = "node-lost" if low >= silent else "promise-broken" if low < on_time else why
                    if cause and not (cause == why and low < saved):
                        offset = next(add for t, add in reversed(offsets) if t <= low)
                        on = parts and parts[-1][0] == cause and parts[-1][2] == low + offset
                        start = parts.pop()[1] if on else low + offset
                        parts.append((cause, start, high + offset))
                out[c.name] = number, parts
    return out


def _offsets(records: list[LedgerRecord]) -> list[tuple[int, int]]:
    """From when on the wall's clock is ahead of ledger time by how much."""
    return [(r.t_us, (r.wall_us if r.wall_us is not None else r.t_us) - r.t_us) for r in records]


def _last(records: list[LedgerRecord], of: led.AttemptClosed, kind: type[Any]) -> int:
    about = (of.job_id, of.attempt)
    told = [r.t_us for r in records for e in r.events if isinstance(e, kind) and (e.job_id, e.attempt) == about]
    return max(told, default=0)


def _on_time(records: list[LedgerRecord], job_id: str, attempt: int) -> int:
    """From when on an attempt has what its job was promised, 0 if it started by then."""
    promised = 0
    for record in records:
        for e in record.events:
            if isinstance(e, led.GangPromised) and e.job_id == job_id:
                mine = not promised or e.promise.cause is PromiseCause.HIGHER_CLASS
                promised = e.promise.start_us if mine else promised
            elif isinstance(e, led.JobGranted) and e.job_id == job_id:
                if e.attempt == attempt:
                    until = record.t_us if e.own_delay_us is None else e.own_delay_us
                    return record.t_us + (until - promised) if 0 < promised < until else 0
                promised = 0
    raise AssertionError(f"{job_id}.{attempt} was not granted")


def _unknown(records: list[LedgerRecord]) -> dict[Name, int]:
    """Claims that ended with their node lost -> when it was heard last, or their grant if that was later."""
    out: dict[Name, int] = {}
    silent: dict[str, int] = {}
    joined: dict[str, int] = {}
    for record in records:
        before = dict(silent)
        for e in record.events:
            if isinstance(e, led.NodeJoined):
                silent.pop(e.inventory.node, None)
                joined[e.inventory.node] = record.t_us
            elif isinstance(e, led.NodeLeft):
                silent.pop(e.node, None)
            elif isinstance(e, led.NodeHeard):
                del silent[e.node]
                before.pop(e.node)
            elif isinstance(e, led.NodeSilence):
                silent.setdefault(e.node, max(joined[e.node], record.t_us - int(e.silent_s * 1e6)))
                before.setdefault(e.node, silent[e.node])
            elif isinstance(e, led.DevicesFreed) and e.evidence.value in ("lease-ended", "new-incarnation"):
                since = before.get(e.node)
                if since is None and e.silent_s is not None:
                    since = record.t_us - int(e.silent_s * 1e6)
                if since is not None:
                    out |= {(e.job_id, e.attempt, device): since for device in e.devices}
    return out


def used(records: list[LedgerRecord]) -> int:
    """All units of all claims that were freed."""
    return sum((claim.end - claim.start) * claim.milli for claim in claims_of(records))


def claims_of(records: list[LedgerRecord]) -> list[Held]:
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


def rated(
    claim: Held, book: RateBook | None, offsets: list[tuple[int, int]], spent: dict[Any, int]
) -> dict[int, list[tuple[int, int | None, int]]]:
    """Hour -> pieces of (units, list millionths or None without a price, millionths). `spent`: what contracts have used."""
    sums: dict[Any, int] = defaultdict(int)
    jumps = sorted({claim.start, claim.end, *(t for t, _ in offsets if claim.start < t < claim.end)})
    for low, high in pairwise(jumps):
        offset = next(add for t, add in reversed(offsets) if t <= low)
        start, end = low + offset, high + offset
        entries: tuple[ListRate | ContractRate, ...] = (*book.prices, *book.contracts) if book is not None else ()
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
    agreed = (*about, contract.contract, contract.term, contract.tiers)
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
            sums[at // HOUR, (*agreed, number, tier.micros)] += part
