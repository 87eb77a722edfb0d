"""A team that said more than a team may is kept out: operators see it, are warned of it, and let it in before its time."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from libs.bus.connect import Address, BusUnavailable, close, connect
from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.team_admin import answering
from libs.walls import floods
from libs.walls.keyring import Keyring, NotKeptOut
from tests.cli.test_command import Result, baton
from tests.kit.waiting import until
from tests.walls.test_floods import FLEET, asks, teams_client

TEAMS = """
traffic: {said_per_s: 200, heard_per_s: 100000}
teams: {}
"""


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[LocalStack]:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    options = LaunchOptions(
        state_dir=tmp_path / "state", teams=("blue", "green"), fleet=fleet,
        services=("placement", "leases", "telemetry", "history"),
        sync_always=False, scale=0.2, log_level="WARNING", env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip
    async with LocalStack(options) as made:
        yield made


async def operator(pool: LocalStack, *words: str) -> Result:
    return await baton(*words, BATON_STATE_DIR=str(pool.state_dir))


async def kept_out(pool: LocalStack) -> str:
    """How many teams telemetry says are kept out, as Prometheus would read it."""

    def page() -> str:
        asked = Request(
            f"{pool.http['telemetry']}/metrics", headers={"Authorization": f"Bearer {pool.http_tokens['telemetry']}"}
        )
        with urlopen(asked) as answer:
            return str(answer.read().decode())

    text = await asyncio.to_thread(page)
    return next(line.split()[1] for line in text.splitlines() if line.startswith("baton_teams_kept_out "))


@pytest.mark.timeout(240)
async def test_an_operator_sees_who_is_kept_out_and_lets_it_in_before_its_time(
    pool: LocalStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(floods, "OUT_S", 3_600)
    teams_file = tmp_path / "teams.yaml"
    teams_file.write_text(TEAMS)
    url, ring = pool.nats_url, pool.keyring

    async def says(count: str) -> bool:
        return await kept_out(pool) == count

    async with answering(url, ring, teams_file):
        blue = await teams_client(url, ring, "blue")
        await until(lambda: says("0.0"))
        while not blue.is_closed:
            await asks(blue, "blue", 5_000)
        await until(lambda: says("1.0"))
        listed = await operator(pool, "team", "list", "-o", "json")
        assert '"kept_out": "until ' in listed.out
        assert "blue" in (await operator(pool, "team", "list")).out
        with pytest.raises(BusUnavailable, match="baton team let-in"):
            await connect(Address(url, ring.team("blue")), name="blue", wait_s=0.5)

        refused = await operator(pool, "team", "let-in", "green")
        assert (refused.code, "team 'green' is not kept out; there are blue" in refused.err) == (2, True), refused.err
        done = await operator(pool, "team", "let-in", "blue", "--reason", "their script is mended", "-o", "json")
        assert done.code == 0, done.err
        assert json.loads(done.out) == {"team": "blue", "done": "let in", "broker_told": True}
        back = await connect(Address(url, ring.team("blue")), name="blue", wait_s=30)
        await until(lambda: says("0.0"))
        assert '"kept_out": "until ' not in (await operator(pool, "team", "list", "-o", "json")).out
        assert back.is_connected
        await close(back)
        again = await operator(pool, "team", "let-in", "blue")
        assert (again.code, "no team is" in again.err) == (2, True), again.err
    audit = (await operator(pool, "audit")).out
    assert "team.keep-out" in audit
    assert "their script is mended" in audit
    assert audit.count("team.let-in") == 3, "what was refused has its line, too"


def test_who_was_let_in_early_is_kept_out_for_longer_the_next_time(tmp_path: Path) -> None:
    at = [1_000.0]
    ring = Keyring(tmp_path, lambda: at[0])
    ring.team("blue")
    with pytest.raises(NotKeptOut, match="no team is"):
        ring.let_in("blue")
    assert ring.keep_out("blue", 60, 3_600) == 60
    at[0] += 10
    ring.let_in("blue")
    assert ring.keys().kept_out == {}
    at[0] += 10
    assert ring.keep_out("blue", 60, 3_600) == 120
    assert ring.keys().kept_out == {"blue": 1_140}
    at[0] += 500
    assert ring.keys().kept_out == {"blue": 1_140}, "nobody has let it in: the next process with the keys does"
    ring.let_in("blue")
    assert ring.keys().teams["blue"].out_until_s == 1_140, "when it was over is counted from"
