"""One provisioner: it makes every stream once, finds drift, never shrinks, and the ledger cannot be rewritten."""

import asyncio
from dataclasses import replace
from hashlib import sha256

import pytest
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType
from nats.js.errors import APIError, ServiceUnavailableError

from libs.bus.connect import BusConnection, close, connect
from libs.bus.cursors import Cursors, Overtaken
from libs.bus.streams import StreamDrift, StreamsMissing, bind, provision
from libs.bus.table import (
    DEAD_OF_A_SENDER,
    MARK,
    REMEMBERED_S,
    TABLE,
    consumer_config,
    durable_of,
    durables,
    snapshots_of,
    streams,
)
from schemas import subjects
from schemas.catalog import CATALOG
from tests.kit.background import ServerInBackground
from tests.kit.patterns import matches
from tests.kit.waiting import until


def test_every_stream_is_bounded_and_refuses_when_full() -> None:
    for config in streams(["main"]):
        assert config.max_bytes > 0
        assert config.retention == RetentionPolicy.LIMITS
        assert config.storage == StorageType.FILE, "a stream in memory is gone after the broker's restart"
        passing = (
            subjects.TELEMETRY,
            subjects.EVENTS,
            subjects.DEAD,
        )  # nobody decides by them, nobody waits to write them
        wanted = DiscardPolicy.OLD if config.name in passing else DiscardPolicy.NEW
        assert config.discard == wanted


def test_the_ledger_never_expires_and_everything_that_flows_does() -> None:
    ages = {config.name: config.max_age for config in streams(["main"])}
    assert not ages["LEDGER-main"]
    assert all(ages[name] for name in ("REQUESTS", "INBOX-main", "EVENTS", "TELEMETRY", "DEAD"))


def test_every_message_of_the_catalog_has_its_stream() -> None:
    table = {config.name: config.subjects for config in streams(["main"])}
    for message in CATALOG:
        subject = message.subject.replace("{team}", "research").replace("{pool}", "main").replace("{node}", "n1")
        taken = [name for name, patterns in table.items() if any(_matches(p, subject) for p in patterns)]
        stream = message.stream.replace("{pool}", "main")
        assert taken == ([stream] if stream else []), message.type


def test_ids_of_what_teams_send_are_remembered_for_seconds() -> None:
    """The broker keeps them in memory, 64 KiB each, whatever became of their messages. What a team may send is taken from the
    rights of its credential."""
    may, _ = subjects.user_may("red")
    for config in streams(["main"]):
        filled = (subject.replace("*", "x") for subject in may)
        if any(matches(pattern, subject) for subject in filled for pattern in config.subjects):
            assert config.duplicate_window <= REMEMBERED_S == 10, config.name


def _matches(pattern: str, subject: str) -> bool:
    want, have = pattern.split("."), subject.split(".")
    return len(want) == len(have) and all(w in ("*", h) for w, h in zip(want, have, strict=True))


def test_an_unknown_durable_is_named() -> None:
    assert durable_of("REQUESTS", "admission").filter_subjects == ("baton.cmd.job.v1.*.*.*",)
    with pytest.raises(KeyError, match="REQUESTS/admission"):
        durable_of("REQUESTS", "nobody")


async def test_provisioning_twice_changes_nothing(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.01)
    names = [str(c.name) for c in streams(["p"])]
    before = [(await js.stream_info(name)).config for name in names]
    await provision(js, ["p"], scale=0.01)
    assert [(await js.stream_info(name)).config for name in names] == before
    await bind(js, ["p"], wait_s=5)
    for entry in durables(["p"]):
        assert (await js.consumer_info(entry.stream, entry.name)).config.max_deliver == -1
    await close(connection)


async def test_limits_grow_and_never_shrink(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.01)
    small = (await js.stream_info("INBOX-p")).config.max_bytes
    await js.publish("baton.in.clock.v1.tick.p", b"{}")
    await provision(js, ["p"], scale=0.02)
    info = await js.stream_info("INBOX-p")
    grown = info.config.max_bytes
    assert grown > small
    assert info.state.messages == 1
    await provision(js, ["p"], scale=0.01)
    assert (await js.stream_info("INBOX-p")).config.max_bytes == grown
    await close(connection)


def test_a_changed_table_has_a_new_number() -> None:
    """An older version must see that a newer one was here."""
    told = "\n".join(repr(one.as_dict()) for one in (*streams(["p"]), *map(consumer_config, durables(["p"]))))
    digest = sha256(told.encode()).hexdigest()[:12]
    assert (TABLE, digest) == (1, "73b5d8bc9605"), (
        "the table has changed: TABLE is one more, and its digest stands here"
    )


async def test_what_a_newer_version_made_stays_and_what_is_missing_is_made(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.01)
    requests = (await js.stream_info("REQUESTS")).config
    newer = {**(requests.metadata or {}), MARK: str(TABLE + 1)}
    await js.update_stream(requests.evolve(metadata=newer, max_msgs_per_subject=9))
    await js.delete_consumer("REQUESTS", "admission")
    await js.add_consumer("REQUESTS", durable_name="admission", filter_subject="baton.cmd.job.v2.>", ack_wait=99)
    before = (await js.stream_info("REQUESTS")).config
    await provision(js, ["p", "q"], scale=0.02)
    assert (await js.stream_info("REQUESTS")).config == before
    assert (await js.consumer_info("REQUESTS", "admission")).config.ack_wait == 99
    await bind(js, ["p", "q"], wait_s=0)
    await js.update_stream(before.evolve(metadata={**newer, MARK: str(TABLE)}))
    with pytest.raises(StreamDrift, match="max_msgs_per_subject is 9"):
        await provision(js, ["p", "q"], scale=0.02)
    await close(connection)


async def test_drift_is_listed_and_nothing_is_changed(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.01)
    requests = (await js.stream_info("REQUESTS")).config
    await js.update_stream(requests.evolve(discard=DiscardPolicy.OLD, discard_new_per_subject=False, max_bytes=-1))
    await js.delete_consumer("REQUESTS", "admission")
    await js.add_consumer("REQUESTS", durable_name="admission", filter_subject="baton.cmd.job.v1.submit.*", ack_wait=99)
    with pytest.raises(StreamDrift) as drift:
        await provision(js, ["p", "new"], scale=0.01)
    text = str(drift.value)
    assert "stream REQUESTS: discard is old, should be new" in text
    assert "stream REQUESTS: max_bytes is not set" in text
    assert "consumer REQUESTS/admission: filter is ['baton.cmd.job.v1.submit.*']" in text
    assert "consumer REQUESTS/admission: ack_wait is 99" in text
    with pytest.raises(StreamsMissing, match=r"INBOX-new.*baton provision --pool new"):
        await bind(js, ["new"], wait_s=0)
    await close(connection)


async def test_what_the_table_said_before_is_brought_up_to_date(own_server: ServerInBackground) -> None:
    """A broker that 0.1.0 provisioned: events and dead letters refused when full, and no sender was told from another."""
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    wanted = {str(config.name): config for config in streams(["p"], scale=0.01)}
    for name in ("EVENTS", "DEAD"):
        old = wanted[name].evolve(discard=DiscardPolicy.NEW, max_msgs_per_subject=-1)
        await js.add_stream(old.evolve(subjects=["baton.dead.*"]) if name == "DEAD" else old)
    await js.add_stream(wanted["REQUESTS"].evolve(duplicate_window=120.0))
    (quotas,) = [entry for entry in durables(["p"]) if entry.max_ack_pending == 1]
    await js.add_consumer("REQUESTS", consumer_config(replace(quotas, max_ack_pending=5000)))
    await js.publish("baton.dead.admission", b"an old letter")
    await provision(js, ["p"], scale=0.01)
    dead = await js.stream_info("DEAD")
    assert (dead.config.discard, dead.config.max_msgs_per_subject) == (DiscardPolicy.OLD, DEAD_OF_A_SENDER)
    assert (dead.config.subjects, dead.state.messages) == (["baton.dead.*", "baton.dead.*.*"], 1)
    assert (await js.stream_info("EVENTS")).config.discard == DiscardPolicy.OLD
    assert (await js.stream_info("REQUESTS")).config.duplicate_window == REMEMBERED_S
    assert (await js.consumer_info("REQUESTS", quotas.name)).config.max_ack_pending == 1
    await close(connection)


async def test_a_deleted_stream_is_made_again(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.01)
    await js.delete_stream("REQUESTS")
    with pytest.raises(StreamsMissing, match="missing on the broker: REQUESTS"):
        await bind(js, ["p"], wait_s=0)
    await provision(js, ["p"], scale=0.01)
    await bind(js, ["p"], wait_s=5)
    await close(connection)


async def test_the_ledger_refuses_to_forget(nats: BusConnection, pool: str) -> None:
    js = nats.jetstream()
    name = subjects.ledger_stream(pool)
    ack = await js.publish(subjects.ledger(pool), b"{}")
    with pytest.raises(APIError, match=r"not permitted|denied|deny"):
        await js.delete_msg(name, ack.seq)
    with pytest.raises(APIError, match=r"not permitted|denied|deny"):
        await js.purge_stream(name)
    for lifted in ({"deny_delete": False}, {"deny_purge": False}):
        with pytest.raises(APIError, match="can not cancel deny"):
            await js.update_stream((await js.stream_info(name)).config.evolve(**lifted))
    assert (await js.get_msg(name, seq=ack.seq)).data == b"{}"


async def test_cursors_remember_and_survive(nats: BusConnection, pool: str) -> None:
    cursors = Cursors(nats.jetstream())
    assert await cursors.load(f"history.{pool}") is None
    await cursors.save(f"history.{pool}", {"seq": 1})
    await cursors.save(f"history.{pool}", {"seq": 2, "hash": "é"})
    assert await Cursors(nats.jetstream()).load(f"history.{pool}") == {"seq": 2, "hash": "é"}


async def test_a_cursor_of_before_is_read_until_its_owner_has_written_one(nats: BusConnection, pool: str) -> None:
    before, name = Cursors(nats.jetstream()), f"feed-{pool}"
    await before.save(name, {"seq": 7})
    own = Cursors(nats.jetstream(), "history")
    assert await own.load(name) == {"seq": 7}
    await own.move(name, {"seq": 8})
    await own.move(name, {"seq": 9})
    assert await Cursors(nats.jetstream(), "history").load(name) == {"seq": 9}
    assert await before.load(name) == {"seq": 7}
    late = Cursors(nats.jetstream(), "history")
    await late.load(name)
    await own.move(name, {"seq": 10})
    with pytest.raises(Overtaken):
        await late.move(name, {"seq": 9})


async def test_the_snapshot_store_takes_large_objects(nats: BusConnection, pool: str) -> None:
    store = await nats.jetstream().object_store(snapshots_of("placement"))
    data = bytes(range(256)) * 8_192
    await store.put(f"{pool}/state", data)
    assert (await store.get(f"{pool}/state")).data == data


@pytest.mark.faults
async def test_every_stream_is_there_after_the_server_was_killed(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.01)
    pid = await asyncio.to_thread(own_server.kill)
    await asyncio.to_thread(own_server.wait_replaced, pid)
    await until(lambda: connection.is_connected)
    await bind(js, ["p"], wait_s=30)  # the one in memory too: empty, but there
    await close(connection)


def test_each_message_that_is_kept_has_exactly_one_stream_and_the_others_have_none() -> None:
    table = {str(config.name): config.subjects or [] for config in streams(["main", "west"])}
    for message in CATALOG:
        for pool in ("main", "west"):
            subject = message.subject.format(team="t", user="u", pool=pool, node="n", service="s")
            keeping = [name for name, patterns in table.items() if any(matches(p, subject) for p in patterns)]
            wanted = [message.stream.format(pool=pool)] if message.stream else []
            assert keeping == wanted, message.type


def test_each_pool_has_its_own_consumer_of_quotas_and_all_have_one_admission() -> None:
    assert [(d.name, d.filter_subjects) for d in durables(["main", "west"])] == [
        ("admission", ("baton.cmd.job.v1.*.*.*",)),
        ("quota_billing-main", ("baton.cmd.quota.v1.*.main.*.*",)),
        ("quota_billing-west", ("baton.cmd.quota.v1.*.west.*.*",)),
    ]
    assert durable_of("REQUESTS", "quota_billing-west") == durables(["west"])[1]


async def test_servers_without_a_leader_are_no_reason_to_give_up() -> None:
    """As those of a cluster that starts: whoever asks again later is served."""

    class Starting:
        async def stream_info(self, _: str) -> None:
            raise ServiceUnavailableError(code=503, err_code=10008, description="temporarily unavailable")

    with pytest.raises(ServiceUnavailableError):
        await provision(Starting(), ["main"])  # type: ignore[arg-type]
