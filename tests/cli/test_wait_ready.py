"""How long a start is waited for: as long as it gets on, and not for ever."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.cli.health import Checks, NotReady
from libs.cli.launch import LocalStack
from libs.cli.launch_options import LaunchOptions

LIMIT_S = 0.4
Said = Callable[[int], Checks]


def reading(left: int) -> Checks:
    return Checks(False, {"ledger": f"{left} records to read"}) if left > 0 else Checks(True, {"ledger": "ok"})


async def waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> int:
    """How often it was looked."""
    looks = 0

    async def readiness(*_: object) -> Checks:
        nonlocal looks
        looks += 1
        return said(looks)

    monkeypatch.setattr("libs.cli.launch.readiness", readiness)
    stack = LocalStack(LaunchOptions(state_dir=tmp_path))
    stack.http, stack.http_tokens = {"placement": "here"}, {"placement": ""}
    async with asyncio.timeout(60):
        await stack.wait_ready(timeout_s=LIMIT_S)
    return looks


async def test_who_reads_a_long_ledger_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a million jobs that wait a start takes longer than the limit: `baton up` ended everything in the midst of it."""
    looks = await waited(tmp_path, monkeypatch, lambda looks: reading(20 - looks))
    assert looks * 0.1 > 2 * LIMIT_S


@pytest.mark.parametrize(
    "said", [lambda _: reading(7), lambda looks: reading(1_000_000 + looks)], ids=["stands still", "never ends"]
)
async def test_who_does_not_get_on_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    with pytest.raises(NotReady, match="records to read"):
        await waited(tmp_path, monkeypatch, said)
