"""Sealed boxes of libsodium: whoever has a public key can close one, and only the owner of the private key opens it.

Whoever carries or stores a box learns its length. A box does not say who closed it; so what is inside says whom it is for, and
whoever opens one compares.
"""

import base64
import binascii
from typing import Any

from pydantic import BaseModel, ValidationError

from schemas.base import Fact, JobId, Name, NodeName
from schemas.jobs import SecretName
from schemas.secrets import Nonce

KEY_BYTES = 32


class CannotOpen(ValueError):
    """The box is closed for another key, damaged, or has something else inside."""


class ForVault(Fact):
    """What a client puts into a box for vault. Team and name are inside, so that no box can be stored as another secret's."""

    team: Name
    name: SecretName
    value: str
    """Base64."""


class NodeSecret(Fact):
    """One value, for a node."""

    version: int
    value: str
    """Base64."""

    def plain(self) -> bytes:
        return base64.b64decode(self.value)


class ForNode(Fact):
    """What vault puts into a box for a node: which attempt it is for, and which question it answers."""

    pool: Name
    node: NodeName
    job_id: JobId
    attempt: int
    nonce: Nonce
    secrets: dict[SecretName, NodeSecret]


class BoxKey:
    """An X25519 key pair. `private` and what `repr` shows: never the key."""

    def __init__(self, private: bytes) -> None:
        """Raises ValueError when these are not `KEY_BYTES` bytes."""
        if len(private) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, this one {len(private)}")
        self._key = _nacl().PrivateKey(private)
        self.public: str = encoded(bytes(self._key.public_key))

    @classmethod
    def new(cls) -> "BoxKey":
        return cls(bytes(_nacl().PrivateKey.generate()))

    def open(self, box: str) -> bytes:
        """Raises CannotOpen."""
        try:
            return bytes(_nacl().SealedBox(self._key).decrypt(decoded(box)))
        except Exception as e:  # libsodium's, or base64's
            raise CannotOpen("the box is closed for another key, or damaged") from e

    def open_as(self, box: str, model: type[BaseModel]) -> Any:
        """What is inside, as `model`. Raises CannotOpen."""
        try:
            return model.model_validate_json(self.open(box))
        except ValidationError:
            raise CannotOpen(
                f"the box opens, and is no {model.__name__}"
            ) from None  # the text would show what is inside


def close_box(public: str, inside: BaseModel) -> str:
    """`inside` in a box for the owner of `public`, base64. Raises ValueError when that is no key."""
    return encoded(
        bytes(_nacl().SealedBox(_nacl().PublicKey(decoded(public))).encrypt(inside.model_dump_json().encode()))
    )


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    """Raises ValueError when it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise ValueError("this is not base64") from e


def _nacl() -> Any:
    """Imported when it is needed: most clients and agents never seal anything."""
    import nacl.public

    return nacl.public
