"""The archive of the ledger in the simulation: operators who roll, archive, delete and restore, and who looks at what they do.

The files are real ones, in a folder of the world's own, written and read by `libs.ledger.archive`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nats.js.errors import APIError

from libs.bus.connect import connect
from libs.bus.retry import UNAVAILABLE
from libs.bus.table import READERS, READERS_BUCKET
from libs.ledger.archive import AlreadyThere, NotArchived, archive, files_of, path_of, restore
from libs.ledger.export import BadLedgerFile, LedgerFile
from libs.ledger.readers import Declared, Readers, process_name_of
from libs.ledger.rolling import ask_to_roll
from libs.ledger.segments import SegmentState, first_of
from libs.service.app import Tasks
from schemas import subjects

if TYPE_CHECKING:
    from libs.simulation.dst.stream import Stream
    from libs.simulation.dst.world import World

_UNDISTURBED_S = 12.0
"""Nobody deletes so soon after something was put back: longer than readers' declarations are apart."""
_ROLLS_S = 20.0
"""Until then operators ask for new segments."""


@dataclass(slots=True)
class SimArchive:
    """The folder, and what must hold of it: no segment is gone before its file has it, byte for byte, and before all readers
    that were declared when its deletion began have passed it. Whether others have, shows when one needs what is gone.

    `wanted`: a reader has found that what it needs is archived. `done_at`: when a run began that came to its end."""

    world: "World"
    pool: str
    wanted: bool = False
    done_at: float = -1.0
    deleted: int = 0
    undisturbed_until: float = 0.0
    state_lost: bool = False
    """A store has lost what readers had saved there: they may need what they had passed."""
    runs: dict[int, tuple[float, dict[str, int]]] = field(default_factory=dict)
    """Archivists at work -> when it began, and who had declared what at that moment."""

    @property
    def folder(self) -> Path:
        return self.world.folder / "archive"

    def declarations(self) -> dict[str, int]:
        """Reader -> behind which record it would go on after a restart."""
        found: dict[str, int] = {}
        stream = self.world.disk.streams[f"KV_{READERS_BUCKET}"]
        for seqs in stream.by_subject.values():
            kept = stream.messages[seqs[-1]]
            if kept.data and "KV-Operation" not in (kept.headers or {}):
                one = Declared.model_validate_json(kept.data)
                found[one.key] = one.resume
        return found

    def deleting(self, stream: "Stream") -> None:
        """A stream is about to be deleted."""
        first = first_of(self.pool, stream.name)
        if first is None or not stream.messages:
            return
        what = subjects.what_of(stream.config["subjects"][0])
        if what == SegmentState.RESTORING:
            return
        last, world = stream.last_seq, self.world
        world.sometimes("a segment was deleted")
        self.deleted += 1
        if what != SegmentState.SEALED:
            world.violated("L1", f"{stream.name} is deleted and not sealed")
        try:
            file = {one.seq: one.payload for one in LedgerFile(path_of(self.folder, self.pool, first, last))}
        except (OSError, BadLedgerFile) as error:
            world.violated("L1", f"{stream.name} is deleted and not archived: {error!r}")
            return
        if file != {kept.seq: kept.data for kept in stream.messages.values()}:
            world.violated("L1", f"{stream.name} is deleted, and its file says something else")
        if world.offset_of("broker"):
            return  # declarations expire by its clock
        now = self.declarations()
        for began, declared in self.runs.values():
            for key, resume in declared.items():
                if (
                    max(resume, now.get(key, last)) < last
                ):  # else it has declared itself anew meanwhile, or was forgotten
                    world.violated("L2", f"{stream.name} is deleted: {key} resumed at {resume} at {began:.2f}")

    def look(self) -> None:
        """At rest: what is in no segment is in files that fit together."""
        firsts = [first_of(self.pool, name) for name in self.world.disk.streams]
        kept_from = min(first for first in firsts if first is not None)
        files = files_of(self.folder, self.pool)
        try:
            read = [(file.start.first_seq, file.start.head, _end(file)) for file in map(LedgerFile, files)]
        except BadLedgerFile as error:
            self.world.violated("L1", f"an archived segment cannot be read: {error}")
            return
        for (_, _, before), (_, head, _) in pairwise(read):
            if before != head:
                self.world.violated("L1", f"archived segments do not follow each other: {before} and {head}")
        covered = {seq for first, _, end in read for seq in range(first, end.seq + 1)}
        if missing := set(range(1, kept_from)) - covered:
            self.world.violated("L1", f"records {min(missing)} to {max(missing)} are nowhere")

    def rot(self) -> None:
        """A file changes on its disk while nobody is at work, and its segment is still there."""
        present = [path for path in files_of(self.folder, self.pool) if self._still_there(path)]
        if present and not self.runs:
            path = self.world.random.choice(present)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            self.world.note(f"{path.name} is damaged")
            self.world.sometimes("an archived segment was damaged")

    def _still_there(self, path: Path) -> bool:
        """Whether the broker has the segment whole, and not just what a restore has put back so far."""
        first = int(path.name.split(".")[0].split("-")[-2])
        return any(
            first_of(self.pool, name) == first
            and subjects.what_of(stream.config["subjects"][0]) != SegmentState.RESTORING
            for name, stream in self.world.disk.streams.items()
        )

    def throw_away(self) -> None:
        """An operator removes files that were found to be damaged."""
        for path in files_of(self.folder, self.pool):
            try:
                _end(LedgerFile(path))
            except BadLedgerFile:
                if self._still_there(path):
                    path.unlink()
                else:
                    self.world.violated("L1", f"{path.name} is damaged, and its segment was deleted")


def _end(file: LedgerFile) -> Any:
    for _ in file:
        pass
    return file.head


class Archivist:
    """`baton ledger roll`, `archive --delete` and, when a reader asks for it, `restore`, again and again."""

    def __init__(self, world: "World", held: SimArchive, number: int) -> None:
        self._world, self._held, self._number = world, held, number
        running = {name.partition("-")[0] for name in world.services}
        self._absent = [name for service, names in READERS.items() if service not in running for name in names]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._held.runs.pop(self._number, None)
        nats = await connect("sim://broker", name=f"archivist-{self._number}", die_on_close=True)
        tasks = Tasks()
        async with tasks.until_stopped():
            tasks.start("archivist", self._work(nats.jetstream()))
            yield

    async def _work(self, js: Any) -> None:
        chance = self._world.hidden
        while True:
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            try:
                if chance.random() < 0.5 and self._world.loop.now < _ROLLS_S:
                    await ask_to_roll(js, self._held.pool)
                await self._run(js)
            except (BadLedgerFile, NotArchived) as error:
                self._world.note(f"archivist-{self._number}: {type(error).__name__}")
                self._held.throw_away()
            except UNAVAILABLE as error:
                self._world.note(f"archivist-{self._number}: {type(error).__name__}")
            finally:
                self._held.runs.pop(self._number, None)

    async def _run(self, js: Any) -> None:
        held, now = self._held, self._world.loop.now
        if held.wanted:
            await self._restore(js)
            return
        await self._forget_dead(js)
        held.runs[self._number] = now, held.declarations()
        resumes = (
            None if now < held.undisturbed_until else partial(Readers(js).resumes, held.pool, without=self._absent)
        )
        for one in await archive(js, held.pool, held.folder, resumes=resumes):
            self._world.sometimes("segments were archived")
            self._world.note(f"{one.segment.name} is archived, {one.kept or 'deleted'}")
        held.done_at = max(held.done_at, now)

    async def _restore(self, js: Any) -> None:
        held = self._held
        held.undisturbed_until = self._world.loop.now + 2 * _UNDISTURBED_S
        for path in reversed(files_of(held.folder, held.pool)):
            try:
                await restore(js, held.pool, path)
                self._world.sometimes("an archived segment was restored")
            except AlreadyThere:
                continue
            except APIError as error:
                self._world.note(f"{path.name} is not restored: {error}")
                raise
        held.wanted = False
        held.undisturbed_until = self._world.loop.now + _UNDISTURBED_S

    async def _forget_dead(self, js: Any) -> None:
        """Of processes that are no more, where another of the same name has declared itself: an operator knows which are."""
        readers = Readers(js)
        declared = await readers.declared(self._held.pool)
        slots = self._world.services.values()
        alive = {process_name_of(s.process.name) for s in slots if s.process is not None and s.process.alive}
        living = {one.name for one in declared if one.process in alive}
        for one in declared:
            if one.process not in alive and one.name in living:
                await readers.forget(one)
