"""Fair share between the users of a team: beneath the team's entitlement, over time, and whatever each of them submits."""

import heapq
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.explain.queue_shares import queue_shares
from libs.core.explain.reasons import Reasons
from libs.core.explain.user_shares import user_shares
from libs.core.explain.waiting import explain
from libs.core.scheduling.order import UserAmounts, in_order
from libs.core.scheduling.policy import Policy
from libs.core.state import past_use, snapshot
from libs.core.state.past_use import UsersPastUse, user_of
from schemas import inbox
from schemas.queues import Queue, QueueOrder
from tests.core.builders import World, job, node

HOUR_S = 3600


def by(user: str, admitted: inbox.JobAdmitted) -> inbox.JobAdmitted:
    return admitted.model_copy(update={"user": user})


def queues(
    *all_of_them: Queue, version: int = 1, half_life_s: int | None = None, order: QueueOrder | None = None
) -> inbox.ApplyQueues:
    return inbox.ApplyQueues(version=version, queues=all_of_them, half_life_s=half_life_s, order=order, user="olga")


def first(world: World, most: int = 100) -> list[str]:
    """The waiting jobs in order, by name."""
    state = world.decider.state
    return [one.spec.name for one, _ in zip(in_order(state, world.now_us, Policy()), range(most), strict=False)]


def submit(world: World, *jobs: tuple[str, str, int]) -> list[str]:
    """Each (user, name, devices)."""
    return [world.submit(by(user, job(name, devices))) for user, name, devices in jobs]


@pytest.mark.parametrize("tree", [None, queues(Queue(name="research"))], ids=["without queues", "with queues"])
def test_a_thousand_jobs_of_one_user_do_not_delay_another(tree: inbox.ApplyQueues | None) -> None:
    world = World(node("n0"))
    if tree is not None:
        world.send(tree)
    running = submit(world, *(("ann", f"ann-{n}", 1) for n in range(8)))
    world.send(*(by("ann", job(f"more-{n}", 1)) for n in range(1000)))
    (bob,) = submit(world, ("bob", "bob", 1))
    for one in running:
        world.started(one)
    world.released(running[0])
    assert world.state_of(bob) == "granted"
    world.check()


def test_gangs_of_one_user_whose_turn_has_come_do_not_go_before_another_user() -> None:
    world = World(node("n0"))
    running = submit(world, *(("ann", f"gang-{n}", 4) for n in range(4)), ("bob", "bob", 1))
    world.send(after_us=600_000_000)  # the reservations of ann's gangs are due
    for one in running[:2]:
        world.started(one)
    world.released(running[0])
    assert (world.state_of(running[4]), world.state_of(running[2])) == ("granted", "queued")


def test_a_gang_of_who_holds_the_least_keeps_devices_from_the_others() -> None:
    world = World(node("n0"))
    running = submit(world, *(("ann", f"ann-{n}", 1) for n in range(10)), ("bob", "bob", 4))
    world.send(after_us=600_000_000)
    for one in running[:8]:
        world.started(one)
    for one in running[:4]:
        world.released(one)
    assert world.state_of(running[10]) == "granted"


@pytest.mark.parametrize("how", ["its user holds less", "the gang's user got more"])
def test_who_comes_before_a_gang_by_now_has_what_that_kept_within_a_second(how: str) -> None:
    """It was looked at again after five minutes, and its explanation said that it was granted with the next decision."""
    w = World(node("n0", 2), node("n1", 5, model="A100"))
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="research"), Queue(name="red"))))

    def asks(user: str, name: str, devices: int, model: str = "A100", team: str = "research") -> str:
        return w.submit(by(user, job(name, devices, types=(model,), team=team, submitted_us=w.now_us + 1)))

    w.started(asks("", "long", 1, "H100", team="red"))
    w.started(many := asks("ana", "many", 2))
    w.started(asks("bob", "few", 1))
    gang = asks("bob", "gang", 2, "H100")
    w.send(inbox.Tick(), after_us=61_000_000)
    waits = asks("ana", "waits", 1, "H100")
    w.send(inbox.Tick(), after_us=1_000_000)
    assert w.state_of(waits) == "queued", "it is kept for who holds less"
    if how == "its user holds less":
        w.released(many)
    else:
        asks("bob", "more", 2)
    w.send(inbox.Tick(), after_us=1_000_000)
    assert (w.state_of(waits), w.state_of(gang)) == ("granted", "queued")
    w.check()


def test_users_share_beneath_what_their_team_is_entitled_to() -> None:
    world = World(node("n0"))
    world.send(queues(Queue(name="research"), Queue(name="vision", guaranteed={"*": 8000})))
    world.submit(by("ann", job("ann", 6)))
    world.submit(by("bob", job("bob", 6)))
    world.submit(by("eve", job("eve", 6, team="vision")))
    assert first(world) == ["eve", "bob"]


@pytest.mark.parametrize("order", ["fifo", "shortest-remaining", "least-attained"])
def test_where_another_order_is_chosen_users_do_not_share(order: QueueOrder) -> None:
    world = World(node("n0"))
    world.send(queues(Queue(name="research", order=order)))
    submit(world, ("ann", "runs", 8), ("ann", "older", 8), ("bob", "newer", 8))
    assert {key.user for key in world.decider.state.queues} == {""}
    assert first(world) == ["older", "newer"]


def test_a_change_of_order_holds_for_what_waits_already() -> None:
    world = World(node("n0"))
    world.send(queues(Queue(name="research", order="shortest-remaining")))
    submit(world, ("ann", "runs", 8), ("ann", "older", 8), ("bob", "newer", 8))
    assert first(world) == ["older", "newer"]
    world.send(queues(Queue(name="research", order="fair-share"), version=2))
    assert first(world) == ["newer", "older"]
    world.send(queues(Queue(name="research", order="fifo"), version=3))
    assert first(world) == ["older", "newer"]
    world.check()


def test_of_several_types_the_one_counts_of_which_a_user_holds_the_largest_part() -> None:
    world = World(node("n0", model="H100"), node("n1", model="A100"), node("n2", model="A100"))
    world.send(queues(Queue(name="research")))
    world.submit(by("ann", job("ann", 4, types=("H100",))))  # half of them
    world.submit(by("bob", job("bob", 6, types=("A100",))))  # 6 of 16
    for user in ("ann", "bob"):
        world.submit(by(user, job(f"{user}-waits", 17)))
    assert first(world) == ["bob-waits", "ann-waits"], "bob holds more devices, and less of a type"


def test_who_used_more_lately_comes_later_and_a_snapshot_knows_it() -> None:
    world = World(node("n0"))
    world.send(queues(Queue(name="research"), half_life_s=HOUR_S))
    (long,) = submit(world, ("ann", "long", 8))
    world.started(long)
    world.send(after_us=HOUR_S * 1_000_000)
    submit(world, ("ann", "ann-waits", 8), ("bob", "bob-waits", 8))
    world.released(long)
    assert [one.spec.name for one in world.decider.state.jobs.values() if one.state == "granted"] == ["bob-waits"]
    submit(world, ("ann", "ann-more", 8))
    again = snapshot.load(iter(list(snapshot.dump(world.decider.state)))).state
    assert again.used_by == world.decider.state.used_by == {"research/bob": {"H100": 8000}}
    world.check()
    assert [one.user for one in in_order(again, again.t_us, Policy())] == ["ann", "ann"]
    assert set(again.past_use_by.dump()["rows"]) == {"research/ann", "research/bob"}


def test_users_of_whom_nothing_is_left_are_forgotten_and_of_many_those_who_held_the_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hour_us = HOUR_S * 1_000_000
    past = UsersPastUse(hour_us)
    for number in range(2000):
        past.changes(user_of("a", f"u{number}"), {}, {}, number * hour_us)
        past.changes(user_of("a", f"u{number}"), {"H100": 1000}, {}, number * hour_us + hour_us // 4)
    assert len(past.dump()["rows"]) < 150
    monkeypatch.setattr(past_use, "MOST_USERS", 300)
    crowd, everyone = UsersPastUse(400 * hour_us), {user_of("a", f"u{number:05}"): {} for number in range(600)}
    for number, name in enumerate(everyone):
        crowd.changes(name, {}, everyone, 0)
        crowd.changes(name, {"H100": 1000 * (1 + number)}, everyone, 100 * hour_us)
    assert len(crowd.dump()["rows"]) == 600, "they hold something"
    crowd._forget({}, 100 * hour_us)
    assert sorted(crowd.dump()["rows"]) == [f"a/u{number:05}" for number in range(300, 600)]


class TwoUsers:
    """A pool that is one team's, whose users want more than all of it in jobs of their own kind; virtual time."""

    def __init__(self, wants: dict[str, tuple[int, int]], half_life_s: int | None, seed: int) -> None:
        """`wants`: user -> devices of each job, jobs that wait at any time."""
        self.w = World(*(node(f"n{i}") for i in range(2)))
        self.w.send(queues(Queue(name="research"), half_life_s=half_life_s))
        self.wants, self.random, self.number = wants, random.Random(seed), 0
        self.ends: list[tuple[int, str]] = []
        self.took = dict.fromkeys(wants, 0.0)
        """Device-seconds."""

    def run(self, until_s: int) -> dict[str, float]:
        """What each got of it."""
        before = dict(self.took)
        while True:
            for user, (devices, waiting) in self.wants.items():
                while self._waiting(user) < waiting:
                    self.number += 1
                    self.w.submit(by(user, job(f"j{self.number}", devices)))
            for one in [j for j in self.w.decider.state.jobs.values() if j.state == "granted"]:
                self.w.started(one.id)
                heapq.heappush(self.ends, (self.w.now_us + self.random.randint(120, 900) * 1_000_000, one.id))
            at_us, ended = self.ends[0]
            if at_us > until_s * 1_000_000:
                self._pass(until_s * 1_000_000)
                return {user: self.took[user] - before[user] for user in before}
            heapq.heappop(self.ends)
            self._pass(max(at_us, self.w.now_us))
            self.w.released(ended)

    def _pass(self, to_us: int) -> None:
        for user in self.took:
            milli = sum(self.w.decider.state.used_by.get(user_of("research", user), {}).values())
            self.took[user] += milli * max(0, to_us - self.w.now_us) / 1e9
        self.w.now_us = max(self.w.now_us, to_us)

    def _waiting(self, user: str) -> int:
        return sum(len(line) for key, line in self.w.decider.state.queues.items() if key.user == user)


@given(
    narrow=st.tuples(st.just(1), st.integers(3, 40)),
    wide=st.tuples(st.sampled_from([2, 4, 8]), st.integers(1, 6)),
    half_life_s=st.sampled_from([HOUR_S, 2 * HOUR_S]),
    seed=st.integers(0, 99),
)
@settings(max_examples=4, deadline=None)
def test_users_of_different_demand_get_the_same_of_any_half_life(
    narrow: tuple[int, int], wide: tuple[int, int], half_life_s: int, seed: int
) -> None:
    """What each gets of a half-life differs by 5 % of the whole at most, or by the largest gang, while both have work."""
    two = TwoUsers({"ann": narrow, "bob": wide}, half_life_s, seed)
    two.run(half_life_s)
    for number in (2, 3):
        got = two.run(number * half_life_s)
        assert abs(got["ann"] - got["bob"]) <= max(0.05 * sum(got.values()), wide[0] * half_life_s), got
    two.w.check()


def test_the_example_of_the_docs() -> None:
    """That of docs/queues.md."""
    world = World(*(node(f"n{i}") for i in range(8)))
    week_s = 7 * 86_400
    world.send(queues(Queue(name="research"), half_life_s=week_s))
    submit(
        world,
        *(("ann", f"ann-{n}", 1) for n in range(20)),
        ("bob", "bob", 4),
        *(("eve", f"eve-{n}", 1) for n in range(6)),
    )
    world.submit(job("theirs", 34, team="vision"))
    submit(
        world, *(("ann", f"ann-waits-{n}", 1) for n in range(80)), *(("eve", f"eve-waits-{n}", 1) for n in range(34))
    )
    state = world.decider.state
    # What each held lately, as of now: of the mean of the last time so many devices.
    lately = {"ann": 16_000, "bob": 4_000, "eve": 0}
    state.past_use_by = UsersPastUse.load(
        {
            "period_us": 10**6,
            "rows": {
                f"research/{user}": [state.t_us, {"H100": _counted(milli, state.t_us)}]
                for user, milli in lately.items()
            },
        }
    )
    told = {one.user: one for one in user_shares(state, "research", 30_000)}
    text = (Path(__file__).parents[2] / "docs" / "queues.md").read_text(encoding="utf-8")
    table = text.partition("| user | wants |")[2].split("\n\n")[0].splitlines()[2:]
    assert len(table) == 3
    for line in table:
        user, wants, holds, recent, part, place, share = (cell.strip() for cell in line.strip("|").split("|"))
        one = told[user]
        assert (one.held_milli, one.recent_milli) == (1000 * int(holds), 1000 * int(recent)), user
        assert (one.place, one.share_milli) == (int(place), 1000 * int(share)), user
        assert float(UserAmounts(state).amount("research", user)) == float(part), user
        assert int(wants) == int(holds) + one.waiting_jobs, user
    assert first(world, 1)[0].startswith("eve")
    (shown,) = (one for one in queue_shares(state, "research").shares if one.queue.name == "research")
    assert [one.user for one in shown.users] == ["eve", "bob", "ann"]
    waits = next(one for one in state.jobs.values() if one.spec.name == "ann-waits-0")
    why = explain(state, waits, Reasons(state), seen_by="research")
    assert why.user is not None
    assert (why.user.place, why.users) == (3, 3)


def _counted(milli: int, t_us: int) -> int:
    """The count whose average at `t_us` is this."""
    whole = 10**6 * 4_248_701_965 + t_us % 10**6 * ((1 << 32) - 4_248_701_965)
    return -(-milli * whole // ((1 << 32) - 4_248_701_965))
