"""Ids are derived from their cause, so whatever is done twice has the same name twice.

A handler that runs again after a crash publishes the same ids, and the broker's duplicate window (and, beyond it,
idempotent readers) drop the second copy.
"""

from hashlib import sha256
from uuid import UUID, uuid5

NAMESPACE = UUID("6c1f5a52-7a0e-5f0c-9a53-0b9d6e1b1c5e")
"""Baton's own namespace for version-5 UUIDs (RFC 9562, section 5.5)."""


def job_id(team: str, client_key: str) -> str:
    """The id of the job that `team` calls `client_key`."""
    return "job-" + uuid5(NAMESPACE, "\x1f".join(("job", team, client_key))).hex


def event_id(cause: str, kind: str, key: str = "") -> str:
    """The id of the message of type `kind` (about `key`) that `cause` leads to."""
    return str(uuid5(NAMESPACE, "\x1f".join(("event", cause, kind, key))))


def rejection_id(team: str, client_key: str, stored_us: int, kind: str) -> str:
    """The id of the message of type `kind` that refuses the submit of `client_key` that the broker stored at `stored_us`.

    Processes may find that out each in its own way (two of admission, placement): the team is told once.
    """
    return event_id(f"{team}\x1f{stored_us}", kind, client_key)


def attempt_id(job: str, attempt: int) -> str:
    """`<job id>.<attempt number>`; attempts count from 1."""
    return f"{job}.{attempt}"


def split_attempt_id(attempt: str) -> tuple[str, int]:
    """The inverse of `attempt_id`. Raises ValueError when the text is not one."""
    job, _, number = attempt.rpartition(".")
    if not job or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{attempt!r} is not an attempt id: expected <job id>.<attempt number>")
    return job, int(number)


def content_hash(data: bytes) -> str:
    """SHA-256 of `data`, in hex: names a ledger record, tells two bodies with one client key apart."""
    return sha256(data).hexdigest()
