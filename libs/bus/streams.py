"""The one provisioner of streams, durable consumers and buckets. Services bind to what is there and create nothing.

All file-backed streams use limits retention (a work-queue stream forgets message ids when the server restarts), an
explicit `max_bytes`, and refuse when they are full instead of dropping what was stored. The ledger never expires and
can be neither purged nor have messages deleted.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nats.js import JetStreamContext, api
from nats.js.errors import BucketNotFoundError, NotFoundError

from schemas import subjects

CURSORS = "baton-cursors"
SNAPSHOTS = "baton-snapshots"

MIB = 1024 * 1024
DAY_S = 86_400.0
_MAX_MESSAGE = MIB


class StreamDrift(RuntimeError):
    """A stream or consumer exists with another configuration; the text lists what differs."""


class StreamMissing(RuntimeError):
    """A stream that a service binds to does not exist; the text names it and the command that makes it."""


def stream_configs(pools: Iterable[str], *, replicas: int = 1, scale: float = 1.0) -> list[api.StreamConfig]:
    """Every stream of the system. `scale` multiplies the storage limits (1.0: a single host)."""

    def file_stream(name: str, patterns: Sequence[str], max_mib: int, max_age_s: float, window_s: float = 120.0) -> api.StreamConfig:
        return api.StreamConfig(
            name=name,
            subjects=list(patterns),
            retention=api.RetentionPolicy.LIMITS,
            storage=api.StorageType.FILE,
            discard=api.DiscardPolicy.NEW,
            max_bytes=int(max_mib * MIB * scale),
            max_age=max_age_s,
            max_msg_size=_MAX_MESSAGE,
            duplicate_window=window_s,
            num_replicas=replicas,
            allow_direct=True,
        )

    configs = [
        file_stream(subjects.REQUESTS, ["baton.cmd.job.v1.*.*", "baton.cmd.quota.v1.*.*"], 2048, 7 * DAY_S),
        file_stream(subjects.EVENTS, ["baton.evt.job.v1.*.*"], 4096, 7 * DAY_S),
        file_stream(subjects.DEAD, ["baton.dead.*"], 512, 30 * DAY_S),
        api.StreamConfig(
            name=subjects.TELEMETRY,
            subjects=["baton.tel.node.v1.sample.>"],
            storage=api.StorageType.MEMORY,
            discard=api.DiscardPolicy.OLD,
            max_bytes=int(64 * MIB * scale),
            max_age=3600.0,
            duplicate_window=10.0,
            num_replicas=replicas,
            allow_direct=True,
        ),
    ]
    for pool in pools:
        inbox = file_stream(subjects.inbox_stream(pool), [f"baton.in.*.v1.*.{pool}"], 2048, 7 * DAY_S)
        ledger = file_stream(subjects.ledger_stream(pool), [subjects.ledger(pool)], 8192, 0, window_s=3600.0)
        configs += [inbox, replace(ledger, deny_delete=True, deny_purge=True)]
    return configs


def consumer_configs() -> list[tuple[str, api.ConsumerConfig]]:
    """(stream, consumer) of every durable consumer."""

    def pull(durable: str, pattern: str) -> api.ConsumerConfig:
        return api.ConsumerConfig(
            durable_name=durable,
            filter_subject=pattern,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=30.0,
            max_ack_pending=20_000,
            max_deliver=-1,  # giving up is decided in libs.bus.settle, which leaves a dead letter
        )

    return [
        (subjects.REQUESTS, pull("admission", "baton.cmd.job.v1.*.*")),
        (subjects.REQUESTS, pull("quota_billing", "baton.cmd.quota.v1.*.*")),
        (subjects.TELEMETRY, pull("telemetry", "baton.tel.node.v1.sample.>")),
    ]


async def provision(
    js: JetStreamContext, pools: Sequence[str], *, replicas: int = 1, scale: float = 1.0
) -> None:
    """Creates what is missing; leaves what is the same; raises StreamDrift on what differs. May be run any time."""
    for config in stream_configs(pools, replicas=replicas, scale=scale):
        await _stream(js, config)
    for stream, consumer in consumer_configs():
        await _consumer(js, stream, consumer)
    try:
        await js.key_value(CURSORS)
    except (BucketNotFoundError, NotFoundError):
        await js.create_key_value(api.KeyValueConfig(bucket=CURSORS, history=1, max_bytes=16 * MIB, replicas=replicas))
    try:
        await js.object_store(SNAPSHOTS)
    except (BucketNotFoundError, NotFoundError):
        await js.create_object_store(
            SNAPSHOTS, config=api.ObjectStoreConfig(max_bytes=int(4096 * MIB * scale), replicas=replicas)
        )


async def bind(js: JetStreamContext, pools: Sequence[str], *, wait_s: float = 30.0) -> None:
    """Waits until the streams of `pools` exist. Raises StreamMissing after `wait_s`."""
    deadline = asyncio.get_running_loop().time() + wait_s
    names = [subjects.REQUESTS, subjects.EVENTS, subjects.DEAD]
    for pool in pools:
        names += [subjects.inbox_stream(pool), subjects.ledger_stream(pool)]
    for name in names:
        while True:
            try:
                await js.stream_info(name)
                break
            except NotFoundError:
                if asyncio.get_running_loop().time() > deadline:
                    raise StreamMissing(f"stream {name} does not exist: run `baton provision` first") from None
            await asyncio.sleep(0.2)


async def _stream(js: JetStreamContext, config: api.StreamConfig) -> None:
    assert config.name is not None
    try:
        existing = (await js.stream_info(config.name)).config
    except NotFoundError:
        await js.add_stream(config)
        return
    grown = (existing.max_bytes or 0) < (config.max_bytes or 0)
    differing = _differences(existing, config, ignore={"max_bytes"})
    if differing:
        raise StreamDrift(f"stream {config.name} exists with {differing}: change it with care, or use another server")
    if grown:
        await js.update_stream(replace(existing, max_bytes=config.max_bytes))


async def _consumer(js: JetStreamContext, stream: str, config: api.ConsumerConfig) -> None:
    assert config.durable_name is not None
    try:
        existing = (await js.consumer_info(stream, config.durable_name)).config
    except NotFoundError:
        await js.add_consumer(stream, config)
        return
    differing = _differences(existing, config)
    if differing:
        raise StreamDrift(f"consumer {stream}/{config.durable_name} exists with {differing}: remove it and provision again")


def _differences(existing: object, wanted: object, ignore: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    """`field: there X, wanted Y`, for the fields that `wanted` sets."""
    found = []
    for name in wanted.__dataclass_fields__:  # type: ignore[attr-defined]
        want, have = getattr(wanted, name), getattr(existing, name)
        if want is None or name in ignore or name == "num_replicas":
            continue
        if (want or None) != (have or None):
            found.append(f"{name}: there {have!r}, wanted {want!r}")
    return "; ".join(found)
