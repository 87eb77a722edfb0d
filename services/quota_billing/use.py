"""Keeps hourly allocated and used capacity in MongoDB, beyond restarts and the broker's retention of samples (an hour).

Postings come from the meter, samples from the stream TELEMETRY, times only from the broker: the newest record or
sample. Waits for an unreachable store, and computes unwritten slots again."""

import logging
from itertools import chain

from nats.js import JetStreamContext

from libs.adapters.mongo.use import UseStore
from libs.bus.retry import run_periodically
from libs.core.billing.metering import Meter
from libs.core.billing.use_hours import (
    SAMPLES_IN_US,
    SETTLED_US,
    SLOT_US,
    SLOTS,
    Rows,
    UseHour,
    has_slot,
    in_slots,
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
"""The most team-hours processed in one turn: a day of absence."""
_LOST_US = 24 * HOUR_US
"""After a longer absence older slots are skipped: their postings are gone."""
_SET_BACK_US = 600_000_000
"""A step back of time beyond this is no late sample: the broker's clock was set back."""


class UseKeeper:
    """`run` is a task. Memory: a sample per device and 15 s of unsettled time, and the meter's postings for the same
    time."""

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
        """Start of the time with all samples read. 0: from the first stored sample. None: from the next one."""
        self._settled: int | None = None
        self._failed = False
        """The last turn failed."""
        self._forgot_hour = 0

    @property
    def samples(self) -> int:
        """Number of samples in memory."""
        return sum(map(len, self._readings.values()))

    async def run(self) -> None:
        """Runs until cancelled. Raises ConnectionClosedError."""
        await self._follower.caught_up.wait()
        try:
            await run_periodically(self.turn, self._every_s, log, "use is not kept in MongoDB")
        finally:
            if self._tail is not None:
                await self._tail.close()

    async def turn(self) -> None:
        """Reads new samples and saves slots that have ended. Raises StoreAway, and errors of the broker's client."""
        await self._reach_store()
        await self._read()
        meter = self._follower.projection
        now_us = max(self._sampled_us, meter.wall_us)
        ended, settled = (now_us - SAMPLES_IN_US) // SLOT_US, (now_us - SETTLED_US) // SLOT_US
        # By a sample or a record that was heard. Both last longer than what is stored: who begins anew finds later ones.
        seen_us = max(self._seen_us, (self._settled or 0) * SLOT_US if self._sampled_us else 0)
        if now_us < seen_us - _SET_BACK_US:
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
        """Checks the store before reading. Without it, samples would fill memory; the broker keeps them for an hour,
        then drops them."""
        if self._settled is None:
            await self._store.prepare()
            self._settled = await self._store.settled()
        elif self._failed:
            await self._store.save((), self._settled)
        self._failed = True

    def _go_back(self, now_us: int, settled: int) -> None:
        """Handles a clock that was set back: computes its slots again where the hour is not settled. Otherwise nothing
        would be saved, and every sample kept, until the old time is reached again."""
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
                if not has_slot(known, slot) or (self._since_us is not None and slot * SLOT_US >= self._since_us):
                    kept[team, hour] = with_slot(known, slot, teams.get(team, {}))
        hours = {key: whole(hour) if (hour.hour + 1) * SLOTS <= settled else hour for key, hour in kept.items()}
        await self._store.save((hour for key, hour in hours.items() if hour != before.get(key)), settled)

    async def _read(self) -> None:
        """Reads all available samples. Those that the broker has dropped stay unknown."""
        state = (await self._js.stream_info(TELEMETRY)).state
        before_first = max(0, state.first_seq - 1)  # 0 for a stream that never had a message
        if self._tail is None or before_first > self._read_to or state.last_seq < self._read_to:
            if self._tail is not None:
                await self._tail.close()
            self._read_to = before_first
            self._tail = Tail(self._js, TELEMETRY, self._read_to)
            self._since_us = 0 if state.first_seq <= 1 else None
        while self._read_to < state.last_seq:
            try:
                found = await self._tail.messages(min(_READ, state.last_seq - self._read_to), 1.0)
            except LedgerStopped:  # the next message was dropped meanwhile
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
        """Drops readings of settled time, except each device's last: the next reading starts there."""
        for device, readings in list(self._readings.items()):
            late = [reading for reading in readings if reading.at_us >= before_us - SLOT_US]
            if late:
                self._readings[device] = late
            else:
                del self._readings[device]
