"""Requests of a team's admin to the holder of the keys, and their results."""

from typing import Literal

from pydantic import Field

from schemas.base import Fact, Name, Strict, User
from schemas.inbox import BoostJob


class ManageTeam(Strict):
    """An admin of a team about users of that team, or about a job of it. Answered by who holds the keys (`baton up`,
    `baton team serve`)."""

    what: Literal["list", "add", "rotate", "revoke", "boost"]
    user: User = Field(default="", description="which user of the own team, or the person behind a pseudonym")
    pseudonym: bool | None = Field(
        default=None,
        description="of a new user: a person, whose name stays with the keys and can be erased; null: as the instance does it",
    )
    public_key: str = Field(
        default="",
        pattern=r"^(U[A-Z2-7]{55})?$",
        description="of the key that the user made: an nkey, as NATS writes it",
    )
    pool: Name | Literal[""] = Field(default="", description="to boost: where the job is")
    boost: BoostJob | None = Field(default=None, description="to boost: which job, and for how long")
    to: Name | Literal[""] = Field(
        default="", description="to boost: the class whose priority it gets; empty: its boost ends"
    )


class TeamUser(Fact):
    """Who of a team has a credential."""

    name: str = Field(description="<team>.<user>")
    admin: bool = False
    person: str = Field(default="", description="who that is, of a pseudonym")


class TeamManaged(Fact):
    """What became of a request of an admin. `token` is the signed claim of the user, which with the user's own seed is a
    credential."""

    team: Name
    token: str = ""
    users: tuple[TeamUser, ...] = ()
    ledger_seq: int | None = Field(
        default=None, description="of a boost: the record of the pool's ledger that decided it; null: none did"
    )
