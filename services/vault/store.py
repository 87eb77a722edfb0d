"""Vault's store: an entry for each team in the bucket `baton-secrets`, replaced as a whole by compare-and-set.

Several processes may write: an entry that was changed since it was read is read again. Names, dates and sizes are in clear
text; values are encrypted (`services.vault.keys`). An entry holds the newest two versions of each secret, and old revisions of
an entry are gone from the stream. A team without secrets leaves the number above which its next version begins: a delayed
question names a version that it has seen, and such a number must not be used again. The note of a change is stored with it, and
kept until the ledger has it (`services.vault.changes`).
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from nats.js import JetStreamContext
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue
from pydantic import BaseModel, Field

from libs.bus.boxes import CannotOpen, NodeSecret, encoded
from libs.bus.table import SECRETS_BUCKET
from libs.ports import clock
from libs.ports.host import failpoint
from schemas.secrets import SECRETS_OF_A_TEAM, TEAM_BYTES, VALUE_BYTES, VERSIONS_KEPT, SecretInfo
from services.vault.changes import ChangeNote, Requester
from services.vault.keys import KeyFile, MasterKey
from services.vault.names import NamesTold

log = logging.getLogger("baton.vault")

T = TypeVar("T")

_TRIES = 20
_PAUSE_S = 0.02
"""Grows with each try: another process was quicker."""


class Superseded(RuntimeError):
    """Another version is there than the one that was to be replaced."""


class Contended(RuntimeError):
    """Others wrote the same team's secrets again and again meanwhile."""


class TooMuch(ValueError):
    """A limit; `value` is what there would be, the text says what is allowed."""

    def __init__(self, value: str, limit: str, fix: str) -> None:
        super().__init__(limit)
        self.value, self.fix = value, fix


class StoreFull(RuntimeError):
    """The bucket takes no more."""


class StoredVersion(BaseModel):
    """One version. `key`: of which master key `locked` is."""

    version: int
    set_us: int
    bytes: int
    key: str
    locked: str


class StoredSecret(BaseModel):
    """Newest version first."""

    made_us: int
    versions: list[StoredVersion] = Field(min_length=1)

    def info(self, name: str) -> SecretInfo:
        newest = self.versions[0]
        return SecretInfo(
            name=name, version=newest.version, bytes=newest.bytes, set_us=newest.set_us, made_us=self.made_us,
            kept=tuple(version.version for version in self.versions),
        )  # fmt: skip


class TeamSecrets(BaseModel):
    """An entry of the bucket."""

    secrets: dict[str, StoredSecret] = {}
    removed: int = 0
    """The highest version that was removed."""
    outbox: list[ChangeNote] = []

    def note(self, by: Requester, what: str, target: str, detail: str = "") -> ChangeNote:
        """Stored with what it is about."""
        change = by.note(what, target, detail)
        self.outbox.append(change)
        return change

    def bytes(self) -> int:
        return sum(version.bytes for secret in self.secrets.values() for version in secret.versions)

    def infos(self) -> tuple[SecretInfo, ...]:
        return tuple(secret.info(name) for name, secret in sorted(self.secrets.items()))


class SecretStore:
    """See above."""

    def __init__(self, js: JetStreamContext, keys: KeyFile) -> None:
        self._js, self.keys = js, keys
        self.names = NamesTold(js)
        self._bucket: KeyValue | None = None
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def of(self, team: str) -> TeamSecrets:
        return (await self.load(team))[0]

    async def set(
        self,
        team: str,
        name: str,
        value: bytes,
        by: Requester,
        *,
        replaces: int | None = None,
        removed: int | None = None,
    ) -> tuple[SecretInfo, list[ChangeNote]]:
        """The secret has this value from now on; one that it has already makes no new version. `replaces`: the version that is
        to be there before, 0: none, None: whichever; `removed`: of one that is not there, what `TeamSecrets.removed` is to be.
        The changes are what the ledger is to be told. Raises TooMuch, StoreFull, Superseded, Contended."""
        if len(value) > VALUE_BYTES:
            raise TooMuch(
                f"{len(value)} bytes", f"a secret has at most {VALUE_BYTES} bytes", "keep large data elsewhere"
            )
        changes: list[ChangeNote] = []
        while True:
            key, info, change = await self._change(
                team, partial(self._set, team=team, name=name, value=value, replaces=replaces, removed=removed, by=by)
            )
            changes.append(change)
            self.keys.refresh()
            if key is self.keys.newest:  # otherwise who changes the master key may have passed this entry before
                return info, changes
            replaces = info.version

    def _set(
        self,
        held: TeamSecrets,
        _: int,
        *,
        team: str,
        name: str,
        value: bytes,
        replaces: int | None,
        removed: int | None,
        by: Requester,
    ) -> tuple[bool, tuple[MasterKey, SecretInfo, ChangeNote]]:
        self.keys.refresh()
        key, now_us = self.keys.newest, int(clock.wall_s() * 1e6)
        secret = held.secrets.get(name)
        if secret is not None and secret.versions[0].key == key.id:
            try:
                if self._unlock(team, name, secret.versions[0]) == value:
                    return True, (key, info := secret.info(name), held.note(by, *_set_line(team, info)))
            except CannotOpen:
                log.warning("version %d of secret %s of team %s does not open", secret.versions[0].version, name, team)
        if secret is None and len(held.secrets) >= SECRETS_OF_A_TEAM:
            limit = f"a team has at most {SECRETS_OF_A_TEAM} secrets"
            raise TooMuch(f"{len(held.secrets)} secrets", limit, "remove one that is not needed any more")
        newest = secret.versions[0].version if secret else 0
        if replaces not in (None, newest):
            raise Superseded(
                f"secret {name} of team {team} is at version {newest} by now, not {replaces}: set it again"
            )
        if secret is None and removed not in (None, held.removed):
            raise Superseded(
                f"a secret of team {team} was removed at version {held.removed} since {name} was sent: set it again"
            )
        number = (newest or held.removed) + 1
        made = StoredVersion(
            version=number,
            set_us=now_us,
            bytes=len(value),
            key=key.id,
            locked=key.lock(value, _place(team, name, number)),
        )
        earlier = secret.versions[: VERSIONS_KEPT - 1] if secret else []
        held.secrets[name] = StoredSecret(made_us=secret.made_us if secret else now_us, versions=[made, *earlier])
        if (total := held.bytes()) > TEAM_BYTES:
            limit = (
                f"the values of a team, with the version before each newest, have at most {TEAM_BYTES} bytes together"
            )
            raise TooMuch(f"{total} bytes", limit, "remove secrets that are not needed any more, or shorten values")
        return True, (key, info := held.secrets[name].info(name), held.note(by, *_set_line(team, info)))

    async def remove(
        self, team: str, name: str | None, by: Requester, *, removes: int | None = None, revision: int | None = None
    ) -> tuple[tuple[str, ...], list[ChangeNote]]:
        """The names that were there and are not any more; without a name all of the team's. `removes`: the version that is to
        be there, `revision`: of the entry, where all go; None: whichever. The changes are what the ledger is to be told. Raises
        StoreFull, Superseded, Contended."""

        def without(held: TeamSecrets, at: int) -> tuple[bool, tuple[tuple[str, ...], list[ChangeNote]]]:
            gone = tuple(sorted(held.secrets)) if name is None else tuple(n for n in (name,) if n in held.secrets)
            newest = [held.secrets[each].versions[0].version for each in gone]
            if gone and name is not None and removes not in (None, newest[0]):
                raise Superseded(
                    f"secret {name} of team {team} is at version {newest[0]} by now, not {removes}: look, and remove it again"
                )
            if gone and name is None and revision not in (None, at):
                raise Superseded(
                    f"the secrets of team {team} were changed since they were looked at: remove them again"
                )
            for each in gone:
                del held.secrets[each]
            held.removed = max([held.removed, *newest])
            return bool(gone), (gone, [held.note(by, "secret.remove", f"{team}/{each}") for each in gone])

        return await self._change(team, without)

    async def told(self, team: str, changes: Sequence[ChangeNote]) -> list[ChangeNote]:
        """The ledger knows of these changes: their notes go. Returns those that are left. Raises Contended."""
        ids = {change.id for change in changes}

        def fewer(held: TeamSecrets, _: int) -> tuple[bool, list[ChangeNote]]:
            left = [change for change in held.outbox if change.id not in ids]
            some, held.outbox = len(left) < len(held.outbox), left
            return some, left

        return await self._change(team, fewer)

    def open(self, team: str, held: TeamSecrets, names: tuple[str, ...]) -> dict[str, NodeSecret]:
        """The newest values. Raises KeyError for a name that is not held, CannotOpen."""
        newest = {name: held.secrets[name].versions[0] for name in names}
        return {
            name: NodeSecret(version=version.version, value=encoded(self._unlock(team, name, version)))
            for name, version in newest.items()
        }

    async def rekey(self) -> tuple[int, int]:
        """A new master key: every value is stored anew under it, then the old key is forgotten. Returns how many were, and
        how many no key opens. After a crash it is to be done again. Raises RekeyUnderWay, Contended."""
        values = lost = 0
        with self.keys.rekeying():
            for team in await self.teams():
                done, failed = await self._change(team, lambda held, _, team=team: self._anew(held, team))  # type: ignore[misc]
                values, lost = values + done, lost + failed
                failpoint("vault.rekeying")
        log.info("the master key was changed: %d values were stored anew, %d could not be opened", values, lost)
        return values, lost

    def _anew(self, held: TeamSecrets, team: str) -> tuple[bool, tuple[int, int]]:
        newest, done, lost = self.keys.newest, 0, 0
        for name, version in _versions(held):
            if version.key == newest.id:
                continue
            try:
                value = self._unlock(team, name, version)
            except CannotOpen as e:
                log.error("a value is lost: %s", e)
                lost += 1
                continue
            version.key, version.locked = newest.id, newest.lock(value, _place(team, name, version.version))
            done += 1
        return bool(done), (done, lost)

    async def tell_names(self) -> list[str]:
        """Of all teams, to who judges their jobs: what the last process of vault may have left out. Returns the teams that have
        changes which the ledger was not told of."""
        untold: list[str] = []
        for team in {*await self.teams(), *await self.names.told()}:
            told, last = await self.names.read(team)
            held, revision = await self.load(team)
            if held.outbox:
                untold.append(team)
            if held.secrets:
                await self.names.tell(team, revision, held.secrets)
            else:
                await self.names.forget(team, told, last)
        await self.names.all_told()
        return untold

    async def teams(self) -> list[str]:
        """Those that have secrets."""
        stem = f"$KV.{SECRETS_BUCKET}."
        held = await self._js.stream_info(f"KV_{SECRETS_BUCKET}", subjects_filter=f"{stem}>")
        return sorted(subject.removeprefix(stem) for subject in held.state.subjects or {})

    # ---------------------------------------------------------------------------------------------------------- internals

    def _unlock(self, team: str, name: str, version: StoredVersion) -> bytes:
        self.keys.refresh()
        key = self.keys.named(version.key)
        if key is None:
            raise CannotOpen(
                f"secret {name} of team {team} was stored under a master key that {self.keys.path} does not hold: put that "
                "file back from its backup, or set the secret again"
            )
        return key.unlock(version.locked, _place(team, name, version.version))

    async def _change(self, team: str, change: Callable[[TeamSecrets, int], tuple[bool, T]]) -> T:
        """`change` alters an entry, of which it is told the revision, and says whether it did and what is to be returned."""
        lock = self._changing.setdefault(team, asyncio.Lock())
        async with lock:  # of one process, one question of a team after the other
            return await self._change_alone(team, change)

    async def _change_alone(self, team: str, change: Callable[[TeamSecrets, int], tuple[bool, T]]) -> T:
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(random.uniform(0, number * _PAUSE_S))
            held, revision = await self.load(team)
            failpoint("vault.loaded")
            changed, told = change(held, revision)
            if not changed:
                await self.names.tell(team, revision, held.secrets)  # whoever changed it last may have died before
                return told
            try:
                revision = await (await self._kv()).update(team, held.model_dump_json().encode(), last=revision)
                failpoint("vault.changed")
                await self.names.tell(team, revision, held.secrets)
                return told
            except KeyWrongLastSequenceError:
                continue
            except APIError as e:
                if held.secrets:
                    raise StoreFull(f"the store of secrets takes no more ({e.description})") from e
                await self._purge(team, held, revision)
                await self.names.tell(team, revision, ())
                return told
        raise Contended(f"the secrets of team {team} change all the time: try again in a moment")

    async def _purge(self, team: str, held: TeamSecrets, revision: int) -> None:
        """A full store takes no entry, not even a shorter one, until the old one is gone."""
        subject = f"$KV.{SECRETS_BUCKET}.{team}"
        await self._js.purge_stream(f"KV_{SECRETS_BUCKET}", subject=subject, seq=revision + 1)
        with suppress(APIError):
            await (await self._kv()).update(team, held.model_dump_json().encode(), last=0)

    async def load(self, team: str) -> tuple[TeamSecrets, int]:
        """And the entry's revision; 0: there is none."""
        try:
            entry = await (await self._kv()).get(team)
        except KeyNotFoundError:
            return TeamSecrets(), 0
        return TeamSecrets.model_validate_json(entry.value or b"{}"), int(entry.revision or 0)

    async def _kv(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._js.key_value(SECRETS_BUCKET)
        return self._bucket


def _set_line(team: str, info: SecretInfo) -> tuple[str, str, str]:
    return "secret.set", f"{team}/{info.name}", f"version {info.version}"


def _place(team: str, name: str, version: int) -> str:
    return f"{team}/{name}/{version}"


def _versions(held: TeamSecrets) -> Iterator[tuple[str, StoredVersion]]:
    for name, secret in held.secrets.items():
        for version in secret.versions:
            yield name, version
