"""Bugs of what keeps things for long: vault, and the archive of the ledger."""

from contextlib import ExitStack, contextmanager
from typing import Any

from nats.js.kv import KeyValue

from libs.bus.boxes import decoded, encoded
from libs.ledger import archive
from libs.ledger.follower import Follower
from services.vault import store
from services.vault.changes import ChangeNote
from services.vault.keys import KeyFile, MasterKey
from tests.simulation.bug import bug, set_on


@bug("a secret's value is stored as it is", "secrets")
def secret_stored_plain(stack: ExitStack) -> None:
    set_on(stack, MasterKey, "lock", lambda self, value, about: encoded(value))
    set_on(stack, MasterKey, "unlock", lambda self, locked, about: decoded(locked))


@bug(
    "a team's secrets are replaced without looking whether another process of vault has replaced them",
    aim="two vaults",
)
def secrets_overwritten(stack: ExitStack) -> None:
    async def update(self: KeyValue, key: str, value: bytes, last: int | None = None, **_: Any) -> int:
        return await self.put(key, value)

    set_on(stack, KeyValue, "update", update)


@bug("the old master key is forgotten before all values are under the new one", "secrets")
def old_key_forgotten(stack: ExitStack) -> None:
    real = KeyFile.rekeying

    @contextmanager
    def rekeying(self: KeyFile) -> Any:
        with real(self):
            self._write(self._read()[:1])
            self.refresh()
            yield

    set_on(stack, KeyFile, "rekeying", rekeying)


@bug("a secret that was removed is given from memory", "secrets")
def secrets_cached(stack: ExitStack) -> None:
    real = store.SecretStore.of
    known: dict[tuple[int, str], Any] = {}

    async def of(self: store.SecretStore, team: str) -> Any:
        found = known.get((id(self), team))
        if found is None:
            found = known[id(self), team] = await real(self, team)
        return found

    set_on(stack, store.SecretStore, "of", of)


@bug("a change of a secret is stored without its note for the audit", "secrets")
def secrets_unnoted(stack: ExitStack) -> None:
    note = store.TeamSecrets.note

    def forgotten(held: store.TeamSecrets, *args: Any) -> ChangeNote:
        made = note(held, *args)
        held.outbox.pop()
        return made

    set_on(stack, store.TeamSecrets, "note", forgotten)


@bug("what was asked of a secret long ago is carried out, whatever became of it since", aim="two vaults")
def secrets_late(stack: ExitStack) -> None:
    set_, remove = store.SecretStore.set, store.SecretStore.remove

    async def set_late(
        self: store.SecretStore, *args: Any, replaces: int | None = None, removed: int | None = None
    ) -> Any:
        return await set_(self, *args, replaces=replaces)

    async def remove_late(self: store.SecretStore, *args: Any, **_: Any) -> Any:
        return await remove(self, *args)

    set_on(stack, store.SecretStore, "set", set_late)
    set_on(stack, store.SecretStore, "remove", remove_late)


@bug("a segment is deleted without a look at its file", "archive", findings=(2,))
def archive_not_verified(stack: ExitStack) -> None:
    async def check(js: Any, pool: str, path: Any) -> None:
        """Surely it is right."""

    set_on(stack, archive, "check", check)


@bug("a segment is deleted though a reader would need it after a restart", "archive", findings=(2,))
def readers_not_asked(stack: ExitStack) -> None:
    real = archive._needed

    def needed(segment: Any, last: int, found: Any, resume: Any) -> str:
        return real(segment, last, found, resume and dict.fromkeys(resume, last))

    set_on(stack, archive, "_needed", needed)


@bug("readers declare what they have read, not what they have saved", aim="nothing saved", findings=(2,))
def resume_is_position(stack: ExitStack) -> None:
    set_on(stack, Follower, "_standing", lambda self: (self.position, self.position))
