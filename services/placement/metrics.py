"""The ledger writer's counts, read when they are scraped."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from libs.ledger.decider import Counters

_TEXTS = {
    "baton_writer_commits": "records that it appended",
    "baton_writer_events": "events in them",
    "baton_writer_inputs": "inputs that it decided",
    "baton_writer_skipped": "inputs that led to nothing",
    "baton_writer_rejected": "inputs that it rejected",
    "baton_writer_refused": "appends that lost against another writer's",
    "baton_writer_unclear": "appends of which it is not known what became of them: the ledger was asked",
    "baton_writer_refolds": "times that it folded the ledger again",
    "baton_writer_takeovers": "times that it began to lead",
    "baton_writer_voids": "records that do not continue the chain",
    "baton_writer_expired": "inputs that left the inbox before they were decided",
    "baton_writer_late": "decisions in which nothing was granted, for their inputs were far behind what the inbox holds",
    "baton_writer_clock_jumps": "times that the broker's clock was set",
    "baton_writer_unknown_observations": "what nodes observed of kinds that this version does not know, left out",
    "baton_writer_hook_failures": "errors in what follows a commit: telling nodes, answering",
    "baton_writer_faults": "errors of ours that decisions met; each rejected an input or ended a job, with its stack in DEAD",
}


class WriterCollector(Collector):
    """`baton_writer_<count>_total` of a writer, once there is one."""

    def __init__(self, registry: CollectorRegistry, counters: Callable[[], Counters | None]) -> None:
        self._counters = counters
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        counters = self._counters()
        if counters is not None:
            for name, text in _TEXTS.items():
                yield CounterMetricFamily(name, text, value=getattr(counters, name.removeprefix("baton_writer_")))
