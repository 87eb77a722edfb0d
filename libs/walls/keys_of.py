"""Finds the keys of an account by its name, and checks that it may have one more credential. What is not there raises an error
that says what is."""

from libs.walls.accounts import CORE, FINANCE, SYSTEM
from libs.walls.claims import KeyKind
from libs.walls.keyfile import AccountKeys, Keys, new_key

NODE_MARK = "@"
"""Before the name of a node's account: no team's name begins so."""

MOST_USERS, MOST_REVOKED = 1_000, 5_000
"""Of one team: a claim goes to the broker as one message, and has a line of 70 bytes for each void key."""


class NoCredential(LookupError):
    """There is no team or credential of that name; the text says which there are."""


class TooManyUsers(NoCredential):
    """A team's account takes no more users, or has too many void credentials."""


def account(keys: Keys, name: str, make: bool = False) -> AccountKeys:
    """Of `$SYS`, `$baton`, finance, a team, or with `NODE_MARK` before it an agent. `make`: it is made when there is none.

    Raises NoCredential.
    """
    if name in (SYSTEM, CORE):
        return keys.system if name == SYSTEM else keys.core
    if name == FINANCE:
        if keys.finance is None and make:
            keys.finance = AccountKeys(seed=new_key(KeyKind.ACCOUNT).seed)
        if keys.finance is None:
            raise NoCredential("nobody has a credential of finance: `baton finance add NAME` makes one")
        return keys.finance
    known, plain = (keys.nodes, name.removeprefix(NODE_MARK)) if name.startswith(NODE_MARK) else (keys.teams, name)
    if make and plain not in known:
        known[plain] = AccountKeys(seed=new_key(KeyKind.ACCOUNT).seed)
    if plain not in known:
        there = f"there are: {', '.join(sorted(known)) or 'none'}"
        if known is keys.nodes:
            raise NoCredential(
                f"no agent has a credential called {plain!r}; {there}. One that is called as its pool stands for all nodes of"
                " the pool: leave out the node to mean it"
            )
        raise NoCredential(f"nobody is called {plain!r}; {there}")
    return known[plain]


def team(keys: Keys, name: str) -> AccountKeys:
    """Raises NoCredential."""
    if name not in keys.teams:
        raise NoCredential(f"no team {name!r}; there are: {', '.join(sorted(keys.teams)) or 'none'}")
    return keys.teams[name]


def agents(keys: Keys, pool: str, node: str) -> AccountKeys:
    """Of a node's agent, or without one of those of a whole pool. Raises NoCredential."""
    name = f"{pool}.{node}" if node else pool
    owner = account(keys, f"{NODE_MARK}{name}")
    if node and name not in owner.users:
        raise NoCredential(
            f"node {node!r} was revoked and has no credential: `baton node add {node} --pool {pool}` makes one"
        )
    return owner


def check_room(owner: AccountKeys, team: str) -> None:
    """Before a user is added at an admin's word. Raises TooManyUsers."""
    if len(owner.users) >= MOST_USERS or len(owner.revoked) >= MOST_REVOKED:
        raise TooManyUsers(
            f"team {team} has {len(owner.users)} credentials and {len(owner.revoked)} void ones; the account's claim "
            f"takes {MOST_USERS} and {MOST_REVOKED}: ask an operator"
        )


def check_own_key(owner: AccountKeys, name: str, public_key: str) -> None:
    """What is void is a key, so two that have one would be void together: whoever has `name` revoked would revoke an admin."""
    if any(known == public_key and one != name for one, known in owner.users.items()):
        raise NoCredential("public_key: is somebody else's of this team; make a new one")


def check_user(owner: AccountKeys, name: str) -> None:
    """Raises NoCredential when `name` has none."""
    if name not in owner.users:
        raise NoCredential(f"{name!r} has no credential; there are: {', '.join(sorted(owner.users)) or 'none'}")


def check_revoked(owner: AccountKeys) -> None:
    """Before one more is issued, which may be revoked in its turn. Revoking itself is never refused. Raises TooManyUsers."""
    if len(owner.revoked) >= MOST_REVOKED:
        raise TooManyUsers(
            f"{len(owner.revoked)} credentials of that team are void, and its claim takes {MOST_REVOKED}: rotate the oldest "
            f"that stands (`baton team rotate {owner.oldest}`), then those of before need no lines"
        )
