"""A cancellation that Python 3.11 drops is said again."""

import asyncio

import pytest

from libs.bus import cancel as module
from libs.bus.cancel import cancel


class Asking:
    """A loop of requests, as nats-py makes them."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers = 0

    async def run(self) -> None:
        while True:
            await asyncio.wait_for(self.answer, 60)
            self.answers += 1
            self.answer = asyncio.get_running_loop().create_future()


async def test_a_task_whose_answer_comes_with_its_cancellation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)
    asking = Asking()
    task = asyncio.create_task(asking.run())
    await asyncio.sleep(0.01)
    asking.answer.set_result(None)
    async with asyncio.timeout(20):
        await cancel(task)
    assert task.cancelled()


async def test_what_a_task_raises_is_not_raised_here_and_one_that_is_done_is_left_as_it_is() -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise KeyError

    async def returns() -> int:
        return 3

    failing, done = asyncio.create_task(fails()), asyncio.create_task(returns())
    await done
    await cancel(failing, done)
    assert isinstance(failing.exception(), KeyError)
    assert done.result() == 3
    await cancel()


async def test_who_is_cancelled_while_he_waits_leaves_no_task_behind() -> None:
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)

    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(cancel(task))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert task.done()
    assert waiting.cancelled()
