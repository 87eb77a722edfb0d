"""Each benchmark starts: what it takes from the product is still there."""

import importlib
from pathlib import Path

import pytest

import benchmarks

MODULES = sorted(path.stem for path in Path(benchmarks.__file__).parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_finds_what_it_measures(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
