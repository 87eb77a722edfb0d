"""Bugs of what keeps things for long: vault, and the archive of the ledger."""

from contextlib import ExitStack, contextmanager
from typing import Any

from nats.js.kv import KeyValue

from libs.bus.boxes import decoded, encoded
from services.vault import store
from services.vault.keys import KeyFile, MasterKey
from tests.simulation.bug import bug, set_on


@bug("a secret's value is stored as it is", "secrets")
def secret_stored_plain(stack: ExitStack) -> None:
    set_on(stack, MasterKey, "lock", lambda self, value, about: encoded(value))
    set_on(stack, MasterKey, "unlock", lambda self, locked, about: decoded(locked))


@bug("a team's secrets are replaced without looking whether another process of vault has replaced them", "secrets")
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
