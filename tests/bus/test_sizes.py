"""What the streams reserve, and what the broker's configuration files allow, agree; too little is said in one line."""

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from libs.bus.connect import Address, close, connect
from libs.bus.streams import CannotProvision, bind, provision
from libs.bus.table import SEGMENT_BYTES, SIZES_MIB, reserved_bytes, streams
from libs.embedded import NatsOptions
from tests.kit.commands import fork
from tests.kit.nats_process import nats_process

ROOT = Path(__file__).parents[2]
COMPOSE_CONF = ROOT / "deploy" / "nats.conf"
_GIB = 1 << 30


def store_of(config: Path) -> int:
    """`max_file_store` of a nats.conf, bytes. (nats-server reads GB as 1024^3.)"""
    found = re.search(r"^\s*max_file_store:\s*(\d+)GB\s*$", config.read_text(), re.MULTILINE)
    assert found is not None, "deploy/nats.conf names max_file_store in GB"
    return int(found[1]) * _GIB


async def baton(*args: str, creds: Path | None = None, insecure: bool = False) -> tuple[int, str, str]:
    meant = {"BATON_INSECURE": "1"} if insecure else {}
    with TemporaryDirectory() as book:  # of what operators do: not into the home of who runs the test
        env = {**os.environ, "XDG_STATE_HOME": book, **({"BATON_NATS_CREDS": str(creds)} if creds else {}), **meant}
        code, out, err = await fork().run(args, env, ROOT)
        return code, out.decode(), err.decode()


def test_the_sizes_of_all_streams_stand_in_one_table_and_fit_into_what_is_allowed() -> None:
    per_stream = {re.sub(r"^(KV|OBJ)_", "", str(c.name)): c.max_bytes for c in streams(["pool"])}
    wanted = {name.replace("{pool}", "pool"): mib << 20 for name, mib in SIZES_MIB.items()}
    assert per_stream == wanted | {"LEDGER-pool": SEGMENT_BYTES}, "a ledger lies in segments"
    assert reserved_bytes(["main"]) == sum(SIZES_MIB.values()) << 20
    assert reserved_bytes(["main"]) <= store_of(COMPOSE_CONF)
    assert 2 * reserved_bytes(["main"]) <= NatsOptions().max_file_store_bytes


async def test_a_server_with_composes_own_file_takes_all_streams(tmp_path: Path) -> None:
    text = COMPOSE_CONF.read_text()
    assert text.count("store_dir: /data\n") == 1
    code, out, err = await baton(
        *("credentials", "--teams", "research", "--pools", "main", "--state-dir", str(tmp_path / "keys")),
        *("--accounts", str(tmp_path / "told"), "--write", str(tmp_path / "accounts" / "accounts.conf")),
    )
    assert (code, out) == (0, ""), err
    services = tmp_path / "keys" / "creds" / "services"
    with nats_process(text.replace("/data", "{folder}"), tmp_path) as url:
        done = await baton("provision", "--url", url, creds=services / "provision" / "nats.creds")
        assert done == (0, "main\tready\n", "")
        nats = await connect(Address(url, services / "placement" / "nats.creds"), name="test")
        await bind(nats.jetstream(), ["main"], wait_s=0)
        await close(nats)


async def test_a_store_that_is_too_small_is_said_in_one_line_with_the_fix(tmp_path: Path) -> None:
    with nats_process('jetstream { store_dir: "{folder}", max_file_store: 3GB }', tmp_path) as url:
        code, _, err = await baton("provision", "--url", url, insecure=True)
        assert code == 1
        (line,) = err.splitlines()
        assert re.search(r"stream \S+ \([\d,]+ MiB\) cannot be made: the broker has no room left to reserve", line)
        assert "set jetstream.max_file_store" in line
        assert "--scale" in line
        code, _, _ = await baton("provision", "--url", url, "--scale", "0.01", insecure=True)
        assert code == 0, "and that does help"


async def test_a_broker_that_lets_anybody_in_is_provisioned_only_when_that_is_said(tmp_path: Path) -> None:
    with nats_process('jetstream { store_dir: "{folder}" }', tmp_path) as url:
        code, out, err = await baton("provision", "--url", url, "--scale", "0.01")
        assert (code, out) == (6, "")
        assert "lets anybody in" in err
        assert "BATON_INSECURE=1" in err
        nats = await connect(url, name="test")
        assert await nats.jetstream().streams_info() == [], "nothing was made"
        await close(nats)


async def test_a_broker_without_jetstream_is_said_so(tmp_path: Path) -> None:
    with nats_process("", tmp_path) as url:
        nats = await connect(url, name="test")
        with pytest.raises(CannotProvision, match="no JetStream"):
            await provision(nats.jetstream(), ["main"])
        await close(nats)
