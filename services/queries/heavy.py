"""Answers expensive questions: one at a time, in a thread, with fair queueing between teams.

While one is answered the replica is not changed (`Follower.still`), and the event loop goes on: cheap questions and probes are
answered meanwhile. Between two of them the follower may catch up for as long as the last one took, so that a burst of questions
does not make the answers stale. A team may have a bounded number of questions waiting; the next is refused at once. A question
that has waited longer than any client does is dropped.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from libs.bus.fair_queue import FairQueue
from libs.bus.queries import AskAgain
from libs.ledger.follower import Follower
from services.queries.replica import Replica

A = TypeVar("A")

_MOST = 4096
_PATIENCE_S = 10.0
"""The longest that a client waits for an answer (`baton plan`)."""
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    question: Callable[[Replica, int], Any]
    answered: "asyncio.Future[Any]"
    since: float


class HeavyQuestions:
    """`answer` from handlers, `run` as a task. `each`: how many questions of one team may wait."""

    def __init__(self, follower: Callable[[], Follower[Replica]], each: int) -> None:
        self._follower = follower
        self._turns: FairQueue[_Waiting] = FairQueue(each, _MOST)
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._turns)

    async def answer(self, team: str, question: Callable[[Replica, int], A]) -> A:
        """Queues `question(replica, ledger sequence)` for the team and returns its result.

        Raises what it raises, and AskAgain when too many of the team wait, or when it waited for too long.
        """
        waiting = _Waiting(question, asyncio.get_running_loop().create_future(), time.monotonic())
        if not self._turns.put(team, waiting):
            raise AskAgain(f"{self._turns.waiting(team)} questions of team {team} wait already: ask again in a moment")
        self._some.set()
        answer: A = await waiting.answered
        return answer

    async def run(self) -> None:
        """For ever."""
        while True:
            turn = self._turns.take()
            if turn is None:
                self._some.clear()
                await self._some.wait()
                continue
            _, waiting = turn
            if waiting.answered.done():
                continue
            if time.monotonic() - waiting.since > _PATIENCE_S:
                waiting.answered.set_exception(AskAgain(f"it waited for more than {_PATIENCE_S:g} s: ask again"))
                continue
            began = time.monotonic()
            await self._answer(waiting)
            await self._let_follow(time.monotonic() - began)

    async def _answer(self, waiting: _Waiting) -> None:
        follower = self._follower()
        async with follower.still():
            try:
                answer = await asyncio.to_thread(_ask, waiting.question, follower.projection, follower.position)
            except Exception as error:
                if not waiting.answered.done():
                    waiting.answered.set_exception(error)
                return
        if not waiting.answered.done():
            waiting.answered.set_result(answer)

    async def _let_follow(self, took_s: float) -> None:
        if self._follower().lag:
            await asyncio.sleep(min(took_s, _LONGEST_PAUSE_S))


def _ask(question: Callable[[Replica, int], A], replica: Replica, seq: int) -> A:
    gc.disable()  # a full collection would take longer than the answer: 100 ms and more with 50,000 jobs
    try:
        replica.decider.upkeep()
        return question(replica, seq)
    finally:
        gc.enable()
