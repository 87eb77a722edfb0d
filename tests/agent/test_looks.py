"""Looks at limits: a part whose folders take long to look at holds up no look at another."""

import asyncio
from pathlib import Path

import pytest

from services.agent import limits
from services.agent.limits import AttemptLimits, LimitLooks, Watched


class Part:
    """Its look ends when `may_end` is set."""

    def __init__(self, *, slow: bool) -> None:
        self.slow_to_look_at = slow
        self.looks = 0
        self.may_end = asyncio.Event()
        if not slow:
            self.may_end.set()

    async def look_at_limits(self) -> None:
        self.looks += 1
        await self.may_end.wait()
        if self.slow_to_look_at and self.looks == 2:
            raise OSError("the disk is gone")


async def others_go_on() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_slow_look_holds_up_no_quick_one_and_is_not_begun_twice() -> None:
    slow, quick, looks = Part(slow=True), Part(slow=False), LimitLooks()
    for number in (1, 2, 3):
        await asyncio.wait_for(looks.round([slow, quick]), 30)
        await others_go_on()
        assert (slow.looks, quick.looks) == (1, number)
    slow.may_end.set()
    await others_go_on()
    await looks.round([slow, quick])
    await others_go_on()
    assert slow.looks == 2
    with pytest.raises(OSError, match="the disk is gone"):
        await looks.round([quick])
    await looks.stop()


async def test_a_look_that_is_under_way_ends_with_the_agent() -> None:
    slow, looks = Part(slow=True), LimitLooks()
    await looks.round([slow])
    await others_go_on()
    await asyncio.wait_for(looks.stop(), 30)
    assert slow.looks == 1


async def test_it_is_slow_whose_last_look_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(AttemptLimits(memory=0, disk=2**40, memory_group="there is one"), [tmp_path])
    assert not watched.is_slow
    monkeypatch.setattr(limits, "QUICK_S", 0.0)
    await watched.exceeded(0)
    assert watched.is_slow
