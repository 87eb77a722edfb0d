"""What each service may say in the core account: its own messages, by the catalogue, and what it needs to read and to remember.

So a service that is wrong, or is given another's message to repeat, cannot speak for another: the ledger's subjects are
placement's alone, a node is lost because leases says so, and nobody but admission lets a job in. All may hear everything.

This is no wall against a service that was taken over: who may make a consumer of a stream may have it deliver anywhere.
"""

from collections.abc import Mapping
from typing import Final

from libs.bus.table import CURSORS_BUCKET, READERS_BUCKET, SECRETS_BUCKET, SNAPSHOTS_BUCKET
from schemas import subjects
from schemas.catalog import CATALOG
from schemas.subjects import EVENTS, OPERATOR, REQUESTS

SERVICES: Final = (
    "placement", "admission", "history", "quota_billing", "telemetry", "leases", "preemption", "queries", "vault",
)  # fmt: skip

_READS: Final = (
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.DIRECT.GET.>",
    "$JS.API.CONSUMER.>",
    "$JS.ACK.>",
    "$JS.FC.>",
)
"""Streams, by consumers of its own or the table's."""

_REMEMBERS: Final = (
    f"$KV.{CURSORS_BUCKET}.>",
    f"$KV.{READERS_BUCKET}.>",
    f"$O.{SNAPSHOTS_BUCKET}.>",
    f"$JS.API.STREAM.PURGE.OBJ_{SNAPSHOTS_BUCKET}",  # the parts of a snapshot that is replaced
)
_ANSWERS: Final = ("_R_.>", "_INBOX.>", f"_INBOX_{OPERATOR}.>")
"""To teams and nodes, whose reply subjects the broker writes; to other services; to operators."""

_BESIDES: Final[Mapping[str, tuple[str, ...]]] = {
    # Segments of the ledger are streams, made, sealed and given back by their writer; so it may make any stream.
    "placement": (
        subjects.anyone(subjects.SEGMENT),
        "$JS.API.STREAM.CREATE.*",
        "$JS.API.STREAM.UPDATE.*",
        "$JS.API.STREAM.DELETE.*",
        "$JS.API.STREAM.PURGE.*",  # of its pool's inbox
    ),
    "admission": (f"$JS.API.STREAM.PURGE.{REQUESTS}",),
    "quota_billing": (f"$JS.API.STREAM.PURGE.{REQUESTS}",),
    "history": (f"$JS.API.STREAM.PURGE.{EVENTS}",),
    "vault": (f"$KV.{SECRETS_BUCKET}.*", f"$JS.API.STREAM.PURGE.KV_{SECRETS_BUCKET}"),
}


def service_may(service: str) -> list[str]:
    """What a service may publish. Raises ValueError when there is none of that name."""
    if service not in SERVICES:
        raise ValueError(f"no service {service!r}; there are: {', '.join(SERVICES)}")
    says = {subjects.anyone(message.subject) for message in CATALOG if message.producer == service}
    letters = subjects.fill(subjects.DEAD_LETTER, origin=service)
    return [
        *sorted(says), letters, f"{letters}.*", *_BESIDES.get(service, ()), *_REMEMBERS, *_READS, *_ANSWERS,
    ]  # fmt: skip
