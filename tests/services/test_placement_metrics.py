"""What the ledger's writer counts is shown."""

from dataclasses import fields

from prometheus_client import CollectorRegistry, generate_latest

from libs.ledger.decider import Counters
from services.placement.metrics import WriterCollector


def test_every_count_of_the_writer_is_a_metric() -> None:
    registry, counters = CollectorRegistry(), Counters()
    counts: list[Counters | None] = [None]
    WriterCollector(registry, lambda: counts[0])
    assert generate_latest(registry) == b"", "before there is a writer"
    counts[0] = counters
    for number, one in enumerate(fields(Counters), 1):
        setattr(counters, one.name, number)
    shown = generate_latest(registry).decode()
    for number, one in enumerate(fields(Counters), 1):
        assert f"\nbaton_writer_{one.name}_total {number}.0\n" in shown
