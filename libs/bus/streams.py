"""One provisioner makes what stands in `libs.bus.table`: `baton provision`.

Services never create a stream: they `bind` to it. Two creators with slightly different settings would overwrite each
other, and a missing limit would be found on the day the disk is full.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from libs.bus.snapshot_migration import make_room, move
from libs.bus.table import (
    MARK,
    SNAPSHOTS_BUCKET,
    TABLE,
    Durable,
    consumer_config,
    durables,
    former,
    reserved_bytes,
    streams,
)
from libs.bus.trim import trimmer_of
from schemas import subjects

log = logging.getLogger("baton.streams")


class StreamDrift(RuntimeError):
    """A stream or consumer exists with other settings; the text lists each difference."""


class StreamsMissing(RuntimeError):
    """Streams do not exist yet; the text names them and `baton provision`."""


class CannotProvision(RuntimeError):
    """The broker refuses to make or change a stream; the text says which, why, and what to do."""


async def provision(js: JetStreamContext, pools: Sequence[str], *, replicas: int = 1, scale: float = 1.0) -> None:
    """Makes what is missing and lets limits grow; running it again changes nothing. Of a broker that a newer version
    provisioned nothing is changed, or one could not go back to this one: what is missing is made.

    Raises StreamDrift, before changing anything, when something exists with other settings, and CannotProvision when the
    broker refuses: what was made is taken back. A larger limit than the table's is left as it is. A broker that is away, or
    whose servers have not chosen a leader yet, raises one of `libs.bus.retry.UNAVAILABLE`.
    """
    wanted = streams(pools, replicas=replicas, scale=scale)
    try:
        found = {str(config.name): await _found(js, config) for config in wanted}
    except (NoStreamResponseError, ServiceUnavailableError) as error:
        if getattr(error, "err_code", None) == _NO_LEADER:
            raise
        raise CannotProvision("the broker has no JetStream: add `jetstream {...}` to its configuration") from None
    drift = [line for config in wanted for line in _differences(config, found[str(config.name)])]
    for entry in durables(pools):
        drift += await _consumer_differences(js, entry)
    newer = (table := _table_of(found[subjects.REQUESTS])) > TABLE
    if drift and newer:
        log.warning(
            "a newer version made the broker's streams (table %d, this one knows %d), they stay as they are: %s",
            table, TABLE, "; ".join(drift),
        )  # fmt: skip
    elif drift:
        raise StreamDrift(
            "the broker's streams differ from libs/bus/table.py:\n  "
            + "\n  ".join(drift)
            + "\nChange them by hand after checking why, or start from an empty broker."
        )
    if not newer:
        await make_room(js, next(one.max_bytes or 0 for one in wanted if one.name == f"OBJ_{SNAPSHOTS_BUCKET}"))
    made: list[str] = []
    for config in wanted:
        existing = found[str(config.name)]
        try:
            if existing is None:
                await js.add_stream(config)
                made.append(str(config.name))
            elif not newer and (grown := await _safe(js, pools, config, _grown(config, existing))):
                await js.update_stream(existing.evolve(**grown))
        except APIError as error:
            await _take_back(js, made)
            raise CannotProvision(_why_refused(error, config, pools, scale)) from None
    for entry in durables(pools):
        there = await _found_consumer(js, entry)
        if there is None or (not newer and _gives_out_more(entry, there)):
            await js.add_consumer(entry.stream, consumer_config(entry, replicas=replicas))
    if not newer:
        await move(js)
        await _mark(js)


def _table_of(requests: StreamConfig | None) -> int:
    """Number of the table that a broker was provisioned by last; 0: none is known."""
    number = ((requests.metadata if requests is not None else None) or {}).get(MARK, "")
    return int(number) if number.isdecimal() else 0


async def _mark(js: JetStreamContext) -> None:
    """Last of all: who is stopped in the midst of a change goes on with it."""
    requests = (await js.stream_info(subjects.REQUESTS)).config
    if _table_of(requests) != TABLE:
        await js.update_stream(requests.evolve(metadata={**(requests.metadata or {}), MARK: str(TABLE)}))


async def _take_back(js: JetStreamContext, made: Sequence[str]) -> None:
    """Deletes what this run made and nobody has used: else it would hold the room that a smaller scale needs."""
    for name in made:
        with suppress(APIError):
            if not (await js.stream_info(name)).state.messages:
                await js.delete_stream(name)


def _why_refused(error: APIError, config: StreamConfig, pools: Sequence[str], scale: float) -> str:
    """What the broker refuses, why, and what to do, on one line."""
    what = f"stream {config.name} ({_mib(config.max_bytes or 0)}) cannot be made"
    if error.err_code not in _NO_ROOM:
        return f"{what}: the broker says: {error.description or error}"
    whole = _mib(reserved_bytes(pools, scale=scale))
    return (
        f"{what}: the broker has no room left to reserve. The streams of {', '.join(pools)} take {whole} in all: set "
        "jetstream.max_file_store in its configuration (compose: deploy/nats.conf) to at least that, or give a smaller "
        f"--scale than {scale:g}"
    )


_NO_LEADER = 10008
"""JetStream system temporarily unavailable: the servers of a cluster have no leader yet."""

_NO_ROOM = (10023, 10028, 10047)
"""Insufficient resources, memory resources, storage resources."""


def _mib(size: int) -> str:
    """Rounded up: what is said must suffice."""
    return f"{-(-size // (1024 * 1024)):,} MiB"


async def bind(js: JetStreamContext, pools: Sequence[str], *, wait_s: float = 60.0) -> None:
    """Waits until every stream and durable consumer of `pools` exists.

    Services call it at start. Raises StreamsMissing after `wait_s`.
    """
    wanted = _needed(pools)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    pause = 0.05
    while True:
        problem = await _missing(js, wanted, durables(pools))
        if not problem:
            return
        if loop.time() > deadline:
            pool_options = " ".join(f"--pool {p}" for p in pools)
            raise StreamsMissing(f"{problem}: run `baton provision {pool_options}`")
        await asyncio.sleep(pause)
        pause = min(1.0, pause * 2)


def _needed(pools: Sequence[str]) -> list[StreamConfig]:
    """Of the buckets of snapshots the last alone is looked for: all were made before it, and each look is a question of
    each process."""
    table = streams(pools)
    buckets = [config.name for config in table if str(config.name).startswith(f"OBJ_{SNAPSHOTS_BUCKET}")]
    return [config for config in table if config.name not in buckets[:-1]]


async def _missing(js: JetStreamContext, configs: Sequence[StreamConfig], wanted: Sequence[Durable]) -> str:
    """Which streams and durables are not there, or what keeps us from knowing; "" when all are there."""
    try:
        missing = [str(config.name) for config in configs if await _found(js, config) is None]
        missing = missing or [f"{d.stream}/{d.name}" for d in wanted if await _found_consumer(js, d) is None]
    except (NatsError, TimeoutError) as e:
        return f"the broker cannot say which streams exist ({e or type(e).__name__})"
    return f"missing on the broker: {', '.join(missing)}" if missing else ""


_SAME = (
    "subjects", "retention", "storage", "discard", "max_msgs", "max_msgs_per_subject", "duplicate_window",
    "deny_delete", "deny_purge", "allow_direct", "allow_rollup_hdrs", "allow_atomic", "discard_new_per_subject",
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
        if name == "subjects" and existing.name != wanted.name:
            continue  # a later segment of a ledger: it has its own
        want, have = _normal(getattr(wanted, name)), _normal(getattr(existing, name))
        if want != have and not _is_former(str(wanted.name), name, have):
            yield f"stream {wanted.name}: {name} is {_show(have)}, should be {_show(want)}"
    for name in ("max_bytes", "max_age"):
        want, have = _normal(getattr(wanted, name)), _normal(getattr(existing, name))
        if (want is None) != (have is None):
            yield f"stream {wanted.name}: {name} is {_show(have)}, should be {_show(want)}"


def _is_former(stream: str, name: str, have: Any) -> bool:
    """Whether this setting is one that the table had before."""
    before = former(stream)
    return name in before and _normal(before[name]) == have


def _grown(wanted: StreamConfig, existing: StreamConfig) -> dict[str, Any]:
    """What is to be changed: limits that are smaller than the table's, and settings that it had before."""
    pairs = {name: (getattr(wanted, name) or 0, getattr(existing, name) or 0) for name in _LIMITS}
    changes = {name: want for name, (want, have) in pairs.items() if want > have}
    for name in former(str(wanted.name)):
        if _normal(getattr(wanted, name)) != _normal(getattr(existing, name)):
            changes[name] = getattr(wanted, name)
    return changes


async def _safe(
    js: JetStreamContext, pools: Sequence[str], config: StreamConfig, changes: dict[str, Any]
) -> dict[str, Any]:
    """`changes` without a limit on subjects that would cost messages: a broker that is told to keep fewer of a subject drops
    its oldest at once. What was answered goes first; if then a subject has more than half of the limit (some may come
    meanwhile), the limit waits for the next run."""
    most, stream = changes.get("max_msgs_per_subject", 0), str(config.name)
    if not config.discard_new_per_subject or most <= 0:
        return changes
    for entry in durables(pools):
        if entry.stream == stream and await _found_consumer(js, entry) is not None:
            await trimmer_of(js, stream, entry.name).clear()
    counts = (await js.stream_info(stream, subjects_filter=">")).state.subjects or {}
    if (fullest := max(counts.values(), default=0)) <= most // 2:
        return changes
    log.warning(
        "stream %s: %d messages of one subject wait; the limit of %d is set by `baton provision` when there are fewer",
        stream,
        fullest,
        most,
    )
    return {
        name: value
        for name, value in changes.items()
        if name not in ("max_msgs_per_subject", "discard_new_per_subject")
    }


def _gives_out_more(entry: Durable, have: ConsumerConfig) -> bool:
    """Whether it was made when more messages at once might be undecided: that is brought up to date."""
    return (have.max_ack_pending or 0) > entry.max_ack_pending


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
        if _normal(w) != _normal(h) and not (name == "max_ack_pending" and _gives_out_more(entry, have))
    ]


def _show(value: Any) -> str:
    return "not set" if value is None else str(getattr(value, "value", value))


async def _found(js: JetStreamContext, wanted: StreamConfig) -> StreamConfig | None:
    """What stands for `wanted`. A ledger lies in segments (libs.ledger.segments): of it the one that takes records, whatever
    its name; when one was sealed and the next is not open yet, there is nothing to compare, and nothing to make."""
    name = str(wanted.name)
    try:
        pool = subjects.read(subjects.LEDGER, name)["pool"]
    except ValueError:
        pool = ""
    with suppress(NotFoundError):
        config = (await js.stream_info(name)).config
        if not (pool and config.sealed):
            return config
    if not pool:
        return None
    with suppress(NotFoundError):
        return (await js.stream_info(await js.find_stream_name_by_subject(subjects.open_segments(pool)))).config
    with suppress(NotFoundError):
        await js.find_stream_name_by_subject(subjects.segments(pool))
        return wanted
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
