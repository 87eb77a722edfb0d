"""What operators say: of nodes and devices into the pool's inbox, of readers of the ledger; and what teams may not say."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from pydantic import BaseModel

from libs.bus.broker import make_broker
from libs.bus.connect import Address, BusConnection
from libs.bus.dead import Received, dead_letter
from libs.bus.messages import outgoing
from libs.bus.outbox import Outbox
from libs.bus.queries import serve
from libs.bus.streams import provision
from libs.cli.pool_commands import PoolRefused, refused, say_to_pool
from libs.cli.pricesfile import read_book
from libs.client import TimedOut, connect
from libs.core.billing.wall import month_us
from libs.core.scheduling.decider import Deciders
from libs.core.state.formats import FIRST, NEWEST
from libs.ledger.inputs import InboxItem, read_input
from libs.ledger.readers import Declared, Readers
from libs.ledger.segments import last_seq, stored_at
from libs.ledger.tail import Stored
from libs.ledger.writer import LedgerWriter
from libs.walls.keyfile import KEYS_FILE
from libs.walls.keyring import Keyring
from schemas.billing import QuotaSnapshot, TeamUsage
from schemas.catalog import BY_TYPE, TYPE_OF
from schemas.ids import content_hash
from schemas.inbox import (
    BusyDevice,
    CancelRequested,
    ClosePeriod,
    NodeDead,
    NodeQuarantine,
    NodeRegistered,
    NodeSilent,
    QuarantineLifted,
)
from schemas.jobs import JobSpec
from schemas.ledger import (
    LedgerEvent,
    LedgerRecord,
    NodeCordoned,
    NodeLeft,
    NodeUncordoned,
    PeriodClosed,
    PricesApplied,
)
from schemas.pool_status import (
    DeviceList,
    DeviceListQuery,
    DeviceView,
    NodeList,
    NodeListQuery,
    NodeView,
    PoolStatusQuery,
)
from schemas.prices import ClosedPeriod
from schemas.queries import JobList, JobListQuery
from schemas.queue_status import QueuesReply
from schemas.requests import SubmitJob
from schemas.subjects import OPERATOR, close_period, declare_dead, inbox_stream
from schemas.use import UseQuery, UseReply
from tests.cli.test_command import baton
from tests.client.fakes import _document
from tests.core.builders import node
from tests.kit.inputs import input_subject
from tests.kit.tasks import beside

DECIDED = "decided"
"""A pool whose ledger has a writer, so that what operators say of it is decided."""
LIVES = count(1)
"""Of node n1: the tests share a pool."""
OLD = Declared(pool="main", name="telemetry", process="host-1-7", release="0.1.0", format=FIRST, position=7, resume=5)
NEW = OLD.model_copy(update={"name": "history", "process": "host-2-9", "format": NEWEST})


async def last_input(services: BusConnection) -> InboxItem:
    """What lies last in the pool's inbox, as placement reads it."""
    js = services.jetstream()
    seq = (await js.stream_info(inbox_stream(DECIDED))).state.last_seq
    message = await js.get_msg(inbox_stream(DECIDED), seq)
    headers = message.headers or {}
    return read_input(Stored(seq, message.subject or "", headers, message.data or b"", 1), DECIDED)


@asynccontextmanager
async def shown(url: Address, life: int, *busy: BusyDevice) -> AsyncIterator[None]:
    """Telemetry, as far as it shows node n1 in this life, and these of its devices in quarantine."""
    view = NodeView(
        node="n1", status="silent", leaf="leaf0", spine="spine0", zone="zone0", incarnation=life, models={}, devices=1,
        milli_used=0, milli_total=1000,
    )  # fmt: skip

    def answer(query: NodeListQuery, team: str) -> NodeList:
        return NodeList(nodes=(view,))

    def devices(query: DeviceListQuery, team: str) -> DeviceList:
        views = [
            DeviceView(
                node="n1", device=one.device, quarantine=one.users, quarantine_since_us=one.since_us, index=0, kind="gpu",
                model="H100", memory_mib=81920, milli_used=0,
            )
            for one in busy
        ]  # fmt: skip
        return DeviceList(devices=tuple(views))

    broker = make_broker(url, "shown")
    serve(broker, BY_TYPE["io.baton.node.list.query.v1"], answer, pool=DECIDED, queue="telemetry")
    serve(broker, BY_TYPE["io.baton.device.list.query.v1"], devices, pool=DECIDED, queue="telemetry")
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


@asynccontextmanager
async def answered(url: Address, reply: QueuesReply) -> AsyncIterator[None]:
    """Queries, as far as it tells this of queues."""
    broker = make_broker(url, "answered")
    serve(broker, BY_TYPE["io.baton.queues.list.query.v1"], lambda query, team: reply, pool=DECIDED, queue="queries")
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


@pytest.fixture
async def placement(services: BusConnection) -> AsyncIterator[None]:
    js = services.jetstream()
    await provision(js, [DECIDED], scale=0.01)
    writer = LedgerWriter(js, DECIDED, Deciders(), writer_id="w1")
    async with beside(writer.run()):
        yield


async def put(services: BusConnection, *models: BaseModel) -> None:
    items = [
        outgoing(
            model, subject=input_subject(model, DECIDED), type=TYPE_OF[type(model)], source="/test", cause=uuid4().hex
        )
        for model in models
    ]
    await Outbox(services.jetstream()).publish_many(items)


async def test_a_node_is_declared_dead_in_the_name_of_who_says_so(
    urls: dict[str, Address], services: BusConnection, placement: None
) -> None:
    life = next(LIVES)
    joins = NodeRegistered(incarnation=life, inventory=node("n1", 1), lease_s=600)
    await put(services, joins, NodeSilent(node="n1", incarnation=life, silent_s=60))
    words = ("node", "declare-dead", "n1", "--fenced-by", "BMC power off", "--user", "olga", "--pool", DECIDED)
    other = await baton(*words, "--incarnation", f"{life + 7}", url=urls["operator"])
    assert (other.code, other.out) == (4, ""), "another life of the node"
    assert f"node n1 is in life {life} and not {life + 7}" in other.err
    result = await baton(*words, "--incarnation", f"{life}", "-o", "json", url=urls["operator"])
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert told == {
        "pool": DECIDED, "node": "n1", "incarnation": life, "done": "declared dead", "ledger_seq": told["ledger_seq"],
    }  # fmt: skip
    assert any(isinstance(event, NodeLeft) for event in await events_of(services, told["ledger_seq"]))
    said = (await last_input(services)).message
    assert said == NodeDead(node="n1", incarnation=life, fenced_by="BMC power off", user="olga")
    async with shown(urls["services"], life):
        again = await baton(*words, url=urls["operator"])
    assert (again.code, again.out) == (4, ""), "it is dead already"
    assert "node n1 is not up" in again.err


async def test_the_life_that_is_shown_is_declared_dead_and_not_one_that_has_begun_since(
    urls: dict[str, Address], services: BusConnection, placement: None
) -> None:
    old, new = next(LIVES), next(LIVES)
    joins = NodeRegistered(incarnation=old, inventory=node("n1", 1), lease_s=600)
    again = joins.model_copy(update={"incarnation": new})
    await put(services, joins, NodeSilent(node="n1", incarnation=old, silent_s=60))
    await put(services, again, NodeSilent(node="n1", incarnation=new, silent_s=60))
    words = ("node", "declare-dead", "n1", "--fenced-by", "BMC power off", "--user", "olga", "--pool", DECIDED)
    async with shown(urls["services"], old):
        late = await baton(*words, url=urls["operator"])
    assert (late.code, late.out) == (4, ""), "what was looked at is over"
    assert f"node n1 is in life {new} and not {old}, it has come back since" in late.err
    async with shown(urls["services"], new):
        done = await baton(*words, url=urls["operator"])
    assert (done.code, done.out) == (0, "n1\n"), done.err
    assert f"life {new} of n1 is over" in done.err
    said = (await last_input(services)).message
    assert said == NodeDead(node="n1", incarnation=new, fenced_by="BMC power off", user="olga")


async def test_no_life_is_declared_dead_that_nobody_shows(
    urls: dict[str, Address], services: BusConnection, placement: None
) -> None:
    await put(services, NodeRegistered(incarnation=next(LIVES), inventory=node("n1", 1), lease_s=600))
    before = await last_input(services)
    words = ("node", "declare-dead", "--fenced-by", "power off", "--pool", DECIDED)
    nobody = await baton(*words, "n1", url=urls["operator"])
    assert (nobody.code, nobody.out) == (6, "")
    assert "nobody tells which life of n1 is meant" in nobody.err
    async with shown(urls["services"], 1):
        other = await baton(*words, "n404", url=urls["operator"])
    assert (other.code, other.out) == (3, "")
    assert f"pool {DECIDED} shows no node 'n404'" in other.err
    assert "--incarnation N" in nobody.err
    assert "--incarnation N" in other.err
    assert await last_input(services) == before, "nothing was said"


async def test_a_program_is_told_which_node_was_cordoned_and_in_which_record(
    urls: dict[str, Address], services: BusConnection, placement: None
) -> None:
    await put(services, NodeRegistered(incarnation=next(LIVES), inventory=node("n1", 1), lease_s=600))
    about = ("n1", "--reason", "a new fan", "--user", "olga", "--pool", DECIDED, "-o")
    for word, kind in (("cordon", NodeCordoned), ("uncordon", NodeUncordoned)):
        result = await baton("node", word, *about, "json", url=urls["operator"])
        assert result.code == 0, result.err
        told = json.loads(result.out)
        assert told == {"pool": DECIDED, "node": "n1", "done": f"{word}ed", "ledger_seq": told["ledger_seq"]}
        (event,) = [e for e in await events_of(services, told["ledger_seq"]) if isinstance(e, kind)]
        assert event.node == "n1"
        refused = await baton("node", word, "n404", *about[1:], "json", url=urls["operator"])
        assert (refused.code, refused.out) == (4, ""), refused.err
    assert (await baton("node", "cordon", *about, "name", url=urls["operator"])).out == "n1\n"
    assert (await baton("node", "uncordon", *about, "name", url=urls["operator"])).out == "n1\n"


async def events_of(services: BusConnection, seq: int) -> tuple[LedgerEvent, ...]:
    """Of a record of the pool's ledger."""
    return LedgerRecord.model_validate_json(await stored_at(services.jetstream(), DECIDED, seq) or b"").events


async def test_what_a_pool_refuses_does_not_end_with_0_and_says_why_and_what_to_do(
    urls: dict[str, Address], services: BusConnection, placement: None
) -> None:
    about = ("--pool", DECIDED, "--user", "olga")
    for words, why in (
        (("node", "declare-dead", "n404", "--fenced-by", "power off", "--incarnation", "1"), "node n404 is not up"),
        (
            ("node", "release", "n404", "GPU-9", "--reason", "mine", "--since-us", "1"),
            "device GPU-9 of node n404 is not in quarantine",
        ),
        (("team", "suspend", "operator", "--reason", "why not"), "they cannot be suspended"),
    ):
        result = await baton(*words, *about, url=urls["operator"])
        assert (result.code, result.out) == (4, ""), words
        assert "pool decided has refused it, and nothing has changed" in result.err
        assert why in result.err


@pytest.mark.parametrize(
    ("reason", "why", "fix"),
    [
        ("node n is not silent: stop its agent", "node n is not silent", "stop its agent"),
        (
            "for = 90 s: a boost is 60 s at the most; ask for less",
            "for = 90 s: a boost is 60 s at the most",
            "ask for less",
        ),
        ("queue a: limit = 8: is too much; lower it", "queue a: limit = 8: is too much", "lower it"),
    ],
)
def test_why_a_pool_refuses_is_told_apart_from_what_to_do(reason: str, why: str, fix: str) -> None:
    told = refused("main", reason)
    assert (told.why, told.fix) == (why, fix)


async def test_what_is_not_decided_in_time_is_not_taken_for_done(
    urls: dict[str, Address], services: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libs.cli.pool_commands._DECIDED_S", 0.3)
    async with await connect(urls["operator"], OPERATOR, pool=DECIDED) as operator:
        said = NodeDead(node="n1", fenced_by="power off")
        with pytest.raises(TimedOut, match=r"pool decided has not decided it within 0\.3 s"):
            await say_to_pool(operator, DECIDED, said, declare_dead(DECIDED, "olga"), "n1")


@asynccontextmanager
async def a_pool_of(url: Address, *, with_quota: str, with_jobs: str) -> AsyncIterator[None]:
    """Those who know teams: a quota of one of them, a job of another."""
    asked = SubmitJob(client_key="x", job=JobSpec(command=("x",)))
    job = _document(f"job-{1:032x}", with_jobs, asked, 1, hashed=False)

    def quotas(query: PoolStatusQuery, team: str) -> QuotaSnapshot:
        return QuotaSnapshot(teams=(TeamUsage(team=with_quota, limit_milli=None, used_milli=0),), ledger_seq=0)

    def jobs(query: JobListQuery, team: str) -> JobList:
        return JobList(jobs=(job,) if team == with_jobs else ())

    broker = make_broker(url, "those who know teams")
    serve(broker, BY_TYPE["io.baton.quota.list.query.v1"], quotas, pool=DECIDED, queue="quota_billing")
    serve(broker, BY_TYPE["io.baton.job.list.query.v1"], jobs, queue="history")
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


async def test_a_team_that_nobody_knows_is_taken_with_a_hint(
    urls: dict[str, Address], placement: None, tmp_path: Path
) -> None:
    """A slip of the name suspended nobody, without a word."""
    Keyring(tmp_path).team("fresh")
    about = ("--pool", DECIDED, "--user", "olga")
    warned = {}
    async with a_pool_of(urls["services"], with_quota="blue", with_jobs="green"):
        for team in ("blue", "green", "fresh", "nosuch", "freesh"):
            words = ("quota", "set", team, "none", *about)
            told = await baton(*words, url=urls["operator"], BATON_STATE_DIR=str(tmp_path))
            assert told.code == 0, told.err
            warned[team] = told.err
        words = ("team", "suspend", "nosuch", "--reason", "a slip", *about)
        suspended = await baton(*words, url=urls["operator"], BATON_STATE_DIR=str(tmp_path))
        # Whoever cannot read the keys knows less, and goes on.
        Keyring(tmp_path).folder.joinpath(KEYS_FILE).write_text("{")
        words = ("quota", "set", "nosuch2", "none", *about)
        unread = await baton(*words, url=urls["operator"], BATON_STATE_DIR=str(tmp_path))
    says = "no team nosuch is known here: check the name; it counts for a team that comes later\n"
    near = "no team freesh is known here: did you mean fresh? it counts for a team that comes later\n"
    assert warned == {"blue": "", "green": "", "fresh": "", "nosuch": says, "freesh": near}
    assert (suspended.code, suspended.err.startswith(says)) == (0, True), suspended.err
    assert (unread.code, unread.err) == (0, "")


async def test_a_quarantine_is_lifted_with_a_reason(
    urls: dict[str, Address], services: BusConnection, placement: None
) -> None:
    life = next(LIVES)
    joins = NodeRegistered(incarnation=life, inventory=node("n1", 1), lease_s=600)
    device = joins.inventory.devices[0].id
    busy = BusyDevice(device=device, users="pid 7", since_us=1)
    await put(services, joins, NodeQuarantine(node="n1", incarnation=life, devices=(busy,)))
    words = ("node", "release", "n1", device, "--reason", "the site's monitor", "--user", "olga", "--pool", DECIDED)
    nobody = await baton(*words, url=urls["operator"])
    assert (nobody.code, nobody.out) == (6, "")
    assert "nobody tells which quarantine" in nobody.err
    assert "--since-us N" in nobody.err
    result = await baton(*words, "--since-us", "1", "-o", "json", url=urls["operator"])
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert told == {
        "pool": DECIDED, "node": "n1", "device": device, "since_us": 1, "done": "released",
        "ledger_seq": told["ledger_seq"],
    }  # fmt: skip
    assert await events_of(services, told["ledger_seq"])
    said = (await last_input(services)).message
    assert said == QuarantineLifted(node="n1", device=device, since_us=1, reason="the site's monitor", user="olga")


async def test_the_quarantine_that_is_shown_is_lifted_and_not_one_that_has_begun_since(
    urls: dict[str, Address], services: BusConnection, placement: None
) -> None:
    life = next(LIVES)
    joins = NodeRegistered(incarnation=life, inventory=node("n1", 1), lease_s=600)
    device = joins.inventory.devices[0].id
    old, new = (BusyDevice(device=device, users="pid 7", since_us=since_us) for since_us in (1, 2))
    told = [NodeQuarantine(node="n1", incarnation=life, devices=busy) for busy in ((old,), (), (new,))]
    await put(services, joins, *told)
    words = ("node", "release", "n1", device, "--reason", "a monitor", "--user", "olga", "--pool", DECIDED)
    async with shown(urls["services"], life, old):
        late = await baton(*words, url=urls["operator"])
    assert (late.code, late.out) == (4, ""), "what was looked at is over"
    assert "is in another quarantine by now, the one of 2 and not of 1" in late.err
    async with shown(urls["services"], life):
        none = await baton(*words, url=urls["operator"])
    assert (none.code, none.out) == (3, "")
    assert f"device {device} of node n1 is not in quarantine" in none.err
    async with shown(urls["services"], life, new):
        done = await baton(*words, url=urls["operator"])
    assert (done.code, done.out) == (0, f"{device}\n"), done.err


@pytest.mark.parametrize(
    "words",
    [
        ("declare-dead", "n1", "--fenced-by", "me", "--incarnation", "1"),
        ("release", "n1", "GPU-7", "--reason", "I need it", "--since-us", "1"),
    ],
)
async def test_a_team_may_say_neither(
    words: tuple[str, ...], urls: dict[str, Address], services: BusConnection
) -> None:
    before = (await services.jetstream().stream_info(inbox_stream("main"))).state.last_seq
    result = await baton("node", *words, "--pool", "main", url=urls["blue"])
    assert result.code == 4, "denied"
    assert (await services.jetstream().stream_info(inbox_stream("main"))).state.last_seq == before


@pytest.mark.parametrize("words", [("bill", "statement"), ("bill", "close", "--from", "2020-01"), ("ledger", "verify")])
async def test_a_team_that_would_read_the_ledger_is_denied(
    words: tuple[str, ...], urls: dict[str, Address], services: BusConnection
) -> None:
    """Seen: nobody answered in time, with the exit code of a server that is away."""
    result = await baton(*words, "--pool", "main", url=urls["blue"])
    assert (result.code, result.out) == (4, ""), result.err
    assert "refused: needs an operator's credential" in result.err


@pytest.mark.parametrize("words", [("bill", "statement"), ("ledger", "verify"), ("ledger", "export", "l.jsonl")])
async def test_a_pool_that_there_is_not_has_no_ledger(
    words: tuple[str, ...], urls: dict[str, Address], services: BusConnection, tmp_path: Path
) -> None:
    """Seen: a traceback."""
    words = tuple(str(tmp_path / word) if word == "l.jsonl" else word for word in words)
    result = await baton(*words, "--pool", "nowhere", url=urls["operator"])
    assert (result.code, result.out) == (3, ""), result.err
    assert result.err.startswith("baton: pool nowhere has no ledger here")


@pytest.mark.parametrize("words", [("declare-dead", "n1"), ("release", "n1", "GPU-7")])
async def test_both_ask_for_the_reason(words: tuple[str, ...], urls: dict[str, Address]) -> None:
    result = await baton("node", *words, url=urls["operator"])
    assert result.code == 2
    assert "Missing option" in result.err


async def test_readers_are_shown_and_forgotten_and_an_older_one_holds_the_upgrade(
    urls: dict[str, Address], services: BusConnection
) -> None:
    known, operator = Readers(services.jetstream()), {"url": urls["operator"]}
    for one in (OLD, NEW):
        await known.declare(one)
    shown = json.loads((await baton("ledger", "readers", "-o", "json", "--pool", "main", **operator)).out)
    assert {one["process"]: one["format"] for one in shown["readers"]} == {"host-1-7": FIRST, "host-2-9": NEWEST}
    assert shown["format"] == FIRST
    held = await baton("ledger", "upgrade", "--pool", "main", **operator)
    assert held.code != 0
    assert "telemetry of process host-1-7" in held.err
    assert await known.format("main") == FIRST
    nobody = await baton(
        "ledger", "readers", "--forget", "host-9-9", "--reason", "it is gone", "--pool", "main", **operator
    )
    assert nobody.code != 0
    assert "no reader of process 'host-9-9'" in nobody.err
    forget = ("--forget", "host-1-7", "--reason", "it is gone")
    left = await baton("ledger", "readers", *forget, "-o", "json", "--pool", "main", **operator)
    assert [one["process"] for one in json.loads(left.out)["readers"]] == ["host-2-9"]
    done = await baton("ledger", "upgrade", "--pool", "main", "-o", "json", **operator)
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"pool": "main", "format": NEWEST, "done": "upgraded"}
    assert await known.format("main") == NEWEST


async def test_an_operator_may_upgrade_although_an_older_reader_lives(
    urls: dict[str, Address], services: BusConnection
) -> None:
    known = Readers(services.jetstream())
    await known.raise_format("main", FIRST, "a test")
    await known.declare(OLD)
    assert (await baton("ledger", "upgrade", "--pool", "main", url=urls["operator"])).code != 0
    force = ("--force", "--reason", "it stops in any case")
    forced = await baton("ledger", "upgrade", *force, "--pool", "main", url=urls["operator"])
    assert (forced.code, await known.format("main")) == (0, NEWEST), forced.err
    await known.forget(OLD)
    await known.raise_format("main", FIRST, "a test")


async def test_a_book_is_applied_a_bill_is_exported_and_a_period_closed(
    urls: dict[str, Address], services: BusConnection, placement: None, tmp_path: Path
) -> None:
    book, bill = tmp_path / "book.yaml", tmp_path / "bill.csv"
    book.write_text("version: 1\ncurrency: USD\nprices: [{device: H100, price: 2.99, from: 2020-01-01}]\n")
    url = urls["operator"]
    words = ("prices", "apply", "-f", str(book), "--user", "olga", "--pool", DECIDED)
    applied = await baton(*words, "-o", "json", url=url)
    told = json.loads(applied.out)
    (event,) = await events_of(services, told.pop("ledger_seq"))
    assert applied.code == 0
    assert isinstance(event, PricesApplied)
    assert told == {"pool": DECIDED, "version": 1, "currency": "USD", "done": "applied"}
    wrong = await baton("bill", "close", "--from", "2099-01", "--pool", DECIDED, url=url)
    assert wrong.code == 4
    assert "close it when it is over" in wrong.err
    first = ("bill", "close", "--from", "2020-01", "--user", "olga", "--pool", DECIDED)
    slip = await baton(*first, url=url)
    assert (slip.code, "say --empty if that is meant" in slip.err) == (2, True), slip.err
    closed = await baton(*first, "--empty", "-o", "json", url=url)
    assert closed.code == 0, closed.err
    told = json.loads(closed.out)
    (event,) = await events_of(services, told["ledger_seq"])
    assert isinstance(event, PeriodClosed)
    assert (told["period"], told["row_count"]) == (event.period.model_dump(mode="json"), 0)
    async with await connect(url, operator=True) as client:
        js = client.nats.jetstream()
        payloads = [await stored_at(js, DECIDED, seq) or b"" for seq in range(1, await last_seq(js, DECIDED) + 1)]
        last = len(payloads)
        for upto, head, why in (
            (last, "a" * 64, f"record {last} of this ledger has the hash"),
            (1, content_hash(payloads[0]), "before the period ends"),
            (last + 99, "a" * 64, "a seal names one that is there"),
            (0, "a" * 64, "a seal names one that is there"),
        ):
            lie = ClosedPeriod(
                from_us=month_us(2020, 2)[0], to_us=time.time_ns() // 1000, upto_seq=upto, head=head, rows="b" * 64,
                currency="USD",
            )  # fmt: skip
            with pytest.raises(PoolRefused, match=why):
                await say_to_pool(client, DECIDED, ClosePeriod(period=lie), close_period(DECIDED, "olga"), "a lie")
    exported = await baton("bill", "export", str(bill), "--from", "2020-01", "--pool", DECIDED, "-o", "json", url=url)
    told = json.loads(exported.out)
    assert (exported.code, told["file"], told["row_count"]) == (0, str(bill), 0), exported.err
    assert told["metadata"]["x_Sha256"] == told["sha256"]


async def test_a_book_that_is_applied_already_differs_in_nothing(
    urls: dict[str, Address], services: BusConnection, tmp_path: Path
) -> None:
    """Seen: it was sent, no record told of it, and the command said after 15 s that nobody decides."""
    head = "version: 7\ncurrency: USD\ncredits: {preempted-unsaved: 500, node-lost: 1000}\n"
    text = head + "prices:\n- {device: H100, price: 2.99, from: 2020-01-01}\n"
    file, other, foreign = tmp_path / "book.yaml", tmp_path / "other.yaml", tmp_path / "foreign.yaml"
    file.write_text(text)
    other.write_text(text.replace("preempted-unsaved: 500, node-lost: 1000", "node-lost: 1000, preempted-unsaved: 500"))
    foreign.write_text(text.replace("price: 2.99", "class: nightly, price: 2.99"))
    url, words = urls["services"], ("--pool", DECIDED)
    async with answered(url, QueuesReply(book=read_book(text).digest, classes=("research", "spot"))):
        for same in (file, other):
            again = await baton("prices", "apply", "-f", str(same), *words, url=urls["operator"])
            assert (again.code, again.out, again.err) == (0, "", "nothing differs\n")
        program = json.loads(
            (await baton("prices", "apply", "-f", str(file), *words, "-o", "json", url=urls["operator"])).out
        )
        assert (program["done"], program["ledger_seq"]) == ("nothing differs", None)
        wrong = await baton("prices", "apply", "-f", str(foreign), *words, url=urls["operator"])
        assert wrong.code == 2
        assert ":5: prices.0.class: nightly: is no priority class that there is; there are research, spot" in wrong.err


async def test_segments_are_told_to_programs(urls: dict[str, Address], placement: None) -> None:
    """Seen: a traceback with `-o json`."""
    for read, format in ((json.loads, "json"), (yaml.safe_load, "yaml")):
        told = await baton("ledger", "segments", "-o", format, "--pool", DECIDED, url=urls["operator"])
        assert told.code == 0, told.err
        (one,) = read(told.out)
        assert (one["name"], one["first"], one["state"]) == ("LEDGER-decided", 1, "open")


async def test_use_of_a_team_is_asked_for_by_operators_whatever_the_team_of_the_shell(
    urls: dict[str, Address], services: BusConnection
) -> None:
    """Seen: with BATON_TEAM the option was passed over."""
    asked = []

    def answer(query: UseQuery, team: str) -> UseReply:
        asked.append((query.team, team))
        return UseReply(rows=(), ledger_seq=1)

    broker = make_broker(urls["services"], "used")
    serve(broker, BY_TYPE["io.baton.use.list.query.v1"], answer, pool=DECIDED, queue="quota_billing")
    await broker.start()
    try:
        words = ("bill", "used", "--of", "research", "--pool", DECIDED)
        told = await baton(*words, url=urls["operator"], BATON_TEAM="vision")
    finally:
        await broker.stop()
    assert (told.code, asked) == (0, [("research", OPERATOR)]), told.err


async def test_a_class_that_is_not_shipped_is_told_where_no_pool_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "book.yaml"
    prices = (
        "- {device: H100, price: 2, from: 2020-01-01}\n- {device: H100, class: nightly, price: 1, from: 2020-01-01}\n"
    )
    file.write_text(f"version: 1\ncurrency: USD\nprices:\n{prices}")
    checked = await baton("prices", "check", "-f", str(file))
    assert checked.code == 0
    assert checked.err.startswith("warning: prices.1.class: nightly is not one of the shipped classes (")
    told = json.loads((await baton("prices", "check", "-f", str(file), "-o", "json")).out)
    assert [f"warning: {line}\n" for line in told.pop("warnings")] == [checked.err]
    assert told == {
        "file": str(file), "ok": True, "version": 1, "currency": "USD", "prices": 2, "contracts": 0, "errors": [],
    }  # fmt: skip


async def test_a_program_is_told_what_is_wrong_with_a_book(tmp_path: Path) -> None:
    file = tmp_path / "book.yaml"
    file.write_text("version: 1\ncurrency: USD\nprices:\n- {device: H100, price: -2, from: 2020-01-01}\n")
    checked = await baton("prices", "check", "-f", str(file), "-o", "json")
    assert checked.code == 2
    told = json.loads(checked.out)
    (error,) = told["errors"]
    assert (told["ok"], error["line"], error["field"]) == (False, 4, "prices.0.price")
    assert f"{error['field']}: {error['problem']}; {error['fix']}" in checked.err
    assert (await baton("prices", "check", "-f", str(file))).out == ""


async def test_a_dead_letter_that_is_refused_again_ends_as_any_other_refused_command(
    urls: dict[str, Address], services: BusConnection, placement: None
) -> None:
    """It is waited for: `baton dead replay` ended with 0 whatever became of the message."""
    refused = CancelRequested(job_id=f"job-{uuid4().hex}", team="blue", reason="no more", requested_us=1)
    welcome = NodeRegistered(incarnation=next(LIVES), inventory=node("n1"), lease_s=10)
    seqs = []
    for seq, said in enumerate((refused, welcome), 1):
        subject = input_subject(said, DECIDED)
        sent = outgoing(said, subject=subject, type=TYPE_OF[type(said)], source="/test", cause=uuid4().hex)
        received = Received(subject, sent.headers, sent.payload, inbox_stream(DECIDED), seq, 0)
        letter = dead_letter("placement", received, "it was too early")
        ack = await services.jetstream().publish(letter.subject, letter.payload, headers=letter.headers)
        seqs.append(str(ack.seq))
    again = await baton("dead", "replay", *seqs, "-o", "json", url=urls["operator"])
    assert again.code == 4, again.err
    assert f"pool {DECIDED} has refused it" in again.err
    first, second = json.loads(again.out)
    assert (first["replayed"], f"pool {DECIDED} has refused it" in first["error"]) == (False, True)
    told = {"seq": int(seqs[1]), "subject": input_subject(welcome, DECIDED), "replayed": True, "error": ""}
    assert second == told, "the other one was decided"
