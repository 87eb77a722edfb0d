"""How full streams are is a metric, and what it is called does not change when a ledger rolls."""

from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from libs.ledger.rolling import Rolling
from libs.service.fill import FillLevels
from schemas import subjects


async def test_the_fill_of_every_stream_is_shown(nats: Client, pool: str) -> None:
    js, registry = nats.jetstream(), CollectorRegistry()
    levels = FillLevels(js, pool, registry)
    inbox, ledger = subjects.inbox_stream(pool), subjects.ledger_stream(pool)
    await levels.look()

    def fill(stream: str) -> float | None:
        return registry.get_sample_value("baton_stream_fill_ratio", {"stream": stream})

    for stream in ("REQUESTS", "EVENTS", "DEAD", "TELEMETRY", "KV_baton-cursors", "OBJ_baton-snapshots"):
        assert fill(stream) is not None, stream
    assert (fill(inbox), fill(ledger)) == (0.0, 0.0)
    for stream, subject in ((inbox, subjects.inbox("clock", "tick", pool)), (ledger, subjects.ledger(pool))):
        limit = (await js.stream_info(stream)).config.max_bytes or 0
        for _ in range(2):
            await js.publish(subject, b"x" * min(limit // 4, 900_000))
    await levels.look()
    for stream in (inbox, ledger):
        config = (await js.stream_info(stream)).config
        share = 2 * min((config.max_bytes or 0) // 4, 900_000) / (config.max_bytes or 1)
        assert abs((fill(stream) or 0) - share) < 0.01
    await Rolling(js, pool).finish(2)
    await levels.look()
    assert fill(ledger) == 0.0, "of the segment that is open"
    assert registry.get_sample_value("baton_ledger_segments") == 2
