"""Publish and subscribe permissions of each service in the core account: its own messages, by the catalogue, and its state.

So a faulty service cannot publish another's messages: the ledger's subjects are placement's alone, only leases can report a
node lost, and only admission admits jobs. A service receives the messages that the catalogue says it answers or reads, and its
own replies; it can make consumers only of the streams that it reads, of the ledger, and of its own bucket of snapshots.

This is no protection against an attacker who controls a service: the broker checks neither where a consumer delivers nor where
an answer goes, and both use the broker's own rights. So content that a service can write anywhere (a snapshot) can be
delivered to any subject of the core. Services are therefore trusted; teams and nodes, which are not, are in accounts of their
own, where this reaches nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from libs.bus.table import (
    CURSORS_BUCKET,
    READERS,
    READERS_BUCKET,
    SECRETS_BUCKET,
    SNAPSHOTS_BUCKET,
    snapshots_of,
)
from schemas import subjects
from schemas.catalog import CATALOG
from schemas.subjects import DEAD, EVENTS, OPERATOR, REQUESTS, TELEMETRY

SERVICES: Final = (
    "placement", "admission", "history", "quota_billing", "telemetry", "leases", "preemption", "queries", "vault",
)  # fmt: skip

_BUCKETS: Final = (f"KV_{CURSORS_BUCKET}", f"KV_{READERS_BUCKET}")
_SECRETS: Final = f"KV_{SECRETS_BUCKET}"
_SNAPSHOTS: Final[Mapping[str, str]] = {service: f"OBJ_{snapshots_of(service)}" for service in SERVICES}
_STREAMS: Final = (
    REQUESTS, EVENTS, TELEMETRY, DEAD, *_BUCKETS, _SECRETS, f"OBJ_{SNAPSHOTS_BUCKET}", *_SNAPSHOTS.values(),
)  # fmt: skip
"""Those of the table whose names are fixed; inboxes and ledgers bear their pool's."""

_LOOKS: Final = (
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.NAMES",
    "$JS.API.CONSUMER.INFO.*.*",
    "$JS.API.CONSUMER.LIST.*",
)
"""What there is and how full: no messages."""

_READS: Final = (
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.CONSUMER.CREATE.*",
    "$JS.API.CONSUMER.CREATE.*.>",
    "$JS.API.CONSUMER.MSG.NEXT.*.*",
    "$JS.API.CONSUMER.DELETE.*.*",
    "$JS.FC.>",
)
"""Of every stream, less those that `service_may_not` closes: segments of ledgers come and go, and a token has no wildcard for
its beginning."""

_REMEMBERS: Final = (
    f"$JS.API.DIRECT.GET.KV_{CURSORS_BUCKET}.>",
    f"$JS.API.DIRECT.GET.KV_{READERS_BUCKET}.>",
)


def _own_entries(service: str) -> list[str]:
    """What a service writes into the buckets of cursors and readers: what bears its name; and its own bucket of snapshots,
    from which it removes the parts of one that it replaced."""
    return [
        f"$KV.{CURSORS_BUCKET}.{service}.>",
        *(f"$KV.{READERS_BUCKET}.*.{name}.>" for name in READERS[service]),
        f"$O.{snapshots_of(service)}.>",
        f"$JS.API.STREAM.PURGE.{_SNAPSHOTS[service]}",
    ]


_ANSWERS: Final = ("_R_.>", f"_INBOX_{OPERATOR}.>", f"{subjects.service_inbox('services')}.>")
"""To teams and nodes, whose reply subjects the broker writes; to operators; to who administers."""

_INBOXES: Final = "inboxes"
"""Of all pools."""

_CONSUMES: Final[Mapping[str, tuple[str, ...]]] = {
    "placement": (_INBOXES,),
    "admission": (REQUESTS, _INBOXES),
    "history": (EVENTS,),
    "quota_billing": (TELEMETRY,),
    "vault": (_SECRETS,),
}
"""The streams besides ledgers and snapshots of which a service makes consumers or reads single messages."""

_BESIDES: Final[Mapping[str, tuple[str, ...]]] = {
    # Segments of the ledger are streams, made, sealed and given back by their writer; so it may make any stream.
    "placement": (
        subjects.anyone(subjects.SEGMENT),
        f"$KV.{CURSORS_BUCKET}.ledger-format.*",
        "$JS.API.STREAM.CREATE.*",
        "$JS.API.STREAM.UPDATE.*",
        "$JS.API.STREAM.DELETE.*",
        "$JS.API.STREAM.PURGE.*",  # of its pool's inbox
    ),
    "admission": (
        f"$JS.API.STREAM.PURGE.{REQUESTS}",
        f"$JS.API.DIRECT.GET.{REQUESTS}",
        f"$JS.API.DIRECT.GET.{EVENTS}",  # what was refused stays refused
        f"$JS.ACK.{REQUESTS}.admission.>",
    ),
    "quota_billing": (
        f"$JS.API.STREAM.PURGE.{REQUESTS}",
        f"$JS.API.DIRECT.GET.{REQUESTS}",
        f"$JS.ACK.{REQUESTS}.*.>",
    ),
    "telemetry": (f"$JS.API.DIRECT.GET.{REQUESTS}",),  # how old the oldest is that nobody has answered
    "history": (
        f"$JS.API.STREAM.PURGE.{EVENTS}",
        f"$JS.API.DIRECT.GET.{EVENTS}",
    ),
    "vault": (
        f"$KV.{SECRETS_BUCKET}.*",
        f"$JS.API.STREAM.PURGE.{_SECRETS}",
        f"$JS.API.DIRECT.GET.{_SECRETS}.>",
    ),
}

_DURABLE: Final[Mapping[str, tuple[str, ...]]] = {"quota_billing": (REQUESTS,)}
"""Of these a service reads by a consumer that the provisioner made, and makes none."""

_OVERHEARS: Final[Mapping[str, tuple[str, ...]]] = {
    "admission": (subjects.event("rejected", "ANY"),),  # what its equals refused
    "leases": (subjects.inbox("clock", "tick", "ANY"),),  # those of its equals
    "telemetry": (subjects.sample("ANY"),),
}
"""What a service hears live of what a stream keeps."""


def service_may(service: str) -> list[str]:
    """What a service may publish, but for `service_may_not`. Raises ValueError when there is none of that name."""
    if service not in SERVICES:
        raise ValueError(f"no service {service!r}; there are: {', '.join(SERVICES)}")
    says = {subjects.anyone(message.subject) for message in CATALOG if message.producer == service}
    letters = subjects.fill(subjects.DEAD_LETTER, origin=service)
    return [
        *sorted(says), letters, f"{letters}.*", *_BESIDES.get(service, ()), *_own_entries(service), *_REMEMBERS, *_LOOKS,
        *_READS, *_ANSWERS,
        f"{subjects.service_inbox(service)}.>",
    ]  # fmt: skip


def service_may_not(service: str, pools: Sequence[str] = ()) -> list[str]:
    """What is taken from the wildcards of `service_may`. `pools`: those whose inboxes are known by name."""
    consumes = (*_CONSUMES.get(service, ()), _SNAPSHOTS[service])
    inboxes = [] if _INBOXES in consumes else [subjects.inbox_stream(pool) for pool in pools]
    closed = [stream for stream in (*_STREAMS, *inboxes) if stream not in consumes]
    never: list[str] = []
    for stream in closed:
        if stream not in _BUCKETS:
            never += [f"$JS.API.STREAM.MSG.GET.{stream}"]
        making = ("CREATE.{}", "CREATE.{}.>", "DELETE.{}.*")
        never += ["$JS.API.CONSUMER." + verb.format(stream) for verb in making]
        if stream not in _DURABLE.get(service, ()):
            never += [f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*"]
    if service in _DURABLE:
        never += [f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.admission", f"$JS.ACK.{REQUESTS}.admission.>"]
    if service == "placement":
        never += [f"$JS.API.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE", "DELETE") for stream in _STREAMS]
        never += [f"$JS.API.STREAM.PURGE.{stream}" for stream in _STREAMS if stream not in consumes]
    return never


def service_hears(service: str) -> list[str]:
    """What a service may subscribe to: the questions and signals that it reads live, and what it is answered."""
    core = {
        subjects.anyone(message.subject) for message in CATALOG if service in message.consumers and not message.stream
    }
    overheard = [subject.replace("ANY", "*") for subject in _OVERHEARS.get(service, ())]
    return [*sorted(core), *overheard, f"{subjects.service_inbox(service)}.>"]
