"""Fair share over time: what queues held lately counts in their order, exactly, and the same for whoever folds the ledger."""

import heapq
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.scheduling.queues import Standings
from libs.core.state import snapshot
from libs.core.state.past_use import PERIODS, PastUse
from libs.core.state.queue_tree import QueueTree
from schemas import inbox
from schemas.queues import Queue
from tests.core.builders import World, job, node

HOUR_S = 3600
HALF_LIFE_US = HOUR_S * 1_000_000


def held(*changes: tuple[int, int], until_us: int, half_life_us: int = HALF_LIFE_US) -> int:
    """The average of one team that holds so many thousandths from each moment (us, milli) on."""
    past, now = PastUse(half_life_us), 0
    for at_us, milli in changes:
        past.changes("a", {"H100": now}, {}, at_us)
        now = milli
    return past.average({"a": {"H100": now}}, until_us)["a"]["H100"]


def test_who_always_holds_as_much_has_held_that() -> None:
    assert held((0, 8000), until_us=30 * HALF_LIFE_US) in (7999, 8000)


def test_half_of_it_counts_after_a_half_life_and_nothing_of_it_after_many() -> None:
    early = ((0, 8000), (30 * HALF_LIFE_US, 0))
    assert held(*early, until_us=31 * HALF_LIFE_US) == pytest.approx(4000, abs=2)
    assert held(*early, until_us=32 * HALF_LIFE_US) == pytest.approx(2000, abs=2)
    assert held(*early, until_us=10**9 * HALF_LIFE_US) == 0


@given(
    steps=st.lists(st.tuples(st.integers(1, 4 * HALF_LIFE_US), st.integers(0, 64_000)), min_size=1, max_size=12),
    half_life_s=st.integers(60, 10 * 86_400),
)
@settings(max_examples=30)
def test_it_is_the_integral_over_what_was_held_with_each_period_weighed(
    steps: list[tuple[int, int]], half_life_s: int
) -> None:
    """By brute force: each period's device-time counts 2 ** -(1 / PERIODS) of the one after it."""
    period_us = half_life_s * 1_000_000 // PERIODS
    at_us, changes = 0, []
    for gap_us, milli in steps:
        at_us += gap_us
        changes.append((at_us, milli))
    until_us = at_us + period_us // 3
    begun = changes[0][0]
    total, keep = 0.0, 2 ** (-1 / PERIODS)
    last_period = until_us // period_us
    for (from_us, milli), (to_us, _) in zip(changes, [*changes[1:], (until_us, 0)], strict=True):
        first = from_us // period_us
        for number in range(max(first, last_period - 40 * PERIODS), to_us // period_us + 1):
            low, high = max(from_us, number * period_us, begun), min(to_us, (number + 1) * period_us)
            if high > low:
                total += milli * (high - low) * keep ** (last_period - number)
    exact = total * (1 - keep) / (period_us * keep + until_us % period_us * (1 - keep))
    assert held(*changes, until_us=until_us, half_life_us=half_life_s * 1_000_000) == pytest.approx(
        exact, rel=1e-6, abs=2
    )


def test_a_new_half_life_begins_with_the_averages_of_before() -> None:
    past = PastUse(HALF_LIFE_US)
    past.changes("a", {}, {}, 0)
    now = {"a": {"H100": 8000}}
    before = past.average(now, 5 * HALF_LIFE_US)
    past.begins(7 * HALF_LIFE_US, now, 5 * HALF_LIFE_US)
    (after,) = past.average(now, 5 * HALF_LIFE_US)["a"].values()
    assert after == pytest.approx(before["a"]["H100"], abs=2)
    past.begins(0, now, 6 * HALF_LIFE_US)
    assert past.average(now, 7 * HALF_LIFE_US) == {}


def test_teams_of_which_nothing_is_left_are_forgotten() -> None:
    past = PastUse(HALF_LIFE_US)
    for number in range(1000):
        past.changes(f"team{number}", {}, {}, number * HALF_LIFE_US)
        past.changes(f"team{number}", {"H100": 1000}, {}, number * HALF_LIFE_US + 1_000_000)
    assert len(past.dump()["rows"]) < 150


def test_who_held_more_lately_comes_later_until_it_is_even() -> None:
    tree = QueueTree.of([Queue(name="a"), Queue(name="b", weight_milli=2000)], half_life_s=HOUR_S)
    capacity = {"H100": 8000}

    def first(a: int, b: int) -> str:
        standings = Standings(
            tree, {"a": {"H100": 2000}, "b": {"H100": 4000}}, capacity, {"a": {"H100": a}, "b": {"H100": b}}
        )
        return min("ab", key=standings.of)

    assert (first(4000, 7999), first(4000, 8001)) == ("b", "a"), "b has twice the weight"
    assert first(0, 1) == "a"


class Crowd:
    """A pool of which two teams of equal weight want more than all, in jobs of their own kind; virtual time."""

    def __init__(self, half_life_s: int | None) -> None:
        self.w = World(*(node(f"n{i}") for i in range(2)))
        queues = (Queue(name="a"), Queue(name="b"))
        self.w.send(inbox.ApplyQueues(version=1, queues=queues, half_life_s=half_life_s, user="olga"))
        self.random = random.Random(7)
        self.wants: dict[str, tuple[int, int]] = {}
        self.number = 0
        self.ends: list[tuple[int, str]] = []
        self.took = {"a": 0, "b": 0}
        """Device-seconds."""

    def run(self, until_s: int) -> None:
        while True:
            for team, (devices, waiting) in self.wants.items():
                while self._waiting(team) < waiting:
                    self.number += 1
                    self.w.submit(job(f"j{self.number}", devices, team=team))
            for one in [j for j in self.w.decider.state.jobs.values() if j.state == "granted"]:
                self.w.started(one.id)
                lasts_us = self.random.randint(120, 900) * 1_000_000
                heapq.heappush(self.ends, (self.w.now_us + lasts_us, one.id))
            at_us, ended = self.ends[0]
            if at_us > until_s * 1_000_000:
                self._pass(until_s * 1_000_000)
                return
            heapq.heappop(self.ends)
            self._pass(max(at_us, self.w.now_us))
            self.w.released(ended)

    def _pass(self, to_us: int) -> None:
        for team in self.took:
            milli = sum(self.w.decider.state.used.get(team, {}).values())
            self.took[team] += milli * max(0, to_us - self.w.now_us) // 10**9
        self.w.now_us = max(self.w.now_us, to_us)

    def _waiting(self, team: str) -> int:
        return sum(len(line) for key, line in self.w.decider.state.queues.items() if key.team == team)


def test_shares_are_even_over_a_half_life_however_different_the_demand() -> None:
    """Single devices against gangs of four, of equal weight: while both have work, what each gets of any half-life differs by
    5 % of the whole at most, or by a gang."""
    crowd = Crowd(HOUR_S)
    crowd.wants = {"a": (1, 3), "b": (4, 2)}
    crowd.run(HOUR_S)
    for hour in (2, 3):
        before = dict(crowd.took)
        crowd.run(hour * HOUR_S)
        got = {team: crowd.took[team] - before[team] for team in before}
        assert abs(got["a"] - got["b"]) <= max(0.05 * sum(got.values()), 4 * HOUR_S), got
    assert crowd.w.checker.finish().violations == []


def test_who_had_the_pool_alone_gives_the_other_more_until_it_is_even() -> None:
    shares = {}
    for half_life_s in (None, HOUR_S):
        crowd = Crowd(half_life_s)
        crowd.wants = {"a": (1, 3)}
        crowd.run(HOUR_S)
        crowd.wants["b"] = (1, 3)
        crowd.run(HOUR_S + 1200)  # until a's jobs have ended
        before = dict(crowd.took)
        crowd.run(HOUR_S + 3000)
        got: dict[str, Any] = {team: crowd.took[team] - before[team] for team in before}
        shares[half_life_s] = got["b"] / sum(got.values())
    assert shares[None] == pytest.approx(0.5, abs=0.06)
    assert shares[HOUR_S] > 0.6
    state = crowd.w.decider.state
    again = snapshot.load(iter(list(snapshot.dump(state)))).state
    assert again.past_use.dump() == state.past_use.dump() != PastUse().dump()
