"""A user's requests that wait are bounded: the broker refuses the next and writes nothing, what was answered makes room, and
our client waits for it; nothing that was acknowledged goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from nats.js import JetStreamContext
from nats.js.errors import APIError

from libs.bus import trim
from libs.bus.connect import BusConnection, close, connect
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox, SubjectFull, is_subject_full
from libs.bus.streams import provision
from libs.bus.table import WAITING_OF_A_SENDER, streams
from libs.bus.trim import Trimmer, trimmer_of
from schemas.subjects import REQUESTS, cancel, submit
from tests.bus.test_trim import read
from tests.kit.background import ServerInBackground
from tests.kit.waiting import until

ANA, BEN = submit("research", "ana"), submit("research", "ben")


@pytest.fixture
async def nats(own_server: ServerInBackground) -> AsyncIterator[BusConnection]:
    connection: BusConnection = await connect(own_server.url, name="test")
    await provision(connection.jetstream(), ["p"], scale=0.1)
    yield connection
    await close(connection)


@pytest.fixture
def js(nats: BusConnection) -> JetStreamContext:
    return nats.jetstream()


def requests(count: int, subject: str = ANA, name: str = "r") -> list[Outgoing]:
    return [Outgoing(subject, b"{}", {"Nats-Msg-Id": f"{name}-{n}"}) for n in range(count)]


async def held(js: JetStreamContext, subject: str = ANA) -> int:
    return ((await js.stream_info(REQUESTS, subjects_filter=subject)).state.subjects or {}).get(subject, 0)


async def test_the_next_request_of_a_user_is_refused_and_no_other_users(js: JetStreamContext) -> None:
    await Outbox(js).publish_many(requests(WAITING_OF_A_SENDER))
    with pytest.raises(APIError) as refused:
        await js.publish(ANA, b"{}", headers={"Nats-Msg-Id": "one more"})
    assert is_subject_full(refused.value)
    assert (await js.publish(ANA, b"{}", headers={"Nats-Msg-Id": "r-7"})).duplicate, "a repeat is known, as ever"
    await js.publish(BEN, b"{}")
    await js.publish(cancel("research", "ana"), b"{}")  # who may not submit may still cancel
    assert await held(js) == WAITING_OF_A_SENDER
    await read(js, 1)
    await trimmer_of(js, REQUESTS, "admission").turn(0.0)
    stored = await js.publish(ANA, b"{}", headers={"Nats-Msg-Id": "one more"})
    assert not stored.duplicate, "what was refused was not taken for stored"


async def test_what_was_answered_makes_room_and_what_was_not_stays(js: JetStreamContext) -> None:
    """However long it would be kept otherwise, and as often as it takes: a turn each 15 s would let through as much in 15 s."""
    await Outbox(js).publish_many([*requests(WAITING_OF_A_SENDER), *requests(10, BEN, "b")])
    trimmer = trimmer_of(js, REQUESTS, "admission")
    relief = asyncio.create_task(trimmer.relieve())
    await read(js, 300)
    trimmer.dealt_with(300)
    await until(lambda: has(js, ANA, WAITING_OF_A_SENDER - 300))
    assert await held(js, BEN) == 10
    await read(js, 100)
    trimmer.dealt_with(100)
    await asyncio.sleep(0.3)
    assert await held(js) == WAITING_OF_A_SENDER - 300, (
        "less than half: it stays for the broker's memory, and for people"
    )
    relief.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await relief


async def test_a_crowd_gets_back_a_part_of_its_room_and_others_all_of_it(js: JetStreamContext) -> None:
    """What is answered of a crowd stays and fills its subject; what is not answered stays anyhow; and in the end all goes."""
    most, share = WAITING_OF_A_SENDER, 0.75
    await Outbox(js).publish_many(requests(most))  # 1 ... most: a crowd
    await Outbox(js).publish_many(requests(most, BEN, "b"))  # who overtakes it

    async def floor() -> int:
        return most + 300

    def held_back(subject: str, room: int) -> float:
        return share if (subject, room) == (ANA, most) else 0.0

    trimmer = Trimmer(js, REQUESTS, floor, subject=f"{ANA.rsplit('.', 2)[0]}.>", held_back=held_back)
    for seq in range(1, most + 300):
        trimmer.dealt_with(subject=ANA if seq <= most else BEN, seq=seq)
    relief = asyncio.create_task(trimmer.relieve())
    await until(lambda: has(js, BEN, most - 300))
    await until(lambda: has(js, ANA, int(most * share)))
    share = 0.0
    await until(lambda: has(js, ANA, 0))  # nobody says that more was dealt with
    assert await held(js, BEN) == most - 300
    relief.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await relief


async def has(js: JetStreamContext, subject: str, count: int) -> bool:
    return await held(js, subject) == count


async def test_a_large_submit_goes_in_as_fast_as_it_is_answered(js: JetStreamContext) -> None:
    async def admission() -> None:
        trimmer = trimmer_of(js, REQUESTS, "admission")
        relief = asyncio.create_task(trimmer.relieve())
        consumer = await js.pull_subscribe_bind(consumer="admission", stream=REQUESTS)
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                for message in await consumer.fetch(256, timeout=0.3):
                    await message.ack()
                    trimmer.dealt_with()
        await consumer.unsubscribe()
        relief.cancel()

    done = asyncio.Event()
    reading = asyncio.create_task(admission())
    acks = await Outbox(js, give_up_s=120).publish_many(requests(2 * WAITING_OF_A_SENDER + 500))
    assert len({ack.seq for ack in acks}) == 2 * WAITING_OF_A_SENDER + 500
    done.set()
    await reading


async def test_who_waits_in_vain_is_told_why(js: JetStreamContext) -> None:
    with pytest.raises(SubjectFull) as error:
        await Outbox(js, ack_timeout_s=60, give_up_s=0.3).publish_many(requests(WAITING_OF_A_SENDER + 5))
    assert len(error.value.unstored) == 5


async def test_with_very_many_senders_nothing_is_kept_that_was_dealt_with(
    js: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look which of a hundred thousand subjects are full costs more than what is kept is worth."""
    monkeypatch.setattr(trim, "SENDERS", 20)
    await Outbox(js).publish_many([Outgoing(submit("research", f"u{n}"), b"{}", {}) for n in range(21)])
    await read(js, 15)
    assert await trimmer_of(js, REQUESTS, "admission").turn(0.0)
    assert (await js.stream_info(REQUESTS)).state.messages == 6


async def test_an_older_broker_gets_the_bound_without_losing_a_request(own_server: ServerInBackground) -> None:
    """0.1.0's stream has no bound. A broker that is told of one drops the oldest beyond it at once."""
    nats = await connect(own_server.url, name="test")
    js = nats.jetstream()
    (wanted,) = [config for config in streams(["p"], scale=0.1) if config.name == REQUESTS]
    await js.add_stream(wanted.evolve(max_msgs_per_subject=-1, discard_new_per_subject=False))
    await provision_without_bound(js)
    await Outbox(js).publish_many(requests(WAITING_OF_A_SENDER + 700))
    await provision(js, ["p"], scale=0.1)
    assert await held(js) == WAITING_OF_A_SENDER + 700, "none is answered, so none may go"
    assert (await js.stream_info(REQUESTS)).config.max_msgs_per_subject == -1
    await read(js, WAITING_OF_A_SENDER + 600)
    await provision(js, ["p"], scale=0.1)
    assert await held(js) == 100, "what was answered makes room"
    said = (await js.stream_info(REQUESTS)).config
    assert (said.max_msgs_per_subject, said.discard_new_per_subject) == (WAITING_OF_A_SENDER, True)
    await close(nats)


async def provision_without_bound(js: JetStreamContext) -> None:
    """The rest of the table, with REQUESTS as it is: too many wait at first."""
    await Outbox(js).publish_many(requests(WAITING_OF_A_SENDER, BEN, "ben"))
    await provision(js, ["p"], scale=0.1)
    assert (await js.stream_info(REQUESTS)).config.max_msgs_per_subject == -1
    await js.purge_stream(REQUESTS)
