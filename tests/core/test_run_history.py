"""How long jobs run by whose they are and what they are called: the most specific key with enough, bounded, calibrated."""

import random

import pytest

from libs.core.scheduling.precedence import history
from libs.core.scheduling.precedence.history import ENOUGH, LAST, RunHistory, similar_to
from libs.core.scheduling.precedence.remaining import Basis, remaining
from schemas import inbox
from schemas.queues import Queue
from tests.core.builders import World, job, node

ANN = similar_to("research", "ann", "train-17")


def filled(*ended: tuple[str, str, float]) -> RunHistory:
    """Of (user, name, run time, s), `ENOUGH` of each, and one job of another team."""
    made = RunHistory()
    made.ended(similar_to("vision", "zoe", "other"), 1, 5.0)
    for user, name, run_s in ended:
        for number in range(ENOUGH):
            made.ended(similar_to("research", user, f"{name}-{number}"), 1, run_s)
    return made


def test_the_most_specific_key_that_has_enough_is_asked() -> None:
    known = filled(("ann", "train", 100.0), ("bob", "train", 300.0), ("ann", "eval", 20.0))
    assert known.foretold(ANN, 1) == (100.0, 100.0)
    assert known.foretold(similar_to("research", "bob", "train-1"), 1) == (300.0, 300.0)
    assert known.foretold(similar_to("research", "eve", "train-1"), 1) == (300.0, 300.0), "half of all who train"
    assert known.foretold(similar_to("research", "ann", "new"), 1) == (100.0, 100.0), "half of all of ann"
    assert known.foretold(similar_to("research", "eve", "new"), 1) == (100.0, 300.0), "of the team"
    assert known.foretold(similar_to("vision", "zoe", "other"), 1) is None, "too few"
    assert known.foretold(ANN, 8) is None, "none of that width"


def test_digits_of_a_name_are_folded_and_other_characters_are_not() -> None:
    assert (
        similar_to("a", "b", "train-2024-17") == similar_to("a", "b", "train-1-2") != similar_to("a", "b", "eval-1-2")
    )


def test_a_key_that_has_all_jobs_says_nothing_that_their_width_does_not() -> None:
    known = RunHistory()
    for _ in range(100):
        known.ended(similar_to("replay", "", "simulated"), 1, 60.0)
    assert known.foretold(similar_to("replay", "", "simulated"), 1) is None


def test_who_has_run_for_long_is_compared_with_those_who_did() -> None:
    known = filled(("ann", "train", 100.0), ("ann", "train", 900.0))
    assert known.foretold(ANN, 1) == (900.0, 900.0)
    assert known.foretold(ANN, 1, ran_s=500.0) == (900.0, 900.0)
    assert known.foretold(ANN, 1, ran_s=900.0) is None


def test_what_is_kept_is_bounded_and_who_ended_nothing_for_the_longest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "KEYS", 40)
    known = RunHistory()
    for number in range(500):
        known.ended(similar_to("research", f"u{number}", "train"), 1, float(number))
        known.ended(similar_to("research", "ann", "train"), 1, 7.0)
    rows = list(known.dump())[1:]
    assert len(rows) == 40
    assert max(len(row[-1]) for row in rows) == LAST
    known.ended(similar_to("vision", "zoe", "other"), 1, 5.0)
    assert known.foretold(ANN._replace(pattern="train"), 1) == (7.0, 7.0)
    again = RunHistory()
    again.load(list(known.dump()))
    assert list(again.dump()) == list(known.dump())


def test_a_team_whose_jobs_all_have_other_names_pushes_out_what_is_known_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "KEYS", 40)
    known = filled(("ann", "train", 100.0))
    for number in range(500):
        letters = "".join(chr(ord("a") + int(digit)) for digit in str(number))  # digits are folded
        known.ended(similar_to("red", f"u{number}", letters), 1, 1.0)
    assert known.foretold(ANN, 1) == (100.0, 100.0)
    assert len(list(known.dump())[1:]) == 40
    again = RunHistory()
    again.load(list(known.dump()))
    for one in (known, again):
        one.ended(similar_to("red", "last", "last"), 1, 1.0)
    assert list(again.dump()) == list(known.dump())


def test_nine_of_ten_jobs_are_within_their_p90_on_the_second_half() -> None:
    chance, known = random.Random(5), RunHistory()
    kinds = [(f"u{u}", f"n{n}", chance.lognormvariate(8, 1.5)) for u in range(6) for n in range(4)]
    within = []
    for number in range(6000):
        user, name, scale = chance.choice(kinds)
        kin, run_s = similar_to(f"t{user[-1]}", user, f"{name}x{number}"), scale * chance.lognormvariate(0, 0.6)
        told = known.foretold(kin, 1)
        if number >= 3000 and told is not None:
            within.append((run_s <= told[0], run_s <= told[1]))
        known.ended(kin, 1, run_s)
    p50, p90 = (sum(one) / len(within) for one in zip(*within, strict=True))
    assert len(within) > 2900
    assert p50 == pytest.approx(0.5, abs=0.05)
    assert p90 == pytest.approx(0.9, abs=0.05)


def test_an_expected_end_rests_on_the_kin_of_a_job_and_whoever_folds_it_has_the_same() -> None:
    world = World(node("n0"))
    world.send(inbox.ApplyQueues(version=1, queues=(Queue(name="research"),), user="olga"))

    def submit(user: str, name: str) -> str:
        job_id = world.submit(job(name).model_copy(update={"user": user}))
        world.started(job_id)
        return job_id

    for number in range(ENOUGH):
        for user, run_s in (("ann", 100), ("bob", 4000)):
            job_id = submit(user, f"{user}-{number}")
            world.send(after_us=run_s * 1_000_000)
            world.released(job_id)
    turns = world.decider.turns
    running = world.decider.state.jobs[submit("ann", "ann-99")]
    left = remaining(turns, running, world.now_us)
    assert left.basis is Basis.HISTORY
    assert left.p90_s == pytest.approx(100, abs=5)
    world.check()
