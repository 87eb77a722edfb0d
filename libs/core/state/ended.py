"""Ids of ended jobs, whose client keys are still taken. Bounded in time and in memory.

A job that has not ended is in `State.jobs`. An ended job leaves the state, but its request may come again: a client repeats
it, or admission reads REQUESTS a second time. So its id stays here for `KEPT_US` after the job's end. Requests that the
broker stored before `oldest_us` are refused without a look, because their ids may be forgotten. All readers of one ledger
keep the same ids and refuse from the same moment, so no request can enter twice, however late it is.

The naive dict (id -> hash, for ever) takes 250 bytes per job. Here an id is two integers in an open hash table: 96 bits
of the id (a UUID of version 5, so 90 of them are a hash) and 32 bits of its body's digest, 16 bytes in all. Two ids are
mistaken for one with a probability of 1 in 2**90, two bodies of one id with 1 in 2**32. Tables are filled one after the
other, each by the ends of one UTC day, and are dropped as a whole: so an id stays for up to a day longer than `KEPT_US`.

At the bound (`MAX_SLOTS`) the oldest table is dropped early. The window is shorter then: `oldest_us` moves with it, and
`window_us` tells (metric `baton_client_key_window_seconds`). Nothing enters twice, but late repeats are refused earlier.
"""

from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

DAY_US = 86_400_000_000
KEPT_US = 7 * DAY_US
"""How long a client key names its job after the job's end. Longer than REQUESTS keeps messages (libs.bus.table), so
that a request is refused for its age only if the window had to shrink."""
MAX_SLOTS = 1 << 24
"""16 bytes each: 268 MB per process that keeps them, whatever happens in a year. Tables are filled to three quarters, so
this is 12 million ended jobs: 20 a second for seven days, or 300 a second for 11 hours."""

_FIRST_SLOTS = 1 << 10
_TABLE_SLOTS = 1 << 19
"""One table at the most: 8 MB, so that making one takes a few milliseconds."""
_SLICE = 1 << 15
_HOUR_US = 3_600_000_000
_WORD = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
class IdTable:
    """An open hash table of ids that ended on one day. Only the newest one changes. Empty slots are 0."""

    day: int
    slots: int
    last_us: int
    """When the newest of them ended."""
    count: int = 0
    keys: "array[int]" = field(default_factory=lambda: array("Q"))
    """The last 64 bits of each id."""
    rests: "array[int]" = field(default_factory=lambda: array("Q"))
    """The 32 bits of the id before them, then 32 bits of the body's digest."""

    @classmethod
    def empty(cls, day: int, slots: int) -> "IdTable":
        return cls(day, slots, -1, 0, array("Q", bytes(8 * slots)), array("Q", bytes(8 * slots)))

    def find(self, key: int, tag: int) -> int:
        """The slot of an id, or the empty one where it would go."""
        mask, keys, rests = self.slots - 1, self.keys, self.rests
        slot = key & mask
        while (there := keys[slot]) and not (there == key and rests[slot] >> 32 == tag):
            slot = (slot + 1) & mask
        return slot

    def copy(self) -> "IdTable":
        return IdTable(self.day, self.slots, self.last_us, self.count, self.keys[:], self.rests[:])


class EndedJobs:
    """Ids of ended jobs with digests of their bodies. Time is the ledger's, microseconds since the epoch."""

    def __init__(self, max_slots: int = MAX_SLOTS) -> None:
        self.tables: list[IdTable] = []
        """Oldest first."""
        self.forgotten_us = -1
        """The newest end that a dropped table held."""
        self._max_slots = max_slots

    def add(self, job_id: str, spec_hash: str, t_us: int) -> None:
        """The job ended at `t_us`."""
        key, tag = _parts(job_id)
        table = self._open(t_us)
        slot = table.find(key, tag)
        table.count += not table.keys[slot]
        table.keys[slot], table.rests[slot] = key, tag << 32 | _body(spec_hash)
        table.last_us = t_us

    def same(self, job_id: str, spec_hash: str, t_us: int) -> bool | None:
        """Whether the ended job of that id had this body; None when none is known at `t_us`."""
        rest = self._rest(job_id, t_us)
        return None if rest is None else rest & 0xFFFF_FFFF == _body(spec_hash)

    def knows(self, job_id: str, t_us: int) -> bool:
        return self._rest(job_id, t_us) is not None

    def oldest_us(self, t_us: int) -> int:
        """Requests that the broker stored before this may have run already and be forgotten: refuse them."""
        return max(t_us - KEPT_US, self.forgotten_us + 1, 0)

    def window_us(self, t_us: int) -> int:
        """How far back ids are known at `t_us`: `KEPT_US`, or less when the bound was reached."""
        return min(KEPT_US, t_us - self.forgotten_us - 1)

    def __len__(self) -> int:
        return sum(table.count for table in self.tables)

    def __contains__(self, job_id: str) -> bool:
        """Whether the id is still kept, whatever the time."""
        return self.knows(job_id, 0)

    def copy(self) -> "EndedJobs":
        """As it is now. Shares all but the newest table, for no other changes."""
        other = EndedJobs(self._max_slots)
        other.tables, other.forgotten_us = self.tables[:-1], self.forgotten_us
        other.tables += [table.copy() for table in self.tables[-1:]]
        return other

    def dump(self) -> Iterator[tuple[list[int], bytes]]:
        """Slices of each table with the table's numbers, half a megabyte each; the first pair is of no table and says
        what was forgotten."""
        yield [self.forgotten_us], b""
        for t in self.tables:
            for start in range(0, t.slots, _SLICE):
                slots = slice(start, start + _SLICE)
                yield [t.day, t.slots, t.last_us, t.count, start], t.keys[slots].tobytes() + t.rests[slots].tobytes()

    def rows(self) -> Iterator[list[Any]]:
        """What `dump` gives, as rows of JSON."""
        return ([numbers, b64encode(data).decode()] for numbers, data in self.dump())

    @classmethod
    def of_rows(cls, rows: Iterable[list[Any]]) -> "EndedJobs":
        """The inverse of `rows`."""
        return cls.load((numbers, b64decode(data)) for numbers, data in rows)

    @classmethod
    def load(cls, parts: Iterable[tuple[list[int], bytes]]) -> "EndedJobs":
        """The inverse of `dump`."""
        ended = cls()
        for numbers, data in parts:
            if len(numbers) == 1:
                ended.forgotten_us = numbers[0]
                continue
            day, slots, last_us, count, start = numbers
            if start == 0:
                ended.tables.append(IdTable(day, slots, last_us, count))
            table = ended.tables[-1]
            table.keys.frombytes(data[: len(data) // 2])
            table.rests.frombytes(data[len(data) // 2 :])
        return ended

    def _rest(self, job_id: str, t_us: int) -> int | None:
        key, tag = _parts(job_id)
        for table in reversed(self.tables):
            if table.last_us < t_us - KEPT_US:
                return None
            slot = table.find(key, tag)
            if table.keys[slot]:
                return table.rests[slot]
        return None

    def _open(self, t_us: int) -> IdTable:
        """The table to fill. A new one is four times the last of its day, so a quiet day costs little room."""
        day, last = t_us // DAY_US, self.tables[-1] if self.tables else None
        if last is not None and last.day == day and last.count < last.slots * 3 // 4:
            return last
        slots = min(_TABLE_SLOTS, last.slots * 4) if last is not None and last.day == day else _FIRST_SLOTS
        room = sum(table.slots for table in self.tables) + slots
        while self.tables and (room > self._max_slots or self.tables[0].last_us < t_us - KEPT_US):
            gone = self.tables.pop(0)
            room -= gone.slots
            self.forgotten_us = gone.last_us
        self.tables.append(IdTable.empty(day, slots))
        return self.tables[-1]


def too_old(submitted_us: int, t_us: int, ended: EndedJobs) -> str:
    """Why a request that was stored before `oldest_us` is refused."""
    age_h, limit_h = (t_us - submitted_us) / _HOUR_US, ended.window_us(t_us) / _HOUR_US
    return (
        f"the request was stored {age_h:.1f} hours ago, and client keys are remembered for {limit_h:.1f} hours: "
        f"it may have run already"
    )


def _parts(job_id: str) -> tuple[int, int]:
    """The last 96 bits of an id: the 64 that find its slot (never 0), and 32 more to tell it from others."""
    value = int(job_id[-24:], 16)
    return value & _WORD or 1, value >> 64


def _body(spec_hash: str) -> int:
    return int.from_bytes(sha256(spec_hash.encode()).digest()[:4])
