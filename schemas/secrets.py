"""Secrets: what a team's jobs need and nobody else may know. Values are in no message but sealed ones.

A client seals a value to the key of the service vault, and vault seals it to the key of the node that runs the job. Both
are sealed boxes of libsodium (X25519, XSalsa20-Poly1305; `libs.bus.boxes`): whoever carries them reads nothing. Questions and
answers are core NATS, so they are in no stream.
"""

from typing import Annotated, Final

from pydantic import Field

from schemas.base import Fact, JobId, Micros, Name, Strict
from schemas.jobs import SecretName

VALUE_BYTES: Final = 32 * 1024
"""Of one value."""
SECRETS_OF_A_TEAM: Final = 64
TEAM_BYTES: Final = 256 * 1024
"""Of all values of a team that are kept, the one before each newest too."""
VERSIONS_KEPT: Final = 2

_SEALED_BYTES: Final = 2 * VALUE_BYTES
PublicKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$")]
"""X25519, 32 bytes in base64."""
Sealed = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
"""A sealed box in base64."""
SealedValue = Annotated[str, Field(min_length=1, max_length=_SEALED_BYTES, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class SecretSet(Strict):
    """A team gives a secret a value: a new one, or another version of one that there is."""

    name: SecretName
    key: PublicKey = Field(description="vault's, as `SecretList` told it: what the value is sealed to")
    sealed: SealedValue = Field(description="a `libs.bus.boxes.ForVault`, sealed")
    replaces: int | None = Field(
        default=None,
        ge=0,
        description="the version that is there now, as `SecretList` told it, 0: none; refused when there is another by then, so"
        " that a question that was long on its way undoes nothing. null: whichever is there",
    )
    removed: int | None = Field(
        default=None,
        ge=0,
        description="of a secret that is not there, `SecretList.removed`: refused when another was removed by then. null: any",
    )


class SecretInfo(Fact):
    """A secret without its value, which nobody can ask for."""

    name: SecretName
    version: int = Field(ge=1, description="the newest, which attempts that start now get")
    bytes: int = Field(ge=0, description="of the newest value")
    set_us: Micros = Field(description="when the newest was set")
    made_us: Micros = Field(default=0, description="when its first version was set")
    kept: tuple[int, ...] = Field(default=(), description="versions that are kept, newest first")


class SecretListQuery(Strict):
    """What secrets there are, and what to seal new values to."""

    team: Name | None = Field(default=None, description="operators only: whose")


class SecretList(Fact):
    """A team's secrets by name, and vault's public key."""

    secrets: tuple[SecretInfo, ...] = ()
    key: PublicKey
    removed: int | None = Field(
        default=None,
        description="the highest version of the team's that was removed: those of a new secret begin above it, so that none"
        " comes twice; 0: none was. null: a vault of before does not say",
    )
    revision: int | None = Field(
        default=None, description="operators only: grows with each change; null: likewise, and to a team"
    )

    def version_of(self, name: str) -> int:
        """The newest of a secret; 0: it is not there."""
        return next((one.version for one in self.secrets if one.name == name), 0)


class SecretRemove(Strict):
    """A secret is not to be there any more, in any version. Jobs that run keep what they were given."""

    name: SecretName | None = Field(default=None, description="null, operators only: all of the team's")
    team: Name | None = Field(default=None, description="operators only: whose")
    removes: int | None = Field(
        default=None,
        ge=1,
        description="the version that is there now, as `SecretList` told it; refused when there is another by then. null:"
        " whichever is there",
    )
    revision: int | None = Field(
        default=None,
        ge=0,
        description="of all, `SecretList.revision`: refused when anything was set by then. null: whichever",
    )


class SecretRemoved(Fact):
    """Which secrets are gone."""

    names: tuple[SecretName, ...]


class SecretRekey(Strict):
    """Operators only: vault makes a new master key, writes every value anew under it, and forgets the old one."""


class SecretRekeyed(Fact):
    """All values lie under the new key."""

    key: PublicKey
    values: int = Field(ge=0, description="how many were written anew")
    lost: int = Field(default=0, ge=0, description="values that no known key opens; they are as they were")


class NodeSecretsQuery(Fact):
    """An agent asks for the secrets of a part that it is about to start. It names the subject's node and no other."""

    job_id: JobId
    attempt: int = Field(ge=1)
    key: PublicKey = Field(description="the node's own, made when its agent started: the answer is sealed to it")
    nonce: Nonce = Field(description="of this question; the answer repeats it inside the seal")


class NodeSecrets(Fact):
    """The secrets of one attempt, for one node: `sealed` is a `libs.bus.boxes.ForNode`. Empty when some are missing."""

    sealed: Sealed = ""
    missing: tuple[SecretName, ...] = Field(default=(), description="the team has no secrets of these names")
