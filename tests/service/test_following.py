"""What a service shows of its followers."""

from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

from libs.ledger.follower import Follower
from libs.service.following import readiness, show
from tests.ledger.tally import Tally


def test_metrics_are_labelled_by_follower_and_absent_until_there_is_one() -> None:
    registry = CollectorRegistry()
    made: list[Follower[Any] | None] = [None]
    show(registry, lambda: made)
    assert b"follower=" not in generate_latest(registry)
    made[:] = [Follower(cast("Any", None), "main", Tally, name=name) for name in ("feed", "documents")]
    assert made[0] is not None
    made[0].saves.failed = 2
    made[0].counters.unknown_events = 3
    text = generate_latest(registry).decode()
    for line in (
        'baton_follower_lag_records{follower="feed"} 0.0',
        'baton_follower_lag_records{follower="documents"} 0.0',
        'baton_follower_position{follower="documents"} 0.0',
        'baton_follower_snapshots_total{follower="feed",outcome="failed"} 2.0',
        'baton_follower_snapshots_total{follower="feed",outcome="saved"} 0.0',
        'baton_follower_unknown_events_total{follower="feed"} 3.0',
        'baton_follower_folded_anew_total{follower="feed"} 0.0',
    ):
        assert line in text, text


def test_readiness_says_why_not() -> None:
    assert readiness(None) == "not read yet"
    assert readiness(Follower(cast("Any", None), "main", Tally, name="x")) == "not read yet"
