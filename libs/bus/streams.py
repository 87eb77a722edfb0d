"""Every stream and durable consumer, in one table, made by one provisioner (`baton provision`).

Services never create a stream: they `bind` to it. Two creators with slightly different settings would overwrite each
other, and a missing limit would be found on the day the disk is full. All streams are bounded and refuse when full
(`discard: new`), except telemetry, which is memory and drops the oldest. The ledger never expires and can be neither
deleted from nor purged.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError

from schemas import subjects
from schemas.catalog import CATALOG
from schemas.subjects import DEAD, EVENTS, REQUESTS, TELEMETRY

CURSORS_BUCKET = "baton-cursors"
SNAPSHOTS_BUCKET = "baton-snapshots"

_MIB = 1024 * 1024
_DAY_S = 86_400.0
_HOUR_S = 3_600.0

ACK_WAIT_S = 10.0
"""A consumer that stops saying 'in progress' for this long loses its messages to another one."""


@dataclass(frozen=True, slots=True)
class Durable:
    """A durable pull consumer: who reads which part of a stream. `stream` is its name. In the table below `name` and
    filters may have `{pool}` in them: then each pool has one."""

    stream: str
    name: str
    filter_subjects: tuple[str, ...]
    max_ack_pending: int = 5_000


DURABLES: tuple[Durable, ...] = (
    Durable(REQUESTS, "admission", (subjects.fill(subjects.COMMAND, entity="job"),)),
    Durable(REQUESTS, "quota_billing-{pool}", (subjects.fill(subjects.POOL_COMMAND, entity="quota"),)),
)


class StreamDrift(RuntimeError):
    """A stream or consumer exists with other settings; the text lists each difference."""


class StreamsMissing(RuntimeError):
    """Streams do not exist yet; the text names them and `baton provision`."""


def streams(pools: Sequence[str], *, replicas: int = 1, scale: float = 1.0) -> list[StreamConfig]:
    """The whole table. `scale` multiplies every size limit (tests and small machines use less than 1)."""
    table = [
        _stream(REQUESTS, _kept(REQUESTS), 2_048, max_age=3 * _DAY_S),
        _stream(EVENTS, _kept(EVENTS), 4_096, max_age=7 * _DAY_S),
        # On disk as well: one broker forgets a stream in memory when it restarts, and no service could bind any more.
        _stream(TELEMETRY, _kept(TELEMETRY), 128, max_age=_HOUR_S, discard=DiscardPolicy.OLD),
        _stream(DEAD, [subjects.anyone(subjects.DEAD_LETTER)], 1_024, max_age=30 * _DAY_S),
        _key_value(CURSORS_BUCKET, 64),
        _objects(SNAPSHOTS_BUCKET, 4_096),
    ]
    for pool in pools:
        table.append(_stream(subjects.inbox_stream(pool), _kept(subjects.INBOX, pool=pool), 4_096, max_age=7 * _DAY_S))
        table.append(
            _stream(
                subjects.ledger_stream(pool),
                _kept(subjects.LEDGER, pool=pool),
                16_384,
                duplicate_window=_HOUR_S,
                deny_delete=True,
                deny_purge=True,
            )
        )
    for config in table:
        assert config.max_bytes is not None
        config.max_bytes = max(_MIB, int(config.max_bytes * scale))
        config.num_replicas = replicas
    return table


def _kept(stream: str, **keys: str) -> list[str]:
    """The subjects of a stream: those of the catalogue's messages that are kept there, whatever their `<what>`, so that
    a misspelt one is stored and answered by who reads the stream."""
    kept = (m.subject.split(".") for m in CATALOG if m.stream == stream)
    patterns = {".".join([*parts[:4], parts[4] if stream in _ONE_KIND else "*", *parts[5:]]) for parts in kept}
    return sorted(subjects.anyone(pattern, **keys) for pattern in patterns)


_ONE_KIND = (TELEMETRY, subjects.LEDGER)
"""Streams of one message only: another signal of a node is not kept, and nothing but records is in a ledger."""


def consumer_config(durable: Durable, *, replicas: int = 1) -> ConsumerConfig:
    """How a durable is made. `max_deliver` has no bound: `libs.bus.settle` ends every message and says why."""
    return ConsumerConfig(
        name=durable.name,
        durable_name=durable.name,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_S,
        max_deliver=-1,
        max_ack_pending=durable.max_ack_pending,
        num_replicas=replicas,
        **(
            {"filter_subject": durable.filter_subjects[0]}
            if len(durable.filter_subjects) == 1
            else {"filter_subjects": list(durable.filter_subjects)}
        ),
    )


def durables(pools: Sequence[str]) -> list[Durable]:
    """Every durable consumer of these pools."""
    return [
        made
        for entry in DURABLES
        for made in ([_of_pool(entry, p) for p in pools] if _per_pool(entry) else [_all(entry)])
    ]


def durable_of(stream: str, name: str) -> Durable:
    """The table's entry of that name. Raises KeyError naming the known ones."""
    for entry in DURABLES:
        if entry.stream == stream:
            with suppress(ValueError):
                keys = subjects.read(entry.name, name)
                return _of_pool(entry, keys["pool"]) if keys else _all(entry)
    known = ", ".join(f"{d.stream}/{d.name}" for d in DURABLES)
    raise KeyError(f"no durable {stream}/{name} in libs.bus.streams.DURABLES; known: {known}")


def _per_pool(entry: Durable) -> bool:
    return "pool" in subjects.keys_in(entry.name)


def _of_pool(entry: Durable, pool: str) -> Durable:
    filters = tuple(subjects.anyone(pattern, pool=pool) for pattern in entry.filter_subjects)
    return replace(entry, name=subjects.fill(entry.name, pool=pool), filter_subjects=filters)


def _all(entry: Durable) -> Durable:
    return replace(entry, filter_subjects=tuple(map(subjects.anyone, entry.filter_subjects)))


async def provision(js: JetStreamContext, pools: Sequence[str], *, replicas: int = 1, scale: float = 1.0) -> None:
    """Makes what is missing and lets limits grow; running it again changes nothing.

    Raises StreamDrift, before changing anything, when something exists with other settings. A larger limit than the
    table's is left as it is.
    """
    wanted = streams(pools, replicas=replicas, scale=scale)
    found = {str(config.name): await _found(js, str(config.name)) for config in wanted}
    drift = [line for config in wanted for line in _differences(config, found[str(config.name)])]
    for entry in durables(pools):
        drift += await _consumer_differences(js, entry)
    if drift:
        raise StreamDrift(
            "the broker's streams differ from libs/bus/streams.py:\n  "
            + "\n  ".join(drift)
            + "\nChange them by hand after checking why, or start from an empty broker."
        )
    for config in wanted:
        existing = found[str(config.name)]
        if existing is None:
            await js.add_stream(config)
        elif grown := _grown(config, existing):
            await js.update_stream(existing.evolve(**grown))
    for entry in durables(pools):
        if await _found_consumer(js, entry) is None:
            await js.add_consumer(entry.stream, consumer_config(entry, replicas=replicas))


async def bind(js: JetStreamContext, pools: Sequence[str], *, wait_s: float = 60.0) -> None:
    """Waits until every stream and durable consumer of `pools` exists.

    Services call it at start. Raises StreamsMissing after `wait_s`.
    """
    names = [str(config.name) for config in streams(pools)]
    deadline = time.monotonic() + wait_s
    pause = 0.05
    while True:
        problem = await _missing(js, names, durables(pools))
        if not problem:
            return
        if time.monotonic() > deadline:
            pool_options = " ".join(f"--pool {p}" for p in pools)
            raise StreamsMissing(f"{problem}: run `baton provision {pool_options}`")
        await asyncio.sleep(pause)
        pause = min(1.0, pause * 2)


async def _missing(js: JetStreamContext, names: Sequence[str], wanted: Sequence[Durable]) -> str:
    """Which streams and durables are not there, or what keeps us from knowing; "" when all are there."""
    try:
        missing = [name for name in names if await _found(js, name) is None]
        missing = missing or [f"{d.stream}/{d.name}" for d in wanted if await _found_consumer(js, d) is None]
    except (NatsError, TimeoutError) as e:
        return f"the broker cannot say which streams exist ({e or type(e).__name__})"
    return f"missing on the broker: {', '.join(missing)}" if missing else ""


def _stream(
    name: str,
    subjects: list[str],
    max_mib: int,
    *,
    max_age: float = 0,
    storage: StorageType = StorageType.FILE,
    discard: DiscardPolicy = DiscardPolicy.NEW,
    duplicate_window: float = 120.0,
    deny_delete: bool = False,
    deny_purge: bool = False,
) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=subjects,
        retention=RetentionPolicy.LIMITS,  # work-queue streams forget message ids at a restart
        storage=storage,
        discard=discard,
        max_bytes=max_mib * _MIB,
        max_age=max_age,
        max_msgs=-1,
        max_consumers=-1,
        max_msgs_per_subject=-1,
        duplicate_window=duplicate_window,
        deny_delete=deny_delete,
        deny_purge=deny_purge,
        allow_direct=True,
    )


def _key_value(bucket: str, max_mib: int) -> StreamConfig:
    """As nats.py's `create_key_value` makes it, and like every other stream in this table compared with what exists."""
    config = _stream(f"KV_{bucket}", [f"$KV.{bucket}.>"], max_mib, deny_delete=True)
    return config.evolve(max_msgs_per_subject=1, allow_rollup_hdrs=True)


def _objects(bucket: str, max_mib: int) -> StreamConfig:
    """As nats.py's `create_object_store` makes it."""
    config = _stream(f"OBJ_{bucket}", [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"], max_mib)
    return config.evolve(allow_rollup_hdrs=True)


_SAME = (
    "subjects", "retention", "storage", "discard", "max_msgs", "max_msgs_per_subject", "duplicate_window",
    "deny_delete", "deny_purge", "allow_direct", "allow_rollup_hdrs",
)  # fmt: skip
"""What must be equal."""
_LIMITS = ("max_bytes", "max_age", "num_replicas")
"""What may grow: a smaller existing one is raised, a larger one is left."""


def _normal(value: Any) -> Any:
    """None, False, 0 and -1 all mean 'not set' in stream settings."""
    if isinstance(value, list):
        return sorted(value)
    return value if value not in (None, False, 0, -1) else None


def _differences(wanted: StreamConfig, existing: StreamConfig | None) -> Iterator[str]:
    if existing is None:
        return
    for name in _SAME:
        want, have = _normal(getattr(wanted, name)), _normal(getattr(existing, name))
        if want != have:
            yield f"stream {wanted.name}: {name} is {_show(have)}, should be {_show(want)}"
    for name in ("max_bytes", "max_age"):
        want, have = _normal(getattr(wanted, name)), _normal(getattr(existing, name))
        if (want is None) != (have is None):
            yield f"stream {wanted.name}: {name} is {_show(have)}, should be {_show(want)}"


def _grown(wanted: StreamConfig, existing: StreamConfig) -> dict[str, Any]:
    pairs = {name: (getattr(wanted, name) or 0, getattr(existing, name) or 0) for name in _LIMITS}
    return {name: want for name, (want, have) in pairs.items() if want > have}


async def _consumer_differences(js: JetStreamContext, entry: Durable) -> list[str]:
    have = await _found_consumer(js, entry)
    if have is None:
        return []
    want = consumer_config(entry)
    rows = [("filter", sorted(entry.filter_subjects), sorted(have.filter_subjects or [str(have.filter_subject)]))]
    for name in ("ack_policy", "ack_wait", "max_deliver", "max_ack_pending", "deliver_policy"):
        rows.append((name, getattr(want, name), getattr(have, name)))
    return [
        f"consumer {entry.stream}/{entry.name}: {name} is {_show(h)}, should be {_show(w)}"
        for name, w, h in rows
        if _normal(w) != _normal(h)
    ]


def _show(value: Any) -> str:
    return "not set" if value is None else str(getattr(value, "value", value))


async def _found(js: JetStreamContext, name: str) -> StreamConfig | None:
    try:
        return (await js.stream_info(name)).config
    except NotFoundError:
        return None


async def _found_consumer(js: JetStreamContext, entry: Durable) -> ConsumerConfig | None:
    try:
        return (await js.consumer_info(entry.stream, entry.name)).config
    except NotFoundError:
        return None
    except APIError as e:
        if e.err_code == _STREAM_NOT_FOUND:
            return None
        raise


_STREAM_NOT_FOUND = 10059
