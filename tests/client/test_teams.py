"""What a team's credential may do is decided by the broker, whatever the client asks for."""

import nats
import pytest
from nats.aio.client import Client

from schemas import subjects
from tests.client.fakes import until

FORBIDDEN_TO_PUBLISH = [
    "baton.cmd.job.v1.submit.green",
    "baton.cmd.job.v1.cancel.green",
    "baton.cmd.job.v1.submit.blue.green",
    "baton.cmd.quota.v1.set.blue",
    "baton.cmd.quota.v1.set.operator",
    "baton.cmd.node.v1.desired.main.n1",
    "baton.qry.job.v1.list.green",
    "baton.qry.job.v1.list.operator",
    "baton.qry.node.v1.desired.blue",
    "baton.evt.job.v1.succeeded.blue",
    "baton.in.job.v1.admitted.main",
    "baton.led.pool.v1.record.main",
    "baton.tel.node.v1.heartbeat.main.n1",
    "baton.dead.admission",
    "_INBOX_green.x",
    "_INBOX.x",
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
    "baton.cmd.job.v1.submit.blue",
    "baton.led.pool.v1.record.main",
    "_INBOX_green.>",
    "_INBOX.>",
    "$JS.API.>",
]


class Team:
    """A plain NATS client with a team's credential, and what the broker refused it."""

    def __init__(self, client: Client, refused: list[str]) -> None:
        self.client, self.refused = client, refused


@pytest.fixture
async def team(urls: dict[str, str]):
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(urls["blue"], inbox_prefix="_INBOX_blue", error_cb=note)
    yield Team(client, refused)
    await client.close()


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


async def test_a_team_reads_its_own_events_and_no_others(team: Team, services) -> None:
    heard = await team.client.subscribe(subjects.events_of("blue"))
    await team.client.flush()
    for name in ("green", "blue"):
        await services.publish(subjects.event("queued", name), name.encode())
    await services.flush()
    assert (await heard.next_msg(timeout=10)).data == b"blue"
    assert team.refused == []


async def test_a_submit_is_acknowledged_on_the_teams_own_inbox(team: Team) -> None:
    reply = await team.client.request(subjects.submit("blue"), b'{"client_key": "raw", "job": {}}', timeout=10)
    assert b'"stream":"REQUESTS"' in reply.data
    assert team.refused == []


async def test_the_operator_cannot_write_the_ledger(urls: dict[str, str]) -> None:
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(urls["operator"], inbox_prefix="_INBOX_operator", error_cb=note)
    await client.publish(subjects.ledger("main"), b"{}")
    await client.flush()
    await until(lambda: any("led.pool" in text for text in refused))
    await client.close()
