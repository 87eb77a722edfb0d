"""Credentials as NATS clients keep them: `.creds` files with a signed claim of who it is, and the key that proves it."""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nats.aio.client import RawCredentials

from libs.bus import wire

CREDS_FOLDER = "creds"
LOGS_CREDS = "logs.creds"
"""Of an agent, beside its own: with it the agent hears and answers questions for logs, which are the teams'."""
_CLAIM, _SEED = "-----BEGIN NATS USER JWT-----", "-----BEGIN USER NKEY SEED-----"


class BadCredential(ValueError):
    """A file that is no credential, or cannot be read; the text names it and the fix."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the bus is (URLs of one cluster, separated by commas), and the credential to show there: a file, or its text."""

    url: str = field(repr=False)
    creds: Path | str | None = field(default=None, repr=False)
    anonymous: bool = field(default=True, compare=False)
    """Whether a broker will do that lets anybody in."""
    ca: Path | None = field(default=None, compare=False)
    """The certificate of the authority that the broker is known by; by default `ca.pem` beside the credential, if any."""
    plain: bool = field(default=True, compare=False)
    """Whether what is said to another host may go unencrypted."""

    def options(self) -> dict[str, Any]:
        """For nats-py, which reads a file again at each reconnection: a rotated credential is taken up.

        Raises BadCredential: nats-py itself would look for the claim in an empty file for ever.
        """
        tls = {"tls": wire.context(self.authority)} if self.encrypted else {}
        if self.creds is None:
            return tls
        speaker(self.creds)
        return {
            **tls,
            "user_credentials": RawCredentials(self.creds) if isinstance(self.creds, str) else str(self.creds),
        }

    @property
    def encrypted(self) -> bool:
        """Whether the URL says so."""
        return self.url.startswith(("tls://", "wss://"))

    @property
    def authority(self) -> Path | None:
        if self.ca is not None or not isinstance(self.creds, Path):
            return self.ca
        beside = self.creds.with_name(wire.CA_FILE)
        return beside if beside.is_file() else None

    def secret(self) -> str:
        """What only who has this credential knows: a hash of its key; "" without one. Raises BadCredential."""
        if self.creds is None:
            return ""
        lines = _read(self.creds).splitlines()
        seed = lines[lines.index(_SEED) + 1] if _SEED in lines[:-1] else ""
        return hashlib.sha256(b"baton message ids\x1f" + seed.encode()).hexdigest()

    def environ(self) -> dict[str, str]:
        """The same as the environment of a process has it. Raises TypeError for a credential that is no file."""
        if isinstance(self.creds, str):
            raise TypeError("a credential that is no file cannot be named to another process")
        known = {} if self.authority is None else {"BATON_NATS_CA": str(self.authority)}
        return {"BATON_NATS_URL": self.url, "BATON_NATS_CREDS": "" if self.creds is None else str(self.creds), **known}


def at(address: "Address | str") -> Address:
    """A bare URL as an address."""
    return Address(address) if isinstance(address, str) else address


def speaker(creds: Path | str) -> str:
    """Whose credential it is: `<team>`, `<team>.<user>`, `operator`, ... Raises BadCredential."""
    return str(claim(creds)["name"])


def claim(creds: Path | str) -> dict[str, Any]:
    """What a credential says of its holder, unchecked: the broker checks it. Raises BadCredential."""
    text = _read(creds)
    shown = "the credential" if isinstance(creds, str) else f"{creds}"
    lines = text.splitlines()
    try:
        if not lines[lines.index(_SEED) + 1].startswith("SU"):
            raise ValueError("no seed")
        _, body, _ = lines[lines.index(_CLAIM) + 1].split(".")
        said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return {**said, "name": str(said["name"])}
    except (ValueError, LookupError, TypeError):
        raise BadCredential(
            f"{shown} is no NATS credential, which has the claim of a user and a seed: set BATON_NATS_CREDS to the .creds file "
            "that you were given"
        ) from None


def _read(creds: Path | str) -> str:
    try:
        return creds if isinstance(creds, str) else creds.read_text()
    except (OSError, UnicodeDecodeError) as e:
        why = "it is no text" if isinstance(e, UnicodeDecodeError) else e.strerror
        raise BadCredential(f"the credential {creds} cannot be read ({why}): correct BATON_NATS_CREDS") from None
