"""Who asks again while the broker is away, and when it gives up."""

import logging
from collections.abc import Awaitable, Callable

import pytest
from nats.errors import ConnectionClosedError, NoRespondersError

from libs.bus import retry
from libs.bus.retry import retry_while_away, run_periodically

log = logging.getLogger("test")


class Enough(Exception):
    pass


def answers(*said: object) -> Callable[[], Awaitable[object]]:
    left = list(said)

    async def ask() -> object:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSES_S", (0.0, 0.0))


async def test_what_fails_while_the_broker_is_away_is_asked_again() -> None:
    told: list[tuple[str, int]] = []
    ask = answers(NoRespondersError(), TimeoutError(), OSError("reset"), 7)
    assert await retry_while_away(ask, lambda error, before: told.append((type(error).__name__, before))) == 7
    assert told == [("NoRespondersError", 0), ("TimeoutError", 1), ("OSError", 2)]


@pytest.mark.parametrize("error", [ConnectionClosedError(), Enough()])
async def test_what_no_waiting_mends_is_passed_on(error: Exception) -> None:
    told: list[Exception] = []
    with pytest.raises(type(error)):
        await retry_while_away(answers(error, 7), lambda error, before: told.append(error))
    with pytest.raises(type(error)):
        await run_periodically(answers(error), 0.0, log, "cannot")  # type: ignore[arg-type]
    assert not told


async def test_turns_go_on_and_one_of_a_row_of_failures_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    turns = answers(TimeoutError(), TimeoutError(), None, TimeoutError(), 0.0, Enough())
    with pytest.raises(Enough):
        await run_periodically(turns, 0.0, log, "cannot look")  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == ["cannot look: TimeoutError()"] * 2
