"""Followers as a service shows them: their metrics, and what readiness says of them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from libs.ledger.follower import Follower


class FollowerMetrics(Collector):
    """Lag, place and snapshots of a process's followers, labelled with the follower's name."""

    def __init__(self, followers: Callable[[], Iterable[Follower[Any]]]) -> None:
        self._followers = followers

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        lag = _gauge("baton_follower_lag_records", "ledger records not read yet")
        position = _gauge("baton_follower_position", "last ledger sequence that was read")
        records = _counter("baton_follower_records", "valid ledger records that were folded")
        voids = _counter("baton_follower_voids", "void ledger records that were passed over")
        unknown = _counter("baton_follower_unknown_events", "events of skippable kinds that this version does not know")
        anew = _counter("baton_follower_folded_anew", "starts from the ledger's beginning")
        saved = _counter("baton_follower_snapshots", "snapshots by what became of them", "outcome")
        for follower in self._followers():
            name, done = [follower.name], follower.counters
            lag.add_metric(name, follower.lag)
            position.add_metric(name, follower.position)
            records.add_metric(name, done.records)
            voids.add_metric(name, done.voids)
            unknown.add_metric(name, done.unknown_events)
            anew.add_metric(name, done.folded_anew)
            saved.add_metric([*name, "saved"], done.snapshots_saved)
            saved.add_metric([*name, "failed"], done.snapshots_failed)
        yield from (lag, position, records, voids, unknown, anew, saved)


def show(registry: CollectorRegistry, followers: Callable[[], Iterable[Follower[Any] | None]]) -> None:
    """Registers the metrics of `followers`, which may still be None: they are made once the event loop runs."""
    registry.register(FollowerMetrics(lambda: [follower for follower in followers() if follower is not None]))


def readiness(follower: Follower[Any] | None) -> str:
    """ "ok", or why what is read from the ledger is not its present."""
    return "not read yet" if follower is None else follower.problem or "ok"


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["follower"])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=["follower", *labels])
