"""Operator mode: what a server without accounts has stored goes on in the account that takes it over; it has one port."""

from pathlib import Path
from urllib.parse import urlsplit

import nats
import psutil
import pytest

from libs.bus.connect import Address
from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.embedded.servers import NATS, NatsUser, Trust
from libs.walls import broker_claims
from libs.walls.keyring import Keyring


def only_nats(**options: object) -> ServerOptions:
    return ServerOptions(run=(NATS,), nats=NatsOptions(sync_always=False, **options))  # type: ignore[arg-type]


async def test_streams_of_the_time_without_accounts_are_taken_over(tmp_path: Path) -> None:
    async with Servers(tmp_path, only_nats()) as servers:
        before = await nats.connect(servers.nats_url)
        js = before.jetstream()
        await js.add_stream(name="WORDS", subjects=["words"])
        await js.add_consumer("WORDS", durable_name="reader", ack_policy="explicit")
        for word in (b"one", b"two"):
            await js.publish("words", word)
        reader = await js.pull_subscribe_bind("reader", "WORDS")
        await (await reader.fetch(1))[0].ack_sync()
        await before.close()
    ring = Keyring(tmp_path)
    service = ring.service()
    for left in ([b"two"], []):  # the second time there is nothing to take over
        async with Servers(tmp_path, only_nats(trust=broker_claims.trust(ring))) as servers:
            after = await nats.connect(servers.nats_url, **Address("", service).options())
            js = after.jetstream()
            assert (await js.stream_info("WORDS")).state.messages == 2
            info = await js.consumer_info("WORDS", "reader")
            assert (info.num_pending, info.num_ack_pending) == (len(left), 0), "where its reader was is kept, too"
            reader = await js.pull_subscribe_bind("reader", "WORDS")
            for word in left:
                (message,) = await reader.fetch(1)
                assert message.data == word
                await message.ack_sync()
            await after.close()


async def test_a_clusters_streams_cannot_be_taken_over_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "nats" / "jetstream" / "$G").mkdir(parents=True)
    options = only_nats(trust=broker_claims.trust(Keyring(tmp_path)), servers=3)
    with pytest.raises(RuntimeError, match="baton ledger export"):
        await Servers(tmp_path, options).start()


async def test_a_broker_with_accounts_listens_for_clients_and_on_no_other_port(tmp_path: Path) -> None:
    """Its monitoring page keeps a connection that has asked for something, whatever it was told, for as long as who made it
    likes. Two jobs with 10,000 of them each had all files that the broker may have open, and nobody connected any more."""
    async with Servers(tmp_path, only_nats(trust=broker_claims.trust(Keyring(tmp_path)))) as servers:
        assert listens(servers.supervisor.pid(NATS)) == {urlsplit(servers.nats_url).port}
    async with Servers(tmp_path / "without", only_nats()) as servers:
        assert len(listens(servers.supervisor.pid(NATS))) == 2, "or this test would not see the page"


def listens(pid: int) -> set[int]:
    """The ports at which a process waits for connections."""
    return {one.laddr.port for one in psutil.Process(pid).net_connections() if one.status == psutil.CONN_LISTEN}


def test_users_and_accounts_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        NatsOptions(users=[NatsUser("a", "b")], trust=Trust("", "", {}))
