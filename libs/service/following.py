"""A service's followers, seen from outside: their metrics, and their part of its readiness."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from libs.ledger.follower import Follower
from libs.ledger.saver import SaveCounters


class Folding(Protocol):
    """Who folds the ledger: a follower, or the writer."""

    @property
    def saves(self) -> SaveCounters: ...
    @property
    def archived(self) -> int: ...


class FollowerMetrics(Collector):
    """Lag, place and snapshots of a process's followers, labelled with the follower's name."""

    def __init__(
        self, followers: Callable[[], Iterable[Follower[Any]]], others: Callable[[], Iterable[tuple[str, Folding]]]
    ) -> None:
        self._followers = followers
        self._others = others

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        lag = _gauge("baton_follower_lag_records", "ledger records not read yet")
        position = _gauge("baton_follower_position", "last ledger sequence that was read")
        records = _counter("baton_follower_records", "valid ledger records that were folded")
        voids = _counter("baton_follower_voids", "void ledger records that were passed over")
        unknown = _counter("baton_follower_unknown_events", "events of skippable kinds that this version does not know")
        anew = _counter("baton_follower_folded_anew", "starts from the ledger's beginning")
        archived = _gauge("baton_follower_archived_records", "ledger records that it waits for: restore them")
        saved = _counter("baton_follower_snapshots", "snapshots by what became of them", "outcome")
        for follower in self._followers():
            own, done = [follower.name], follower.counters
            lag.add_metric(own, follower.lag)
            position.add_metric(own, follower.position)
            records.add_metric(own, done.records)
            voids.add_metric(own, done.voids)
            unknown.add_metric(own, done.unknown_events)
            anew.add_metric(own, done.folded_anew)
        for name, folding in [*((one.name, one) for one in self._followers()), *self._others()]:
            archived.add_metric([name], folding.archived)
            _add_saves(saved, name, folding.saves)
        yield from (lag, position, records, voids, unknown, anew, archived, saved)


def show(
    registry: CollectorRegistry,
    followers: Callable[[], Iterable[Follower[Any] | None]],
    others: Callable[[], Iterable[tuple[str, Folding]]] = lambda: (),
) -> None:
    """Registers the metrics of `followers`, which may still be None: they are made once the event loop runs. `others`: who
    folds the ledger without following it, by name."""
    registry.register(FollowerMetrics(lambda: [follower for follower in followers() if follower is not None], others))


def readiness(follower: Follower[Any] | None) -> str:
    """ "ok", or why what is read from the ledger is not its present."""
    return "not read yet" if follower is None else follower.problem or "ok"


def _add_saves(metric: CounterMetricFamily, name: str, saves: SaveCounters) -> None:
    metric.add_metric([name, "saved"], saves.saved)
    metric.add_metric([name, "failed"], saves.failed)
    metric.add_metric([name, "unusable"], saves.unusable)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["follower"])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=["follower", *labels])
