"""Fairness as it is promised: two teams of equal weight get the same over any half-life, whatever they ask for; and who
borrowed gives back within its grace and one cycle."""

import heapq
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.scheduling import preemption
from schemas import inbox
from schemas.queues import Queue
from tests.core.builders import World, job, node

S = 1_000_000
HALF_LIFE_S = 3600
DEVICES = 16


class Shop:
    """A pool in which jobs end by themselves: each team always has some that wait, of one width and length."""

    def __init__(self, sizes: dict[str, tuple[int, int]]) -> None:
        """`sizes`: team -> devices and seconds of each of its jobs."""
        self.w = World(*(node(f"n{i}") for i in range(DEVICES // 8)))
        self.sizes = sizes
        queues = tuple(Queue(name=team) for team in sizes)
        self.w.send(inbox.ApplyQueues(version=1, queues=queues, half_life_s=HALF_LIFE_S))
        self.ends: list[tuple[int, str]] = []
        self.running: set[str] = set()
        self.number = 0
        self.held: list[tuple[int, dict[str, int]]] = []

    def run(self, until_us: int) -> None:
        while self.w.now_us < until_us:
            self._fill()
            self._note()
            at_us, ended = heapq.heappop(self.ends)
            self.running.discard(ended)
            nodes, attempt = self.w.nodes_of(ended), self.w.attempt(ended)
            gone = inbox.Released(job_id=ended, attempt=attempt, exit_code=0, own_exit=True)
            said = [inbox.NodeObserved(node=name, incarnation=1, observations=(gone,)) for name in nodes]
            self.w.send(*said, after_us=max(1, at_us - self.w.now_us))
            self._note()

    def _fill(self) -> None:
        """So many wait of each team that it could take the whole pool."""
        new = []
        for team, (devices, _) in self.sizes.items():
            waits = sum(len(line) for key, line in self.w.decider.state.queues.items() if key.team == team)
            for _ in range(DEVICES // devices + 1 - waits):
                self.number += 1
                new.append(job(f"{self.number}", devices, team=team, submitted_us=self.w.now_us + 1))
        if new:
            self.w.send(*new)

    def _note(self) -> None:
        state = self.w.decider.state
        for one in state.jobs.values():
            if one.current is not None and one.id not in self.running:
                self.running.add(one.id)
                heapq.heappush(self.ends, (self.w.now_us + self.sizes[one.team][1] * S, one.id))
        self.held.append((self.w.now_us, {team: sum(kinds.values()) for team, kinds in state.used.items()}))

    def shares(self) -> Iterator[dict[str, float]]:
        """Of every window of a half-life that begins at a change: the mean of what each team held, devices."""
        times = [at_us for at_us, _ in self.held]
        whole = HALF_LIFE_S * S
        for start in times:
            if start + whole > times[-1]:
                return
            total = dict.fromkeys(self.sizes, 0)
            for (at_us, held), (next_us, _) in zip(self.held, self.held[1:], strict=False):
                inside = min(next_us, start + whole) - max(at_us, start)
                for team in self.sizes:
                    total[team] += max(0, inside) * held.get(team, 0)
            yield {team: amount / 1000 / whole for team, amount in total.items()}


@settings(max_examples=5, deadline=None)
@given(
    st.tuples(st.sampled_from([1, 2, 4]), st.integers(10, 40)),
    st.tuples(st.sampled_from([2, 4, 8]), st.integers(10, 60)),
)
def test_two_teams_of_equal_weight_get_the_same_over_any_half_life(few: tuple[int, int], many: tuple[int, int]) -> None:
    sizes = {"blue": (few[0], few[1] * 60), "red": (many[0], many[1] * 60)}
    shop = Shop(sizes)
    shop.run(3 * HALF_LIFE_S * S)
    shop.w.check()
    most = max(0.05 * DEVICES, few[0], many[0])
    for share in shop.shares():
        assert abs(share["blue"] - share["red"]) <= most, share


def test_a_gang_that_is_due_takes_no_other_teams_part() -> None:
    """Red's gangs are due for long, and blue's jobs are small: each has half of the pool."""
    shop = Shop({"blue": (1, 15 * 60), "red": (8, 40 * 60)})
    shop.run(2 * HALF_LIFE_S * S)
    assert all(abs(share["blue"] - share["red"]) < 0.01 for share in shop.shares())


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.integers(1, 16))
def test_who_borrowed_gives_back_in_one_cycle_and_its_grace(lent: list[int], asked: int) -> None:
    """All 16 devices may be lent; what the queue asks for within its guarantee of 16 is planned at once, and granted with the
    last release."""
    w = World(node("n0"), node("n1"))
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="mine", guaranteed={"*": 16_000}), Queue(name="others"))))
    for number, devices in enumerate(lent):
        borrower = w.submit(job(f"lent {number}", devices, team="others"))
        if w.state_of(borrower) == "granted":
            w.started(borrower)
    wanted = [w.submit(job(f"mine {number}", 1, team="mine")) for number in range(asked)]
    for plan in preemption.plans(w.decider.state, w.now_us, len(w.records)):
        w.send(plan)
    leaving = [one.id for one in w.decider.state.jobs.values() if one.state.value == "preempting"]
    for victim in leaving:
        w.released(victim, exit_code=143, own_exit=False)
    assert all(w.state_of(one) == "granted" for one in wanted)
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == [], "nobody takes it back: no loop"
    w.check()
