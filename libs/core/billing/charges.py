"""Charges: what attempts used, rated, in the order in which the ledger posted it; and corrections of what was billed.

    for charge in charges(records, closed): ...  # records(): the valid ones, (sequence, record), from the first, each time

Each claim is a use from its grant until it is freed, and is rated then, by the book that is applied (`billing.prices`).
When another book is applied that prices a time before it differently, every use so far is rated by both. Where they differ,
that record posts a correction: what the new book makes of an hour, less what was billed. So what was posted is never
changed, and the whole is a function of the ledger alone.

When a charge is billed: in the hour of its use. What is posted for a period that is closed by then, and every correction, is
billed when it is posted. A seal (`PeriodClosed`) counts from the record after the one that it names as the last it knows.

Memory: what is held now, and what contracts have used of their months.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from libs.core.billing.metering import Unbillable, billed_model
from libs.core.billing.prices import Amount, PriceList, Quote, Rater
from libs.core.billing.wall import HOUR_US
from libs.core.state.clock import Calendar
from schemas import ledger as led
from schemas.prices import ClosedPeriod
from schemas.resources import Claim

RecordsFromFirst = Callable[[], Iterable[tuple[int, led.LedgerRecord]]]


class DeviceUse(NamedTuple):
    """One claim of one attempt, from its grant until it was freed, in ledger time and in the ledger's records.

    `device_kind`: what the price book knows it by. `straight`: the span in pieces without a jump of the wall's clock, each as
    (start, end, start by the wall)."""

    team: str
    user: str
    job_id: str
    attempt: int
    priority_class: str
    node: str
    device: str
    device_kind: str
    milli: int
    start_us: int
    end_us: int
    from_seq: int
    to_seq: int
    straight: tuple[tuple[int, int, int], ...]


class Charge(NamedTuple):
    """One row of a bill: a use in one hour at one price, or the correction of one. `billed_us`: by the wall, when it is billed.
    `version`: of the book, 0 without one. `late`: it is of a time before what is open."""

    use: DeviceUse
    amount: Amount
    version: int
    posted_seq: int
    billed_us: int
    late: bool
    correction: bool
    priced_later: bool = False
    """It is of use that was posted without a price, and told to be unpriced, before."""


class Uses:
    """Folds records into uses."""

    handled = led.kinds_of(
        (led.NodeJoined, led.BoardCutDone, led.JobQueued, led.JobGranted, led.DevicesFreed, led.JobFinished)
    )

    def __init__(self) -> None:
        self.calendar = Calendar()
        self._kinds: dict[str, str] = {}
        self._jobs: dict[str, tuple[str, str, str]] = {}
        self._held: dict[str, tuple[led.JobGranted, int, int]] = {}

    def apply(self, seq: int, record: led.LedgerRecord) -> list[DeviceUse]:
        """What ended with this record. Raises Unbillable for what no valid ledger says."""
        self.calendar.hear(record)
        found: list[DeviceUse] = []
        for event in record.events:
            if isinstance(event, led.DevicesFreed):
                found += self._freed(event, seq, record.t_us)
            elif isinstance(event, led.JobGranted):
                self._held[event.job_id] = (event, record.t_us, seq)
            elif isinstance(event, led.JobQueued):
                self._jobs[event.job_id] = (event.team, event.user, event.spec.priority_class)
            elif isinstance(event, led.JobFinished):
                self._jobs.pop(event.job_id, None)
                self._held.pop(event.job_id, None)
            elif isinstance(event, led.NodeJoined | led.BoardCutDone):
                self._kinds.update((d.id, billed_model(d)) for d in event.inventory.devices)
        return found

    def open(self, until_us: int) -> list[DeviceUse]:
        """What is held still, as if it ended at `until_us`: for forecasts, never for a bill."""
        return [
            self._use(grant, claim, since, until_us, seq, 0)
            for grant, since, seq in self._held.values()
            for claim in grant.claims
        ]

    def _freed(self, event: led.DevicesFreed, seq: int, t_us: int) -> Iterator[DeviceUse]:
        held = self._held.get(event.job_id)
        if held is None or held[0].attempt != event.attempt:
            raise Unbillable(f"{event.job_id}.{event.attempt} frees devices and holds none")
        grant, since, from_seq = held
        gone = set(event.devices)
        for claim in grant.claims:
            if claim.node == event.node and claim.device in gone:
                yield self._use(grant, claim, since, t_us, from_seq, seq)
        left = tuple(c for c in grant.claims if c.node != event.node or c.device not in gone)
        self._held[event.job_id] = (grant.model_copy(update={"claims": left}), since, from_seq)

    def _use(
        self, grant: led.JobGranted, claim: Claim, since: int, until: int, from_seq: int, to_seq: int
    ) -> DeviceUse:
        team, user, klass = self._jobs[grant.job_id]
        return DeviceUse(
            team, user, grant.job_id, grant.attempt, klass, claim.node, claim.device, self._kinds[claim.device], claim.milli,
            since, until, from_seq, to_seq, tuple(self.calendar.straight(since, until)),
        )  # fmt: skip


def charges(
    records: RecordsFromFirst, closed: Sequence[ClosedPeriod] = (), *, upto_seq: int | None = None
) -> Iterator[Charge]:
    """All charges of a ledger up to a record, in the order in which they were posted.

    Args:
        closed: the seals of the whole ledger.
    """
    uses, rater, version = Uses(), Rater(None), 0
    earlier: list[tuple[int, PriceList]] = []
    for seq, record in records():
        if upto_seq is not None and seq > upto_seq:
            return
        until = max((period.to_us for period in closed if period.upto_seq < seq), default=0)
        ended = uses.apply(seq, record)
        posted = max(uses.calendar.wall(record.t_us), until)
        for use in ended:
            for amount in _rated(rater, use):
                hour_us = amount.hour * HOUR_US
                late = hour_us < until
                yield Charge(use, amount, version, seq, posted if late else hour_us, late, correction=False)
        for event in record.events:
            if isinstance(event, led.PricesApplied):
                then = Rater(PriceList(event.book))
                for use, amount in _corrections(records, seq, rater.prices, then, earlier):
                    money = amount.units == 0
                    yield Charge(use, amount, event.book.version, seq, posted, True, money, not money)
                if rater.prices is not None:
                    earlier.append((seq, rater.prices))
                rater, version = then, event.book.version


def _rated(rater: Rater, use: DeviceUse) -> list[Amount]:
    return rater.rate(use.team, use.device_kind, use.priority_class, use.milli, use.straight)


def _corrections(
    records: RecordsFromFirst,
    upto_seq: int,
    before: PriceList | None,
    then: Rater,
    earlier: list[tuple[int, PriceList]],
) -> Iterator[tuple[DeviceUse, Amount]]:
    """What each hour of each use up to a record costs more, or less, than was billed; `then` has counted them all afterwards.
    An hour that never had a price is a charge of its own now, with its units; one that had is money alone. `earlier`: books
    that were replaced before, and by which record."""
    first, uses = Rater(before), Uses()
    for seq, record in records():
        if seq > upto_seq:
            return
        for use in uses.apply(seq, record):
            was, now = _by_hour(_rated(first, use)), _by_hour(_rated(then, use))
            for hour, amounts in now.items():
                old = was.get(hour, [])
                if all(amount.quote is None for amount in old) and not _was_priced(earlier, use, hour):
                    yield from ((use, amount) for amount in amounts if amount.quote is not None)
                    continue
                list_micros = sum(a.list_micros for a in amounts) - sum(a.list_micros for a in old)
                cost_micros = sum(a.cost_micros for a in amounts) - sum(a.cost_micros for a in old)
                if list_micros or cost_micros:
                    yield use, Amount(hour, 0, _quote_of(amounts) or _quote_of(old), 0, list_micros, cost_micros)


def _was_priced(earlier: list[tuple[int, PriceList]], use: DeviceUse, hour: int) -> bool:
    """Whether a book that was applied since the use was posted had a price for an hour of it: then its units are billed."""
    return any(
        amount.hour == hour and amount.quote is not None
        for until_seq, prices in earlier
        if use.to_seq <= until_seq
        for amount in _rated(Rater(prices), use)
    )


def _by_hour(amounts: list[Amount]) -> dict[int, list[Amount]]:
    found: dict[int, list[Amount]] = {}
    for amount in amounts:
        found.setdefault(amount.hour, []).append(amount)
    return found


def _quote_of(amounts: list[Amount]) -> Quote | None:
    return next((amount.quote for amount in amounts if amount.quote is not None), None)
