"""A credential is taken away while its owner reads something long: the command says so, soon, and nothing looks whole."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from libs.bus.connect import Address, close, connect
from libs.cli.exits import Exit
from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.session import run
from libs.client import Baton
from libs.client.errors import Denied
from libs.ledger.verify import export
from libs.walls.accounts import CORE
from libs.walls.resolver import tell
from schemas import subjects
from schemas.subjects import OPERATOR
from tests.cli.test_command import baton
from tests.kit.waiting import until

POOL = "main"
RECORDS = 20_000
"""More than are written before the file's progress is told, and than a reader asks for ahead of that."""


async def test_an_export_of_the_ledger_ends_with_its_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`baton bill export` and the others that read the ledger do it so, too."""
    loop, file = asyncio.get_running_loop(), tmp_path / "ledger.jsonl"
    async with LocalStack(LaunchOptions(state_dir=tmp_path / "state", services=(), sync_always=False)) as cluster:
        ring = cluster.keyring
        placement = await connect(Address(cluster.nats_url, ring.service("placement")), name="placement")
        for _ in range(RECORDS):
            await placement.publish(subjects.ledger(POOL), b"{}")
        await close(placement)
        monkeypatch.setenv("BATON_STATE_DIR", str(cluster.state_dir))
        witness = await connect(
            cluster.address(OPERATOR), name="witness", inbox_prefix=subjects.reply_prefix(OPERATOR, "x")
        )

        async def rotate() -> None:
            ring.rotate_own(OPERATOR)
            await tell(cluster.nats_url, ring, [CORE])
            await until(lambda: not witness.is_connected)

        def read() -> None:
            """As a command does, in a thread that stands still while the credential is rotated."""

            async def work(operator: Baton) -> None:
                cut = False

                def told(seq: int, of: int) -> None:
                    nonlocal cut
                    if not cut:
                        asyncio.run_coroutine_threadsafe(rotate(), loop).result()
                    cut = True

                await export(operator.nats.jetstream(), POOL, file, told)

            run(work, OPERATOR)

        with pytest.raises(Denied, match="closed for good"):
            await asyncio.to_thread(read)
        await close(witness)
        assert not list(tmp_path.glob("ledger*"))


async def test_an_export_of_a_team_ends_with_its_credential(tmp_path: Path) -> None:
    """It waits for history, which stands still, when the team is revoked."""
    folder = tmp_path / "red"
    options = LaunchOptions(state_dir=tmp_path / "state", teams=("red",), services=("history",), sync_always=False)
    async with LocalStack(options) as cluster:
        history = cluster.supervisor.pid("history")
        os.kill(history, signal.SIGSTOP)
        try:
            exported = asyncio.create_task(baton("team", "export", str(folder), url=cluster.address("red")))
            await until(lambda: list(tmp_path.glob("red*")))  # it has begun
            cluster.keyring.revoke("red")
            await tell(cluster.nats_url, cluster.keyring, ["red"])
            ended = await exported
        finally:
            os.kill(history, signal.SIGCONT)
        assert ended.code == Exit.DENIED
        assert "revoked, rotated or has ended" in ended.err
        assert not list(tmp_path.glob("red*")), "nobody takes it for all"
