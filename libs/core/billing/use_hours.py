"""Hourly sums of allocated and used capacity for storage: `libs.core.billing.used` over slots of five minutes.

A slot is computed when its samples are there, and again until `SETTLED_US` after its end, so that late decisions of the
ledger and late samples are included. It is a function of postings and samples, and a new result replaces the old, so
computing it twice, or after a restart, changes nothing. A slot without samples is all unknown.

A team's hour is stored as its slots, and as one sum once all have settled. Rows are per user and job, at most
`MOST_ROWS` per team and slot: the smallest rows are merged per user, then without a user.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from libs.core.billing.accounts.posting import Posting
from libs.core.billing.used import DeviceReadings, DeviceUseSums, UsedBy, used
from libs.core.billing.wall import HOUR_US
from libs.core.state.moments import text_of
from schemas.use import UseRow

SLOT_US: Final = 300_000_000
SLOTS: Final = HOUR_US // SLOT_US
SAMPLES_IN_US: Final = 60_000_000
"""A slot is computed this long after its end: its last samples arrive up to `used.GAP_US` later."""
SETTLED_US: Final = 900_000_000
MOST_ROWS: Final = 500
WHOLE: Final = "all"
"""The slot name of a settled hour's sum."""

Rows = dict[tuple[str, str], DeviceUseSums]
"""(user, job id) -> sums of one team."""


class UseHour(NamedTuple):
    """One stored hour of a team. `hour`: since the epoch. `slots`: slot of the hour, or `WHOLE`, -> rows."""

    team: str
    hour: int
    slots: Mapping[str, Rows]

    @property
    def rows(self) -> Rows:
        """Rows of the hour, over the slots so far."""
        return added(self.slots.values())


def in_slots(
    postings: Iterable[Posting], readings: DeviceReadings, first: int, last: int
) -> dict[int, dict[str, Rows]]:
    """Slots [first, last), counted since the epoch: slot -> team -> rows."""
    of: dict[int, list[Posting]] = {slot: [] for slot in range(first, last)}
    for posting in postings:
        if posting.attempt:
            begin, end = posting.wall_start_us // SLOT_US, (posting.wall_end_us - 1) // SLOT_US
            for slot in range(max(first, begin), min(last - 1, end) + 1):
                of[slot].append(posting)
    return {slot: _by_team(used(some, readings, slot * SLOT_US, (slot + 1) * SLOT_US)) for slot, some in of.items()}


def added(some: Iterable[Rows]) -> Rows:
    """Adds rows."""
    out: Rows = {}
    for rows in some:
        for whose, sums in rows.items():
            out.setdefault(whose, DeviceUseSums()).add(sums)
    return out


def by_user(rows: Rows) -> Rows:
    """Sums by user, over all jobs."""
    return added({(user, ""): sums} for (user, _), sums in rows.items())


def with_slot(hour: UseHour, slot: int, rows: Rows) -> UseHour:
    """The hour with a slot (counted since the epoch) replaced. A settled hour stays as it is."""
    if WHOLE in hour.slots:
        return hour
    return hour._replace(slots={**hour.slots, str(slot % SLOTS): rows})


def has_slot(hour: UseHour, slot: int) -> bool:
    """Whether the hour has a sum for the slot."""
    return WHOLE in hour.slots or str(slot % SLOTS) in hour.slots


def whole(hour: UseHour) -> UseHour:
    """The hour as one sum, if all its slots have settled."""
    return hour if WHOLE in hour.slots else hour._replace(slots={WHOLE: bounded(hour.rows)})


def bounded(rows: Rows) -> Rows:
    """At most `MOST_ROWS` rows: the largest stay, the others are merged per user, and if there are too many users,
    without one."""
    if len(rows) <= MOST_ROWS:
        return rows
    ordered = sorted(rows.items(), key=lambda item: (-item[1].allocated_unit_us, item[0]))
    out: Rows = dict(ordered[: MOST_ROWS // 2])
    for (user, _), sums in ordered[MOST_ROWS // 2 :]:
        key = (user, "") if (user, "") in out or len(out) < MOST_ROWS - 1 else ("", "")
        out.setdefault(key, DeviceUseSums()).add(sums)
    return out


class GroupedUse:
    """Hourly sums grouped by team, user, job, day or hour; no group mixes teams. Hours are added one at a time, since
    months of a team have millions of rows."""

    def __init__(self, by: str, day_of: Callable[[int], str]) -> None:
        """`day_of`: day of an hour."""
        self._by, self._day_of = by, day_of
        self._sums: dict[tuple[str, str, str], DeviceUseSums] = {}

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._sums)

    def add(self, hours: Iterable[UseHour]) -> None:
        """Adds hours, each once."""
        by = self._by
        for hour in hours:
            day, begins = self._day_of(hour.hour), text_of(hour.hour * HOUR_US)
            for (user, job), one in hour.rows.items():
                key = {
                    "team": hour.team, "user": f"{hour.team}.{user}" if user else hour.team, "job": job,
                    "day": day, "hour": begins,
                }[by]  # fmt: skip
                whose = (key, hour.team, user if by in ("user", "job") else "")
                self._sums.setdefault(whose, DeviceUseSums()).add(one)

    def rows(self) -> list[UseRow]:
        """Rows in order."""
        return [
            UseRow(
                key=key,
                team=team,
                user=user,
                allocated_unit_us=one.allocated_unit_us,
                known_unit_us=one.known_unit_us,
                used_unit_us=one.used_unit_us,
                energy_nj=one.energy_nj,
                energy_known_us=one.energy_known_us,
            )
            for (key, team, user), one in sorted(self._sums.items())
        ]


def dumped(slots: Mapping[str, Rows]) -> dict[str, list[list[Any]]]:
    """Plain values for storage, in order."""
    return {
        slot: [
            [*whose, s.allocated_unit_us, s.known_unit_us, s.used_parts, s.energy_nj, s.energy_known_us]
            for whose, s in sorted(rows.items())
        ]
        for slot, rows in sorted(slots.items())
    }


def loaded(slots: Mapping[str, Iterable[Sequence[Any]]]) -> dict[str, Rows]:
    """The inverse of `dumped`."""
    return {slot: {(user, job): DeviceUseSums(*sums) for user, job, *sums in rows} for slot, rows in slots.items()}


def _by_team(found: Mapping[UsedBy, DeviceUseSums]) -> dict[str, Rows]:
    out: dict[str, Rows] = {}
    for whose, sums in found.items():
        out.setdefault(whose.team, {})[whose.user, whose.job_id] = sums
    return {team: bounded(rows) for team, rows in out.items()}
