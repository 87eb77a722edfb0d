"""A hostile team, or a node that was taken over, at the bus: whatever it says, and wherever it asks answers to go, it reaches
nothing but its own.

Each attack is made with an ordinary credential, and with one of the same account whose user has no permissions of its own,
so that the account alone holds. What the attacks did before there were accounts is `test_without_accounts`.
"""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from libs.bus.connect import Address, BusUnavailable, connect
from libs.bus.streams import provision
from libs.embedded import NatsOptions, NatsUser, ServerOptions, Servers
from libs.walls import claims
from libs.walls.claims import KeyKind, KeyPair
from libs.walls.keyring import Keyring
from libs.walls.resolver import tell
from schemas import subjects
from tests.kit.waiting import until
from tests.walls.world import ANSWERED, NODE, TEAM, World, broker, fill, unrestricted

LEDGER = subjects.ledger("main")

TARGETS = [
    LEDGER,
    "baton.in.node.v1.observed.main.n2",
    "baton.in.node.v1.observed.main.N1",
    "baton.cmd.node.v1.changed.main.n2",
    "baton.led.pool.v1.restoring.main.1",
    "baton.in.job.v1.admitted.main",
    "baton.in.node.v1.observed.main.n1",
    "baton.in.operator.v1.node-dead.main.operator.eve",
    "baton.in.operator.v1.team-left.main.operator.eve",
    "baton.qry.node.v1.left.main.n2",
    "baton.cmd.job.v1.submit.green.eve",
    "baton.cmd.job.v1.cancel.green.eve",
    "baton.cmd.quota.v1.set.main.operator.eve",
    "baton.cmd.node.v1.desired.main.n1",
    "baton.evt.job.v1.succeeded.green",
    "baton.evt.job.v1.succeeded.blue",
    "baton.qry.job.v1.list.green.eve",
    "baton.tel.node.v1.sample.main.n1",
    "baton.dead.admission.green",
    "$KV.baton-cursors.ledger-format.main",
    "$KV.baton-readers.x",
    "$O.baton-snapshots-placement.C.x",
    "$JS.API.STREAM.PURGE.REQUESTS",
    "$JS.API.STREAM.DELETE.LEDGER-main",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.ACK.REQUESTS.admission.1.1.1.1.1",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.SERVER.PING",
    "_INBOX_green.eve.x",
    "_INBOX_operator.eve.x",
    "_NODE_main.n1.x",
    "_R_.aaaaaa.bbbbbb",
]
HEADERS = [
    {"Nats-Msg-Id": "1"},
    {"Nats-Expected-Stream": "LEDGER-main"},
    {"Nats-Expected-Last-Sequence": "0"},
    {"Nats-Expected-Last-Subject-Sequence": "0"},
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-TTL": "1s"},
    {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": LEDGER},
    {"Nats-Trace-Dest": LEDGER},
    {"Nats-Trace-Dest": "baton.evt.job.v1.succeeded.green", "Nats-Trace-Only": "1"},
    {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    {"Nats-Request-Info": '{"acc": "green", "user": "operator"}'},
    {"Nats-Subject": LEDGER, "Nats-Stream": "LEDGER-main", "Nats-Sequence": "1"},
    {"KV-Operation": "PURGE"},
    {"Nats-Batch-Id": "mine", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    {"Nats-Batch-Id": "open", "Nats-Batch-Sequence": "1"},
    {"Status": "503"},
    {"Nats-Expected-Last-Msg-Id": "1"},
    {"Nats-Incr": "1"},
    {"Nats-Schedule": "@at 2026-01-01T00:00:00Z", "Nats-Schedule-Source": "baton.>", "Nats-Schedule-Rollup": "sub"},
    {"Nats-Marker-Reason": "Purge"},
    {"Nats-Stream-Source": "LEDGER-main 1 > > x"},
    {"Nats-Required-Api-Level": "99"},
    {"Nats-Trace-Origin-Account": "$SYS", "Nats-Trace-Hop": "1", "Nats-Trace-Dest": LEDGER},
    {"Nats-Pin-Id": "x", "Nats-Response-Type": "x", "Nats-No-Masking": "1"},
]
LISTENING = [
    ">",
    "baton.>",
    "*.cmd.>",
    "_R_.>",
    "$JS.>",
    "$SYS.>",
    "$KV.>",
    "_INBOX_green.>",
    "_INBOX.>",
    "baton.evt.*.v1.*.green",
    "baton.evt.*.v1.*.*",
    "baton.qry.*.v1.get.green.*",
    "baton.qry.log.v1.read.*.*",
    "baton.cmd.node.v1.*.main.n2",
    "baton.cmd.job.v1.*.*.*",
]


_JS = "$JS.API."
APIS: dict[str, list[tuple[str, object]]] = {
    "a consumer that delivers into the ledger": [
        (f"{_JS}CONSUMER.CREATE.EVENTS", {"stream_name": "EVENTS", "config": {"deliver_subject": LEDGER}}),
        (
            f"{_JS}CONSUMER.CREATE.EVENTS",
            {"stream_name": "EVENTS", "config": {"deliver_subject": "_INBOX_green.eve.x"}},
        ),
        (f"{_JS}CONSUMER.DURABLE.CREATE.REQUESTS.mine", {"config": {"durable_name": "mine", "deliver_subject": "x"}}),
    ],
    "pulled in its place": [
        (f"{_JS}CONSUMER.MSG.NEXT.REQUESTS.admission", {"batch": 10}),
        (f"{_JS}DIRECT.GET.REQUESTS", {"multi_last": [">"]}),
    ],
    "ends what admission has in hand": [
        ("$JS.ACK.REQUESTS.admission.1.1.1.1.0", b"+TERM"),
        ("$JS.ACK.REQUESTS.admission.1.1.1.1.0", b"-NAK"),
        ("$JS.FC.REQUESTS.admission.x", b""),
    ],
    "the consumer of a service": [
        (f"{_JS}CONSUMER.PAUSE.REQUESTS.admission", {"pause_until": "2099-01-01T00:00:00Z"}),
        (f"{_JS}CONSUMER.RESET.REQUESTS.admission", {"seq": 1}),
        (f"{_JS}CONSUMER.DELETE.REQUESTS.admission", {}),
        (f"{_JS}CONSUMER.UNPIN.REQUESTS.admission", {"group": "x"}),
        (f"{_JS}CONSUMER.LEADER.STEPDOWN.REQUESTS.admission", {}),
    ],
    "copies": [
        (f"{_JS}STREAM.SNAPSHOT.LEDGER-main", {"deliver_subject": "_INBOX_blue.mallory.x"}),
        (f"{_JS}STREAM.RESTORE.LEDGER-main", {"config": {"name": "LEDGER-main"}}),
    ],
    "settings of streams": [
        (f"{_JS}STREAM.UPDATE.REQUESTS", {"name": "REQUESTS", "republish": {"src": ">", "dest": LEDGER}}),
        (f"{_JS}STREAM.UPDATE.LEDGER-main", {"name": "LEDGER-main", "sealed": True}),
        (f"{_JS}STREAM.MSG.DELETE.LEDGER-main", {"seq": 1}),
        (f"{_JS}STREAM.PEER.REMOVE.LEDGER-main", {"peer": "x"}),
    ],
    "leaders": [
        (f"{_JS}STREAM.LEADER.STEPDOWN.LEDGER-main", {}),
        (f"{_JS}META.LEADER.STEPDOWN", {}),
        (f"{_JS}SERVER.REMOVE", {"peer": "baton-embedded"}),
        (f"{_JS}ACCOUNT.PURGE.x", {}),
        ("$NRG.V.x", b"x"),
        ("$NRG.AE.x", b"x"),
    ],
    "servers": [
        ("$SYS.REQ.SERVER.PING.KICK", {"cid": 1}),
        ("$SYS.REQ.SERVER.PING.CONNZ", {}),
        ("$SYS.REQ.SERVER.PING.PROFILEZ", {"name": "heap"}),
        ("$SYS.REQ.SERVER.PING.JSZ", {}),
        ("$SYS.REQ.SERVER.x.RELOAD", {}),
        ("$SYS.REQ.SERVER.x.LDM", {"cid": 1}),
    ],
    "accounts": [
        ("$SYS.REQ.ACCOUNT.PING.STATZ", {}),
        ("$SYS.REQ.CLAIMS.LIST", b""),
        ("$SYS.REQ.CLAIMS.PACK", b""),
        ("$SYS.REQ.CLAIMS.DELETE", b"x"),
        ("$SYS.REQ.ACCOUNT.x.CLAIMS.LOOKUP", b""),
    ],
    "secrets": [
        (f"{_JS}DIRECT.GET.KV_baton-secrets.$KV.baton-secrets.green", b""),
        (f"{_JS}STREAM.MSG.GET.KV_baton-secrets", {"last_by_subj": "$KV.baton-secrets.green"}),
        ("$KV.baton-secrets.green", b"{}"),
    ],
}
"""APIs of the broker, with what would do most harm there."""


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("walls")) as made:
        yield made


@pytest.fixture(params=["team", "team without permissions", "node", "node without permissions"])
async def world(request: pytest.FixtureRequest, bus: tuple[str, Keyring]) -> AsyncIterator[World]:
    url, ring = bus
    who = TEAM if request.param.startswith("team") else NODE
    ordinary = ring.team("blue") if who is TEAM else ring.node("main", "n1")
    creds = unrestricted(ring, who.account) if "without" in request.param else ordinary
    async with World(url, ring, who, creds) as made:
        yield made


async def test_an_answer_goes_nowhere_else(world: World) -> None:
    """Neither a service's answer, nor JetStream's acknowledgement, good or bad."""
    for target in TARGETS:
        for subject in world.who.says:
            await world.bad.publish(subject, b"{}", reply=target)
    await world.nothing_happened()


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: next(iter(headers.items())))
async def test_no_header_helps(world: World, headers: dict[str, str]) -> None:
    for subject in world.who.says:
        await world.bad.publish(subject, b"{}", headers=headers)
        await world.bad.publish(subject, b"{}", headers=headers, reply=LEDGER)
    await world.nothing_happened()


async def test_what_is_not_its_own_is_not_there(world: World) -> None:
    for target in TARGETS:
        if target not in world.who.says:
            await world.bad.publish(target, b"{}", reply=LEDGER)
    await world.nothing_happened()


async def test_it_hears_nobody_else(world: World) -> None:
    """With and without the services' queue groups, while green works and a service talks to the ledger."""
    heard: list[str] = []

    async def hears(message: Msg) -> None:
        if message.data == b"not yours":
            heard.append(message.subject)

    for subject in LISTENING:
        listener = await world.attacker()  # each may have a few
        for queue in ("", "queries", "admission", "history"):
            await listener.subscribe(subject, queue=queue, cb=hears)
        for _ in range(2):
            await listener.flush()
    ack = await world.green.request(subjects.submit("green", "eve"), b"not yours", timeout=10)
    assert json.loads(ack.data)["stream"] == "REQUESTS"
    told = await world.green.request(fill("job", "get", "green", "eve"), b"not yours", timeout=10)
    assert told.data == b"forged answer", "the service answered, and nobody in its place"
    await world.js.publish(subjects.event("queued", "green"), b"not yours")
    for node in ("n2", *(["n1"] if world.who is TEAM else [])):
        await world.core.publish(subjects.desired("main", node), b"not yours")
    await world.core.publish("_INBOX_operator.eve.x", b"not yours")
    await world.settle()
    assert heard == []


async def test_it_cannot_answer_for_a_service(world: World) -> None:
    """It takes part in the queue group, and sees its own questions at the most."""

    async def lie(message: Msg) -> None:
        await message.respond(b"a lie")

    for subject in ("baton.qry.>", "baton.qry.job.v1.get.green.*", "baton.qry.*.v1.get.*.*"):
        await world.bad.subscribe(subject, queue="queries", cb=lie)
    for _ in range(2):
        await world.bad.flush()
    for _ in range(10):
        told = await world.green.request(fill("job", "get", "green", "eve"), b"{}", timeout=10)
        assert told.data == b"forged answer"


async def test_it_has_no_streams_of_its_own(world: World) -> None:
    for verb, body in (
        ("STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["baton.>"]}),
        ("STREAM.CREATE.COPY", {"name": "COPY", "sources": [{"name": "LEDGER-main"}]}),
        ("STREAM.NAMES", {}),
        ("INFO", {}),
        ("STREAM.MSG.GET.LEDGER-main", {"seq": 1}),
        ("DIRECT.GET.LEDGER-main", {"seq": 1}),
        ("CONSUMER.CREATE.EVENTS", {"config": {"deliver_subject": "x"}}),
    ):
        with suppress(nats.errors.Error):
            answer = await world.bad.request(f"$JS.API.{verb}", json.dumps(body).encode(), timeout=0.3)
            assert "error" in json.loads(answer.data), f"{verb} was answered: {answer.data!r}"
    await world.nothing_happened()


async def test_no_api_of_the_broker_hears_it(world: World) -> None:
    """Not with its own replies either, on which each would answer: at the most it hears what it has itself, which is
    connections and no streams."""
    answers: list[Msg] = []

    async def hears(message: Msg) -> None:
        answers.append(message)

    listens = await world.attacker()
    await listens.subscribe(f"{world.who.replies}.mine.>", cb=hears)
    await listens.flush()
    for tried in APIS.values():
        for subject, body in tried:
            payload = body if isinstance(body, bytes) else json.dumps(body).encode()
            await world.bad.publish(subject, payload, reply=f"{world.who.replies}.mine.{len(answers)}")
            await world.bad.publish(subject, payload, reply=LEDGER)
    await world.nothing_happened()
    await listens.flush()
    keys = world.ring.keys()
    others = (keys.core.public, keys.teams["green"].public, keys.nodes["main.n2"].public, "LEDGER", "REQUESTS", "KV_")
    told = [one.data.decode() for one in answers]
    assert [text for text in told if any(word in text for word in others)] == []


async def test_it_cannot_tell_the_broker_who_it_is(world: World) -> None:
    """Its account's claim, with all there is imported, told to the broker by itself and by services."""
    keys = world.ring.keys()
    core, mine = keys.core.public, keys.teams["blue"] if world.who is TEAM else keys.nodes["main.n1"]
    said = {"type": "account", "imports": [{"name": "x", "subject": "baton.>", "account": core, "type": "stream"}]}
    for signer in (mine.seed, keys.operator):
        forged = claims.claim(KeyPair(signer), mine.public, "blue", said, issued_s=int(time.time()))
        for speaker in (world.bad, world.core):
            await speaker.publish("$SYS.REQ.CLAIMS.UPDATE", forged.encode())
            await speaker.publish(f"$SYS.REQ.ACCOUNT.{mine.public}.CLAIMS.UPDATE", forged.encode())
            await speaker.flush()
    world.core_heard.clear()  # the services' own words come back to them, and to nobody else
    heard = await world.bad.subscribe("baton.in.clock.>")
    await world.settle()
    await world.core.publish("baton.in.clock.v1.tick.nowhere", b"not yours")
    await world.settle()
    assert heard.pending_msgs == 0


def _forged(ring: Keyring, way: str) -> str:
    keys, mine = ring.keys(), KeyPair.of(KeyKind.USER, secrets.token_bytes(32))
    blue, green, now = keys.teams["blue"], keys.teams["green"], int(time.time())
    everything = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    if way == "signed by itself":
        return claims.credentials(claims.claim(mine, mine.public, "green", everything, issued_s=now), mine)
    if way == "signed by its own account for another":
        said = {**everything, "issuer_account": green.public}
        return claims.credentials(claims.claim(KeyPair(blue.seed), mine.public, "green", said, issued_s=now), mine)
    if way == "permissions of its own beside the role's":
        said = {**everything, "issuer_account": blue.public, "pub": {"allow": [">"]}}
        return claims.credentials(claims.claim(blue.role("team"), mine.public, "blue", said, issued_s=now), mine)
    if way == "expired":
        token = claims.user(blue.role("team"), blue.public, mine.public, "blue", issued_s=now - 9, expires_s=now - 5)
        return claims.credentials(token, mine)
    if way == "another operator's":
        return unrestricted(ring, "blue", KeyPair.of(KeyKind.ACCOUNT, secrets.token_bytes(32)).seed)
    token = unrestricted(ring, "blue").splitlines()[1]
    if way == "somebody else's claim":
        return claims.credentials(token, mine)
    assert way == "no signature"
    header = base64.urlsafe_b64encode(b'{"typ":"JWT","alg":"none"}').rstrip(b"=").decode()
    return claims.credentials(f"{header}.{token.split('.')[1]}.", mine)


@pytest.mark.parametrize(
    "way",
    [
        "signed by itself",
        "signed by its own account for another",
        "permissions of its own beside the role's",
        "expired",
        "another operator's",
        "somebody else's claim",
        "no signature",
    ],
)
async def test_a_forged_credential_is_refused(bus: tuple[str, Keyring], way: str) -> None:
    url, ring = bus
    with pytest.raises(BusUnavailable, match="refused the credential"):
        await connect(Address(url, _forged(ring, way)), name="mallory", wait_s=30)


@pytest.mark.parametrize("url", ["nats://{}", "nats://services:services@{}", "nats://blue:@{}", "nats://token@{}"])
async def test_without_a_credential_nobody_comes_in(bus: tuple[str, Keyring], url: str) -> None:
    with pytest.raises(BusUnavailable, match="refused the credential"):
        await connect(url.format(bus[0].removeprefix("nats://")), name="mallory", wait_s=30)


async def test_a_team_has_so_many_connections_and_no_more(bus: tuple[str, Keyring], monkeypatch) -> None:
    """An account's claim bounds them; here a team of two."""
    from libs.walls import accounts

    url, ring = bus
    monkeypatch.setattr(accounts, "TEAM_CONNECTIONS", 2)
    creds = ring.team("small")
    await tell(url, ring, ["small"])
    first = [await connect(Address(url, creds), name="small") for _ in range(2)]
    with pytest.raises(BusUnavailable):
        await connect(Address(url, creds), name="small", wait_s=1)
    for connection in first:
        await connection.close()


async def test_a_connection_has_so_many_subscriptions_and_no_more(bus: tuple[str, Keyring], monkeypatch) -> None:
    """The broker copies an answer for each: with 18,000 to its own replies one question of a team cost the broker 1 GiB of
    memory, and another team 7 s."""
    from libs.walls import accounts

    assert accounts.TEAM_SUBSCRIPTIONS * accounts.TEAM_CONNECTIONS <= 2048
    url, ring = bus
    monkeypatch.setattr(accounts, "TEAM_SUBSCRIPTIONS", 20)
    creds = ring.team("copies")
    await tell(url, ring, ["copies"])

    async def note(error: Exception) -> None: ...

    team = await nats.connect(
        url, error_cb=note, allow_reconnect=False, inbox_prefix="_INBOX_copies.mallory",
        **Address("", creds).options(),
    )  # fmt: skip
    for _ in range(20):
        await team.subscribe("_INBOX_copies.mallory.>", cb=note)
    await team.flush()
    with suppress(nats.errors.Error):
        for _ in range(20):
            await team.subscribe("_INBOX_copies.mallory.>", cb=note)
    await until(lambda: team.is_closed)


async def test_the_broker_soon_forgets_who_asked_what_nobody_answers(tmp_path: Path, monkeypatch) -> None:
    """A team that asks faster than a service refuses left a mark for each question for two minutes: with a million of them,
    half a minute's worth, the broker had no time for others long after the team had gone."""
    from libs.walls import accounts

    monkeypatch.setattr(accounts, "ANSWER_S", 1)
    with broker(tmp_path) as (url, ring):
        core = await nats.connect(url, **Address("", ring.service()).options())
        asked = await core.subscribe(subjects.anyone(subjects.QUESTION))
        for _ in range(2):
            await core.flush()
        blue = await nats.connect(url, inbox_prefix=TEAM.replies, **Address("", ring.team("blue")).options())
        told = await blue.subscribe(f"{TEAM.replies}.>")
        for _ in range(2):
            await blue.publish(TEAM.question, b"{}", reply=f"{TEAM.replies}.x")
        soon, late = await asked.next_msg(30), await asked.next_msg(30)
        await soon.respond(b"soon")
        assert (await told.next_msg(30)).data == b"soon"
        await asyncio.sleep(2.5)  # it looks each second for what is older than one
        await late.respond(b"late")
        await blue.publish(TEAM.question, b"{}", reply=f"{TEAM.replies}.x")
        await (await asked.next_msg(30)).respond(b"next")
        assert (await told.next_msg(30)).data == b"next"
        await asyncio.gather(blue.close(), core.close())


async def test_a_node_sends_no_more_at_once_than_its_messages_have(bus: tuple[str, Keyring]) -> None:
    """Of 4 MiB each, a few seconds of them filled the inbox of its pool."""
    url, ring = bus
    node = await nats.connect(
        url, allow_reconnect=False, inbox_prefix=NODE.replies, **Address("", ring.node("main", "n1")).options()
    )
    await node.request(NODE.stored, b"x" * 240_000, timeout=10)
    with suppress(nats.errors.Error):
        await node.publish(NODE.stored, b"x" * 1_000_000)
    await until(lambda: not node.is_connected)
    await node.close()


@pytest.mark.timeout(240)
async def test_a_team_that_opens_all_that_it_may_does_not_end_the_broker(bus: tuple[str, Keyring]) -> None:
    """All its connections hear one answer by all their subscriptions, and another team is answered all the same."""
    from libs.walls import accounts

    url, ring = bus
    creds, hers = Address("", ring.team("greedy")), Address("", ring.team("green"))
    await tell(url, ring, ["greedy"])
    copies, made, most = 0, [], accounts.TEAM_CONNECTIONS

    async def note(error: Exception) -> None: ...

    async def opened() -> nats.NATS | None:
        with suppress(nats.errors.Error, OSError):
            return await nats.connect(
                url, error_cb=note, allow_reconnect=False, inbox_prefix="_INBOX_greedy.mallory", **creds.options()
            )
        return None

    async def heard(message: Msg) -> None:
        nonlocal copies
        copies += 1

    async def answer(message: Msg) -> None:
        await message.respond(b"x" * 16384)

    core = await nats.connect(url, **Address("", ring.service()).options())
    for subject in ANSWERED:
        await core.subscribe(subject, cb=answer)
    for _ in range(0, most + 16, 16):
        made += [one for one in await asyncio.gather(*(opened() for _ in range(16))) if one is not None]
    assert len(made) == most, "and no more"
    for one in made:
        for _ in range(accounts.TEAM_SUBSCRIPTIONS):
            await one.subscribe("_INBOX_greedy.mallory.>", cb=heard)
    await asyncio.gather(*(one.flush(60) for one in made))
    green = await nats.connect(url, inbox_prefix="_INBOX_green.eve", **hers.options())
    await made[0].publish("baton.qry.job.v1.get.greedy.mallory", b"{}", reply="_INBOX_greedy.mallory.all")
    answered = await green.request("baton.qry.job.v1.get.green.eve", b"{}", timeout=60)
    assert len(answered.data) == 16384
    await until(lambda: copies == most * accounts.TEAM_SUBSCRIPTIONS, 60)
    for one in (*made, green, core):
        await one.close()


async def test_without_accounts_an_answer_went_into_the_ledger(tmp_path: Path) -> None:
    """The same permissions as passwords had them: why there are accounts, and that the attack is one."""
    publish, subscribe = subjects.user_may("blue")
    users = [NatsUser("services", "secret"), NatsUser("blue", "secret", publish, subscribe)]
    async with Servers(tmp_path, ServerOptions(run=("nats",), nats=NatsOptions(users=users, sync_always=False))) as one:
        core = await connect(one.nats_url_of("services"), name="core")
        await provision(core.jetstream(), ["main"], scale=0.01)
        blue = await connect(one.nats_url_of("blue"), name="mallory")

        async def answer(message: Msg) -> None:
            await message.respond(b"forged answer")

        await core.subscribe(subjects.anyone(subjects.QUESTION), cb=answer)
        for _ in range(2):
            await core.flush()
        for subject in (TEAM.stored, TEAM.question):
            await blue.publish(subject, b"{}", reply=LEDGER)

        async def written() -> bool:
            return (await core.jetstream().stream_info(subjects.ledger_stream("main"))).state.messages == 2

        await until(written)
        await asyncio.gather(blue.close(), core.close())
