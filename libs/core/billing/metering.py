"""Usage as the ledger's integral: for each claim, the time from its grant until it is freed, times its share.

    milli_us(claim) = milli x (t_us of DevicesFreed - t_us of JobGranted)                       exact, in integers
    row = one attempt x UTC day x device model: the smallest unit that is priced (`libs.core.billing.pricing`)

`t_us` is ledger time, which no jump of the wall clock moves. Days follow the wall clock as shown (`Calendar`). Sums are
exact. Closed claims are kept as lines of uses (`libs.core.billing.use_lines`) and as sums, open claims as segments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, ClassVar

from libs.core.billing.accounts import Accounts, Posting
from libs.core.billing.counted import DaysOf, TeamSums
from libs.core.billing.credited import CreditedTime
from libs.core.billing.credits import Credits
from libs.core.billing.open_claims import OpenAttempt, OpenClaim, OpenClaims, by_kind
from libs.core.billing.posted import NOT_POSTED, NOTHING_POSTED, AppliedBook, PostedMoney
from libs.core.billing.usage_rows import HeldRow, UsageRow, billed_model
from libs.core.billing.use_lines.line import AlikeUses, DayOf, Key, any_day, utc_day
from libs.core.billing.use_lines.money_rows import rows_of
from libs.core.billing.wall import DAY_US, HOUR_US
from libs.core.state import parts
from libs.core.state.clock import Calendar
from libs.core.state.limits import Limits
from schemas import ledger as led

MOST_RECENT = 200_000
"""The most postings of attempts kept for sums of use, some 70 MB. A consumer that falls behind a thousand freed devices
a second loses the oldest."""


class Meter:
    """Folds ledger records into usage, each once and in order: the reader ensures it, and `apply` ignores earlier
    records. Memory: some 40 bytes per attempt and model, plus open claims."""

    version: ClassVar[int] = 8
    """Version of the layout of `dump`."""
    handled: ClassVar[frozenset[str]]
    ignored: ClassVar[frozenset[str]]
    """Events that change no bill. Cost runs from grant to freeing; events between matter for credits alone."""

    def __init__(self, *, credits: bool = True) -> None:
        """`credits`: whether to compute credits, which needs a whole ledger."""
        self.seq = 0
        self.t_us = 0
        """Ledger time of the last record."""
        self._credited = CreditedTime(MOST_RECENT) if credits else None
        self.quotas: dict[str, Limits] = {}
        self._models: dict[str, str] = {}
        self.open_claims = OpenClaims()
        self._sums: dict[tuple[str, str, str], int] = {}
        self.counted: dict[str, TeamSums] = {}
        """Team -> sums over all rows, for its bills."""
        self._days: dict[str, DaysOf] = {}
        """Unfinished job -> the days of its rows."""
        self._calendar = Calendar()
        self.money = PostedMoney()
        self._applying = 0
        """Sequence of the record being applied."""
        self.nodes: dict[str, list[str]] = {}
        """Node -> the kinds of its devices, as last reported."""

    def apply(self, record: led.LedgerRecord, seq: int) -> None:
        """Folds one valid record at ledger sequence `seq`. A record that was applied before changes nothing.

        Raises Unbillable when a claim opens twice, closes without being open, or names an unknown job or device.
        """
        if seq <= self.seq:
            return
        self._calendar.hear(record)
        self._applying = seq
        then: list[tuple[Callable[[Meter, Any, int], None], led.LedgerEvent]] = []
        for event in record.events:
            if (fold := _FOLD.get(type(event))) is not None:
                fold(self, event, record.t_us)
            if (fold := _FOLD_LAST.get(type(event))) is not None:
                then.append((fold, event))
        if self._credited is not None:
            found = self._credited.apply(record, seq, self.money.policy)
            self.money.give_back(found, seq, self._calendar.wall(record.t_us))
        self._count_fresh()
        for fold, event in then:
            fold(self, event, record.t_us)
        self.money.pack()
        self.seq, self.t_us = seq, record.t_us

    def add_context(self, models: Mapping[str, str], calendar: Iterable[Sequence[int]]) -> None:
        """For a fold of one team's events alone: adds the billed kinds of devices and new pieces of the ledger's
        calendar."""
        self._models.update(models)
        self._calendar = Calendar([*self._calendar.pieces, *calendar]) if calendar else self._calendar

    def skip(self, seq: int) -> None:
        """Skips a void record; the bill is exact up to it."""
        self.seq = max(self.seq, seq)
        if self._credited is not None:
            self._credited.skip(seq)

    def usage(
        self,
        team: str | None = None,
        *,
        open_until_us: int | None = None,
        of_day: Callable[[int], bool] = lambda day: True,
        job_id: str | None = None,
    ) -> Iterator[UsageRow]:
        """Usage rows of a team (default: all) on the selected days, of a job (default: all). `open_until_us`: also
        count open claims up to there. Unpacks only what it needs."""
        ahead = self.money.ahead()
        held = self._held_rows(open_until_us, ahead, team=team) if open_until_us is not None else {}
        posted = self.money.book is not None
        found: dict[tuple[str, Key], list[int]] = {}
        """(Team, row) -> [units, cost, units without a price, credits within the cost]."""
        for name, key, units in chain(self._used_rows(team, of_day, job_id), rows_of(held, team, of_day, job_id)):
            found.setdefault((name, key), [0, 0, 0, 0])[0] += units
        if posted:
            to_come = rows_of(ahead.rows, team, of_day, job_id)
            for name, key, row in chain(self.money.all_rows(team, of_day, job_id), to_come):
                sums = found.setdefault((name, key), [0, 0, 0, 0])
                for place, more in ((1, row[0]), (2, row[2]), (3, row[3])):
                    sums[place] += more
        for (name, (job, attempt, day, model, klass, user)), (units, *paid) in sorted(found.items()):
            cost, unpriced, credit = paid
            posted_values = (cost, unpriced, credit) if posted else None
            yield UsageRow(name, job, attempt, day, model, klass, units, posted_values, user)

    def _used_rows(
        self, team: str | None, of_day: Callable[[int], bool], job_id: str | None
    ) -> Iterator[tuple[str, Key, int]]:
        """(team, row, units) of lines of uses."""
        for one in self.money.lines.of(team, of_day, job_id):
            for day, us in one.by_day():
                if of_day(day):
                    key = (one.job_id, one.attempt, day, one.device_kind, one.priority_class, one.user)
                    yield one.team, key, us * one.milli * one.alike

    def ledger_time(self, wall_us: int) -> int:
        """Ledger time at which the wall will show a moment if nobody sets the clock; not before the last record."""
        return max(self.t_us, wall_us - (self._calendar.wall(self.t_us) - self.t_us))

    @property
    def wall_us(self) -> int:
        """Wall time of the last record."""
        return self._calendar.wall(self.t_us)

    @property
    def accounts(self) -> Accounts:
        """The accounts of all capacity; empty without credits."""
        return self._credited.accounts if self._credited is not None else Accounts()

    def recent_postings(self) -> Iterable[Posting]:
        """Closed postings of attempts since `forget_postings`."""
        return self._credited.recent if self._credited is not None else ()

    def open_postings(self, wall_until_us: int) -> Iterator[Posting]:
        """Open postings of attempts, counted up to a wall time."""
        if self._credited is not None:
            found = self._credited.accounts.open(self.ledger_time(wall_until_us))
            yield from (posting for posting in found if posting.attempt)

    def forget_postings(self, before_us: int) -> None:
        """Drops postings that ended before."""
        if self._credited is not None:
            self._credited.forget(before_us)

    def sums(self) -> dict[tuple[str, str, str], int]:
        """Closed usage per (team, model, priority class) in milli_us, for metrics. Walks no rows."""
        return self._sums

    def kinds(self) -> set[str]:
        """Every kind of device that any node has offered."""
        return set(self._models.values())

    @property
    def lines(self) -> int:
        """Number of lines of closed usage."""
        return len(self.money.lines)

    # ----------------------------------------------------------------------------------------------------- the fold

    def _offered(self, event: led.NodeJoined | led.BoardCutDone, t_us: int) -> None:
        kinds = {d.id: billed_model(d) for d in event.inventory.devices}
        self._models.update(kinds)
        self.nodes[event.inventory.node] = sorted(set(kinds.values()))

    def _quota_set(self, event: led.QuotaSet, t_us: int) -> None:
        if (limits := Limits.of(event.limit_milli, event.by_type)) is None:
            self.quotas.pop(event.team, None)
        else:
            self.quotas[event.team] = limits

    def _queued(self, event: led.JobQueued, t_us: int) -> None:
        self.open_claims.queued(event)

    def _open(self, event: led.JobGranted, t_us: int) -> None:
        self.open_claims.granted(event, self._models, t_us)

    def _close(self, event: led.DevicesFreed, t_us: int) -> None:
        held, claims = self.open_claims.freed(event)
        team, klass, user = self.open_claims.jobs[event.job_id]
        counted = self.counted.setdefault(team, TeamSums())
        for model, milli in by_kind(claims):
            for day, us in self._calendar.split(held.opened_us, t_us, DAY_US):
                key = (event.job_id, event.attempt, day, model, klass, user)
                counted.count(self._days.setdefault(event.job_id, {}), key)
                counted.use[day, model, klass] = counted.use.get((day, model, klass), 0) + us * milli
            if t_us > held.opened_us:
                group = (team, model, klass)
                self._sums[group] = self._sums.get(group, 0) + (t_us - held.opened_us) * milli
        self._post(self.money, event.job_id, held, claims, t_us, self._applying)

    def _post(
        self,
        money: PostedMoney,
        job_id: str,
        held: OpenAttempt,
        claims: Iterable[OpenClaim],
        until_us: int,
        seq: int,
    ) -> None:
        team, klass, user = self.open_claims.jobs[job_id]
        straight, posted_us = tuple(self._calendar.straight(held.opened_us, until_us)), self._calendar.wall(until_us)
        in_order = sorted(claims, key=itemgetter(1))  # tiers are used up in claim order, per model
        for (model, milli), some in groupby(in_order, key=itemgetter(1, 2)):
            devices = [device for device, _, _ in some]
            uses = AlikeUses(
                team, user, job_id, held.attempt, model, klass, milli, len(devices), seq, posted_us, straight
            )
            money.post(uses, devices if self._credited is not None and seq != NOT_POSTED else ())

    def _closed(self, event: led.AttemptClosed, t_us: int) -> None:
        self.money.close_attempt(event.job_id, event.attempt)

    def _priced(self, event: led.PricesApplied, t_us: int) -> None:
        if self.money.apply(AppliedBook(self._applying, self._calendar.wall(t_us), event.book)):
            self._recount()  # a correction may add rows on other days, also for ended jobs

    def _sealed(self, event: led.PeriodClosed, t_us: int) -> None:
        if self.money.close_period(event.period):
            self._recount()

    def _finish(self, event: led.JobFinished, t_us: int) -> None:
        self.open_claims.finished(event)

    def _forget_days(self, event: led.JobFinished, t_us: int) -> None:
        self._days.pop(event.job_id, None)

    def _count_fresh(self) -> None:
        """Counts new rows of money. Late postings may be on days without use."""
        for team, key in self.money.fresh:
            if key[0] not in self._days and key[0] not in self.open_claims.jobs:
                return self._recount()  # the job has ended, and its days are forgotten
            self.counted.setdefault(team, TeamSums()).count(self._days.setdefault(key[0], {}), key)
        self.money.fresh.clear()

    def _recount(self) -> None:
        self.money.fresh.clear()
        self._days = {}
        keys: dict[str, set[Key]] = {}
        used, posted = self._used_rows(None, any_day, None), self.money.all_rows()
        for team, key, _ in chain(used, posted):
            keys.setdefault(team, set()).add(key)
        for team in sorted(keys):
            counted = self.counted.setdefault(team, TeamSums())
            self._days |= counted.recount(keys.pop(team), self.open_claims.jobs.__contains__)

    def held_rows(self, until_us: int, day_of: DayOf = utc_day, team: str | None = None) -> list[HeldRow]:
        """Rows of open claims of a team (default: all) up to a moment, by the days of any calendar, at current prices."""
        ahead = self.money.ahead(day_of)
        found = self._held_rows(until_us, ahead, day_of, team)
        out: list[HeldRow] = []
        for whose, used in found.items():
            posted = ahead.rows.get(whose, {})
            for day in used.keys() | posted.keys():
                units, money = used.get(day, {}), posted.get(day, {})
                for key in units.keys() | money.keys():
                    cost, _, free, _ = money.get(key, NOTHING_POSTED)
                    out.append(HeldRow(whose, key, units.get(key, 0), cost, free, self._days.get(key[0], {})))
        return out

    def _held_rows(
        self, until_us: int, ahead: PostedMoney, day_of: DayOf = utc_day, team: str | None = None
    ) -> dict[str, dict[int, dict[Key, int]]]:
        """Open claims of one team, or of all."""
        out: dict[str, dict[int, dict[Key, int]]] = {}
        for job, held in self.open_claims.held.items():
            whose, klass, user = self.open_claims.jobs[job]
            if team not in (None, whose):
                continue
            days = out.setdefault(whose, {})
            self._post(ahead, job, held, held.claims(), until_us, NOT_POSTED)
            for model, milli in by_kind(held.claims()):
                for hour, us in self._calendar.split(held.opened_us, until_us, HOUR_US):
                    day = day_of(hour * HOUR_US)
                    key, rows = (job, held.attempt, day, model, klass, user), days.setdefault(day, {})
                    rows[key] = rows.get(key, 0) + us * milli
        return out

    # ------------------------------------------------------------------------------------------------- the snapshot

    def dump(self) -> Iterator[parts.Part]:
        """Parts for a snapshot. Meters that folded the same records give equal parts. The meter must not change while
        the parts are consumed."""
        about, money = self.money.dump()
        return parts.write_sharing(
            {
                "money": about,
                "nodes": self.nodes,
                "seq": self.seq,
                "t_us": self.t_us,
                "quotas": {team: limits.dump() for team, limits in self.quotas.items()},
                "calendar": self._calendar.pieces,
            },
            {
                "models": self._models.items(),
                **self.open_claims.dump(),
                "counted": ((team, *counted.dump()) for team, counted in sorted(self.counted.items())),
                "days": ((job, sorted(days.items())) for job, days in sorted(self._days.items())),
                **money,
                **(self._credited.dump() if self._credited is not None else {}),
            },
            largest={"accounts": 1, "counted": 1, "lines": 1, "packed": 1, "tiered": 100},
        )

    @classmethod
    def load(cls, dumped: Iterable[parts.Part]) -> "Meter":
        """The inverse of `dump`, for parts of the same `version`."""
        meter = cls()
        about, tables = parts.read(dumped)
        meter.seq, meter.t_us = about["seq"], about["t_us"]
        meter.nodes = about["nodes"]
        meter._calendar = Calendar(about["calendar"])
        meter.quotas = {team: Limits.load(limits) for team, limits in about["quotas"].items()}
        same: dict[str, str] = {}  # share one object per name
        accounts, credits, recent = list[str](), list[Any](), list[Any]()
        for table, rows in tables:
            match table:
                case "models":
                    meter._models.update((device, same.setdefault(model, model)) for device, model in rows)
                case "jobs" | "held":
                    meter.open_claims.load(table, rows)
                case "accounts":
                    accounts += rows
                case "credits":
                    credits += rows
                case "recent":
                    recent += rows
                case "counted":
                    for team, *sums in rows:
                        counted = meter.counted[team] = TeamSums.load(*sums)
                        for (_, model, klass), units in counted.use.items():
                            group = (team, model, klass)
                            meter._sums[group] = meter._sums.get(group, 0) + units
                case "days":
                    meter._days.update(
                        (job, {(name, attempt, kind): days for (name, attempt, kind), days in things})
                        for job, things in rows
                    )
                case _:
                    meter.money.load_rows(table, rows)
        meter.money.loaded(about["money"])
        meter._credited = CreditedTime.load(accounts, credits, recent, MOST_RECENT) if accounts else None
        return meter


_FOLD: dict[type, Callable[[Meter, Any, int], None]] = {
    led.NodeJoined: Meter._offered,
    led.BoardCutDone: Meter._offered,
    led.QuotaSet: Meter._quota_set,
    led.JobQueued: Meter._queued,
    led.JobGranted: Meter._open,
    led.DevicesFreed: Meter._close,
    led.JobFinished: Meter._finish,
}
_FOLD_LAST: dict[type, Callable[[Meter, Any, int], None]] = {
    led.AttemptClosed: Meter._closed,
    led.JobFinished: Meter._forget_days,
    led.PricesApplied: Meter._priced,
    led.PeriodClosed: Meter._sealed,
}
"""These run last, after everything that the record ended is posted, as in exports."""
Meter.handled = led.kinds_of(_FOLD) | led.kinds_of(_FOLD_LAST) | Accounts.handled | Credits.handled
Meter.ignored = frozenset(led.EVENT_KINDS) - Meter.handled
