"""What an auditor reads beside jobs: what operators did outside the ledger, and commands that were refused.

Accepted commands are in the ledger as what they led to. These two are told to it, so that its chain covers them as well.
`claimed` fields are the sender's own word; who speaks is the subject's, which the broker's credentials prove.
"""

import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from schemas.base import Fact, Micros, Name, User
from schemas.ids import content_hash

Digest = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
"""SHA-256 in lower-case hex; empty: there was nothing to take one of."""
PolicyVersion = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{16})?$")]
"""Of the files that decided, the first 16 hex digits of a SHA-256 (docs/audit.md); empty: not told, or none decided."""


class ActionOutcome(StrEnum):
    """How an action ended."""

    DONE = "done"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    """Its process ended before it could say: look what it has done."""


class OperatorAction(Fact):
    """One line of an operator's book (`audit.jsonl` beside `keys.json`): what was done on a host that administers."""

    book: str = Field(pattern=r"^[0-9a-f]{16}$", description="the book's own name, drawn when it was begun")
    number: int = Field(ge=1, description="of the line in its book")
    prev_hash: Digest = Field(description="the hash of the line before it; empty: the first")
    what: str = Field(pattern=r"^[a-z][a-z.-]{0,62}$", description="e.g. team.revoke", examples=["team.revoke"])
    target: str = Field(max_length=512, description="what it was done to, as given on the command line")
    reason: str = Field(max_length=1024, description="in the operator's words; empty: none was asked for")
    outcome: ActionOutcome
    detail: str = Field(default="", max_length=1024, description="why it failed, or what came of it")
    digest: Digest = Field(default="", description="of the object that was used, e.g. a file that was put back")
    at_us: Micros = Field(description="claimed: by the clock of that host")
    host: str = Field(default="", max_length=255, description="claimed")
    login: str = Field(default="", max_length=64, description="claimed: who was logged in on that host")
    tool: str = Field(default="", max_length=64, description="claimed: what did it, with its version")


class RefusedCommand(Fact):
    """A command that was refused before it could reach the pool's inbox; or, `more`, several of one team that came too fast
    to be told one by one."""

    service: Literal["admission", "quota_billing"] = Field(description="who refused it")
    what: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,63}$", description="the last word of its subject: submit, cancel, set..."
    )
    team: Name = Field(description="who asked, as the subject said: the broker vouches for it")
    user: User = ""
    cause: str = Field(max_length=128, description="which message it was: stream and sequence")
    stored_us: Micros = Field(description="when the broker stored it, by its clock")
    digest: Digest = Field(description="of its body as it came")
    reason: str = Field(max_length=512)
    policy: PolicyVersion = ""
    more: int = Field(
        default=0, ge=0, description="refusals of this team since its last such line that have no line of their own"
    )
    more_digest: Digest = Field(
        default="", description="over those: SHA-256 of the digest so far and the body's, in turn"
    )


def line_of(action: OperatorAction) -> bytes:
    """The action as a book has it: JSON with its members sorted, without spaces, and without those that say nothing new."""
    said = action.model_dump(mode="json", exclude_defaults=True)
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def line_hash(action: OperatorAction) -> str:
    """What the next line of the book names as `prev_hash`."""
    return content_hash(line_of(action))
