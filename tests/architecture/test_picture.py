"""The pictures of the core are those of the code, and the core has the shape that they promise."""

import grimp

from tests.architecture import lifecycle_pictures
from tests.architecture.picture import PACKAGES, PAGE, POLICIES, arrows, depths, layers, wanted


def test_the_pictures_are_current() -> None:
    assert PAGE.read_text() == wanted(PAGE.read_text()), (
        "run `python -m tests.architecture.picture` and commit the result"
    )


def test_the_pictures_of_a_jobs_life_are_current() -> None:
    page = lifecycle_pictures.PAGE
    assert page.read_text() == lifecycle_pictures.wanted(page.read_text()), (
        "run `python -m tests.architecture.lifecycle_pictures` and commit the result"
    )


def test_the_core_has_nine_packages_in_five_layers_and_no_arrow_points_up() -> None:
    graph = grimp.build_graph("libs", cache_dir=None)
    height = {package: len(layers()) - n for n, layer in enumerate(layers()) for package in layer}
    assert (len(height), len(layers())) == (9, 5)
    assert [pair for pair in arrows(graph, PACKAGES) if height[pair[0]] <= height[pair[1]]] == []


def test_the_policies_import_each_other_in_no_circle() -> None:
    graph = grimp.build_graph("libs", cache_dir=None)
    pairs = arrows(graph, POLICIES)
    assert depths(pairs, {child for pair in pairs for child in pair})
