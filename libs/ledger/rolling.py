"""Rolls a pool's ledger into its next segment: by whoever writes it, in steps of which each may be the last before a crash.

    stage     a stream for the next segment, which no subject of the ledger reaches yet: now there surely is room for it
    seal      the writer commits a record that says `segment.sealed` (an append like any other, refused if another one wrote)
    finish    the broker seals the old stream; the staged one takes records from now on

Before the seal nothing has happened: a staged stream is empty, and stays for the next try or is deleted. After it the rest is
done by whoever folds the ledger next, any number of times and by several at once: each step looks first. A staged stream may be
deleted only when the record before its first one is known and is no seal: then it can never become the next segment, whoever
made it. The record is looked at, not the list of streams alone: a server that was away may list as staged what is long open.
"""

import logging

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo
from nats.js.errors import APIError, BadRequestError, NotFoundError

from libs.bus.table import SEGMENT_BYTES
from libs.bus.trim import fill_of
from libs.ledger.segments import (
    NotOpenYet,
    Segment,
    SegmentState,
    as_sealed,
    is_seal,
    name_of,
    readable,
    records_of,
    segments,
    stored_at,
)
from schemas import subjects

log = logging.getLogger("baton.ledger")

ROLL_AT = 0.8
"""Of the open segment's size. The rest is for when there is no room for another."""

ASKED = "baton-roll"
"""A mark on the open stream's metadata: an operator asks to roll now (`baton ledger roll`)."""

SEAL_BYTES = 8 * 1024
"""What a seal may take: a full segment gets so much more."""

_LOOK_BYTES = 32 * 1024
IN_USE = (10058, 10065)  # the stream's name, or its subject, is taken


async def ask_to_roll(js: JetStreamContext, pool: str) -> Segment:
    """Marks the open segment: its writer is to begin the next one. Returns it.

    Raises `NotOpenYet` in the middle of a roll: it is asked for in vain, as one has just begun; and nats errors.
    """
    last = (await readable(js, pool))[-1]
    config = (await js.stream_info(last.name)).config
    if config.sealed:
        raise NotOpenYet(f"{last.name} is sealed, and the next segment is not open yet")
    try:
        await js.update_stream(config.evolve(metadata={ASKED: "1"}))
    except APIError as error:
        if (await js.stream_info(last.name)).config.sealed:
            raise NotOpenYet(f"{last.name} was sealed meanwhile") from error
        raise
    return last


class Rolling:
    """Of one pool's ledger. `open` is the stream that takes records, on `subject`, as far as is known."""

    def __init__(self, js: JetStreamContext, pool: str) -> None:
        self.open = subjects.ledger_stream(pool)
        self.subject = subjects.ledger(pool)
        self._js = js
        self._pool = pool
        self._since = 0  # bytes written since it was looked at
        self._enough = 0

    def wrote(self, size: int) -> bool:
        """Notes a record; whether so much was written that the open segment should be looked at."""
        self._since += size
        return self._since >= self._enough

    async def look(self) -> bool:
        """Whether the open segment is full enough for a roll. Raises nats errors."""
        return self.due(await self._js.stream_info(self.open))

    def due(self, info: StreamInfo) -> bool:
        """Whether the open segment, as it is now, should be the last but one."""
        left = int((info.config.max_bytes or 0) * ROLL_AT) - info.state.bytes
        self._since, self._enough = 0, max(_LOOK_BYTES, left // 4)
        asked = ASKED in (info.config.metadata or {})
        return info.state.messages > 0 and (asked or fill_of(info) >= ROLL_AT)

    async def settle(self, head_seq: int, position: int) -> None:
        """Does what is left of a roll, if the ledger's last valid record, `head_seq`, is a seal; then knows the open stream.
        `position` is the last sequence that was read. Raises nats errors."""
        if head_seq and is_seal(await stored_at(self._js, self._pool, head_seq) or b""):
            await self.finish(head_seq)
        else:
            await self._forget_dead(position)
        last = (await readable(self._js, self._pool))[-1]
        self.open, self.subject = last.name, last.subject

    async def stage(self, first: int) -> bool:
        """Makes room for the segment that would begin with `first`, and for the seal before it; whether there is any. Raises
        nats errors when the broker is away."""
        await self._forget_dead(first - 2)
        try:
            old = await self._js.stream_info(self.open)
            await self._make(old.config, first)
            most = old.config.max_bytes or 0
            if 0 < most < old.state.bytes + SEAL_BYTES:
                await self._js.update_stream(old.config.evolve(max_bytes=old.state.bytes + SEAL_BYTES))
        except APIError as error:
            log.error("ledger of pool %s: no room for its next segment: %s", self._pool, error.description)
            return False
        return True

    async def finish(self, seal_seq: int) -> None:
        """The segment behind the seal is open, and the sealed one takes nothing more. Raises nats errors."""
        found = {segment.first: segment for segment in await segments(self._js, self._pool)}
        first = seal_seq + 1
        if first in found and found[first].kept:  # long ago, perhaps: it may be sealed itself
            last = max((s for s in found.values() if s.kept), key=lambda s: s.first)
            self.open, self.subject = last.name, last.subject
            return
        before = [s for s in found.values() if s.first <= seal_seq and s.kept]
        old = max(before, key=lambda s: s.first)
        config = (await self._js.stream_info(old.name)).config
        if first not in found:
            await self._make(config, first)
        if old.state is SegmentState.OPEN:
            await self._seal(config, old)
        await self._open(first)
        self.open, self.subject = name_of(self._pool, first), records_of(self._pool, first)
        log.info("ledger of pool %s goes on in %s", self._pool, self.open)

    async def _make(self, old: StreamConfig, first: int) -> None:
        config = old.evolve(
            name=name_of(self._pool, first),
            subjects=[subjects.segment("staged", self._pool, first)],
            first_seq=first,
            sealed=False,
            max_bytes=min(old.max_bytes or SEGMENT_BYTES, SEGMENT_BYTES),
            metadata=None,
        )
        try:
            await self._js.add_stream(config)
        except BadRequestError as error:
            if error.err_code not in IN_USE:  # made before, by us or by another writer
                raise

    async def _seal(self, config: StreamConfig, old: Segment) -> None:
        """One change of the stream."""
        await self._js.update_stream(as_sealed(config, self._pool, old.first, old.bytes))

    async def _open(self, first: int) -> None:
        config, wanted = (
            (await self._js.stream_info(name_of(self._pool, first))).config,
            [records_of(self._pool, first)],
        )
        if config.subjects != wanted:
            await self._js.update_stream(config.evolve(subjects=wanted))

    async def _forget_dead(self, position: int) -> None:
        """Deletes staged segments that can never be opened: the record before their first is there, and is no seal."""
        for segment in await segments(self._js, self._pool):
            if segment.state is SegmentState.STAGED and segment.first - 1 <= position:
                before = await stored_at(self._js, self._pool, segment.first - 1)
                if before is None or is_seal(before):
                    continue
                try:
                    await self._js.delete_stream(segment.name)
                except (NotFoundError, NatsError) as error:
                    log.warning("ledger of pool %s: %s is still there: %r", self._pool, segment.name, error)
