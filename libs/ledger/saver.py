"""The one guarded way in which a folding service loads and saves its snapshots: the follower's and the writer's.

A snapshot saves time at a start and is never needed. So nothing that goes wrong with one may end or hold up the service:

    load    of another version, broken, of another history, no bucket, a store that does not answer although the ledger
            does: the ledger is folded from its beginning
    save    refused (full), unanswered, too slow, a state that cannot be encoded: logged, counted, tried again later
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from libs.bus.cancel import cancel
from libs.bus.retry import UNAVAILABLE
from libs.core.state.parts import Part
from libs.ledger.chain import Head
from libs.ledger.snapshots import PackedState, Restored, SnapshotStore, pack
from libs.ports.memory import give_back

log = logging.getLogger("baton.ledger")

_EVENTS = 50_000
"""A record of a burst has hundreds of events: so many take a start some ten seconds to fold, however few records they are."""
_REST_S, _EVENTS_AT_REST = 10.0, 5_000
"""And fewer once nothing comes any more: there is time for it, and ten services start at once."""
_BYTES = 2**26
"""Who needs few of the events reads all records for them: so much takes a start two seconds."""
_SHARE = 20  # one second of saving, or of loading, is followed by twenty without
_LONGEST_S = 600.0
_MUCH_BYTES = 1024 * 1024  # packed; making it has taken several times as much
_RETRY_S = (5.0, 15.0, 60.0, 300.0)
_LOADS = 3  # so often a store is asked that does not answer while the ledger does

T = TypeVar("T")


@dataclass(slots=True)
class SaveCounters:
    """What became of saves, and how often no snapshot could be used although the store was asked."""

    saved: int = 0
    failed: int = 0
    unusable: int = 0


class SnapshotSaver:
    """Snapshots of one folding service in `store`, under `name`; one of another `version` is not loaded.

    Saves are `due` every `every` records, or `_EVENTS` events that were `folded`, or `_BYTES` of records that were
    read for them, and after a failure sooner: with a pause that grows from 5 s to 5 minutes.
    """

    def __init__(self, store: SnapshotStore, name: str, version: int, *, every: int) -> None:
        self.counters = SaveCounters()
        self._store = store
        self._name = name
        self._version = version
        self._every = every
        self.stored = 0
        """The position of the newest snapshot that is surely stored; 0: none."""
        self._position = 0
        self._events = self._bytes = 0
        self._folded_s = 0.0
        self._failures = 0
        self._loads = 0
        self._not_before = 0.0
        self._saving: asyncio.Task[None] | None = None

    async def load(self, build: Callable[[Iterable[bytes]], T]) -> Restored[T] | None:
        """The state from the newest usable snapshot; None: fold the ledger from its beginning.

        Raises nats errors, TimeoutError and OSError when the broker is away: to be asked again, as for the ledger itself.
        A store that does not answer while the ledger can be read is given up after three times.
        """
        found: Restored[T] | None = None
        began = asyncio.get_running_loop().time()
        try:
            found = await self._store.load(self._name, self._version, build)
        except ConnectionClosedError:
            raise
        except NotFoundError as error:
            log.error("snapshots of %s cannot be loaded: there is no store for them: %r", self._name, error)
            self.counters.unusable += 1
        except UNAVAILABLE as error:
            self._loads += 1
            if self._loads < _LOADS or not await self._store.ledger_answers():
                raise
            log.error("snapshots of %s cannot be loaded, the ledger is folded instead: %r", self._name, error)
            self.counters.unusable += 1
        self._loads = self._events = self._bytes = 0
        self.stored = self._position = found.position if found is not None else 0
        if found is not None:
            self._rest(began)  # the others on this machine are starting, too
        return found

    async def newest(self) -> int:
        """The position of the newest snapshot that there is, whoever saved it; 0: none. Raises nats errors."""
        return await self._store.newest(self._name, self._version)

    def folded(self, events: int, size: int = 0) -> None:
        """So many more are in the state, of a record of so many bytes."""
        self._events += events
        self._bytes += size
        self._folded_s = asyncio.get_running_loop().time()

    def due(self, position: int) -> bool:
        """Whether the state at `position` should be saved now."""
        if self._saving is not None and not self._saving.done():
            return False
        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            return False
        records = position - self._position
        events = _EVENTS_AT_REST if now - self._folded_s >= _REST_S else _EVENTS
        return records >= (1 if self._failures else self._every) or (
            records > 0 and (self._events >= events or self._bytes >= _BYTES)
        )

    async def save(self, head: Head, position: int, parts: Iterable[Part]) -> None:
        """Encodes `parts`, which must not change meanwhile, and stores them in the background. Raises nothing."""
        began = self._begin(position)
        try:
            packed = await pack(parts)
        except Exception as error:
            self._failed(position, error)
            return
        self._rest(began)
        self._saving = asyncio.create_task(self._put(head, position, packed), name=f"snapshot of {self._name}")

    def start(self, head: Head, position: int, parts: Iterable[Part]) -> None:
        """Encodes and stores `parts` in the background: of a state that may change meanwhile (copy on write)."""
        began = self._begin(position)

        async def both() -> None:
            try:
                async with asyncio.timeout(_LONGEST_S):
                    packed = [await pack(parts)]
            except Exception as error:
                self._failed(position, error)
            else:
                await self._put(head, position, packed.pop())
            self._rest(began)

        self._saving = asyncio.create_task(both(), name=f"snapshot of {self._name}")

    async def distrust(self) -> None:
        """Drops the snapshots, because a record did not fit the state: the next start folds the log, which shows whether
        the state was wrong or the ledger is. Raises nothing."""
        await self.close()
        self.stored = 0
        try:
            await self._store.forget(self._name, self._version)
        except Exception as error:
            log.warning("snapshots of %s are still there: %r", self._name, error)

    async def close(self) -> None:
        """A snapshot that is half stored is dropped: the other slot is whole."""
        saving, self._saving = self._saving, None
        if saving is not None:
            await cancel(saving)

    def _begin(self, position: int) -> float:
        self._position, self._events, self._bytes = position, 0, 0
        return asyncio.get_running_loop().time()

    def _rest(self, began: float) -> None:
        now = asyncio.get_running_loop().time()
        self._not_before = max(self._not_before, now + (now - began) * _SHARE)

    async def _put(self, head: Head, position: int, packed: PackedState) -> None:
        try:
            async with asyncio.timeout(_LONGEST_S):
                await self._store.put(self._name, self._version, head, position, packed)
        except Exception as error:
            self._failed(position, error)
        else:
            self.counters.saved += 1
            self._failures = 0
            self.stored = position
        size = len(packed.stream)
        del packed
        if size > _MUCH_BYTES:
            await asyncio.to_thread(give_back)

    def _failed(self, position: int, error: Exception) -> None:
        self.counters.failed += 1
        pause_s = _RETRY_S[min(self._failures, len(_RETRY_S) - 1)]
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + pause_s
        expected = isinstance(error, NatsError | TimeoutError | OSError)
        log.warning(
            "%s: no snapshot at %d, the next try is in %g s: %r", self._name, position, pause_s, error,
            exc_info=None if expected else error,
        )  # fmt: skip
