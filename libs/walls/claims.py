"""Keys and signed claims in the form that nats-server reads: NATS JWT, version 2. Pure: time and randomness are arguments.

An *operator* signs accounts; an account, or a *signing key* of it, signs users. A signing key may be *scoped*: users that it
signs have the permissions that the account's claim gives that key, whatever is in their own claim. So a permission is
changed by telling the broker of the account, and credentials that were handed out stay as they are.

Sources: https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/jwt, the Go package
`github.com/nats-io/jwt/v2` (names of fields), and for keys `github.com/nats-io/nkeys` (Ed25519, base32 with a checksum).
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

SEED_BYTES = 32
NO_LIMIT = -1
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


class NoKeyLibrary(RuntimeError):
    """The package that makes keys is not installed."""


class KeyKind(Enum):
    """Whose key it is; its public form begins with O, A or U."""

    OPERATOR = 14 << 3
    ACCOUNT = 0
    USER = 20 << 3


class KeyPair:
    """A key pair. `seed` is the secret, `public` the name by which the broker knows it."""

    def __init__(self, seed: str) -> None:
        """Raises ValueError when `seed` is none."""
        nkeys = _nkeys()
        try:
            self._pair = nkeys.from_seed(bytearray(seed.encode()))
            self.public: str = self._pair.public_key.decode()
        except Exception as e:  # nkeys raises what base64 and its own checks happen to
            raise ValueError("this is no seed of a NATS key: it begins with SO, SA or SU and has 58 characters") from e
        self.seed = seed

    @classmethod
    def of(cls, kind: KeyKind, random: bytes) -> "KeyPair":
        """A new one, of `SEED_BYTES` random bytes."""
        return cls(bytes(_nkeys().encode_seed(random, kind.value)).decode())

    def sign(self, data: bytes) -> bytes:
        return bytes(self._pair.sign(data))


def _nkeys() -> Any:
    """Not imported at the top: `baton --help` and a bare client need no keys, and an old environment is told what it lacks."""
    try:
        import nkeys
    except ImportError:
        raise NoKeyLibrary(
            "nkeys is not installed: `./dev --version` brings .venv up to date, or pip install nkeys"
        ) from None
    return nkeys


def claim(issuer: KeyPair, subject: str, name: str, nats: Mapping[str, Any], *, issued_s: int, **more: Any) -> str:
    """What `issuer` says of the public key `subject`, signed. `issued_s`: seconds since 1970; `more`: e.g. `exp`."""
    body: dict[str, Any] = {"iat": issued_s, "iss": issuer.public, "name": name, "sub": subject, **more}
    body["nats"] = {**nats, "version": 2}
    body["jti"] = base64.b32encode(hashlib.sha256(_json(body)).digest()).decode().rstrip("=")
    signed = b".".join((_base64(_json(_HEADER)), _base64(_json(body))))
    return b".".join((signed, _base64(issuer.sign(signed)))).decode()


def user(issuer: KeyPair, account: str, subject: str, name: str, *, issued_s: int, expires_s: int | None = None) -> str:
    """A user of `account` (its public key), signed by a scoped key of it: permissions are the account's affair.

    The broker fills `name` into the scope's subjects, so it must consist of subject tokens.
    """
    more = {} if expires_s is None else {"exp": expires_s}
    return claim(issuer, subject, name, {"type": "user", "issuer_account": account}, issued_s=issued_s, **more)


def credentials(token: str, key: KeyPair) -> str:
    """The text of a `.creds` file: the claim of a user and the user's seed."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )


def signature(key: KeyPair, nonce: bytes) -> str:
    """What a client shows of `key` to the server that gave it `nonce`."""
    return _base64(key.sign(nonce)).decode()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
