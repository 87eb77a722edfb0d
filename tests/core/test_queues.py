"""The tree of queues: what is wrong with one, how a pool is divided over it, who comes first, and what limits hold."""

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.cli.queuesfile import QueueFileError, read_tree
from libs.core.explain.queue_shares import queue_shares
from libs.core.projections.verify.limit_books import LimitBooks
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import in_order
from libs.core.scheduling.queues import Claimant, Standings, beyond_the_pool, changes, divide, divide_tree, problems
from libs.core.state.queue_tree import OWN, ROOT, QueueTree
from schemas import inbox, ledger
from schemas.prices import ListRate, RateBook
from schemas.queues import PreemptionLimits, Queue
from tests.core.builders import World, job, node


def queue(name: str, parent: str = ROOT, guaranteed: int = 0, **more: Any) -> Queue:
    """`guaranteed`: accelerators; `of_types` instead: thousandths by type."""
    stated = more.pop("of_types", {"*": guaranteed * 1000} if guaranteed else {})
    return Queue(name=name, parent=parent, guaranteed=stated, **more)


EXAMPLE = QueueTree.of([
    queue("research", guaranteed=40),
    queue("vision", "research", 24),
    queue("language", "research", 16, weight_milli=3000),
    queue("product", guaranteed=24, weight_milli=2000),
    queue("serving", "product", 24),
])  # fmt: skip
"""That of docs/queues.md."""


# ------------------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("queues", "where", "told"),
    [
        ([queue("a", "b"), queue("b", "a")], ("a", "parent"), "cycle: a -> b -> a"),
        ([queue("a", "a")], ("a", "parent"), "cycle: a -> a"),
        ([queue("a", "resarch"), queue("research")], ("a", "parent"), "is no queue of this tree"),
        ([queue("a"), queue("a")], ("a", "name"), "two queues"),
        ([queue("a", guaranteed=5), queue("b", "a", 6)], ("b", "guaranteed.*"), "guaranteed 5 and its children 6"),
        ([queue("a"), queue("b", "a", 1)], ("b", "guaranteed.*"), "guaranteed 0 and its children 1"),
        ([queue("a", limit={"*": 1000}, guaranteed=2)], ("a", "guaranteed.*"), "above the queue's own limit of 1"),
        (
            [queue("a", limit={"H100": 1000}), queue("b", "a", of_types={"H100": 2000})],
            ("b", "guaranteed.H100"),
            "above",
        ),
        ([queue("a", weight_milli=0), queue("b", weight_milli=0)], ("a", "weight"), "all top queues have weight 0"),
        ([queue("a"), queue("b", "a", weight_milli=0)], ("b", "weight"), "all queues below a"),
        ([queue("a", of_types={"H10O": 1000})], ("a", "guaranteed.H10O"), "no such device type"),
        ([queue("a", limit={"H100:9g.9gb": 1000})], ("a", "limit.H100:9g.9gb"), "no such MIG profile"),
        ([queue("a", classes=("servin",))], ("a", "classes"), "no such priority class"),
        (
            [queue("a", classes=("experiment",)), queue("b", "a", classes=("serving",))],
            ("b", "classes"),
            "only experiment",
        ),
        (
            [queue("a", default_time_limit_s=9, longest_time_limit_s=8)],
            ("a", "default_time_limit"),
            "above the queue's own longest of 8 s",
        ),
        (
            [queue("a", longest_time_limit_s=8), queue("b", "a", longest_time_limit_s=9)],
            ("b", "longest_time_limit"),
            "above the longest_time_limit of 8 s",
        ),
        (
            [queue("a", longest_time_limit_s=8), queue("b", "a"), queue("c", "b", default_time_limit_s=9)],
            ("c", "default_time_limit"),
            "above the longest_time_limit of 8 s",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_field_and_a_fix(
    queues: list[Queue], where: tuple[str, str], told: str
) -> None:
    found = problems(queues, ["serving", "experiment"])
    assert any((p.queue, p.field) == where and told in p.problem and p.fix for p in found), found


def test_a_good_tree_has_no_problem_and_every_cycle_is_told_once() -> None:
    assert problems(list(EXAMPLE), []) == []
    rings = [queue("a", "b"), queue("b", "a"), queue("c", "d"), queue("d", "c"), queue("e", "d")]
    assert sorted(p.queue for p in problems(rings)) == ["a", "c"]


def test_what_a_new_tree_changes_is_told_field_by_field() -> None:
    after = QueueTree.of(
        [*(q for q in EXAMPLE if q.name not in ("serving", "vision")), queue("vision", "research", 20)]
    )
    told = [change.text() for change in changes(EXAMPLE, after)]
    assert told == ["- serving  parent product, weight 1, guaranteed.* 24", "~ vision  guaranteed.*: 24 -> 20"]
    assert changes(EXAMPLE, QueueTree.of(list(EXAMPLE), 9)) == []
    assert changes(EXAMPLE, QueueTree.of(list(EXAMPLE), 9, preemption=PreemptionLimits())) == [], "the defaults, said"
    sparing = QueueTree.of(list(EXAMPLE), 9, preemption=PreemptionLimits(min_run_s=60))
    assert [change.text() for change in changes(EXAMPLE, sparing)] == ["~ (the pool)  preemption.min_run: 0s -> 1m"]


def test_a_file_says_time_limits_as_durations_and_a_change_of_them_is_told() -> None:
    text = "version: 1\nqueues: [{name: a, default_time_limit: 4h, longest_time_limit: 7d}]\n"
    told = [change.text() for change in changes(QueueTree.of([queue("a")]), read_tree(text))]
    assert told == ["~ a  default_time_limit: none -> 4h", "~ a  longest_time_limit: none -> 7d"]


@pytest.mark.parametrize("said", ["7d", "36h", "90s", "31m", "1d", "59s"])
def test_a_change_says_a_time_as_a_file_does(said: str) -> None:
    """`half_life: 7d` was told as 604800s."""
    after = read_tree(f"version: 1\npreemption: {{min_run: {said}}}\nqueues: []\n")
    told = [change.text() for change in changes(QueueTree.of([]), after)]
    assert told == [f"~ (the pool)  preemption.min_run: 0s -> {said}"]


def test_a_guarantee_beyond_the_pool_is_told_with_the_figures() -> None:
    """It was applied without a word. Children count in their parents; a slice is its part of its board."""
    tree = QueueTree.of([queue("a", "", 10), queue("b", "a", 10), queue("c", "", 7)])
    assert beyond_the_pool(tree, {"H100": 16, "CPU": 4}) == [
        "17 accelerators are guaranteed, and 16 of the pool are up: not all can have what they are guaranteed"
    ]
    assert beyond_the_pool(tree, {"H100": 16, "H100:1g.10gb": 7}) == []
    slices = Queue(name="lab", guaranteed={"H100": 2_000, "H100:1g.10gb": 8_000})
    (boards, ones) = beyond_the_pool(QueueTree.of([slices]), {"H100": 0, "H100:1g.10gb": 7})
    assert boards.startswith("2 H100 are guaranteed, and 1 of the pool")
    assert ones.startswith("8 H100:1g.10gb are guaranteed, and 7 of the pool")


def test_the_limits_of_the_docs_are_the_defaults() -> None:
    text = (Path(__file__).parents[2] / "docs" / "queues.md").read_text(encoding="utf-8")
    said = next(part for part in text.split("```yaml\n")[1:] if part.startswith("preemption:")).partition("```")[0]
    assert read_tree(f"version: 1\n{said}queues: []\n").preemption == PreemptionLimits()


@pytest.mark.parametrize(("said", "read"), [("never", "never"), ("8h", 28_800), ("0s", 0), ("null", None)])
def test_a_file_says_after_how_long_shares_are_evened_out(said: str, read: object) -> None:
    tree = read_tree(f"version: 1\npreemption: {{share_grace: {said}}}\nqueues: []\n")
    assert tree.preemption_limits.share_grace_s == read
    shown = [change.text() for change in changes(QueueTree.of([]), tree)]
    assert shown == ([] if read is None else [f"~ (the pool)  preemption.share_grace: none -> {said}"])


@pytest.mark.parametrize("said", ["sometimes", "-1s", "32d", "1.5", "true"])
def test_a_wrong_time_of_evening_out_is_named_with_line_field_and_fix(said: str) -> None:
    with pytest.raises(QueueFileError, match=r"file:2: preemption\.share_grace") as caught:
        read_tree(f"version: 1\npreemption: {{share_grace: {said}}}\nqueues: []\n", "file")
    assert "write never, or a duration of at most 31d" in str(caught.value)


def test_what_is_wrong_in_a_queue_file_is_told_in_terms_of_yaml_and_apart_from_its_value() -> None:
    said = "version: 1\nqueues:\n  - {name: a, classes: serving}\n  - b\n"
    with pytest.raises(QueueFileError) as caught:
        read_tree(said, "file")
    assert str(caught.value).splitlines() == [
        "file:3: queues.0.classes: serving: not a list; write a list: [a, b]",
        "file:4: queues.1: b: not a mapping; write a mapping",
    ]
    with pytest.raises(
        QueueFileError, match=r"queue a: servin: there is no such priority class; did you mean serving\?"
    ):
        read_tree("version: 1\nqueues:\n  - {name: a, classes: [servin]}\n", "file", ["serving"])


# ---------------------------------------------------------------------------------------------------------- division


def test_the_worked_example_of_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "queues.md").read_text(encoding="utf-8")
    tree = read_tree(text.partition("```yaml\n")[2].partition("```")[0], "docs/queues.md", ["serving", "production"])
    assert [change for change in changes(EXAMPLE, tree) if change.field != "classes"] == []
    told = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M)
    wanted = {"vision": 10_000, "language": 100_000, "serving": 30_000}
    assert divide_tree(EXAMPLE, "*", 96_000, wanted) == {
        "research": 66_000, "vision": 10_000, "language": 56_000, "product": 30_000, "serving": 30_000,
    } == {name: 1000 * int(share) for name, _, _, _, share in told}  # fmt: skip
    assert all(int(first) + int(rest) == int(share) for _, _, first, rest, share in told)
    crowded = dict.fromkeys(wanted, 100_000)
    assert divide_tree(EXAMPLE, "*", 96_000, crowded) == {
        "research": 51_000, "vision": 27_000, "language": 24_000, "product": 45_000, "serving": 45_000,
    }  # fmt: skip


def test_a_team_without_a_queue_and_the_own_jobs_of_one_with_queues_below_are_divided_for_too() -> None:
    shares = divide_tree(EXAMPLE, "*", 96_000, {"stranger": 50_000, "research": 50_000, "vision": 50_000})
    assert shares["stranger"] == 28_000
    assert shares["research"] == 68_000
    assert shares[f"research{OWN}"] + shares["vision"] == 68_000


claimants = st.lists(
    st.builds(
        Claimant,
        name=st.text("abcdef", min_size=1, max_size=3),
        wanted=st.integers(0, 50),
        guaranteed=st.integers(0, 30),
        weight=st.integers(0, 4),
        limit=st.none() | st.integers(0, 40),
    ),
    max_size=6,
    unique_by=lambda c: c.name,
)


@settings(max_examples=300, deadline=None)
@given(claimants, st.integers(0, 120))
def test_a_division_keeps_guarantees_and_limits_and_leaves_nothing_that_somebody_could_use(
    siblings: list[Claimant], amount: int
) -> None:
    share = divide(amount, siblings)
    first = {c.name: min(c.guaranteed, c.useful) for c in siblings}
    for c in siblings:
        assert first[c.name] <= share[c.name] <= c.useful
        assert c.weight or share[c.name] == first[c.name]
    assert sum(share.values()) <= max(amount, sum(first.values()))
    if sum(share.values()) < amount:
        assert all(share[c.name] == c.useful for c in siblings if c.weight)
    assert share == divide(amount, list(reversed(siblings)))


@settings(max_examples=200, deadline=None)
@given(claimants, st.integers(0, 120))
def test_of_two_unsatisfied_the_rest_goes_by_weight(siblings: list[Claimant], amount: int) -> None:
    share = divide(amount, siblings)
    short = [c for c in siblings if c.weight and share[c.name] < c.useful]
    over = {c.name: Fraction(share[c.name] - min(c.guaranteed, c.useful), c.weight) for c in short}
    for one in short:
        for other in siblings:
            if other.weight and share[other.name] > min(other.guaranteed, other.useful):
                beyond = Fraction(share[other.name] - min(other.guaranteed, other.useful) - 2, other.weight)
                assert over[one.name] >= beyond - Fraction(2, one.weight), (one, other)


# --------------------------------------------------------------------------------------------------- who comes first


def test_granting_to_the_worst_served_ends_at_the_division() -> None:
    """One device at a time, to the team whose standing is the lowest: what each then has is its fair share."""
    wanted = {"vision": 60, "language": 60, "serving": 30}
    held: dict[str, int] = dict.fromkeys(wanted, 0)
    standings = Standings(EXAMPLE, {}, {"H100": 96_000})
    for _ in range(96):
        team = min((t for t in wanted if held[t] < wanted[t]), key=lambda t: standings.of(t, ["H100"]))
        held[team] += 1
        standings.took(team, {"H100": 1000})
    fair = divide_tree(EXAMPLE, "*", 96_000, {team: 1000 * want for team, want in wanted.items()})
    assert all(abs(1000 * held[team] - fair[team]) <= 1000 for team in wanted), (held, fair)


def test_a_guarantee_of_one_type_is_none_of_another() -> None:
    tree = QueueTree.of([queue("a", of_types={"H100": 4000}), queue("b")])
    standings = Standings(tree, {"a": {"L4": 8000}}, {"H100": 8000, "L4": 16_000})
    assert standings.of("a", ["H100"]) < standings.of("b", ["H100"])
    assert standings.of("a", ["L4"]) > standings.of("b", ["L4"])
    assert standings.within("a", ["H100"], {"H100": 4000})
    assert not standings.within("a", ["H100"], {"H100": 5000})
    assert not standings.within("a", ["L4"], {"L4": 1000})
    assert standings.beyond("a", ["L4"])
    assert not standings.beyond("a", ["H100"])


def test_the_dominant_type_decides_beyond_guarantees() -> None:
    """Half of the few H100 weigh more than a quarter of the many L4."""
    tree = QueueTree.of([queue("a"), queue("b")])
    held = {"a": {"H100": 4000}, "b": {"L4": 16_000}}
    standings = Standings(tree, held, {"H100": 8000, "L4": 64_000})
    assert standings.of("b") < standings.of("a")


# ------------------------------------------------------------------------------------------------------- in a pool


def pool(*queues: Queue, nodes: int = 2) -> World:
    w = World(*(node(f"n{i}") for i in range(nodes)))
    w.send(inbox.ApplyQueues(version=1, queues=queues, reason="begin", user="olga"))
    return w


def test_a_guaranteed_team_comes_before_one_that_borrows() -> None:
    w = pool(queue("research", guaranteed=6), queue("blue", weight_milli=5000))
    w.started(w.submit(job("one", 4)))
    w.started(w.submit(job("two", 8, team="blue")))
    w.started(w.submit(job("three", 4)))
    late = w.submit(job("late", 1, team="blue"))
    early = w.submit(job("early", 1))
    assert [one.id for one in in_order(w.decider.state, w.now_us, w.decider.policy)] == [late, early], "both are beyond"
    w.send(inbox.ApplyQueues(version=2, queues=(queue("research", guaranteed=9), queue("blue", weight_milli=5000))))
    assert [one.id for one in in_order(w.decider.state, w.now_us, w.decider.policy)] == [early, late]


def test_a_limit_above_two_teams_holds_for_both_together_and_opens_again() -> None:
    w = pool(queue("lab", limit={"*": 10_000}), queue("research", "lab"), queue("blue", "lab"))
    w.started(first := w.submit(job("first", 6)))
    w.started(w.submit(job("second", 4, team="blue")))
    waits = w.submit(job("waits", 1, team="blue"))
    assert w.state_of(waits) == "queued"
    (reached,) = Tally(w.decider.state).room(w.decider.state.jobs[waits]).reached
    assert reached.text("blue") == "queue lab holds 10 of its limit of 10 accelerators and the job needs 1"
    w.released(first)
    assert w.state_of(waits) == "granted", "what research gives back helps blue"
    assert w.checker.finish().violations == []


def test_wrong_and_outdated_queues_are_refused_whole() -> None:
    w = pool(queue("a"))
    before = w.decider.state.tree
    for version, queues in ((2, [queue("b", "c")]), (1, [queue("b")]), (0, [])):
        w.send(inbox.ApplyQueues(version=version, queues=queues, user="olga"))
        (refused,) = w.records[-1].events
        assert isinstance(refused, ledger.InputRejected)
    assert "raise the file's version to 2" in refused.reason
    assert w.decider.state.tree == before
    count = len(w.records)
    w.send(inbox.ApplyQueues(version=1, queues=[queue("a")], user="olga"))
    assert not any(e.kind == "queues.applied" for r in w.records[count:] for e in r.events), "said again: nothing new"


def test_the_checker_finds_a_grant_above_a_queue_limit_by_its_own_books() -> None:
    books = LimitBooks()
    books.set_queues([("org", "", {"*": 8000}), ("lab", "org", {}), ("a", "lab", {}), ("b", "org", {"H100": 2000})])
    assert books.grant("a", "j1", [(("H100", ""), 7000)]) == []
    (told,) = books.grant("b", "j2", [(("H100", ""), 2000)])
    assert told.startswith("queue org holds 9000 milli of *")
    assert books.grant("stranger", "j3", [(("H100", ""), 90_000)]) == []


def test_queues_are_told_with_what_they_hold_and_a_team_sees_its_own_alone() -> None:
    w = pool(queue("research", guaranteed=8), queue("vision", "research", 4), queue("blue"))
    w.started(w.submit(job("a", 6, team="vision")))
    w.started(w.submit(job("b", 8, team="blue")))
    w.submit(job("c", 4, team="vision"))
    told = {share.queue.name: share for share in queue_shares(w.decider.state, "operator", {"experiment": 100}).shares}
    assert list(told) == ["blue", "research", "vision"]
    vision = told["vision"]
    assert (vision.held_milli, vision.borrowed_milli, vision.waiting_jobs, vision.waiting_milli) == (
        6000,
        2000,
        1,
        4000,
    )
    assert told["research"].held_milli == 6000
    assert vision.share_milli + told["blue"].share_milli == 16_000
    (own,) = queue_shares(w.decider.state, "vision").shares
    assert own.queue.name == "vision"
    assert own.queue.parent == ""
    assert queue_shares(w.decider.state, "vision").kinds == ()
    for name in ("n0", "n1"):
        w.send(inbox.NodeSilent(node=name, incarnation=1, silent_s=60))
        w.send(inbox.NodeDead(node=name, incarnation=1, fenced_by="BMC power off"))
    assert w.decider.state.fleet.capacity() == {}
    assert queue_shares(w.decider.state, "operator").kinds == ("H100",), "of nodes that are away, too"


def test_the_book_that_is_applied_is_told_to_operators() -> None:
    w = pool(queue("vision", guaranteed=4))
    assert queue_shares(w.decider.state, "operator").book is None
    price = ListRate(device="H100", micros=2_990_000, from_us=0)
    book = RateBook(version=1, currency="USD", prices=(price,), credits={"node-lost": 1000, "hardware-fault": 500})
    w.send(inbox.ApplyPrices(book=book, user="olga"))
    told = queue_shares(w.decider.state, "operator").book
    assert told == book.model_copy(update={"credits": dict(reversed(book.credits.items()))}).digest
    assert told != book.model_copy(update={"version": 2}).digest
    assert queue_shares(w.decider.state, "vision").book is None
