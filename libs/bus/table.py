"""Every stream and durable consumer, in one table. Pure data: `libs.bus.streams` makes what stands here.

All streams are bounded. Sizes stand in `SIZES_MIB` and nowhere else; what the broker must let streams reserve is their sum
(`reserved_bytes`), which compose's nats.conf and the embedded server are held against. A full stream refuses (`discard: new`),
except telemetry, events and dead letters, which drop the oldest: nobody decides by them, and who writes them must not
wait. The ledger never expires and can be neither deleted from nor purged.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from schemas import subjects
from schemas.catalog import CATALOG
from schemas.subjects import DEAD, EVENTS, REQUESTS, TELEMETRY

CURSORS_BUCKET = "baton-cursors"
SNAPSHOTS_BUCKET = "baton-snapshots"
"""Snapshots of readers that are no service: tools, tests. It once had those of all (`libs.bus.snapshot_migration`)."""
READERS_BUCKET = "baton-readers"
SECRETS_BUCKET = "baton-secrets"
"""One entry for each team: names, and values that vault alone can open."""

SNAPSHOTS_MIB: Final = {
    "placement": 1_024,
    "history": 704,
    "preemption": 512,
    "queries": 512,
    "admission": 384,
    "quota_billing": 1_024,
    "telemetry": 384,
    "leases": 128,
    "vault": 64,
}
"""What a service's snapshots may take: of each reader two; the state of 500,000 waiting jobs takes about 60 MiB, and what
quota_billing keeps of ten million attempts 360, of which snapshots share all but some."""

READERS: Final[dict[str, tuple[str, ...]]] = {service: (service,) for service in SNAPSHOTS_MIB} | {
    "placement": ("placement", "projection"),
    "history": ("history-feed", "history-documents", "history-proofs"),
}
"""As which readers of the ledger a service declares itself, and calls its snapshots: by default its own name."""


def snapshots_of(service: str) -> str:
    """The bucket that this service alone writes."""
    return f"{SNAPSHOTS_BUCKET}-{service}"


_KEEPERS: Final = {reader: snapshots_of(service) for service, readers in READERS.items() for reader in readers}


def snapshots_bucket(reader: str) -> str:
    """Where the snapshots of a reader of that name lie."""
    return _KEEPERS.get(reader, SNAPSHOTS_BUCKET)


SIZES_MIB: Final = {
    REQUESTS: 1_024,  # trimmed behind what is answered (libs.bus.trim): what waits, and some minutes
    EVENTS: 2_048,
    TELEMETRY: 128,
    DEAD: 1_024,
    CURSORS_BUCKET: 64,
    READERS_BUCKET: 16,
    SECRETS_BUCKET: 256,  # of 700 teams that use all that they may; of most some KiB
    SNAPSHOTS_BUCKET: 64,
    **{snapshots_of(service): size for service, size in SNAPSHOTS_MIB.items()},
    subjects.INBOX: 1_024,  # trimmed behind what the ledger has decided
    subjects.LEDGER: 8_192,  # in segments of `SEGMENT_BYTES`
}
"""The size of each stream, MiB; of those with `{pool}` in their name for each pool."""

DEAD_SUBJECTS: Final = sorted(map(subjects.anyone, (subjects.DEAD_LETTER, subjects.DEAD_LETTER_OF)))
DEAD_OF_A_SENDER: Final = 500
"""Letters that are kept of one sender and one service; then its own oldest go. Of the largest size, 450 MB."""

SAMPLES_OF_A_NODE: Final = 256
"""Samples that are kept of one node, then its own oldest go: an hour of one in 15 s, and some."""
SAMPLE_BYTES: Final = 128 * 1024
"""A larger one is not kept: one of 500 devices is smaller. So of the stream a node has a fourth at the most."""

REMEMBERED_S: Final = 10.0
"""How long the broker knows the ids of requests and signals again. It keeps each in memory for so long, also of a message that
is gone from the stream, and an id may have 64 KiB: with two minutes a team made the broker grow by 30 MB a second. A repeat
that comes later is stored again, and admission knows its job."""

WAITING_OF_A_SENDER: Final = 512
"""Requests of one kind that a user may have in REQUESTS; the broker refuses the next, and writes nothing for it. What was
answered leaves it as soon as it is half of that (`libs.bus.trim`)."""

TABLE: Final = 1
"""Number of this table: one more with each change of it."""
MARK: Final = "baton-table"
"""In the metadata of REQUESTS: the number of the table that the broker's streams were made by."""

FORMER: Final[dict[str, dict[str, object]]] = {
    REQUESTS: {"max_msgs_per_subject": -1, "discard_new_per_subject": False, "duplicate_window": 120.0},
    TELEMETRY: {"max_msgs_per_subject": -1, "max_msg_size": -1, "duplicate_window": 120.0},
    EVENTS: {"discard": DiscardPolicy.NEW, "allow_atomic": False},
    subjects.INBOX: {"allow_atomic": False},
    DEAD: {
        "discard": DiscardPolicy.NEW,
        "subjects": [subjects.anyone(subjects.DEAD_LETTER)],
        "max_msgs_per_subject": -1,
    },
    **{f"KV_{bucket}": {"allow_rollup_hdrs": True} for bucket in (CURSORS_BUCKET, READERS_BUCKET, SECRETS_BUCKET)},
}
"""What stood in this table before, by stream, and is changed where it is found."""

_MIB = 1024 * 1024
_SEGMENTS = 8
SEGMENT_BYTES: Final = SIZES_MIB[subjects.LEDGER] * _MIB // _SEGMENTS
"""Of one stream of a ledger. The broker needs room for as many as `SIZES_MIB` says; more are kept once sealed ones, which give
back what they do not use, are small, or archived and gone."""

_DAY_S = 86_400.0
_HOUR_S = 3_600.0

ACK_WAIT_S = 10.0
"""A consumer that stops saying 'in progress' for this long loses its messages to another one."""


@dataclass(frozen=True, slots=True)
class Durable:
    """A durable pull consumer: who reads which part of a stream. `stream` is its name. In the table below `name` and
    filters may have `{pool}` in them: then each pool has one. With `max_ack_pending` 1 the next message is given out when the
    one before it is decided, also when its reader died with it: the last word of several counts."""

    stream: str
    name: str
    filter_subjects: tuple[str, ...]
    max_ack_pending: int = 5_000


DURABLES: tuple[Durable, ...] = (
    Durable(REQUESTS, "admission", (subjects.fill(subjects.COMMAND, entity="job"),)),
    Durable(
        REQUESTS, "quota_billing-{pool}", (subjects.fill(subjects.POOL_COMMAND, entity="quota"),), max_ack_pending=1
    ),
)


def streams(pools: Sequence[str], *, replicas: int = 1, scale: float = 1.0) -> list[StreamConfig]:
    """The whole table. `scale` multiplies every size limit (tests and small machines use less than 1)."""
    table = [
        _stream(REQUESTS, _kept(REQUESTS), SIZES_MIB[REQUESTS], max_age=3 * _DAY_S).evolve(
            max_msgs_per_subject=WAITING_OF_A_SENDER, discard_new_per_subject=True, duplicate_window=REMEMBERED_S
        ),
        _stream(EVENTS, _kept(EVENTS), SIZES_MIB[EVENTS], max_age=7 * _DAY_S, discard=DiscardPolicy.OLD).evolve(
            allow_atomic=True
        ),
        # On disk as well: one broker forgets a stream in memory when it restarts, and no service could bind any more.
        _stream(TELEMETRY, _kept(TELEMETRY), SIZES_MIB[TELEMETRY], max_age=_HOUR_S, discard=DiscardPolicy.OLD).evolve(
            max_msgs_per_subject=SAMPLES_OF_A_NODE, max_msg_size=SAMPLE_BYTES, duplicate_window=REMEMBERED_S
        ),
        _stream(DEAD, DEAD_SUBJECTS, SIZES_MIB[DEAD], max_age=30 * _DAY_S, discard=DiscardPolicy.OLD).evolve(
            max_msgs_per_subject=DEAD_OF_A_SENDER
        ),
        _key_value(CURSORS_BUCKET, SIZES_MIB[CURSORS_BUCKET]),
        _key_value(READERS_BUCKET, SIZES_MIB[READERS_BUCKET], max_age=_HOUR_S),
        _key_value(SECRETS_BUCKET, SIZES_MIB[SECRETS_BUCKET]),
        _objects(SNAPSHOTS_BUCKET, SIZES_MIB[SNAPSHOTS_BUCKET]),
        *(_objects(snapshots_of(service), size) for service, size in SNAPSHOTS_MIB.items()),
    ]
    for pool in pools:
        inbox = _kept(subjects.INBOX, pool=pool)
        name, size = subjects.inbox_stream(pool), SIZES_MIB[subjects.INBOX]
        table.append(_stream(name, inbox, size, max_age=7 * _DAY_S).evolve(allow_atomic=True))
        table.append(
            _stream(
                subjects.ledger_stream(pool),
                _kept(subjects.LEDGER, pool=pool),
                SEGMENT_BYTES // _MIB,
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


def reserved_bytes(pools: Sequence[str], *, scale: float = 1.0) -> int:
    """What the broker's `max_file_store` must allow for this table."""
    table = sum(config.max_bytes or 0 for config in streams(pools, scale=scale))
    return table + len(pools) * (_SEGMENTS - 1) * max(_MIB, int(SEGMENT_BYTES * scale))


def _kept(stream: str, **keys: str) -> list[str]:
    """The subjects of a stream: those of the catalogue's messages that are kept there, whatever their `<what>`, so that
    a misspelt one is stored and answered by who reads the stream."""
    kept = (m.subject.split(".") for m in CATALOG if m.stream == stream)
    patterns = {".".join([*parts[:4], parts[4] if stream in _ONE_KIND else "*", *parts[5:]]) for parts in kept}
    return sorted(subjects.anyone(pattern, **keys) for pattern in patterns)


_ONE_KIND = (TELEMETRY, subjects.LEDGER)
"""Streams of one message only: another signal of a node is not kept, and nothing but records is in a ledger."""


@lru_cache(maxsize=4096)
def atomic_stream_of(subject: str) -> str:
    """The stream that keeps `subject`, when it is one that takes batches; "" else. Batches wait on the broker's disk beside the
    stream's size, so only streams that services alone write to take them."""
    for pattern in _ATOMIC_INPUTS:
        with suppress(ValueError):
            return subjects.inbox_stream(subjects.read(pattern, subject)["pool"])
    with suppress(ValueError):
        return EVENTS if subjects.read(subjects.EVENT, subject) else ""
    return ""


_ATOMIC_INPUTS = (subjects.INPUT, subjects.NODE_INPUT)


def former(stream: str) -> dict[str, object]:
    """What stood in this table before of the stream of that name."""
    with suppress(ValueError):
        subjects.read(subjects.INBOX, stream)
        return FORMER[subjects.INBOX]
    return FORMER.get(stream, {})


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
    raise KeyError(f"no durable {stream}/{name} in libs.bus.table.DURABLES; known: {known}")


def _per_pool(entry: Durable) -> bool:
    return "pool" in subjects.keys_in(entry.name)


def _of_pool(entry: Durable, pool: str) -> Durable:
    filters = tuple(subjects.anyone(pattern, pool=pool) for pattern in entry.filter_subjects)
    return replace(entry, name=subjects.fill(entry.name, pool=pool), filter_subjects=filters)


def _all(entry: Durable) -> Durable:
    return replace(entry, filter_subjects=tuple(map(subjects.anyone, entry.filter_subjects)))


def _stream(
    name: str,
    subjects: list[str],
    max_mib: int,
    *,
    max_age: float = 0,
    discard: DiscardPolicy = DiscardPolicy.NEW,
    duplicate_window: float = 120.0,
    deny_delete: bool = False,
    deny_purge: bool = False,
) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=subjects,
        retention=RetentionPolicy.LIMITS,  # work-queue streams forget message ids at a restart
        storage=StorageType.FILE,
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


def _key_value(bucket: str, max_mib: int, *, max_age: float = 0) -> StreamConfig:
    """As nats.py's `create_key_value` makes it, and like every other stream in this table compared with what exists. Without
    rollups: by such a header who may write one key empties the whole bucket."""
    config = _stream(f"KV_{bucket}", [f"$KV.{bucket}.>"], max_mib, max_age=max_age, deny_delete=True)
    return config.evolve(max_msgs_per_subject=1)


def _objects(bucket: str, max_mib: int) -> StreamConfig:
    """As nats.py's `create_object_store` makes it."""
    config = _stream(f"OBJ_{bucket}", [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"], max_mib)
    return config.evolve(allow_rollup_hdrs=True)
