"""The file of keys: accounts, their roles, and who was given a credential. `libs.walls.keyring` changes it."""

import secrets
from collections.abc import Sequence

from pydantic import BaseModel, Field

from libs.walls import claims
from libs.walls.accounts import FINANCE
from libs.walls.claims import KeyKind, KeyPair

KEYS_FILE = "keys.json"


class NewerKeys(ValueError):
    """The keys were written by a Baton that this one cannot follow."""


class AccountKeys(BaseModel, extra="allow"):
    """Of one account: its seed, one for each role, the credentials in use, and which are void."""

    seed: str = Field(repr=False)
    roles: dict[str, str] = Field(default_factory=dict, repr=False)
    users: dict[str, str] = {}
    """Of each credential its public key."""
    since: dict[str, int] = {}
    """When each of `users` was issued, s; not there: before this was written down."""
    lasts: dict[str, int] = {}
    """How long those of `users` are good that end by themselves, s from `since`; all others are good until they are void."""
    elsewhere: list[str] = []
    """Those of `users` whose key was made elsewhere: there is no file of theirs here, and only rotating makes another."""
    admins: list[str] = []
    """Those of `users` that manage the others (`libs.walls.managing`)."""
    revoked: dict[str, int] = {}
    """Public key, or `*` -> what was issued until then is void, s."""
    out_until_s: int = 0
    out_for_s: int = 0
    """Until when nobody of a team may be connected, and for how long that was: it had sent too much (`libs.walls.floods`)."""
    let_in: bool = False
    """Whether that has been ended, by its time or by an operator: the book has a line of it."""
    issued_s: int = 0
    """When the newest claim was signed: the broker keeps the newest, so that time never stands still here."""

    def tick(self, now_s: float) -> int:
        """The time of one more claim, s: later than that of the one before."""
        self.issued_s = max(int(now_s), self.issued_s + 1)
        return self.issued_s

    def issue(self, name: str, public: str, at_s: int) -> None:
        self.users[name], self.since[name] = public, at_s

    def ends_s(self, name: str) -> int | None:
        """When the credential ends by itself, seconds since 1970; None: never."""
        lasts = self.lasts.get(name)
        return None if lasts is None else self.since.get(name, 0) + lasts

    def void(self, name: str, at_s: int) -> None:
        """What was issued to `name` so far. Lines of before the oldest credential that still counts become one."""
        self.revoked[self.users.pop(name)] = at_s
        self.since.pop(name, None)
        self.lasts.pop(name, None)
        before = min((self.since.get(one, 0) for one in self.users), default=at_s + 1) - 1
        if gone := {key for key, until_s in self.revoked.items() if until_s <= before}:
            self.revoked = {key: until_s for key, until_s in self.revoked.items() if key not in gone}
            self.revoked["*"] = before

    @property
    def oldest(self) -> str:
        """Whose credential stands longest: after it is rotated void ones of before need no lines."""
        return min(self.users, key=lambda name: self.since.get(name, 0), default="")

    def role(self, name: str) -> KeyPair:
        if name not in self.roles:
            self.roles[name] = new_key(KeyKind.ACCOUNT).seed
        return KeyPair(self.roles[name])

    def public_roles(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self.role(name).public for name in names}

    @property
    def public(self) -> str:
        return KeyPair(self.seed).public


class Keys(BaseModel, extra="allow"):
    """The whole file. What a newer version has added to it, or to an account, is kept when it is written here."""

    version: int = 1
    """A higher one is of files that may not be written without understanding all of them."""
    operator: str = Field(repr=False)
    system: AccountKeys
    core: AccountKeys
    teams: dict[str, AccountKeys] = {}
    finance: AccountKeys | None = None
    """Once somebody reads bills."""
    nodes: dict[str, AccountKeys] = {}
    """By `<pool>.<node>`, or `<pool>` for all nodes of a pool."""

    @property
    def pools(self) -> list[str]:
        """Those whose agents were given credentials."""
        return sorted({name.partition(".")[0] for name in self.nodes})

    @property
    def kept_out(self) -> dict[str, int]:
        """Teams, or finance, that were not let in again yet -> until when they are kept out, s since 1970."""
        guests = self.teams if self.finance is None else {**self.teams, FINANCE: self.finance}
        out = {name: owner.out_until_s for name, owner in guests.items() if not owner.let_in}
        return {name: until_s for name, until_s in out.items() if until_s}


def new_key(kind: KeyKind) -> KeyPair:
    return KeyPair.of(kind, secrets.token_bytes(claims.SEED_BYTES))


def new_keys() -> Keys:
    account = lambda: AccountKeys(seed=new_key(KeyKind.ACCOUNT).seed)  # noqa: E731
    return Keys(operator=new_key(KeyKind.OPERATOR).seed, system=account(), core=account())
