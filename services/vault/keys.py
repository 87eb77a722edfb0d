"""The master key: 32 random bytes in one file, mode 0600, that vault alone reads.

Two keys come from it: an X25519 pair, to whose public half clients seal values on their way here, and one that values are
stored under (XChaCha20-Poly1305). The stored text is bound to its team, name and version: an entry that somebody puts in
another's place does not open.

While keys change (`services.vault.store.SecretStore.rekey`) the file holds the new one and then the old one. Whoever has the
file and a copy of the broker's disk has all secrets; without the file nobody has any.
"""

import fcntl
import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError

from libs.bus.boxes import KEY_BYTES, BoxKey, CannotOpen, decoded, encoded
from libs.ports.private_files import write_private

log = logging.getLogger("baton.vault")

_NONCE_BYTES = 24
_VERSION = 1


class BadKeys(RuntimeError):
    """The file of the master key cannot be used; the text says why and what to do."""


class RekeyUnderWay(RuntimeError):
    """Another process of vault changes the master key just now."""


class MasterKey:
    """`box` opens what clients seal; its public half also names this master key. `repr` shows no more."""

    def __init__(self, master: bytes) -> None:
        if len(master) != KEY_BYTES:
            raise ValueError(f"a master key has {KEY_BYTES} bytes, this one {len(master)}")
        self.box = BoxKey(hashlib.blake2b(key=master, person=b"baton-box", digest_size=KEY_BYTES).digest())
        self._store = hashlib.blake2b(key=master, person=b"baton-store", digest_size=KEY_BYTES).digest()

    @property
    def id(self) -> str:
        return self.box.public

    def lock(self, value: bytes, about: str) -> str:
        """`value` as it is stored; `about` names its place, and no other will do."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        locked = crypto_aead_xchacha20poly1305_ietf_encrypt(value, about.encode(), nonce, self._store)
        return encoded(nonce + locked)

    def unlock(self, locked: str, about: str) -> bytes:
        """Raises CannotOpen."""
        try:
            data = decoded(locked)
            nonce, rest = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
            return bytes(crypto_aead_xchacha20poly1305_ietf_decrypt(rest, about.encode(), nonce, self._store))
        except (CryptoError, ValueError, TypeError) as e:
            raise CannotOpen(f"what is stored as {about} was not stored there, or is damaged") from e


class KeyFile:
    """The file, as several processes use it. `keys`: newest first, never empty; `refresh` reads them again."""

    def __init__(self, path: Path) -> None:
        """Makes the file when there is none. Raises BadKeys."""
        self.path = path
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self.keys: tuple[MasterKey, ...] = ()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():  # else nothing waits for who changes it just now
                with self._locked():
                    if not path.exists():
                        self._write([secrets.token_bytes(KEY_BYTES)])
                        log.warning("a master key was made, %s: back it up, without it no secret can be opened", path)
        except OSError as e:
            raise BadKeys(f"{path} cannot be made: {e.strerror}; BATON_VAULT_KEYS names another file") from e
        self.refresh()

    @property
    def newest(self) -> MasterKey:
        return self.keys[0]

    def named(self, id: str) -> MasterKey | None:
        """The key of that id, if the file has it."""
        return next((key for key in self.keys if key.id == id), None)

    def refresh(self) -> None:
        """Raises BadKeys."""
        try:
            found = os.stat(self.path)
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return
            if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise BadKeys(
                    f"{self.path} may be read by others than its owner: chmod 600 it, and `baton secret rekey`"
                )
            self.keys = tuple(map(MasterKey, self._read()))
            self._seen = seen
        except OSError as e:
            raise BadKeys(f"{self.path} cannot be read: {e.strerror}; put it back from its backup") from e
        except (ValueError, KeyError, TypeError) as e:  # never its content
            raise BadKeys(
                f"{self.path} holds no master keys ({type(e).__name__}): put it back from its backup, or BATON_VAULT_KEYS "
                "names another file"
            ) from None

    @contextmanager
    def rekeying(self) -> Iterator[None]:
        """Puts a new key before the others; when the block ends well, the others are gone. Raises RekeyUnderWay, BadKeys."""
        with self._locked(wait=False):
            self._write([secrets.token_bytes(KEY_BYTES), *self._read()])
            self.refresh()
            yield
            self._write(self._read()[:1])
            self.refresh()

    def _read(self) -> list[bytes]:
        document = json.loads(self.path.read_text())
        if document["version"] != _VERSION or not document["keys"]:
            raise ValueError("version or keys")
        return [decoded(key) for key in document["keys"]]

    def _write(self, keys: list[bytes]) -> None:
        """The new content is on the disk before the old is gone: a lost key is lost secrets."""
        text = json.dumps({"version": _VERSION, "keys": [encoded(key) for key in keys]}, indent=1) + "\n"
        write_private(self.path, text, durable=True)

    @contextmanager
    def _locked(self, wait: bool = True) -> Iterator[None]:
        path = self.path.with_name(self.path.name + ".lock")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as lock:
            os.fchmod(lock.fileno(), 0o600)  # who can open it, for reading too, can hold the lock for ever
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise RekeyUnderWay("the master key is being changed: try again in a moment") from None
            yield
