"""Rates from measurements, and the order of device models that follows. Figures: tests/data/gavel (Gavel, OSDI '20)."""

import csv
from pathlib import Path

import pytest

from libs.core.placement.answer import Placed
from libs.core.placement.find import find
from libs.core.placement.throughput import (
    Chooser,
    Measured,
    ModelChoice,
    ThroughputBook,
    Throughputs,
    choose,
)
from libs.core.placement.view import View
from libs.core.state.shape import Shape
from tests.core.builders import World, node

GAVEL = Path(__file__).parents[1] / "data" / "gavel" / "throughputs.csv"
RESNET = "ResNet-50 (batch size 64)"
RECOMMENDATION = "Recommendation (batch size 8192)"
MODELS = ["K80", "P100", "V100"]


def gavel() -> Throughputs:
    """A V100 is `v100` there. Rows of GPUs on different servers are left out: a placement keeps a job together if it can."""
    rows = csv.DictReader(GAVEL.read_text().splitlines())
    return Throughputs(
        Measured(row["job_type"], row["gpu_type"].upper(), int(row["num_gpus"]), float(row["steps_per_s"]))
        for row in rows
        if not row["gpu_type"].endswith("_unconsolidated")
    )


def price(model: str) -> int:
    """A V100 costs 1.7 P100 and 5.5 K80: round figures of a cloud that had all three."""
    return {"V100": 2_480_000, "P100": 1_460_000, "K80": 450_000}[model]


def order(choices: list[ModelChoice]) -> list[str]:
    return [choice.model for choice in choices]


def test_measured_rates_are_taken_as_they_are() -> None:
    assert gavel().rate(RESNET, "V100", 1) == pytest.approx(4.394774823323071)
    assert gavel().rate(RESNET, "V100", 8) == pytest.approx(17.303172756892167)
    assert gavel().models(RESNET) == ("K80", "P100", "V100")
    assert gavel().counts(RESNET, "V100") == (1, 2, 4, 8)


def test_between_measured_counts_the_rate_is_interpolated() -> None:
    table = Throughputs([Measured("f", "H100", 2, 10.0), Measured("f", "H100", 4, 16.0)])
    assert table.rate("f", "H100", 3) == 13.0
    assert table.rate("f", "H100", 1) == 5.0


def test_beyond_the_largest_count_it_is_never_better_than_linear() -> None:
    poor = Throughputs([Measured("f", "H100", 1, 10.0), Measured("f", "H100", 2, 12.0)])
    assert poor.rate("f", "H100", 4) == 16.0  # the last slope, not 24
    super_linear = Throughputs([Measured("f", "H100", 1, 1.0), Measured("f", "H100", 2, 4.0)])
    assert super_linear.rate("f", "H100", 4) == 8.0  # in proportion, not 10
    worse = Throughputs([Measured("f", "H100", 1, 4.0), Measured("f", "H100", 2, 3.0)])
    assert worse.rate("f", "H100", 8) == 3.0
    assert Throughputs([Measured("f", "H100", 2, 6.0)]).rate("f", "H100", 8) == 24.0


def test_what_did_not_run_is_unknown() -> None:
    table = Throughputs([Measured("f", "K80", 1, 0.0)])
    assert table.rate("f", "K80", 1) is None
    assert not table


def test_the_soonest_end_and_the_cheapest_step_are_different_devices() -> None:
    """ResNet-50 runs 1.7 times as fast on a V100 as on a P100; the Recommendation job is the slowest on it."""
    assert order(choose(gavel(), price, RESNET, 1, MODELS, "finish")) == ["V100", "P100", "K80"]
    assert order(choose(gavel(), price, RESNET, 1, MODELS, "cost"))[0] == "P100"
    assert order(choose(gavel(), price, RECOMMENDATION, 1, MODELS, "finish")) == ["P100", "V100", "K80"]
    assert order(choose(gavel(), price, RECOMMENDATION, 1, MODELS, "cost")) == ["K80", "P100", "V100"]
    assert order(choose(gavel(), price, RESNET, 1, MODELS, "listed")) == MODELS


def test_a_choice_says_time_and_money() -> None:
    (best, *_) = choose(gavel(), price, RESNET, {"V100": 2, "K80": 8}, ["V100", "K80"], "finish", steps=7922)
    assert best.model == "V100"
    assert best.finish_s == pytest.approx(1000, rel=0.001)
    assert best.micros_per_step == pytest.approx(2 * 2_480_000 / 3600 / 7.922054367597505)


def test_the_unknown_come_last_in_the_listed_order() -> None:
    table = Throughputs([Measured("f", "A100", 1, 5.0), Measured("f", "H100", 1, 9.0)])
    ranked = choose(table, lambda _: 1, "f", 1, ["TPU", "A100", "MI300X", "H100"], "finish")
    assert order(ranked) == ["H100", "A100", "TPU", "MI300X"]
    assert ranked[2].steps_per_s is None


def test_the_placer_takes_the_model_that_the_objective_prefers() -> None:
    world = World(node("a", model="V100"), node("b", model="P100"), node("c", model="K80"))
    fleet = world.decider.state.fleet
    view = View.of(fleet, Chooser(gavel(), price))

    def model_of(objective: str, family: str = RESNET, types: tuple[str, ...] = ("K80", "P100", "V100")) -> str:
        placed = find(view, Shape(1, types=types, objective=objective, family=family))
        assert isinstance(placed, Placed)
        return fleet.models.names[int(fleet.model[placed.rows[0]])]

    assert model_of("listed") == "K80"
    assert model_of("finish") == "V100"
    assert model_of("cost") == "P100"
    assert model_of("cost", RECOMMENDATION, types=()) == "K80"
    assert model_of("finish", family="never measured") == "K80"


def test_a_mig_profile_has_rates_of_its_own() -> None:
    rows = [Measured("f", "H100:1g.10gb", 1, 1.0), Measured("f", "A100:1g.10gb", 1, 2.0), Measured("f", "H100", 1, 9.0)]
    chooser = Chooser(Throughputs(rows), lambda _: 1)
    assert chooser.order("finish", "f", 1, "1g.10gb", ("H100", "A100")) == ("A100", "H100")
    assert chooser.order("finish", "f", 1, "", ("A100", "H100")) == ("H100", "A100")


def test_the_book_lists_rates_by_count() -> None:
    book = ThroughputBook.model_validate(
        {"throughputs": [{"family": "f", "model": "H100", "steps_per_s": {"1": 2.0, "8": 12.0}}]}
    )
    assert Throughputs(book.rows()).rate("f", "H100", 8) == 12.0
