"""Allocated against used: by a brute force over microseconds, and by hand."""

from hypothesis import given
from hypothesis import strategies as st

from libs.core.billing.accounts import Account, Posting
from libs.core.billing.used import GAP_US, Reading, UsedBy, reading_of, used
from schemas.nodes import DeviceSample

S = 1_000_000
WHO = UsedBy("red", "ana", "job-1")


def posting(start: int, end: int, units: int = 7000, account: Account = Account.BILLED, device: str = "d") -> Posting:
    return Posting(
        account, "p", "n", device, "H100", "", units, start, end, start, end, *WHO, 1, "experiment", "red", 1, 2, ""
    )


def test_a_power_that_no_device_draws_is_not_told() -> None:
    """It ended who keeps what was used, again and again, as long as the broker had the sample."""
    for power_w, told in ((0.0, 0), (700.25, 700_250), (1e5, 100_000_000), (1e6, 0), (1.7e308, 0)):
        sample = DeviceSample(device="d", utilization_pct=5, memory_used_mib=1, power_w=power_w)
        assert reading_of(3, sample) == Reading(3, 5.0, told)


def test_by_hand() -> None:
    readings = {("n", "d"): [Reading(10 * S, 50.0, 300_000), Reading(25 * S, 100.0, 700_000), Reading(100 * S, 10.0)]}
    (sums,) = used([posting(0, 120 * S)], readings, 0, 200 * S).values()
    assert sums.allocated_unit_us == 7000 * 120 * S
    assert sums.known_unit_us == 7000 * (10 + 15 + 40) * S  # the last reading speaks for 40 s
    assert sums.used_unit_us == 7000 * (5 + 15 + 4) * S
    assert sums.unknown_unit_us == 7000 * 55 * S
    assert sums.wasted_unit_us == 7000 * 41 * S
    assert sums.energy_nj == (10 * 300_000 + 15 * 700_000) * S
    assert sums.energy_known_us == 25 * S


def test_what_is_shared_silent_or_never_sampled_is_unknown_and_never_unused() -> None:
    readings = {("n", "d"): [Reading(10 * S, 0.0)], ("another", "e"): [Reading(10 * S, 0.0)]}
    for one in (
        posting(0, 10 * S, 3500),
        posting(0, 10 * S, account=Account.UNCONFIRMED),
        posting(0, 10 * S, device="e"),
    ):
        (sums,) = used([one], readings, 0, 10 * S).values()
        assert (sums.known_unit_us, sums.used_unit_us, sums.wasted_unit_us) == (0, 0, 0)
        assert sums.unknown_unit_us == sums.allocated_unit_us > 0


def test_what_is_nobodys_is_not_counted_and_a_period_cuts() -> None:
    idle = posting(0, 10 * S)._replace(account=Account.IDLE, team="", user="", job_id="", attempt=0)
    assert used([idle], {}, 0, 10 * S) == {}
    (sums,) = used([posting(0, 10 * S)], {}, 4 * S, 6 * S).values()
    assert sums.allocated_unit_us == 7000 * 2 * S
    assert used([posting(0, 10 * S)], {}, 10 * S, 20 * S) == {}


@given(
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 100)), max_size=8),
    st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60)), max_size=4),
    st.integers(0, 60), st.integers(60, 130),
)  # fmt: skip
def test_by_brute_force(told: list[tuple[int, int]], held: list[tuple[int, int]], first: int, last: int) -> None:
    readings = [Reading(at * S, float(pct)) for at, pct in sorted(told)]
    postings = [posting(start * S, (start + span) * S) for start, span in held]
    known = busy = allocated = 0
    for p in postings:
        for second in range(p.start_us // S, p.end_us // S):
            if first <= second < last:
                allocated += 1
                at = next((r for r in readings if r.at_us >= (second + 1) * S), None)
                if at is not None and (second + 1) * S > at.at_us - GAP_US:
                    known += 1
                    busy += int(at.utilization_pct)
    found = used(postings, {("n", "d"): readings}, first * S, last * S).values()
    assert sum(one.allocated_unit_us for one in found) == 7000 * S * allocated
    assert sum(one.known_unit_us for one in found) == 7000 * S * known
    assert sum(one.used_unit_us for one in found) == 7000 * S * busy // 100
