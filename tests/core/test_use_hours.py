"""Hourly sums of use are the sums of all of it, however they are cut, told again, bounded and stored."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.core.billing import use_hours
from libs.core.billing.use_hours import SLOT_US, SLOTS, WHOLE, UseHour, added, bounded, in_slots, whole, with_slot
from libs.core.billing.used import DeviceUseSums, Reading, UsedBy, used
from tests.core.test_used import posting

S = 1_000_000
FIRST = 10 * SLOTS
BEGIN_US = FIRST * SLOT_US
seconds = st.integers(0, 2 * 3600)


def total(some: Sequence[DeviceUseSums]) -> list[int]:
    sums = DeviceUseSums()
    for one in some:
        sums.add(one)
    return [sums.allocated_unit_us, sums.known_unit_us, sums.used_parts, sums.energy_nj, sums.energy_known_us]


@given(
    st.lists(st.tuples(seconds, st.integers(0, 100)), max_size=30),
    st.lists(st.tuples(seconds, st.integers(1, 3000), st.sampled_from("de"), st.sampled_from("xyz")), max_size=6),
)
def test_slots_of_any_postings_and_samples_add_up_to_the_whole_and_telling_them_again_changes_nothing(
    told: list[tuple[int, int]], held: list[tuple[int, int, str, str]]
) -> None:
    readings = {("n", "d"): [Reading(BEGIN_US + at * S, float(pct), 1000 * pct) for at, pct in sorted(told)]}
    postings = [
        posting(BEGIN_US + at * S, BEGIN_US + (at + span) * S, device=device)._replace(job_id=job)
        for at, span, device, job in held
    ]
    last = FIRST + 2 * SLOTS
    wanted = used(postings, readings, BEGIN_US, last * SLOT_US)
    hours = [UseHour("red", 10, {}), UseHour("red", 11, {})]
    for _ in range(2):
        for slot, teams in in_slots(postings, readings, FIRST, last).items():
            number = slot // SLOTS - 10
            hours[number] = with_slot(hours[number], slot, teams.get("red", {}))
    for these in (hours, [whole(hour) for hour in hours]):
        rows = added(hour.rows for hour in these)
        assert {UsedBy("red", *whose): total([sums]) for whose, sums in rows.items()} == {
            whose: total([sums]) for whose, sums in wanted.items()
        }
        again = [use_hours.loaded(json.loads(json.dumps(use_hours.dumped(hour.slots)))) for hour in these]
        assert again == [hour.slots for hour in these]
    settled = whole(hours[0])
    assert with_slot(settled, FIRST, {}) is settled, "an hour that has settled stays"
    assert set(settled.slots) == {WHOLE}


def test_many_jobs_are_a_bounded_number_of_rows_with_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_hours, "MOST_ROWS", 10)
    rows = {(f"u{number % 30}", f"job-{number}"): DeviceUseSums(number, number // 2, 3, 4, 5) for number in range(100)}
    told = bounded(rows)
    assert len(told) <= 10
    assert total(list(told.values())) == total(list(rows.values()))
    assert ("u9", "job-99") in told, "the largest is told"
    assert ("", "") in told, "there are more users than rows"
