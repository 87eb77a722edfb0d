"""Prometheus metrics of usage, money and quotas, read from the meter at each scrape.

`baton_cost` is posted cost, and `baton_credits` the credits in it, kept apart because Prometheus takes a falling
counter for a reset. Without a price book in the ledger `baton_cost` prices each team's sum as a whole. Bills round each
row, so the two differ by at most half a millionth of the currency unit per row.
"""

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from libs.core.billing.accounts import DEVICE_UNITS
from libs.core.billing.metering import Meter
from libs.core.billing.pricing import Prices

_MICROS_PER_DEVICE_SECOND = 1000 * 1_000_000
_UNITS_PER_HOUR = 1000 * 3_600_000_000
_MICROS = 1_000_000


class BillingMetrics(Collector):
    """Register it once. `meter` returns the meter, once there is one."""

    def __init__(
        self,
        meter: Callable[[], Meter | None],
        prices: Prices,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._meter = meter
        self._now_us = now_us
        self._prices = prices

    def collect(self) -> Iterator[Metric]:
        if (meter := self._meter()) is None:
            return
        seconds = CounterMetricFamily(
            "baton_device_seconds", "device-seconds of freed claims, by share", labels=["team", "model"]
        )
        cost = CounterMetricFamily("baton_cost", "price of freed claims, currency units", labels=["team", "currency"])
        credits = CounterMetricFamily(
            "baton_credits", "what the price book gave back, currency units, in no cost", labels=["team", "currency"]
        )
        unpriced = CounterMetricFamily(
            "baton_unpriced_device_seconds",
            "device-seconds of freed claims of devices without a price, in no cost",
            labels=["team", "model"],
        )
        used, money, free = _sums(meter, self._prices)
        currency = self._prices.currency
        if meter.money.book is not None:  # posted money
            currency = meter.money.book.currency
            back = meter.money.credits
            money = {team: (micros - back.get(team, 0)) / _MICROS for team, micros in meter.money.totals.items()}
            for team, micros in back.items():
                credits.add_metric([team, currency], -micros / _MICROS)
            free = {
                (team, kind): units / _MICROS_PER_DEVICE_SECOND for (team, kind), units in meter.money.unpriced.items()
            }
        for (team, model), value in free.items():
            unpriced.add_metric([team, model], value)
        for (team, model), value in used.items():
            seconds.add_metric([team, model], value)
        for team, value in money.items():
            cost.add_metric([team, currency], value)
        limit = GaugeMetricFamily("baton_quota_limit_devices", "hard quota of teams that have one", labels=["team"])
        held = GaugeMetricFamily("baton_quota_used_devices", "accelerators held, by share and slice", labels=["team"])
        limit_by_type = GaugeMetricFamily(
            "baton_quota_type_limit_devices", "limit by device type or type:profile", labels=["team", "type"]
        )
        held_by_type = GaugeMetricFamily(
            "baton_quota_type_used_devices", "held by device type or type:profile", labels=["team", "type"]
        )
        jobs = GaugeMetricFamily("baton_team_jobs", "unfinished jobs", labels=["team", "state"])
        for team, use in meter.open_claims.teams(meter.quotas).items():
            if use.limits is not None and use.limits.total_milli is not None:
                limit.add_metric([team], use.limits.total_milli / 1000)
            held.add_metric([team], use.used_milli / 1000)
            for key, milli in use.limits.by_type if use.limits is not None else ():
                limit_by_type.add_metric([team, key], milli / 1000)
            for key, milli in use.used_by_type().items():
                held_by_type.add_metric([team, key], milli / 1000)
            jobs.add_metric([team, "queued"], use.queued_jobs)
            jobs.add_metric([team, "running"], use.running_jobs)
        yield from (seconds, cost, credits, unpriced, limit, held, limit_by_type, held_by_type, jobs)
        yield from _free(meter)
        yield from self._as_opencost(meter)
        yield GaugeMetricFamily("baton_billing_rows", "lines of use kept: attempt x model", value=meter.lines)

    def _as_opencost(self, meter: Meter) -> Iterator[Metric]:
        """Two series under OpenCost's names, for its dashboards."""
        hourly = GaugeMetricFamily(
            "node_gpu_hourly_cost", "list price of one device and hour, currency units", labels=["node", "gpu_type"]
        )
        now_us, book = self._now_us(), meter.money.prices
        for node, kinds in meter.nodes.items():
            for kind in kinds:
                if book is None:
                    micros = self._prices.of(kind)
                else:
                    quote = book.at("", kind, "*", now_us)
                    micros = None if quote is None else quote.list_micros
                if micros is not None:
                    hourly.add_metric([node, kind], micros / _MICROS)
        held: dict[tuple[str, str, str, str], int] = {}
        for one in meter.open_claims.segments():
            key = (one.team, one.job_id, one.node, one.model)
            held[key] = held.get(key, 0) + one.milli
        allocated = GaugeMetricFamily(
            "container_gpu_allocation", "devices that a job holds", labels=["namespace", "pod", "node", "gpu_type"]
        )
        for key, milli in held.items():
            allocated.add_metric(list(key), milli / 1000)
        yield from (hourly, allocated)


def _free(meter: Meter) -> Iterator[Metric]:
    accounts = meter.accounts
    idle = GaugeMetricFamily("baton_idle_devices", "capacity in the account `idle` now, in devices", labels=["model"])
    fragmented = GaugeMetricFamily(
        "baton_fragmented_devices", "of these, what is of no use to any job that waits for devices", labels=["model"]
    )
    of_no_use = accounts.fragmented
    for kind, units in accounts.idle.items():
        idle.add_metric([kind], units / DEVICE_UNITS)
        fragmented.add_metric([kind], of_no_use.get(kind, 0) / DEVICE_UNITS)
    yield from (idle, fragmented)


_ByModel = dict[tuple[str, str], float]


def _sums(meter: Meter, prices: Prices) -> tuple[_ByModel, dict[str, float], _ByModel]:
    """Device-seconds by team and model, money by team in currency units, and unpriced device-seconds."""
    used: _ByModel = {}
    money: dict[str, float] = {}
    unpriced: _ByModel = {}
    for (team, model, klass), units in meter.sums().items():
        seconds = units / _MICROS_PER_DEVICE_SECOND
        used[team, model] = used.get((team, model), 0.0) + seconds
        if (price := prices.of(model, klass)) is None:
            unpriced[team, model] = unpriced.get((team, model), 0.0) + seconds
        else:
            money[team] = money.get(team, 0.0) + units / _UNITS_PER_HOUR * price / _MICROS
    return used, money, unpriced
