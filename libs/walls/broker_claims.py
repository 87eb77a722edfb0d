"""What a broker is told of accounts: claims that the operator's key signs, and the credentials by which it is told."""

import json
from collections.abc import Callable, Sequence

from libs.embedded.servers import Trust
from libs.walls import accounts, claims, keys_of
from libs.walls.accounts import CORE, FINANCE, SYSTEM
from libs.walls.claims import KeyKind, KeyPair
from libs.walls.keyfile import Keys, new_key
from libs.walls.keyring import Keyring
from libs.walls.keys_of import NODE_MARK

_MINUTE = 60
_OPERATOR_ISSUED_S = 1_767_225_600
"""2026-01-01: what the claim says never changes."""


def account_claim(ring: Keyring, name: str) -> tuple[str, str]:
    """(public key, signed claim) of `$SYS`, `$baton` or a team, newer than any before. Raises NoCredential."""
    (made,) = account_claims(ring, [name])
    return made


def account_claims(ring: Keyring, names: Sequence[str]) -> list[tuple[str, str]]:
    """The same of many in one change of the keys: a thousand by themselves took a minute. Raises NoCredential."""
    with ring.changing() as keys:
        return [_account_claim(keys, name, ring.now()) for name in names]


def _account_claim(keys: Keys, name: str, now_s: float) -> tuple[str, str]:
    owner, core = keys_of.account(keys, name), keys.core.public
    if name == SYSTEM:
        said = accounts.system_account(owner.public_roles(list(accounts.system_roles())))
    elif name == CORE:
        said = accounts.core_account(owner.public_roles(list(accounts.core_roles())), owner.revoked, keys.pools)
    elif name == FINANCE:
        public = owner.public_roles(list(accounts.finance_roles()))
        said = accounts.finance_account(public, core, owner.revoked, out=owner.out_until_s > now_s)
    elif name.startswith(NODE_MARK):
        pool, _, node = name.removeprefix(NODE_MARK).partition(".")
        public = owner.public_roles(list(accounts.node_roles(pool)))
        said = accounts.node_account(pool, node or "*", public, core, owner.revoked)
    else:
        public = owner.public_roles(list(accounts.team_roles(name)))
        said = accounts.team_account(name, public, core, owner.revoked, out=owner.out_until_s > now_s)
    signed = claims.claim(KeyPair(keys.operator), owner.public, name, said, issued_s=owner.tick(now_s))
    return owner.public, signed


def trust(ring: Keyring) -> Trust:
    """What a broker is started with."""
    with ring.changing() as keys:
        operator, system, core = KeyPair(keys.operator), keys.system.public, keys.core.public
    said = {"type": "operator", "system_account": system}
    # Always the same one: a broker reloads nothing, its certificate neither, when its operator's claim is another.
    signed = claims.claim(operator, operator.public, "baton", said, issued_s=_OPERATOR_ISSUED_S)
    by_key = dict(account_claims(ring, [SYSTEM, *ring.accounts]))
    return Trust(signed, system, by_key, core, _health_login(ring))


def _health_login(ring: Keyring) -> Callable[[str], str]:
    """See `Trust.login`: of a key that nobody else has, and that ends with this process."""
    token, key = _of_system(ring, accounts.HEALTH, "baton health", lasting=True)

    def login(nonce: str) -> str:
        said = {"jwt": token, "sig": claims.signature(key, nonce.encode()), "verbose": False, "pedantic": False}
        return json.dumps({**said, "name": "health", "lang": "python", "version": "1", "protocol": 1})

    return login


def claims_credential(ring: Keyring, *, lasting: bool = False) -> str:
    """The text of a credential that may tell the broker of accounts and ask what they have sent, for a minute; or for good, for
    a process that holds the keys anyway."""
    return claims.credentials(*_of_system(ring, accounts.CLAIMS, "baton team", lasting=lasting))


def _of_system(ring: Keyring, role: str, called: str, *, lasting: bool) -> tuple[str, KeyPair]:
    """A credential of `$SYS`: a signed claim and its key."""
    with ring.changing() as keys:
        key, owner, now = new_key(KeyKind.USER), keys.system, int(ring.now())
        ends_s = None if lasting else now + _MINUTE
        said = claims.user(owner.role(role), owner.public, key.public, called, issued_s=now, expires_s=ends_s)
    return said, key
