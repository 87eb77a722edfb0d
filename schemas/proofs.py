"""What a team needs to check its own part of a ledger that it may not read (docs/proofs.md).

line     one record's events that are about one team, as JSON: what history keeps for it, and tells it
head     a hash over all lines of a team so far, in turn
sum      a root over the heads of all teams at one record; it stands in the ledger itself (`ledger.summed`)
proof    that a team's head is in a sum, told without a word of any other team
"""

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from schemas.base import IN_64_BITS, Fact, Micros, Name, Strict

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in lower-case hex."""
EarlierSum = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
"""The hash of an earlier sum; empty: there is none."""

MOST_LINES: Final = 1000
"""In one answer."""


class Sum(Fact):
    """All teams' heads after the record `upto_seq`, under one root. Its hash is over all its fields."""

    pool: Name
    number: int = Field(ge=1)
    upto_seq: int = Field(ge=1, description="the last record that counts")
    t_us: Micros = Field(description="ledger time of that record")
    root: Hash
    depth: int = Field(ge=1, le=32, description="of the tree: it has 2^depth places, most of them empty")
    prev: EarlierSum = Field(description="the sum before it")
    skip: EarlierSum = Field(description="the sum `number` less its lowest bit that is set: a way back in few steps")


class TeamProof(Fact):
    """That a team's head is in a sum: hash the leaf, then go up along `path`, which has as many hashes for every team."""

    sum: Sum
    count: int = Field(ge=1, description="lines of the team that the head is over")
    head: Hash
    salt: Hash = Field(description="of this team in this sum: without it nobody can try what another's leaf says")
    place: int = Field(ge=0)
    path: tuple[Hash, ...] = Field(min_length=1, max_length=32)


class AuditRead(Strict):
    """A team's own lines, and the proof that they are all and as they were written. Answered by history."""

    team: Name | None = Field(default=None, description="operators only: whose")
    after: Annotated[int, IN_64_BITS] = Field(default=0, ge=0, description="lines of records after this one")
    limit: int = Field(default=MOST_LINES, ge=0, le=MOST_LINES)
    sum: int | None = Field(default=None, ge=1, description="prove it in this sum; by default the newest")
    since: int | None = Field(default=None, ge=1, description="tell the sums that lead back to this one")


class AuditPart(Fact):
    """Lines of one team in the order of their records, and a proof of its head in one sum."""

    team: Name
    pool: Name
    lines: tuple[str, ...] = ()
    before: str = Field(default="", description="the head before the first of these lines")
    more: bool = Field(default=False, description="there are further lines")
    ledger_seq: int = Field(ge=0, description="lines up to this record are written")
    sum: Sum | None = Field(default=None, description="the one that was asked for; null: there is none yet")
    proof: TeamProof | None = Field(
        default=None, description="null: the team is not in that sum, with the lines that are kept"
    )
    first_sum: int | None = Field(default=None, description="the oldest that is kept")
    links: tuple[Sum, ...] = Field(default=(), description="from the proof's sum back to `since`, each naming the next")


class LedgerRead(Strict):
    """Who reads bills asks for the ledger that they are of, part by part. Answered by quota_billing."""

    after_seq: int = Field(default=0, ge=0, description="the messages behind this one; 0: from the first on")


class LedgerPart(Fact):
    """Messages of the ledger as they are stored, as many as go into one answer; none: there are no more. Sent by quota_billing
    as the answer to `LedgerRead`."""

    first_seq: int = Field(ge=1, description="the first message that the broker keeps")
    last_seq: int = Field(ge=0, description="the last one that there is")
    messages: str = Field(description="base64 of zlib of lines as a ledger file has them (docs/ledger-file.md)")
