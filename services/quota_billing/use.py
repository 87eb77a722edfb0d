"""Keeps what was allocated and used, hour by hour, in MongoDB, so that it outlives the broker's samples (an hour) and restarts.

Postings come from the meter, samples from the stream TELEMETRY, times from the broker alone: of the newest record or sample. A
store that is away is waited for, and what is unwritten meanwhile is made again."""

import logging
from itertools import chain

from nats.js import JetStreamContext

from libs.adapters.mongo.use import UseStore
from libs.bus.retry import run_periodically
from libs.core.billing.metering import Meter
from libs.core.billing.use_hours import (
    SETTLED_US,
    SLOT_US,
    SLOTS,
    TOLD_US,
    Rows,
    UseHour,
    in_slots,
    is_told,
    whole,
    with_slot,
)
from libs.core.billing.used import Reading, reading_of
from libs.core.billing.wall import HOUR_US
from libs.ledger.chain import LedgerStopped
from libs.ledger.follower import Follower
from libs.ledger.samples import SampleAllowance, told_by
from libs.ledger.tail import Tail
from schemas.subjects import TELEMETRY

log = logging.getLogger("baton.quota_billing")

_READ = 256
_MOST_HOURS = 100_000
"""Of teams, that are looked at in one turn: of a day, after an absence."""
_LOST_US = 24 * HOUR_US
"""Of an absence that was longer, nothing is told: its postings are not kept."""
_SET_BACK_US = 600_000_000
"""Time that goes back by so much is no sample that came late: the broker's clock was set back."""


class UseKeeper:
    """`run` is a task. Memory: a sample of each device and 15 s of the time that has not settled, and postings that the meter
    keeps as long."""

    def __init__(
        self, follower: Follower[Meter], js: JetStreamContext, store: UseStore, *, every_s: float, keep_days: int
    ) -> None:
        self._follower, self._js, self._store, self._every_s = follower, js, store, every_s
        self._keep_hours = 24 * keep_days
        self._readings: dict[tuple[str, str], list[Reading]] = {}
        self._allowance = SampleAllowance()
        self._tail: Tail | None = None
        self._read_to = 0
        self._sampled_us = self._seen_us = 0
        self._since_us: int | None = 0
        """From when on all samples were read; 0: from the first one that there was; None: from the next one."""
        self._settled: int | None = None
        self._failed = False
        """The last turn did not come to its end."""
        self._forgot_hour = 0

    @property
    def samples(self) -> int:
        """In memory."""
        return sum(map(len, self._readings.values()))

    async def run(self) -> None:
        """For ever. Raises ConnectionClosedError."""
        await self._follower.caught_up.wait()
        try:
            await run_periodically(self.turn, self._every_s, log, "use is not kept in MongoDB")
        finally:
            if self._tail is not None:
                await self._tail.close()

    async def turn(self) -> None:
        """Reads new samples, and tells the slots that have ended. Raises StoreAway, and what the broker's client raises."""
        await self._reach_store()
        await self._read()
        meter = self._follower.projection
        now_us = max(self._sampled_us, meter.wall_us)
        ended, settled = (now_us - TOLD_US) // SLOT_US, (now_us - SETTLED_US) // SLOT_US
        if now_us < self._seen_us - _SET_BACK_US:
            self._go_back(now_us, settled)
        self._seen_us = now_us
        first = max(self._settled or 0, (now_us - _LOST_US) // SLOT_US, 0)
        if ended <= first:
            self._failed = False
            return
        async with self._follower.still():
            postings = list(chain(meter.recent_postings(), meter.open_postings(ended * SLOT_US)))
        await self._save(in_slots(postings, self._readings, first, ended), max(first, settled))
        self._settled, self._failed = max(first, settled), False
        meter.forget_postings(self._settled * SLOT_US)
        self._drop(self._settled * SLOT_US)
        if self._settled // SLOTS > self._forgot_hour:
            await self._store.forget(self._settled // SLOTS - self._keep_hours)
            self._forgot_hour = self._settled // SLOTS

    async def _reach_store(self) -> None:
        """Before anything is read. Samples of a store that takes nothing would fill the memory: until then they lie with the
        broker, which drops them after an hour."""
        if self._settled is None:
            await self._store.prepare()
            self._settled = await self._store.settled()
        elif self._failed:
            await self._store.save((), self._settled)
        self._failed = True

    def _go_back(self, now_us: int, settled: int) -> None:
        """The clock shows again what it has shown: its slots are told anew, where their hours are not whole. Otherwise nothing
        would be told, and every sample kept, until it is as late as it was."""
        self._settled = min(self._settled or 0, max(settled, 0))
        self._forgot_hour = min(self._forgot_hour, self._settled // SLOTS)
        for device, readings in list(self._readings.items()):
            self._readings[device] = [reading for reading in readings if reading.at_us <= now_us]

    async def _save(self, slots: dict[int, dict[str, Rows]], settled: int) -> None:
        first, last = min(slots) // SLOTS, max(slots) // SLOTS + 1
        before = {(h.team, h.hour): h for h in await self._store.hours(None, first, last, limit=_MOST_HOURS)}
        kept = dict(before)
        for slot, teams in slots.items():
            hour = slot // SLOTS
            for team in teams.keys() | {name for name, of in kept if of == hour}:
                known = kept.get((team, hour)) or UseHour(team, hour, {})
                if not is_told(known, slot) or (self._since_us is not None and slot * SLOT_US >= self._since_us):
                    kept[team, hour] = with_slot(known, slot, teams.get(team, {}))
        told = {key: whole(hour) if (hour.hour + 1) * SLOTS <= settled else hour for key, hour in kept.items()}
        await self._store.save((hour for key, hour in told.items() if hour != before.get(key)), settled)

    async def _read(self) -> None:
        """All samples that are there. What the broker has dropped already is unknown."""
        state = (await self._js.stream_info(TELEMETRY)).state
        before_first = max(0, state.first_seq - 1)  # of a stream in which nothing ever was, 0 is the first
        if self._tail is None or before_first > self._read_to or state.last_seq < self._read_to:
            if self._tail is not None:
                await self._tail.close()
            self._read_to = before_first
            self._tail = Tail(self._js, TELEMETRY, self._read_to)
            self._since_us = 0 if state.first_seq <= 1 else None
        while self._read_to < state.last_seq:
            try:
                found = await self._tail.messages(min(_READ, state.last_seq - self._read_to), 1.0)
            except LedgerStopped:  # what was next has been dropped meanwhile
                await self._tail.close()
                self._tail = None
                return
            if not found:
                return
            self._read_to = found[-1].seq
            if self._since_us is None:
                self._since_us = found[0].time_us
            for at_us, sample in told_by(found, self._follower.pool, self._allowance):
                self._sampled_us = at_us
                for one in sample.devices:
                    self._readings.setdefault((sample.node, one.device), []).append(reading_of(at_us, one))

    def _drop(self, before_us: int) -> None:
        """Readings of what has settled, but for the last one of each device: the next one speaks since then."""
        for device, readings in list(self._readings.items()):
            late = [reading for reading in readings if reading.at_us >= before_us - SLOT_US]
            if late:
                self._readings[device] = late
            else:
                del self._readings[device]
