"""Shared by the tests of libs.embedded: a state directory, a builder for small processes, and waiting without a clock."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from libs.embedded import ProcessSpec

Until = Callable[..., Any]


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., ProcessSpec]:
    """Builds the spec of a process that runs a few lines of Python."""

    def build(name: str, code: str, **more: Any) -> ProcessSpec:
        return ProcessSpec(
            name=name, argv=[sys.executable, "-I", "-S", "-c", code], log_path=tmp_path / f"{name}.log", **more
        )

    return build


@pytest.fixture
def until() -> Until:
    """Waits until a condition holds. The deadline is for a hung test only."""

    async def wait(condition: Callable[[], Any], deadline_s: float = 30.0) -> Any:
        async with asyncio.timeout(deadline_s):
            while not (result := condition()):
                await asyncio.sleep(0.02)
        return result

    return wait


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Every test ends with the child processes it began with."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not left, f"left running: {left}"
