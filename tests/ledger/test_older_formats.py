"""What happens in a pool while readers of an earlier format live: the same messages, and nothing told that they do not know.

Each life of `tests/core/lives.py` is lived once more, message for message, by a decider that may write an earlier format only.
"""

import asyncio
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from libs.core.billing.metering import Meter
from libs.core.state.formats import FIRST, FORMAT_OF, NEWEST
from tests.core import lives
from tests.core.builders import World
from tests.core.lives import LIVES
from tests.ledger.test_versions import old_code

__all__ = ["old_code"]
SCRIPT = Path(__file__).with_name("old_fold.py")
OLDER = range(FIRST, NEWEST)
BY_THE_WRITER = {"clock.jumped", "segment.sealed"}
"""Told by the writer itself: `test_readers.py` has it beside 0.1.0, `test_segments.py` the rolls."""


class Heard(World):
    """A pool that remembers what it was told."""

    def __init__(self, *nodes: Any) -> None:
        self.told: list[tuple[tuple[Any, ...], int]] = []
        self._deep = False
        super().__init__(*nodes)

    def send(self, *messages: Any, after_us: int = 1000) -> list[Any]:
        outer, self._deep = not self._deep, True
        if outer:
            self.told.append((messages, after_us))
        try:
            return super().send(*messages, after_us=after_us)
        finally:
            self._deep = not outer


@cache
def heard(life: str) -> Heard:
    """The life as it was, with what its pool was told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lives, "World", Heard)
        made = LIVES[life]()
    assert isinstance(made, Heard)
    return made


@cache
def lived_again(life: str, format_: int) -> World:
    """The same messages, while there are readers of this format."""
    world = World(allowed=format_)
    for messages, after_us in heard(life).told:
        world.send(*messages, after_us=after_us)
    return world


def newer(world: World, format_: int) -> set[str]:
    """Kinds of events that came after a format."""
    return {kind for kind in lives.kinds_of(world.records) if FORMAT_OF[kind] > format_}


@pytest.mark.parametrize("format_", OLDER)
def test_every_newer_kind_would_be_told_by_some_life(format_: int) -> None:
    told = set().union(*(newer(heard(life), format_) for life in LIVES))
    assert told == {kind for kind, came in FORMAT_OF.items() if came > format_} - BY_THE_WRITER


@pytest.mark.parametrize("format_", OLDER)
@pytest.mark.parametrize("life", LIVES)
def test_nothing_is_told_that_an_older_reader_does_not_know_and_the_rest_holds(life: str, format_: int) -> None:
    world = lived_again(life, format_)
    assert newer(world, format_) == set()
    world.check()
    assert "job.granted" in lives.kinds_of(world.records) or "job.granted" not in lives.kinds_of(heard(life).records)


async def test_0_1_0_reads_whatever_happens_and_its_bill_is_the_same(tmp_path: Path, old_code: Path) -> None:
    for life in LIVES:
        records = lived_again(life, FIRST).records
        (tmp_path / f"{life}.jsonl").write_text("".join(f"{r.model_dump_json()}\n" for r in records))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(SCRIPT), str(tmp_path),
        env={**os.environ, "PYTHONPATH": str(old_code)}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    seen = json.loads(out)
    assert seen["code"].startswith(str(old_code))
    for life in LIVES:
        world, there, meter = lived_again(life, FIRST), seen["ledgers"][life], Meter()
        for seq, record in enumerate(world.records, 1):
            meter.apply(record, seq)
        assert there["violations"] == [], life
        assert there["unfinished"] == sorted(world.decider.state.jobs), life
        assert there["milli_us"] == world.checker.finish().milli_us, life
        assert there["sums"] == sorted([*key, units] for key, units in meter.sums().items()), life
