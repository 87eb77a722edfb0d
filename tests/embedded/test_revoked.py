"""A credential is taken away while its owner is connected: it is cut off at once, and let in again when it is put back."""

import json
import os
import signal
from pathlib import Path

import pytest

from libs.bus.connect import BusUnavailable, close, connect
from libs.embedded import NatsOptions, NatsUser, ServerOptions, Servers
from libs.embedded.servers import NATS
from libs.ports.private_files import write_private
from tests.kit.waiting import until

USERS = (NatsUser("services", "secret"), NatsUser("team", "hidden", publish=["baton.cmd.>"]))


async def test_a_revoked_credential_is_cut_off_and_kept_out(tmp_path: Path) -> None:
    options = ServerOptions(run=(NATS,), nats=NatsOptions(users=USERS, sync_always=False))
    async with Servers(tmp_path, options) as servers:
        other = await connect(servers.nats_url_of("services"), name="other")
        revoked = await connect(servers.nats_url_of("team"), name="revoked")
        file = tmp_path / "config" / "nats.json"
        before = file.read_text()
        try:
            config = json.loads(before)
            config["authorization"]["users"] = [u for u in config["authorization"]["users"] if u["user"] != "team"]
            write_private(file, json.dumps(config))
            os.kill(servers.supervisor.pid(NATS), signal.SIGHUP)
            await until(lambda: not revoked.is_connected)
            with pytest.raises(BusUnavailable, match="refused the credential"):
                await connect(servers.nats_url_of("team"), name="again")
            assert other.is_connected, "nobody else is touched"
            write_private(file, before)
            os.kill(servers.supervisor.pid(NATS), signal.SIGHUP)

            async def let_in() -> bool:
                try:
                    await close(await connect(servers.nats_url_of("team"), name="again"))
                except BusUnavailable:
                    return False
                return True

            await until(let_in)
        finally:
            await close(revoked)
            await close(other)
