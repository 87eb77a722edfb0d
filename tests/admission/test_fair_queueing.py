"""What is read ahead of the queue stays within its bounds, however many teams wait; on a real stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import pytest
from nats.aio.client import Client
from nats.errors import OutboundBufferLimitError

from libs.bus.dead import Received
from libs.bus.messages import Outgoing
from schemas.subjects import REQUESTS
from services.admission import fair_queueing, window
from services.admission.fair_queueing import FairQueueing
from services.admission.lane import TeamLane
from services.admission.window import AdmissionWindow, CongestionWindow, WindowedOutbox
from tests.admission.test_handlers import GOOD
from tests.kit.waiting import until

CROWD = 40


@pytest.fixture
async def reader(nats: Client, pool: str) -> AsyncIterator["Reader"]:
    made = Reader(nats)
    yield made
    await made.fair_queueing._close(list(made.fair_queueing.lanes))
    await made.purge()


class Reader:
    """An fair_queueing on the test's broker. Nothing follows from what it decides."""

    def __init__(self, nats: Client) -> None:
        self.js = nats.jetstream()
        self.decided: list[str] = []
        self.teams: Sequence[str] = ()
        self.fails = ""
        window = AdmissionWindow(lambda pool: 0, shared=1, alone=1)
        self.fair_queueing = FairQueueing(self.js, self.decide, WindowedOutbox(self.js), window)

    def decide(self, received: Received) -> list[Outgoing]:
        if self.fails and self.fails in received.subject:
            raise RuntimeError("it cannot be decided now")
        self.decided.append(received.subject.split(".")[-2])
        return []

    async def submit(self, teams: Sequence[str], each: int = 1, padding: int = 0) -> None:
        self.teams = [*self.teams, *teams]
        for team in teams:
            for number in range(each):
                body = json.dumps(GOOD | {"client_key": f"k{number}", "padding": "x" * padding}).encode()
                await self.js.publish(f"baton.cmd.job.v1.submit.{team}.ana", body)

    async def purge(self) -> None:
        """Whoever reads the stream next does not get them."""
        for team in self.teams:
            await self.js.purge_stream(REQUESTS, subject=f"baton.cmd.job.v1.*.{team}.*")

    async def read(self, enough: Callable[[], bool]) -> None:
        """Looks until it is enough. The bounds hold at every moment."""

        async def looked() -> bool:
            await self.fair_queueing.look()
            assert len(self.fair_queueing.lanes) <= fair_queueing._TEAMS
            return enough()

        await until(looked)


async def test_so_many_teams_have_lanes_and_the_next_begin_when_those_are_idle(reader: Reader, team: str) -> None:
    teams = [f"{team}-{number}" for number in range(CROWD)]
    await reader.submit(teams)
    await reader.read(lambda: len(reader.fair_queueing.held) == fair_queueing._TEAMS)

    async def all_decided() -> bool:
        await reader.fair_queueing.look()
        assert len(reader.fair_queueing.lanes) <= fair_queueing._TEAMS
        await reader.fair_queueing.turn()
        return set(teams) <= set(reader.decided)  # teams of other tests are on the same stream

    await until(all_decided)
    assert all(reader.decided.count(one) == 1 for one in teams)


async def test_what_a_lane_holds_is_bounded_in_requests_and_bytes(
    reader: Reader, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_queueing, "_PAGE_BYTES", 4_000)
    many, large = f"{team}-many", f"{team}-large"
    await reader.submit([many], each=100, padding=0)
    await reader.submit([large], each=20, padding=1_500)
    await reader.read(lambda: {many, large} <= reader.fair_queueing.held.keys())
    for _ in range(5):  # asks for no more, however often it is looked
        await reader.read(lambda: True)
        assert all(size < 2 * 4_000 for size in reader.fair_queueing.held.values())
        assert all(len(lane.held) <= fair_queueing._EACH for lane in reader.fair_queueing.lanes.values())


async def test_a_turn_takes_of_a_crowd_its_share_and_of_costly_requests_fewer(reader: Reader, team: str) -> None:
    """A lane with more than fits into it is a burst: it gets the share of one, and 32 KiB count as three requests."""
    burst, costly = f"{team}-burst", f"{team}-costly"
    await reader.submit([burst], each=fair_queueing._EACH + 40)
    await reader.submit([costly], each=fair_queueing._EACH + 40, padding=32 * 1024)
    await reader.read(
        lambda: {burst, costly} <= reader.fair_queueing.held.keys() and len(reader.fair_queueing.lanes[burst].held) > 20
    )
    reader.fair_queueing._turned_s = asyncio.get_running_loop().time()
    await reader.fair_queueing.turn()
    least = fair_queueing._LEAST
    assert (reader.decided.count(burst), reader.decided.count(costly)) == (least, -(-least // 3))


async def test_behind_a_request_that_fails_its_team_waits_for_the_queue(reader: Reader, team: str) -> None:
    sound, ill = f"{team}-sound", f"{team}-ill"
    await reader.submit([ill, sound], each=3)
    reader.fails = ill
    await reader.read(lambda: {sound, ill} <= reader.fair_queueing.held.keys())

    async def decided() -> bool:
        await reader.fair_queueing.turn()
        return reader.decided.count(sound) == 3

    await until(decided)
    for _ in range(3):
        await reader.fair_queueing.look()
        await reader.fair_queueing.turn()
    assert ill not in reader.fair_queueing.lanes
    assert not reader.decided.count(ill)


@pytest.mark.parametrize("irregular", ["reconnect", "silence"])
async def test_a_lane_that_broke_is_opened_again_behind_what_was_decided(
    reader: Reader, team: str, irregular: str
) -> None:
    """What it held is forgotten and read again; nothing of the team is decided twice, and nothing is left."""
    await reader.submit([team], each=3)
    await reader.read(
        lambda: len(reader.fair_queueing.lanes[team].held) == 3 if team in reader.fair_queueing.lanes else False
    )
    await reader.fair_queueing.turn()
    await reader.submit([team], each=4)
    await until(lambda: len(reader.fair_queueing.lanes[team].held) > 0)
    broken = reader.fair_queueing.lanes[team]

    def is_anew() -> bool:
        if irregular == "reconnect":
            broken._consumer._reconnects = -1
        else:
            broken._consumer.heard_s -= 60.0  # again and again: the broker's heartbeats go on
        return reader.fair_queueing.lanes.get(team, broken) is not broken

    await reader.read(is_anew)
    assert broken.broken

    async def decided() -> bool:
        await reader.fair_queueing.look()
        await reader.fair_queueing.turn()
        return reader.decided.count(team) >= 7

    await until(decided)
    assert reader.decided.count(team) == 7


async def test_an_operator_is_told_which_lane_broke_and_why_once_a_minute(
    reader: Reader, team: str, caplog: pytest.LogCaptureFixture
) -> None:
    await reader.submit([team])
    with caplog.at_level("WARNING", logger="baton.admission"):
        for why in ("the first time", "the second time"):
            await reader.read(lambda: team in reader.fair_queueing.lanes)
            reader.fair_queueing.lanes[team].end(why)
            await reader.fair_queueing.look()
    said = [record.getMessage() for record in caplog.records if "lane" in record.getMessage()]
    assert said == [f"the lane of team {team} is opened again: the first time"]


async def test_a_crowd_that_is_alone_moves_in_large_portions_once_that_is_known(reader: Reader, team: str) -> None:
    """Seen: for five seconds from its beginning every burst moved in portions of 32, and cost a third more."""
    await reader.js.purge_stream(REQUESTS)  # a team of another test may wait on it
    reader.fair_queueing._window = AdmissionWindow(lambda pool: 0, shared=1, alone=100)
    await reader.submit([team], each=20)
    subscription = await reader.js.pull_subscribe(f"baton.cmd.job.v1.submit.{team}.*", stream=REQUESTS)
    burst = await subscription.fetch(20)
    assert await reader.fair_queueing.batch_size(burst) == 1, "others may have sent a little"

    async def known() -> bool:
        await reader.fair_queueing.look()
        return await reader.fair_queueing.batch_size(burst) == 20

    await until(known)
    await subscription.unsubscribe()


async def test_who_is_the_queues_first_gets_no_less_than_a_lane(reader: Reader, team: str) -> None:
    """Seen: a team that sent as much as the others was the queue's first, had batches of 2 while they had lanes, fell behind,
    and was refused by the broker for a minute. And once more on a slow machine, where each time that what was at hand ended it
    lost what it had not used."""
    reader.fair_queueing._window = window = AdmissionWindow(lambda pool: 0, shared=64, alone=64)
    window.congestion.size = 2.0
    window.share()
    await reader.submit([team], each=20)
    subscription = await reader.js.pull_subscribe(f"baton.cmd.job.v1.submit.{team}.*", stream=REQUESTS)
    waiting = await subscription.fetch(20)
    for seq in range(1, 66):
        window.stored("main", seq, "another")  # a burst
    assert await reader.fair_queueing.batch_size(waiting) == 2
    reader.fair_queueing._served.update({"another": 8, "third": 5})
    assert await reader.fair_queueing.batch_size(waiting) == 10, "a quarter more, or it never catches up"
    assert await reader.fair_queueing.batch_size(waiting) == 2
    reader.fair_queueing._served.update({"another": 8})
    assert await reader.fair_queueing.batch_size(waiting[:3]) == 3
    assert await reader.fair_queueing.batch_size(waiting) == 7, "what was not at hand the last time"
    reader.fair_queueing._served.update({"another": 10_000})
    assert await reader.fair_queueing.batch_size(waiting * 10) == fair_queueing._EACH, "no more than a lane has"
    await subscription.unsubscribe()


async def test_a_lane_that_ends_while_others_are_judged_ends_nothing_else(reader: Reader, team: str) -> None:
    """Seen: who closed lanes met who took their turn, and admission ended."""
    teams = [f"{team}-{number}" for number in range(3)]
    await reader.submit(teams)
    await reader.read(lambda: len(reader.fair_queueing.held) == len(teams))
    made = reader.fair_queueing

    async def learn(requests: Iterable[tuple[str, bytes]]) -> None:
        for _ in requests:
            await made._close(list(made.lanes))

    made._learn = learn
    assert await made.turn() == 0, "what was read of a lane that is closed is read again"
    made._learn = fair_queueing.nothing_to_learn
    made._wanted |= set(teams)
    await reader.read(lambda: len(made.held) == len(teams))
    assert await made.turn() == len(teams)
    assert sorted(reader.decided) == teams


async def test_a_broker_that_is_away_in_a_turn_costs_a_lane(
    reader: Reader, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: its errors ended admission."""
    teams = [f"{team}-{number}" for number in range(2)]
    await reader.submit(teams)
    await reader.read(lambda: len(reader.fair_queueing.held) == len(teams))
    made = reader.fair_queueing

    async def away(*_: object) -> None:
        raise OutboundBufferLimitError

    made._learn = away
    assert await made.turn() == 0
    assert all(lane.broken for lane in made.lanes.values())
    made._learn = fair_queueing.nothing_to_learn
    await reader.read(lambda: len(made.held) == len(teams))
    monkeypatch.setattr(TeamLane, "ask", away)
    assert await made.turn() == len(teams), "they were read before"
    assert all(lane.broken for lane in made.lanes.values())
    monkeypatch.undo()


async def test_who_is_read_slowly_is_overtaken_by_others_and_goes_on_later(reader: Reader, team: str) -> None:
    slow, made = {team}, reader.fair_queueing
    made._window = AdmissionWindow(lambda pool: 0, shared=64, alone=64)
    made._slow = lambda name: 0.01 if name in slow else 0.0
    await reader.submit([team], each=20)
    await reader.submit([f"{team}-other"])
    subscription = await reader.js.pull_subscribe(f"baton.cmd.job.v1.submit.{team}.*", stream=REQUESTS)
    waiting = await subscription.fetch(20)
    batch_size = asyncio.create_task(made.batch_size(waiting))

    async def overtaken() -> bool:
        await made.look()
        await made.turn()
        return f"{team}-other" in reader.decided

    await until(overtaken)
    assert not batch_size.done(), "the queue waits, though no more than few lie in it"
    assert team not in reader.decided
    slow.clear()
    assert await batch_size == fair_queueing._SLOWLY, "a few at a time, or it would owe more than it should"
    assert await made.batch_size(waiting) == len(waiting)
    await subscription.unsubscribe()


async def test_a_lane_is_read_slowly_too(reader: Reader, team: str) -> None:
    slow, made = {f"{team}-0"}, reader.fair_queueing
    made._slow = lambda name: 0.01 if name in slow else 0.0
    await reader.submit([f"{team}-0", f"{team}-1"])
    await reader.read(lambda: len(made.held) == 2)
    await made.turn()
    assert reader.decided == [f"{team}-1"]
    slow.clear()
    await made.turn()
    assert reader.decided == [f"{team}-1", f"{team}-0"]


async def test_nobody_is_read_slowly_while_that_would_take_the_room_of_others(reader: Reader, team: str) -> None:
    """What was done ahead of the queue leaves the stream when the queue has passed: the broker would refuse its team."""
    made = reader.fair_queueing
    made._slow = lambda name: 3600.0
    await reader.submit([team])
    subscription = await reader.js.pull_subscribe(f"baton.cmd.job.v1.submit.{team}.*", stream=REQUESTS)
    waiting = await subscription.fetch(1)
    batch_size = asyncio.create_task(made.batch_size(waiting))
    await until(lambda: made._waits)
    for number in range(fair_queueing.WAITING_OF_A_SENDER // 4):
        made.out_of_order.took(f"{team}-other", waiting[0].metadata.sequence.stream + 1 + number)
    assert await batch_size == 1
    made.out_of_order.settled(2**62)
    again = asyncio.create_task(made.batch_size(waiting))
    await until(lambda: made._waits)
    made._fill = fair_queueing._FULL
    assert await again == 1, "nor while the stream fills: soon everybody's requests would have to be smaller"
    await subscription.unsubscribe()


async def test_what_lies_undecided_is_a_crowd_as_what_waits_is(reader: Reader, team: str) -> None:
    """Seen: a burst that went into the inbox as fast as it came was none for two seconds, and all others waited behind it."""
    reader.fair_queueing._window = few = AdmissionWindow(lambda pool: 0, shared=4, alone=4)
    await reader.submit([team])
    subscription = await reader.js.pull_subscribe(f"baton.cmd.job.v1.submit.{team}.*", stream=REQUESTS)
    one = await subscription.fetch(1)
    assert await reader.fair_queueing.batch_size(one) == 1
    assert not reader.fair_queueing._burst.is_set()
    for seq in range(1, 5):
        few.stored("main", seq)
    assert await reader.fair_queueing.batch_size(one) == 1
    assert reader.fair_queueing._burst.is_set()
    await subscription.unsubscribe()


async def test_nobody_is_looked_for_when_nothing_has_come_behind_a_crowd(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look lists all who have sent something, ten times a second."""
    monkeypatch.setattr(fair_queueing, "_IDLE_S", 0.1)
    made = reader.fair_queueing
    made._burst_s, made._waits = asyncio.get_running_loop().time(), True
    made._burst.set()
    running = asyncio.create_task(made.run())
    try:
        await until(lambda: asyncio.get_running_loop().time() - made._burst_s > 0.3)
        assert made._burst.is_set(), "a batch_size waits for room"
        made._waits = False
        await until(lambda: not made._burst.is_set())
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_window_follows_how_long_rounds_take() -> None:
    rounds, now = CongestionWindow(32, 512), 0.0
    rounds.idle_s = 0.01
    for _ in range(40):
        rounds.took(0.01, now := now + 0.1, under_way=512)
    assert rounds.size == 512, "decided at once: it grows up to its bound"
    for _ in range(40):
        rounds.took(0.5, now := now + 1, under_way=512)
    assert rounds.size == window._LEAST, "slow: it shrinks, and never to nothing"
    before = rounds.size
    rounds.took(0.015, now := now + 1, under_way=512)
    assert rounds.size == before, "between the two it stays"


def test_a_window_that_is_not_used_does_not_grow() -> None:
    """Seen: single jobs, each decided at once, opened the window to 512, and the next burst went through it."""
    rounds, now = CongestionWindow(32, 512), 0.0
    for _ in range(100):
        rounds.took(0.005, now := now + 0.1, under_way=3)
    assert rounds.size == 32


def test_a_slow_machine_is_told_from_a_busy_one() -> None:
    """What a round takes without a burst is the machine's. With one it is not: a busy machine would pass for a slow one."""
    slow, busy, now = CongestionWindow(32, 512), CongestionWindow(32, 512), 0.0
    for _ in range(100):
        slow.took(0.06, now := now + 0.1, under_way=1, burst=False)
        busy.took(0.06, now, under_way=1, burst=True)
    slow.size = busy.size = 100.0
    slow.took(0.1, now := now + 1, under_way=100)
    busy.took(0.1, now, under_way=100)
    assert (slow.size, busy.size < 100) == (100.0, True)


def test_until_a_round_was_idle_none_is_taken_for_a_quick_one_or_a_slow_one_too_soon() -> None:
    """Seen: a process that began among many requests knew of no idle round, so all were slow ones, and its portions were 2."""
    rounds = CongestionWindow(32, 512)
    rounds.took(0.05, 1.0, under_way=32)
    assert rounds.size == 32
    rounds.took(0.2, 2.0, under_way=32)
    assert rounds.size < 32


def test_one_round_shrinks_the_window_as_much_as_it_was_too_long() -> None:
    rounds = CongestionWindow(32, 512)
    rounds.size, rounds.idle_s = 512.0, 0.01
    rounds.took(0.04, 1.0, under_way=512)
    assert rounds.size == 256
    rounds.took(1.0, 3.0, under_way=512)
    assert rounds.size == 64, "no more than to a quarter: one round may be an accident"


def test_the_first_window_is_what_is_set() -> None:
    assert CongestionWindow(4, 100).size == 4


async def test_a_crowd_moves_faster_when_it_takes_up_the_room_of_others() -> None:
    """Seen: on a busy machine the burst's batch_size was 2, and its 512 oldest requests took 25 s. What three others had done
    ahead filled their room after 6 s, and they were refused with the burst for a minute."""
    window = AdmissionWindow(lambda pool: 0, shared=64, alone=512)
    window.share()
    window.congestion.size = 2.0
    portions = []
    for held_up in (0.0, 0.25, 0.5, 1.0):
        window.held_up = held_up
        portions.append(window.most)
    assert portions == [2, 2, 21, 64]


def test_who_sends_as_a_hundred_thousand_users_is_looked_for_more_seldom() -> None:
    """Each look lists all that have a request in the stream."""
    assert fair_queueing._pause_s(100) == fair_queueing._LOOK_S
    assert fair_queueing._pause_s(100_000) == pytest.approx(20 * fair_queueing._LOOK_S)


async def test_an_operator_is_told_which_team_sends_as_many_users(
    reader: Reader, team: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fair_queueing, "_SENDERS", 0)
    await reader.submit([f"{team}-quiet"])
    for number in range(200):  # teams of other tests are on the same stream
        await reader.js.publish(f"baton.cmd.job.v1.submit.{team}.u{number}", b"{}")
    reader.teams = [*reader.teams, team]
    with caplog.at_level("WARNING", logger="baton.admission"):
        await reader.fair_queueing.look()
        await reader.fair_queueing.look()
    (said,) = [record.getMessage() for record in caplog.records if "users in the stream" in record.getMessage()]
    assert said.startswith(f"team {team} has requests of 200 users")
    assert "baton team revoke" in said
