"""Secrets in the simulation: what teams have set, what nodes were given, and that nobody else has seen a value.

Vault and agents seal and open as they do on real machines; only their randomness is the world's, so that a seed replays byte
for byte.
"""

import random
import secrets
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import nacl.public
from nacl.bindings import crypto_box_seed_keypair, crypto_generichash_blake2b_salt_personal

from libs.bus import boxes
from libs.bus.table import SECRETS_BUCKET
from libs.ports.host import present_host
from libs.simulation.dst.stream import StoredMessage
from services.agent import secrets as agent_secrets
from services.history import proofs
from services.vault import book, changes, keys, store

if TYPE_CHECKING:
    from libs.simulation.dst.world import World
    from schemas.jobs import JobSpec

ANSWER_S = 2.0
"""So long a team waits for vault's answer."""
_NONCE_BYTES = 24


@dataclass(slots=True)
class SecretValue:
    """One version of a secret, or that it was removed (without a value), and when vault said that it has it so."""

    value: bytes
    stored_at: float | None = None


@dataclass(slots=True)
class SimSecrets:
    """What the teams know of their secrets: (team, name) -> its versions and removals, oldest first."""

    world: "World"
    versions: dict[tuple[str, str], list[SecretValue]] = field(default_factory=lambda: defaultdict(list))
    waiting: int = 0
    """What teams still want to tell vault."""
    _needles: list[bytes] = field(default_factory=list)

    def fresh(self, team: str, name: str) -> SecretValue:
        """A new value, which nothing else contains."""
        number = len(self.versions[team, name])
        made = SecretValue(f"{team}:{name}:{number}:{self.world.hidden.getrandbits(96):024x}".encode())
        self.versions[team, name].append(made)
        self._needles += [made.value, b64encode(made.value)]
        return made

    def removal(self, team: str, name: str) -> SecretValue:
        """It is about to be removed."""
        self.versions[team, name].append(gone := SecretValue(b""))
        return gone

    def given(self, team: str, name: str, value: bytes, asked_at: float) -> None:
        """A node that asked at `asked_at` has this value now."""
        known = self.versions[team, name]
        place = next((place for place, one in enumerate(known) if one.value == value), None)
        if place is None:
            self.world.violated("S1", f"secret {name} of team {team} is not what the team has set")
        elif any(later.stored_at is not None and later.stored_at < asked_at for later in known[place + 1 :]):
            self.world.violated(
                "S1",
                f"secret {name} of team {team}: version {place + 1} was given after a newer one was stored, or it was removed",
            )
        self.world.sometimes("a secret was given to a node")

    def passes(self, who: str, subject: str, payload: bytes) -> None:
        """A message is on its way: it has no value in it that is not sealed."""
        for needle in self._needles:
            if needle in payload:
                self.world.violated("S2", f"{who} says a secret's value on {subject}")

    def look(self) -> None:
        """Nothing that is stored anywhere has a value in it; and vault has what was set or removed last, whatever was on its
        way longer."""
        world = self.world
        if not self._needles:
            return
        for (team, name), known in self.versions.items():
            if known and (found := self._newest(team, name)) != known[-1].value:
                last = "removed" if not known[-1].value else f"set to {known[-1].value!r}"
                world.violated("S3", f"secret {name} of team {team} was {last}, and is {found or 'not there'!r}")
        places = [(f"stream {s.name}", kept.data) for s in world.disk.streams.values() for kept in s.messages.values()]
        places += [(f"MongoDB, {name}", repr(rows).encode()) for name, rows in world.mongo.collections.items()]
        places += [(f"Redis, {name}", repr(rows).encode()) for name, rows in world.redis.hashes.items()]
        for where, data in places:
            if any(needle in data for needle in self._needles):
                world.violated("S2", f"a secret's value is in {where}")

    def _untold(self) -> list[str]:
        """The teams that have changes of which vault has not told the ledger yet."""
        return [entry.subject.rpartition(".")[2] for entry, held in self._entries() if held.outbox]

    def unaudited(self, lines: Mapping[tuple[str, str], int], since: float) -> list[str]:
        """What was set and removed after `since` and is not in the audit. `lines`: how many there are, by what was done and
        target."""
        out = [f"vault has not told the ledger of changes of secrets of {team}" for team in self._untold()]
        for (team, name), every in self.versions.items():
            known = [one for one in every if one.stored_at is not None and one.stored_at > since + ANSWER_S]
            for what, done in (("set", [v for v in known if v.value]), ("remove", [v for v in known if not v.value])):
                there = lines[f"secret.{what}", f"{team}/{name}"]
                if there < len(done):
                    out.append(f"secret.{what} of {team}/{name}: {len(done)} were done, the audit has {there}")
        return out

    def _newest(self, team: str, name: str) -> bytes:
        """As the bucket has it; b"": it is not there, or no key that vault has opens it."""
        subject = f"$KV.{SECRETS_BUCKET}.{team}"
        held = next((held.secrets.get(name) for entry, held in self._entries() if entry.subject == subject), None)
        if held is None:
            return b""
        newest = held.versions[0]
        key = keys.KeyFile(key_file(self.world.folder)).named(newest.key)
        return key.unlock(newest.locked, f"{team}/{name}/{newest.version}") if key is not None else b""

    def _entries(self) -> Iterator[tuple[StoredMessage, store.TeamSecrets]]:
        for entry in self.world.disk.streams[f"KV_{SECRETS_BUCKET}"].messages.values():
            if entry.data:
                yield entry, store.TeamSecrets.model_validate_json(entry.data)

    def may_fail(self, team: str, spec: "JobSpec", asked_at: float) -> bool:
        """Whether a job that was asked for then may find a secret missing."""
        for use in spec.secrets:
            known = self.versions[team, use.secret]
            if any(not v.value for v in known) or not any(
                v.stored_at is not None and v.stored_at < asked_at for v in known
            ):
                return True
        return False

    def must_fail(self, team: str, spec: "JobSpec") -> bool:
        """Whether it names one that the team has never had."""
        return any(not self.versions[team, use.secret] for use in spec.secrets)


# ----------------------------------------------------------------------------------------------------------- randomness


class _Chance:
    """Stands for the module `secrets`: in a simulated process its bytes are the world's."""

    @staticmethod
    def token_bytes(count: int) -> bytes:
        chance = _hidden()
        return secrets.token_bytes(count) if chance is None else chance.randbytes(count)

    @classmethod
    def token_hex(cls, count: int) -> str:
        return cls.token_bytes(count).hex()


class _Names:
    """Stands for the module `secrets` where a name is made: what it draws changes no other draw."""

    @staticmethod
    def token_hex(count: int) -> str:
        world = getattr(present_host(), "world", None)
        return secrets.token_hex(count) if world is None else world.names.randbytes(count).hex()


class _Uniform:
    """Stands for the module `random`."""

    @staticmethod
    def uniform(low: float, high: float) -> float:
        chance = _hidden()
        return random.uniform(low, high) if chance is None else chance.uniform(low, high)


class _PrivateKey(nacl.public.PrivateKey):
    @classmethod
    def generate(cls) -> nacl.public.PrivateKey:
        return nacl.public.PrivateKey(_Chance.token_bytes(boxes.KEY_BYTES))


class _SealedBox:
    """libsodium's: its sender's key pair is made for the one box, from the world's randomness."""

    def __init__(self, recipient: Any) -> None:
        self._recipient = recipient

    def encrypt(self, plain: bytes) -> bytes:
        if _hidden() is None:
            return bytes(nacl.public.SealedBox(self._recipient).encrypt(plain))
        public, private = crypto_box_seed_keypair(_Chance.token_bytes(boxes.KEY_BYTES))
        nonce = crypto_generichash_blake2b_salt_personal(public + bytes(self._recipient), digest_size=_NONCE_BYTES)
        box = nacl.public.Box(nacl.public.PrivateKey(private), self._recipient)
        return bytes(public) + bytes(box.encrypt(plain, nonce).ciphertext)

    def decrypt(self, box: bytes) -> bytes:
        return bytes(nacl.public.SealedBox(self._recipient).decrypt(box))


def _hidden() -> random.Random | None:
    world = getattr(present_host(), "world", None)
    return None if world is None else world.hidden


def install() -> None:
    """Once per process. On a real machine everything stays as it is."""
    stand_in = SimpleNamespace(PrivateKey=_PrivateKey, PublicKey=nacl.public.PublicKey, SealedBox=_SealedBox)
    boxes._nacl = lambda: stand_in
    keys.secrets = agent_secrets.secrets = proofs.secrets = _Chance  # type: ignore[assignment]
    book.secrets = changes.secrets = _Names  # type: ignore[assignment]
    store.random = _Uniform  # type: ignore[assignment]


def key_file(folder: Path) -> Path:
    """Of the master key: all processes of vault have the same."""
    return folder / "vault" / "keys.json"
