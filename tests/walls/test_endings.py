"""What ends by itself is told before it has ended: certificates, credentials."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from libs.bus.connect import Address, BusUnavailable, close, connect
from libs.bus.endings import DAY_S, GoodFor, Shown, look, notice, of_credential
from libs.cli.launch import LaunchOptions, LocalStack
from libs.client import connect as connect_client
from libs.walls.keyring import Keyring
from libs.walls.wire import Wire
from tests.cli.test_command import baton
from tests.kit.nats_process import nats_process
from tests.kit.waiting import until


@pytest.mark.parametrize(
    ("days", "left_days", "soon"),
    [(397, 31, False), (397, 29, True), (90, 29, True), (30, 11, False), (30, 9, True), (1, 0.5, False), (1, -1, True)],
)
def test_what_has_less_than_thirty_days_and_a_third_of_its_time_ends_soon(
    days: float, left_days: float, soon: bool
) -> None:
    assert GoodFor(0, days * DAY_S).soon((days - left_days) * DAY_S) is soon


@pytest.mark.parametrize(
    ("left_s", "told"),
    [
        (2.5 * DAY_S, "ends on 1970-04-11, in 2 days"),
        (1.5 * DAY_S, "ends on 1970-04-11, in 1 day"),
        (60, "ends on 1970-04-11, in less than a day"),
        (-1, "ended on 1970-04-11"),
    ],
)
def test_an_end_is_told_with_its_day(left_s: float, told: str) -> None:
    assert GoodFor(0, 100 * DAY_S).told(100 * DAY_S - left_s) == told


async def test_the_certificate_is_looked_at_that_the_broker_shows_now(tmp_path: Path) -> None:
    """A connection that stands still has the one of before."""
    ring, server, pid = Keyring(tmp_path / "state"), tmp_path / "server", tmp_path / "nats.pid"
    creds = ring.service("telemetry")
    old, new = Wire(ring, lambda: time.time() - 300 * DAY_S), Wire(ring)
    first = old.make(["127.0.0.1"])
    old.give(server, server)
    tls = json.dumps(old.config(server))
    with nats_process(f'tls: {tls}\npid_file: "{pid}"\n', tmp_path) as plain:
        host = plain.removeprefix("nats://")
        where = Address(f"tls://{host},tls://127.0.0.1:9", creds)
        standing = await connect(Address(f"tls://{host}", creds), name="telemetry")
        shown = await look(where)
        assert {name: term.ends_s for name, term in shown.servers.items()} == {host: first.timestamp()}
        assert shown.authority is not None
        assert shown.authority.ends_s == pytest.approx(time.time() + 3350 * DAY_S, abs=60)
        second = new.make(["127.0.0.1"], renew=True)
        new.give(server, server)
        os.kill(int(pid.read_text()), signal.SIGHUP)

        async def renewed() -> bool:
            return (await look(where)).servers[host].ends_s == int(second.timestamp())

        await until(renewed)
        assert standing.stats["reconnects"] == 0
        await close(standing)
        foreign = Keyring(tmp_path / "foreign")
        other = foreign.service("telemetry")
        Wire(foreign).make(["127.0.0.1"])
        assert (await look(Address(f"tls://{host}", other))).servers == {}, "who is not known is believed nothing"
        assert await look(Address(plain, creds)) == Shown({}, None)


@pytest.fixture
async def cluster(tmp_path: Path) -> LocalStack:
    options = LaunchOptions(state_dir=tmp_path / "state", teams=("red",), services=(), sync_always=False, scale=0.01)
    return LocalStack(options)


async def test_who_has_a_credential_that_ends_soon_is_told_so(
    cluster: LocalStack, caplog: pytest.LogCaptureFixture
) -> None:
    before = Keyring(cluster.state_dir, lambda: time.time() - 70 * DAY_S)
    ben, carl = before.team("red.ben", lasts_s=90 * DAY_S), before.team("red.carl", lasts_s=60 * DAY_S)
    async with cluster:
        ring = cluster.keyring
        ana = ring.team("red.ana", lasts_s=90 * DAY_S)
        assert of_credential(ring.team("red")) is None
        assert notice(ana, time.time()) == ""
        async with await connect_client(Address(cluster.nats_url, ben), "red"):
            pass
        (warned,) = [record.message for record in caplog.records if record.name == "baton.client"]
        assert "red.ben ends on" in warned
        asked = await baton("get", "jobs", url=Address(cluster.nats_url, ben))
        assert "the credential of red.ben ends on " in asked.err
        assert "in 19 days" in asked.err
        assert "`baton team rotate red.ben`" in asked.err
        for good in (ana, ring.team("red")):
            assert "ends on" not in (await baton("get", "jobs", url=Address(cluster.nats_url, good))).err
        listed = await baton("team", "list", BATON_STATE_DIR=str(cluster.state_dir))
        rows = {line.split("\t")[1]: line.split("\t")[4] for line in listed.out.splitlines()[1:]}
        assert {name: end.endswith(" (soon)") for name, end in rows.items()} == {
            "red": False, "red.ana": False, "red.ben": True, "red.carl": True
        }  # fmt: skip
        with pytest.raises(BusUnavailable, match=r"it ended on \d+-\d+-\d+; ask your operator for the new file"):
            await connect(Address(cluster.nats_url, carl), name="carl", wait_s=5)
