"""What the credential of a team, a user or a node may do is decided by the broker, whatever the client asks for."""

from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.connect import Address
from libs.bus.creds import LOGS_CREDS
from schemas import subjects
from tests.client.fakes import until

FORBIDDEN_TO_PUBLISH = [
    "baton.cmd.job.v1.submit.green.ana",
    "baton.cmd.job.v1.cancel.green.ana",
    "baton.cmd.job.v1.submit.blue",
    "baton.cmd.job.v1.submit.blue.ana.green",
    "baton.cmd.job.v1.submit.main.blue.ana",
    "baton.cmd.quota.v1.set.main.blue.ana",
    "baton.cmd.quota.v1.set.main.operator.ana",
    "baton.cmd.node.v1.desired.main.n1",
    "baton.qry.job.v1.list.green.ana",
    "baton.qry.job.v1.list.operator.ana",
    "baton.qry.job.v1.explain.main.green.ana",
    "baton.qry.bill.v1.get.main.operator.ana",
    "baton.qry.node.v1.desired.blue.n1",
    "baton.evt.job.v1.succeeded.blue",
    "baton.in.job.v1.admitted.main",
    "baton.in.node.v1.observed.main.n1",
    "baton.led.pool.v1.record.main",
    "baton.tel.node.v1.heartbeat.main.n1",
    "baton.dead.admission",
    "_INBOX_green.x",
    "_INBOX.x",
    "_NODE_blue.n1.x",
    "$JS.API.STREAM.INFO.EVENTS",
    "$JS.API.STREAM.MSG.GET.LEDGER-main",
    "$JS.API.DIRECT.GET.EVENTS",
    "$JS.API.CONSUMER.CREATE.EVENTS",
    "$JS.API.STREAM.PURGE.REQUESTS",
    "$KV.baton-cursors.x",
]
FORBIDDEN_TO_READ = [
    ">",
    "baton.>",
    "baton.evt.*.v1.*.green",
    "baton.evt.*.v1.*.*",
    "baton.cmd.job.v1.submit.blue.ana",
    "baton.led.pool.v1.record.main",
    "_INBOX_green.>",
    "_INBOX.>",
    "_NODE_blue.>",
    "$JS.API.>",
]
FORBIDDEN_TO_A_USER = [
    "baton.cmd.job.v1.submit.blue.ben",
    "baton.cmd.job.v1.cancel.blue.ben",
    "baton.cmd.job.v1.invented.blue.ana",
    "baton.qry.job.v1.get.blue.ben",
    "baton.qry.pool.v1.status.main.blue.ben",
]
FORBIDDEN_TO_A_NODE = [
    "baton.in.node.v1.observed.main.n2",
    "baton.in.node.v1.registered.main.n2",
    "baton.in.node.v1.lost.main.n2",
    "baton.in.node.v1.observed.west.n1",
    "baton.in.job.v1.admitted.main",
    "baton.in.quota.v1.changed.main",
    "baton.in.preemption.v1.planned.main",
    "baton.in.clock.v1.tick.main",
    "baton.tel.node.v1.heartbeat.main.n2",
    "baton.tel.node.v1.sample.main.n2",
    "baton.qry.node.v1.desired.main.n2",
    "baton.cmd.node.v1.desired.main.n1",
    "baton.cmd.job.v1.submit.main.n1",
    "baton.led.pool.v1.record.main",
    "$JS.API.STREAM.PURGE.INBOX-main",
    "$JS.API.STREAM.MSG.GET.INBOX-main",
]
FORBIDDEN_TO_A_NODE_TO_READ = [
    "baton.>",
    "baton.in.node.v1.*.main.n1",
    "baton.cmd.node.v1.desired.main.n2",
    "baton.cmd.node.v1.desired.main.*",
    "baton.cmd.job.v1.*.*.*",
    "baton.qry.job.v1.get.*.*",
    "_NODE_main.n2.>",
    "_INBOX_blue.>",
]


class Team:
    """A plain NATS client with a team's credential, and what the broker refused it."""

    def __init__(self, client: Client, refused: list[str]) -> None:
        self.client, self.refused = client, refused


async def connected(address: Address, prefix: str) -> Team:
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    made = await nats.connect(address.url, inbox_prefix=prefix, error_cb=note, **address.options())
    return Team(made, refused)


@pytest.fixture
async def team(urls: dict[str, Address]):
    made = await connected(urls["blue"], "_INBOX_blue")
    yield made
    await made.client.close()


@pytest.fixture
async def ana(urls: dict[str, Address]):
    """A user's own credential."""
    made = await connected(urls["blue.ana"], subjects.reply_prefix("blue", "ana"))
    yield made
    await made.client.close()


@pytest.fixture
async def n1(urls: dict[str, Address]):
    """A node's own credential."""
    made = await connected(urls["main.n1"], subjects.node_reply_prefix("main", "n1"))
    yield made
    await made.client.close()


async def refuses(team: Team, what: str) -> None:
    """Returns when the broker has said that it refused `what`."""
    await until(lambda: any(f"permissions violation for {what}" in text.lower() for text in team.refused))


@pytest.mark.parametrize("subject", FORBIDDEN_TO_PUBLISH)
async def test_a_team_cannot_publish_to(team: Team, services, subject: str) -> None:
    heard = await services.subscribe(subject)
    await services.flush()
    await team.client.publish(subject, b"{}")
    await refuses(team, "publish")
    await services.flush()
    assert heard.pending_msgs == 0


@pytest.mark.parametrize("subject", FORBIDDEN_TO_READ)
async def test_a_team_cannot_read(team: Team, subject: str) -> None:
    await team.client.subscribe(subject)
    await refuses(team, "subscription")


@pytest.mark.parametrize("subject", [*FORBIDDEN_TO_PUBLISH, *FORBIDDEN_TO_A_USER])
async def test_a_user_cannot_publish_to(ana: Team, services, subject: str) -> None:
    heard = await services.subscribe(subject)
    await services.flush()
    await ana.client.publish(subject, b"{}")
    await refuses(ana, "publish")
    await services.flush()
    assert heard.pending_msgs == 0


async def test_a_user_submits_as_itself_and_reads_the_teams_events(ana: Team, services) -> None:
    heard = await ana.client.subscribe(subjects.events_of("blue"))
    reply = await ana.client.request(subjects.submit("blue", "ana"), b'{"client_key": "raw2", "job": {}}', timeout=10)
    assert b'"stream":"REQUESTS"' in reply.data
    await services.publish(subjects.event("queued", "blue"), b"news")
    await services.flush()
    assert (await heard.next_msg(timeout=10)).data == b"news"
    assert ana.refused == []
    await ana.client.subscribe("_INBOX_blue.ben.>")
    await refuses(ana, "subscription")


@pytest.mark.parametrize("subject", FORBIDDEN_TO_A_NODE)
async def test_a_node_cannot_publish_to(n1: Team, services, subject: str) -> None:
    heard = await services.subscribe(subject)
    await services.flush()
    await n1.client.publish(subject, b"{}")
    await refuses(n1, "publish")
    await services.flush()
    assert heard.pending_msgs == 0


@pytest.mark.parametrize("subject", FORBIDDEN_TO_A_NODE_TO_READ)
async def test_a_node_cannot_read(n1: Team, subject: str) -> None:
    await n1.client.subscribe(subject)
    await refuses(n1, "subscription")


async def test_a_node_speaks_and_is_spoken_to_on_its_own_subjects(n1: Team, services, urls: dict[str, Address]) -> None:
    told = await n1.client.subscribe(subjects.desired("main", "n1"))

    async def answer(message: Msg) -> None:
        await message.respond(b"a log")

    own = urls["main.n1"]
    logs = await connected(replace(own, creds=Path(str(own.creds)).with_name(LOGS_CREDS)), "_INBOX")
    await logs.client.subscribe("baton.qry.log.v1.piece.main.n1", cb=answer)
    for connection in (n1.client, logs.client):
        for _ in range(2):
            await connection.flush()
    stored = await n1.client.request(subjects.node_inbox("observed", "main", "n1"), b"{}", timeout=10)
    assert b'"stream":"INBOX-main"' in stored.data
    await services.publish(subjects.desired("main", "n1"), b"state")
    await services.flush()
    assert (await told.next_msg(timeout=10)).data == b"state"
    log = await services.request("baton.qry.log.v1.piece.main.n1", b"{}", timeout=10)
    assert log.data == b"a log"
    assert n1.refused == logs.refused == []
    for subject in ("baton.in.node.v1.observed.main.n1", "baton.led.pool.v1.record.main", "_INBOX_blue.ana.x"):
        logs.refused.clear()
        await logs.client.publish(subject, b"{}")
        await refuses(logs, "publish")
    await logs.client.close()


async def test_a_team_reads_its_own_events_and_no_others(team: Team, services) -> None:
    heard = await team.client.subscribe(subjects.events_of("blue"))
    for _ in range(2):  # nats-py writes a flush's PING ahead of what is buffered: the second PONG comes after our SUB
        await team.client.flush()
    for name in ("green", "blue"):
        await services.publish(subjects.event("queued", name), name.encode())
    await services.flush()
    assert (await heard.next_msg(timeout=10)).data == b"blue"
    assert team.refused == []


async def test_a_submit_is_acknowledged_on_the_teams_own_inbox(team: Team) -> None:
    reply = await team.client.request(subjects.submit("blue", "ana"), b'{"client_key": "raw", "job": {}}', timeout=10)
    assert b'"stream":"REQUESTS"' in reply.data
    assert team.refused == []


async def test_the_operator_cannot_write_the_ledger(urls: dict[str, Address]) -> None:
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    made = urls["operator"]
    client = await nats.connect(made.url, inbox_prefix="_INBOX_operator", error_cb=note, **made.options())
    await client.publish(subjects.ledger("main"), b"{}")
    await client.flush()
    await until(lambda: any("led.pool" in text for text in refused))
    await client.close()
