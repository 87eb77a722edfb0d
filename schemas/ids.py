"""Ids are derived from their cause, so whatever is done twice has the same name twice.

A handler that runs again after a crash publishes the same ids, and the broker's duplicate window (and, beyond it,
idempotent readers) drop the second copy.
"""

import re
from functools import lru_cache
from hashlib import sha1, sha256
from uuid import UUID

NAMESPACE = UUID("6c1f5a52-7a0e-5f0c-9a53-0b9d6e1b1c5e")
"""Baton's own namespace for version-5 UUIDs (RFC 9562, section 5.5)."""
_NAMESPACE_BYTES = NAMESPACE.bytes


JOB_ID_PREFIX, JOB_ID_DIGITS = "job-", 32
JOB_ID_PATTERN = rf"{JOB_ID_PREFIX}[0-9a-f]{{{JOB_ID_DIGITS}}}"
"""Of what `job_id` makes; without anchors."""
_is_job_id = re.compile(JOB_ID_PATTERN).fullmatch


def is_job_id(text: str) -> bool:
    """Whether the text has the form of a job's id: there need be no such job."""
    return _is_job_id(text) is not None


def job_id(team: str, client_key: str) -> str:
    """The id of the job that `team` calls `client_key`."""
    return JOB_ID_PREFIX + _uuid5("\x1f".join(("job", team, client_key)))


def event_id(cause: str, kind: str, key: str = "") -> str:
    """The id of the message of type `kind` (about `key`) that `cause` leads to."""
    hex_ = _uuid5("\x1f".join(("event", cause, kind, key)))
    return f"{hex_[:8]}-{hex_[8:12]}-{hex_[12:16]}-{hex_[16:20]}-{hex_[20:]}"


def rejection_id(team: str, client_key: str, stored_us: int, kind: str) -> str:
    """The id of the message of type `kind` that refuses the submit of `client_key` that the broker stored at `stored_us`.

    Processes may find that out each in its own way (two of admission, placement): the team is told once.
    """
    return event_id(f"{team}\x1f{stored_us}", kind, client_key)


def answer_id(cause: str, stored_us: int) -> str:
    """The id of the place in a pool's inbox of the request `cause` (`REQUESTS:<sequence>`), which the broker stored then: one,
    whatever its answer is."""
    return event_id(f"{cause}@{stored_us}", "answer")


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


def _uuid5(name: str) -> str:
    """`uuid.uuid5(NAMESPACE, name).hex`, without the objects in between: each job has a dozen ids."""
    digest = bytearray(sha1(_NAMESPACE_BYTES + name.encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return digest.hex()


FIRST_TEAM_UID, TEAM_UIDS = 0x7000_0000, 0x0FFF_0000
"""User ids that no distribution, directory or container runtime gives out (systemd.io/UIDS-GIDS: "unused")."""


@lru_cache(maxsize=4096)
def team_uid(team: str) -> int:
    """The user and group id of a team's processes, on every node. It follows from the name alone, so nobody need be asked or
    told. A node that has served one of two teams with one id refuses the other."""
    return FIRST_TEAM_UID + int.from_bytes(sha256(team.encode()).digest()[:8], "big") % TEAM_UIDS
