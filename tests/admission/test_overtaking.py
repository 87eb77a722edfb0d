"""What is read ahead of the queue stays within its bounds, however many teams wait; on a real stream."""

import json
from collections.abc import AsyncIterator, Sequence

import pytest
from nats.aio.client import Client

from libs.bus.dead import Received
from libs.bus.messages import Outgoing
from schemas.subjects import REQUESTS
from services.admission import overtaking
from services.admission.overtaking import Overtaking
from services.admission.pace import Pace, PacedOutbox
from tests.admission.test_handlers import GOOD

CROWD = 40


@pytest.fixture
async def reader(nats: Client, pool: str) -> AsyncIterator["Reader"]:
    made = Reader(nats)
    yield made
    await made.purge()


class Reader:
    """An overtaking on the test's broker. Nothing follows from what it decides."""

    def __init__(self, nats: Client) -> None:
        self.js = nats.jetstream()
        self.decided: list[str] = []
        self.teams: Sequence[str] = ()
        pace = Pace(lambda pool: 0, shared=1_000, alone=1_000)
        self.overtaking = Overtaking(self.js, self.decide, PacedOutbox(self.js), pace)

    def decide(self, received: Received) -> list[Outgoing]:
        self.decided.append(received.subject.split(".")[-2])
        return []

    async def submit(self, teams: Sequence[str], each: int = 1) -> None:
        self.teams = teams
        for team in teams:
            for number in range(each):
                body = json.dumps(GOOD | {"client_key": f"k{number}"}).encode()
                await self.js.publish(f"baton.cmd.job.v1.submit.{team}.ana", body)

    async def purge(self) -> None:
        """Whoever reads the stream next does not get them."""
        for team in self.teams:
            await self.js.purge_stream(REQUESTS, subject=f"baton.cmd.job.v1.*.{team}.*")

    async def read(self, times: int) -> None:
        for _ in range(times):
            self.overtaking._look_at = 0.0  # which teams there are is looked up each time
            await self.overtaking.read()


async def test_requests_of_so_many_teams_are_held_and_the_next_begin_when_those_are_decided(
    reader: Reader, team: str
) -> None:
    teams = [f"{team}-{number}" for number in range(CROWD)]
    await reader.submit(teams)
    await reader.read(4)
    assert len(reader.overtaking.held) == overtaking._TEAMS
    while not set(teams) <= set(reader.decided):  # teams of other tests are on the same stream
        await reader.read(1)
        assert len(reader.overtaking.held) <= overtaking._TEAMS
        assert reader.overtaking._round(1_000)
        await reader.overtaking._stored()


async def test_bytes_of_what_is_held_are_bounded(reader: Reader, team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    teams = [f"{team}-{number}" for number in range(8)]
    await reader.submit(teams, each=20)

    monkeypatch.setattr(overtaking, "_BYTES", 4_000)
    await reader.read(6)
    held = reader.overtaking.held
    largest = 1_000  # of one request here, its headers included
    assert 0 < sum(held.values()) <= 4_000 + len(held) * largest
