"""The bill equals the ledger's integral, to the microsecond, however the ledger looks and however it is grouped."""

from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from libs.core.billing.metering import Meter
from libs.core.billing.open_claims import TeamUse
from libs.core.billing.pricing import Prices, bill
from libs.core.billing.rounding import round_half_even
from libs.core.billing.unbillable import Unbillable
from libs.core.billing.usage_rows import UsageRow, billed_model
from libs.core.billing.wall import DAY_US
from libs.core.state.clock import Calendar
from libs.core.state.limits import Limits
from schemas import ledger as led
from schemas.billing import BillQuery, Price, PriceBook
from schemas.jobs import JobSpec, JobState
from schemas.resources import Claim, Device, DeviceKind, Inventory

DAY = 20_778  # 2026-11-21
NOON = DAY * DAY_US + DAY_US // 2
MIDNIGHT = (DAY + 1) * DAY_US
MODELS = {"n0": "H100", "n1": "A100"}
BOOK = PriceBook(
    currency="USD",
    prices=(
        Price(model="H100", micros_per_device_hour=2_990_000),
        Price(model="H100", priority_class="serving", micros_per_device_hour=3_590_000),
        Price(model="A100", micros_per_device_hour=1_000_001),
    ),
)
PRICES = Prices(BOOK)


def job(n: int) -> str:
    return f"job-{n:032x}"


class Ledger:
    """Writes valid records by hand and keeps its own books: the integral."""

    def __init__(self) -> None:
        self.records: list[led.LedgerRecord] = []
        self.milli_us: dict[str, int] = {}
        self._held: dict[tuple[int, int, str], tuple[str, int, list[Claim]]] = {}
        self._teams: dict[int, str] = {}
        self.write(0, *(self._joined(node) for node in MODELS))

    def write(self, t_us: int, *events: led.LedgerEvent) -> None:
        self.records.append(
            led.LedgerRecord(
                pool="main", prev_seq=len(self.records), prev_hash="", inbox_seq=0, t_us=t_us, writer="t", events=events
            )
        )

    def queue(self, n: int, t_us: int, *, team: str = "research", priority_class: str = "experiment") -> None:
        self._teams[n] = team
        spec = JobSpec(name=f"j{n}", command=("true",), priority_class=priority_class)
        self.write(
            t_us,
            led.JobQueued(
                job_id=job(n), team=team, spec=spec, spec_hash="", client_key=str(n), priority=0, preempts=False,
                submitted_us=t_us,
            ),
        )  # fmt: skip

    def grant(self, n: int, t_us: int, *devices: str, attempt: int = 1, milli: int = 1000) -> None:
        claims = [Claim(device=d, node=d.split("-")[0], milli=milli, memory_mib=0, epoch=1) for d in devices]
        for claim in claims:
            kept = self._held.setdefault((n, attempt, claim.node), (self._teams[n], t_us, []))
            kept[2].append(claim)
        self.write(t_us, led.JobGranted(job_id=job(n), attempt=attempt, claims=tuple(claims)))

    def free(self, n: int, t_us: int, node: str, *, attempt: int = 1) -> None:
        team, opened, claims = self._held.pop((n, attempt, node))
        self.milli_us[team] = self.milli_us.get(team, 0) + sum(c.milli for c in claims) * (t_us - opened)
        devices = tuple(c.device for c in claims)
        self.write(
            t_us, led.DevicesFreed(job_id=job(n), attempt=attempt, node=node, devices=devices, evidence="released")
        )

    def finish(self, n: int, t_us: int) -> None:
        self.write(t_us, led.JobFinished(job_id=job(n), state=JobState.SUCCEEDED))

    def meter(self) -> Meter:
        meter = Meter()
        for seq, record in enumerate(self.records, 1):
            meter.apply(record, seq)
        return meter

    @staticmethod
    def _joined(node: str) -> led.NodeJoined:
        devices = tuple(Device(id=f"{node}-gpu{i}", index=i, model=MODELS[node], memory_mib=1) for i in range(8))
        return led.NodeJoined(incarnation=1, inventory=Inventory(node=node, devices=devices))


def one_job(opened: int, closed: int, *devices: str) -> Ledger:
    ledger = Ledger()
    ledger.queue(1, opened)
    ledger.grant(1, opened, *devices)
    for node in dict.fromkeys(d.split("-")[0] for d in devices):
        ledger.free(1, closed, node)
    ledger.finish(1, closed)
    return ledger


def test_two_devices_for_an_hour_cost_twice_the_hourly_price() -> None:
    meter = one_job(NOON, NOON + 3_600_000_000, "n0-gpu0", "n0-gpu1").meter()
    reply = bill(meter.usage("research"), PRICES, BillQuery(), 5)
    (row,) = reply.rows
    assert (row.key, row.team, row.jobs, row.attempts) == ("research", "research", 1, 1)
    assert (row.milli_us, row.device_seconds, row.cost_micros) == (2 * 1000 * 3_600_000_000, 7200.0, 5_980_000)
    assert (reply.total_milli_us, reply.total_cost_micros, reply.currency) == (row.milli_us, row.cost_micros, "USD")
    assert reply.ledger_seq == 5


def test_a_claim_over_midnight_is_split_at_the_utc_day() -> None:
    meter = one_job(MIDNIGHT - 10, MIDNIGHT + 5, "n0-gpu0").meter()
    rows = bill(meter.usage(), PRICES, BillQuery(group_by="day"), 0).rows
    assert [(r.key, r.milli_us) for r in rows] == [("2026-11-21", 10_000), ("2026-11-22", 5_000)]


def test_days_select_inclusively() -> None:
    meter = one_job(MIDNIGHT - 10, MIDNIGHT + DAY_US + 5, "n0-gpu0").meter()
    query = BillQuery(group_by="day", from_day="2026-11-22", to_day="2026-11-22")
    (row,) = bill(meter.usage(), PRICES, query, 0).rows
    assert (row.key, row.milli_us) == ("2026-11-22", DAY_US * 1000)


def test_parts_of_a_gang_that_end_at_different_times_are_billed_each_to_its_own_end() -> None:
    ledger = Ledger()
    ledger.queue(1, NOON)
    ledger.grant(1, NOON, "n0-gpu0", "n1-gpu0", "n1-gpu1")
    ledger.free(1, NOON + 100, "n1")
    ledger.free(1, NOON + 1000, "n0")
    rows = bill(ledger.meter().usage(), PRICES, BillQuery(group_by="model"), 0).rows
    assert [(r.key, r.milli_us) for r in rows] == [("A100", 200_000), ("H100", 1_000_000)]


def test_what_is_still_held_is_billed_only_when_asked_and_only_up_to_there() -> None:
    ledger = Ledger()
    ledger.queue(1, NOON)
    ledger.grant(1, NOON, "n0-gpu0", milli=250)
    meter = ledger.meter()
    assert list(meter.usage()) == []
    assert [r.milli_us for r in meter.usage("research", open_until_us=NOON + 8)] == [2000]
    assert list(meter.usage("research", open_until_us=NOON - 8)) == []
    (segment,) = meter.open_claims.segments()
    assert (segment.device, segment.model, segment.milli, segment.closed_us) == ("n0-gpu0", "H100", 250, None)


def test_an_attempt_that_is_partly_freed_is_one_row_when_open_claims_count() -> None:
    ledger = Ledger()
    ledger.queue(1, NOON)
    ledger.grant(1, NOON, "n0-gpu0", "n1-gpu0")
    ledger.free(1, NOON + 4, "n1")
    rows = list(ledger.meter().usage(open_until_us=NOON + 10))
    assert sorted((r.model, r.milli_us) for r in rows) == [("A100", 4000), ("H100", 10_000)]


def test_a_job_filter_leaves_out_everything_else() -> None:
    ledger = one_job(NOON, NOON + 10, "n0-gpu0")
    ledger.queue(2, NOON + 10)
    ledger.grant(2, NOON + 10, "n0-gpu1")
    ledger.free(2, NOON + 30, "n0")
    (row,) = bill(ledger.meter().usage(), PRICES, BillQuery(group_by="attempt", job_id=job(2)), 0).rows
    assert (row.key, row.milli_us) == (f"{job(2)}.1", 20_000)


def test_teams_see_quota_use_and_counts() -> None:
    ledger = Ledger()
    ledger.write(1, led.QuotaSet(team="research", limit_milli=8000), led.QuotaSet(team="idle", limit_milli=5))
    ledger.write(2, led.QuotaSet(team="idle", limit_milli=None))
    ledger.queue(1, 3)
    ledger.queue(2, 3)
    ledger.grant(1, 4, "n0-gpu0", "n0-gpu1", milli=500)
    meter = ledger.meter()
    use = meter.open_claims.teams(meter.quotas)
    assert list(use) == ["research"]
    held = use["research"]
    assert (held.limits, held.used_milli, held.queued_jobs, held.running_jobs) == (Limits(8000), 1000, 1, 1)


def test_use_is_counted_by_kind_of_device_and_in_whole_accelerators() -> None:
    use = TeamUse(Limits(4000, (("H100", 2000), ("H100:1g.10gb", 7000))), {"H100:1g.10gb": 3000, "CPU": 500}, 0, 1)
    assert use.used_milli == 429, "three sevenths of a board, rounded up; a CPU is no accelerator"
    assert use.used_by_type() == {"CPU": 500, "H100": 429, "H100:1g.10gb": 3000}


def test_the_more_exact_price_wins() -> None:
    assert PRICES.of("H100", "serving") == 3_590_000
    assert PRICES.of("H100", "spot") == 2_990_000
    assert PRICES.of("A100", "spot") == 1_000_001


def test_a_price_for_any_model_is_refused() -> None:
    with pytest.raises(ValidationError, match="model"):
        Price(model="*", micros_per_device_hour=1)


def test_a_device_without_a_price_is_reported_and_never_billed_at_a_guess() -> None:
    assert PRICES.of("B200", "spot") is None
    usage = [
        UsageRow("red", job(1), 1, DAY, "H100", "spot", 3_600_000_000_000),
        UsageRow("red", job(1), 1, DAY, "B200", "spot", 7_000),
        UsageRow("blue", job(2), 1, DAY, "X9", "spot", 5),
    ]
    reply = bill(usage, PRICES, BillQuery(), 1)
    blue, red = reply.rows
    assert (red.milli_us, red.unpriced_milli_us, red.cost_micros) == (3_600_000_007_000, 7_000, 2_990_000)
    assert (blue.milli_us, blue.unpriced_milli_us, blue.cost_micros) == (5, 5, 0)
    assert (reply.unpriced_milli_us, reply.unpriced_models) == (7_005, ("B200", "X9"))
    assert reply.total_cost_micros == 2_990_000


def test_a_mig_instance_is_priced_by_its_profile() -> None:
    slice_ = Device(id="x", index=0, model="H100", memory_mib=1, kind=DeviceKind.MIG, mig_profile="1g.10gb")
    assert billed_model(slice_) == "H100:1g.10gb"


def one_claim(device: str) -> tuple[Claim, ...]:
    return (Claim(device=device, node="n0", milli=1, memory_mib=0, epoch=1),)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (led.JobGranted(job_id=job(9), attempt=1, claims=one_claim("n0-gpu0")), "never queued"),
        (led.JobGranted(job_id=job(1), attempt=1, claims=one_claim("gone")), "no node has brought"),
        (
            led.DevicesFreed(job_id=job(1), attempt=1, node="n0", devices=("n0-gpu0",), evidence="released"),
            "holds none",
        ),
        (led.JobFinished(job_id=job(9), state=JobState.FAILED), "never queued"),
    ],
)
def test_an_impossible_ledger_stops_the_meter(event: led.LedgerEvent, problem: str) -> None:
    ledger = Ledger()
    ledger.queue(1, 1)
    ledger.write(2, event)
    with pytest.raises(Unbillable, match=problem):
        ledger.meter()


# -------------------------------------------------------------------------------------------------------- properties


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Any valid order of submits, grants (gangs, shares, several attempts), partial frees and ends, over days."""
    ledger, now, jobs = Ledger(), NOON, 0
    free = {f"{node}-gpu{i}" for node in MODELS for i in range(8)}
    queued: dict[int, int] = {}  # job -> attempts so far
    running: dict[int, dict[str, list[str]]] = {}
    for _ in range(draw(st.integers(0, 25))):
        now += draw(st.sampled_from([0, 1, 999, 1_000_003, DAY_US // 3, DAY_US + 7]))
        action = draw(st.sampled_from(["queue", "grant", "free", "free"]))
        if action == "queue":
            jobs += 1
            queued[jobs] = 0
            team, klass = draw(st.sampled_from(["a", "b"])), draw(st.sampled_from(["serving", "spot", "x"]))
            ledger.queue(jobs, now, team=team, priority_class=klass)
        elif action == "grant" and queued and free:
            n = draw(st.sampled_from(sorted(queued)))
            devices = draw(st.lists(st.sampled_from(sorted(free)), min_size=1, max_size=5, unique=True))
            free -= set(devices)
            queued[n] += 1
            running[n] = {}
            for device in devices:
                running[n].setdefault(device.split("-")[0], []).append(device)
            ledger.grant(n, now, *devices, attempt=queued[n], milli=draw(st.integers(1, 1000)))
            running[n]["attempt"] = [str(queued.pop(n))]
        elif action == "free" and running:
            n = draw(st.sampled_from(sorted(running)))
            node = draw(st.sampled_from(sorted(set(running[n]) - {"attempt"})))
            attempt = int(running[n]["attempt"][0])
            free |= set(running[n].pop(node))
            ledger.free(n, now, node, attempt=attempt)
            if set(running[n]) == {"attempt"}:
                del running[n]
                if draw(st.booleans()):
                    queued[n] = attempt
                else:
                    ledger.finish(n, now)
    return ledger


GROUPS = ("team", "day", "job", "attempt", "model")


@settings(max_examples=25, deadline=None)
@given(ledgers())
def test_rows_sum_to_the_integral_per_team(ledger: Ledger) -> None:
    meter = ledger.meter()
    for team in ("a", "b"):
        assert sum(r.milli_us for r in meter.usage(team)) == ledger.milli_us.get(team, 0)
    assert sum(meter.sums().values()) == sum(ledger.milli_us.values())


@settings(max_examples=25, deadline=None)
@given(ledgers(), st.integers(0, 10 * DAY_US))
def test_totals_do_not_depend_on_the_grouping(ledger: Ledger, until: int) -> None:
    meter = ledger.meter()
    replies = [bill(meter.usage(open_until_us=NOON + until), PRICES, BillQuery(group_by=group), 0) for group in GROUPS]
    assert len({(r.total_milli_us, r.total_cost_micros) for r in replies}) == 1
    for reply in replies:
        assert len({(r.key, r.team) for r in reply.rows}) == len(reply.rows)


@settings(max_examples=25, deadline=None)
@given(ledgers(), st.data())
def test_repeated_delivery_changes_nothing(ledger: Ledger, data: st.DataObject) -> None:
    meter = Meter()
    for seq, record in enumerate(ledger.records, 1):
        meter.apply(record, seq)
        old = data.draw(st.integers(1, seq))
        meter.apply(ledger.records[old - 1], old)
    assert list(meter.dump()) == list(ledger.meter().dump())


@settings(max_examples=25, deadline=None)
@given(ledgers(), st.data())
def test_a_snapshot_anywhere_goes_on_as_if_nothing_had_happened(ledger: Ledger, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(ledger.records)))
    meter = Meter()
    for seq, record in enumerate(ledger.records, 1):
        if seq == cut:
            meter = Meter.load(meter.dump())
        meter.apply(record, seq)
    whole = ledger.meter()
    assert list(meter.dump()) == list(whole.dump())
    assert meter.sums() == whole.sums()


@given(st.integers(0, 10**17), st.integers(0, 5 * DAY_US))
def test_day_splits_sum_up_and_stay_within_their_day(start: int, length: int) -> None:
    parts = list(Calendar().split(start, start + length, DAY_US))
    assert sum(us for _, us in parts) == length
    assert all(0 < us <= DAY_US for _, us in parts)
    assert all(b == a + 1 for (a, _), (b, _) in pairwise(parts))
    assert not parts or parts[0][0] == start // DAY_US


@given(st.integers(0, 10**30), st.integers(1, 10**16))
def test_rounding_is_half_to_even(numerator: int, denominator: int) -> None:
    assert round_half_even(numerator, denominator) == round(Fraction(numerator, denominator))


@given(st.integers(0, 10**20))
def test_a_row_is_never_off_by_more_than_half_a_micro_unit(milli_us: int) -> None:
    row = UsageRow("a", job(1), 1, DAY, "H100", "x", milli_us)
    exact = Fraction(milli_us * 2_990_000, 1000 * 3_600_000_000)
    assert abs(PRICES.cost_micros(row) - exact) <= Fraction(1, 2)


def test_the_day_of_the_examples() -> None:
    assert datetime.fromtimestamp(DAY * 86_400, UTC).date().isoformat() == "2026-11-21"
