"""Leases as they run: one process grants, another stands by, and nothing that the ledger says stops either."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from libs.bus.cursors import Cursors
from libs.bus.messages import outgoing
from libs.core.projections.node_lives import GrantRight
from libs.core.scheduling.decider import Decider, Deciders
from libs.core.state.formats import NEWEST
from libs.ledger.follower import Follower
from libs.ledger.readers import Readers
from libs.ledger.writer import LedgerWriter
from libs.service.bootclock import now
from libs.service.few_lines import LINES
from schemas import inbox, subjects
from schemas.catalog import TYPE_OF
from schemas.ids import content_hash
from schemas.nodes import Heartbeat, LeaseGranted
from services.leases.app import Leases, make_app
from services.leases.grants import Grants
from services.leases.settings import LeaseSettings
from tests.admission.running import get, running
from tests.core.builders import node
from tests.kit.inputs import input_subject
from tests.kit.tasks import beside
from tests.kit.waiting import stored, until

QUICK = {
    "max_lease_s": 3.0, "kill_bound_s": 0.1, "margin_s": 0.1, "term_s": 3.0, "broker_s": 0.1, "silent_s": 1.5,
    "standby_s": 0.5, "tick_s": 0.1,
}  # fmt: skip


class Bench:
    """A pool with a placement that decides, and agents that renew."""

    def __init__(self, nats: Client, pool: str, nats_url: str) -> None:
        self.nats, self.pool, self.js, self.url = nats, pool, nats.jetstream(), nats_url
        self.writer: LedgerWriter[Decider] = LedgerWriter(self.js, pool, Deciders(), writer_id="placement")
        self._put = 0

    def app(self, **settings: Any) -> Any:
        return make_app(LeaseSettings(nats_url=self.url, pool=self.pool, **{**QUICK, **settings}))

    async def put(self, model: BaseModel) -> None:
        self._put += 1
        item = outgoing(
            model,
            subject=input_subject(model, self.pool),
            type=TYPE_OF[type(model)],
            source="/t",
            cause=f"t{self._put}",
        )
        await self.js.publish(item.subject, item.payload, headers=item.headers)

    async def join(self, *names: str) -> None:
        for name in names:
            await self.put(inbox.NodeRegistered(incarnation=1, inventory=node(name, 1), lease_s=3.0))
        await until(lambda: set(names) <= self.writer.decider.state.fleet.nodes.keys())

    async def beat(self, sender: str, *nodes: tuple[str, int], lease_s: float = 3.0) -> tuple[str, ...] | None:
        """What is answered to one heartbeat on the subject of `sender`; None when nobody does."""
        body = Heartbeat(nodes=nodes, lease_s=lease_s).model_dump_json().encode()
        try:
            answer = await self.nats.request(subjects.heartbeat(self.pool, sender), body, timeout=0.3)
        except (NatsError, TimeoutError):
            return None
        return LeaseGranted.model_validate_json(answer.data).nodes

    @asynccontextmanager
    async def renewing(self, *names: str) -> AsyncIterator[None]:
        async def go_on() -> None:
            while True:
                for name in names:
                    await self.beat(name, (name, 1))
                await asyncio.sleep(0.05)

        async with beside(go_on()):
            yield

    @property
    def epoch(self) -> int:
        return self.writer.decider.state.granter_epoch

    async def said(self, what: str) -> list[Any]:
        return await stored(self.js, subjects.inbox_stream(self.pool), subjects.node_inbox(what, self.pool))

    async def ticks(self) -> int:
        return len(await stored(self.js, subjects.inbox_stream(self.pool), subjects.inbox("clock", "tick", self.pool)))


@pytest.fixture
async def bench(nats: Client, pool: str, nats_url: str) -> AsyncIterator[Bench]:
    made = Bench(nats, pool, nats_url)
    await Readers(made.js).raise_format(pool, NEWEST, "the test")
    async with beside(made.writer.run()):
        await asyncio.wait_for(made.writer.ready.wait(), 30)
        yield made


async def granter(app: Any) -> bool:
    return "baton_granter 1.0" in (await get(app, "/metrics"))[1]


async def test_the_right_is_a_record_and_a_renewal_writes_nothing(bench: Bench) -> None:
    await bench.join("a")
    async with running(bench.app()) as app:
        await until(lambda: bench.beat("a", ("a", 1)))
        assert bench.epoch == 1
        assert await granter(app)
        await bench.js.delete_stream(subjects.inbox_stream(bench.pool))  # nothing can be stored any more
        records, begun = bench.writer.position, now()
        while now() < begun + 2 * QUICK["term_s"]:
            assert await bench.beat("a", ("a", 1)) == ("a",)
            await asyncio.sleep(0.1)
        assert bench.writer.position == records
        assert await bench.beat("a", ("b", 1)) is None, "a node speaks for itself only"
        assert await bench.beat("a", ("a", 1), lease_s=9) == (), "longer than any lease"


async def test_a_new_pool_has_a_granter_as_soon_as_the_ledger_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim counted as made before it could be sent, and the next one came `standby_s` later."""
    start = Follower._start

    async def late(follower: Any) -> Any:
        await asyncio.sleep(0.5)
        return await start(follower)

    monkeypatch.setattr(Follower, "_start", late)
    await bench.join("a")
    async with running(bench.app(standby_s=600.0, tick_s=0.05)):
        await until(lambda: bench.beat("a", ("a", 1)))
        assert bench.epoch == 1


async def test_silence_is_told_and_so_is_its_end_and_a_lost_node(bench: Bench) -> None:
    await bench.join("a", "b")
    async with running(bench.app()), bench.renewing("a"):
        silent = bench.writer.decider.state.silent
        await until(lambda: "b" in bench.writer.decider.state.silent)
        assert "a" not in silent
        async with bench.renewing("b"):
            await until(lambda: "b" not in bench.writer.decider.state.silent)
        assert bench.writer.decider.state.fleet.nodes["b"].up
        await until(lambda: not bench.writer.decider.state.fleet.nodes["b"].up)
        assert await bench.beat("b", ("b", 1)) == (), "that life is over"
        assert await bench.beat("b", ("b", 2)) == ("b",)
        assert bench.writer.decider.state.fleet.nodes["a"].up


async def serve(app: Any, stop: asyncio.Event) -> None:
    """In a task of its own: the first to start is the first to stop."""
    async with running(app):
        await stop.wait()


async def test_a_standby_takes_over_and_reports_nobody_whom_its_predecessor_may_have_renewed(bench: Bench) -> None:
    await bench.join("a", "b")
    one, two = bench.app(), bench.app(standby_s=60.0)  # patient: a busy machine alone must not make it take over
    ends = [asyncio.Event(), asyncio.Event()]
    first = asyncio.create_task(serve(one, ends[0]))
    await until(lambda: bench.beat("a", ("a", 1)))
    second = asyncio.create_task(serve(two, ends[1]))
    begun = await bench.ticks()
    await until(lambda: _ticked(bench, begun + 5))
    assert (await granter(one), bench.epoch) == (True, 1)
    ends[0].set()
    await first  # and says that it leaves: nobody waits for it
    await until(lambda: bench.epoch == 2)
    took_over = now()
    await until(lambda: granter(two))
    async with bench.renewing("a"):
        await until(lambda: not bench.writer.decider.state.fleet.nodes["b"].up)
    terms = LeaseSettings(**QUICK).terms()  # type: ignore[arg-type]
    assert now() - took_over >= QUICK["term_s"] + terms.patience(QUICK["max_lease_s"]) - 1.0
    assert bench.writer.decider.state.fleet.nodes["a"].up
    ends[1].set()
    await second


async def test_who_starts_after_a_granter_that_left_waits_for_nothing(bench: Bench) -> None:
    """As when all of Baton is restarted: no work could start for seconds, while devices were granted."""
    await bench.join("a")
    for epoch in (1, 2):
        async with running(bench.app(standby_s=600.0)):
            await until(lambda: bench.beat("a", ("a", 1)))
            assert bench.epoch == epoch


async def test_a_granter_that_left_grants_no_more_and_one_that_was_killed_is_waited_for(bench: Bench) -> None:
    settings = LeaseSettings(**QUICK, pool=bench.pool, nats_url=bench.url)  # type: ignore[arg-type]
    leases = Leases(settings, CollectorRegistry())
    granter = leases.grants.granter
    granter.named(GrantRight(epoch=1, holder=granter.name, term_s=3.0, max_lease_s=3.0), now())
    granter.confirm(now())
    assert granter.may_grant(now())
    await leases.leave(bench.js)
    assert not granter.may_grant(now())
    for holder, claims in ((granter.name, 2), ("killed", 0)):
        other = Leases(settings, CollectorRegistry())
        other.grants.granter.named(GrantRight(epoch=1, holder=holder, term_s=3.0, max_lease_s=3.0), now() - 1.0)
        await other._look_who_left(Cursors(bench.js, "leases"))
        assert other.grants.granter.claim(other.grants.watch.began_at) == claims


async def _ticked(bench: Bench, count: int) -> bool:
    return await bench.ticks() >= count


async def test_events_of_kinds_that_nobody_knows_stop_no_lease(bench: Bench) -> None:
    """0.1.0's telemetry stopped at the first, and with it the leases of the fleet."""
    await bench.join("a")
    async with running(bench.app()) as app:
        await until(lambda: bench.beat("a", ("a", 1)))
        head = bench.writer.head
        record = {
            "v": 1, "pool": bench.pool, "prev_seq": head.seq, "prev_hash": head.hash, "inbox_seq": 10**6,
            "t_us": 2 * 10**15, "writer": "later", "events": [{"kind": "job.promoted", "job_id": "x"}],
        }  # fmt: skip
        payload = json.dumps(record).encode()
        ack = await bench.js.publish(subjects.ledger(bench.pool), payload)
        joined = record | {
            "prev_seq": ack.seq, "prev_hash": content_hash(payload),
            "events": [{"kind": "job.demoted"}, {"kind": "node.left", "node": "a", "incarnation": 1, "reason": "r"}],
        }  # fmt: skip
        await bench.js.publish(subjects.ledger(bench.pool), json.dumps(joined).encode())
        await until(lambda: _refused(bench, "a"))
        assert await bench.beat("a", ("a", 2)) == ("a",)
        assert (await get(app, "/readyz"))[0] == 200


async def _refused(bench: Bench, name: str) -> bool:
    return await bench.beat(name, (name, 1)) == ()


# ----------------------------------------------------------------------------------------------- without a server


def grants(**settings: Any) -> Grants:
    return Grants(LeaseSettings(**settings), "me", CollectorRegistry())


async def test_a_node_that_sends_what_cannot_be_read_does_not_fill_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A node may send 500 messages a second: with a line for each nothing else was left in the log after four minutes."""
    async with running(bench.app()) as app:
        await until(lambda: granter(app))
        for _ in range(4 * LINES):
            await bench.nats.publish(subjects.heartbeat(bench.pool, "evil"), b"{")
            foreign = Heartbeat(nodes=(("good", 1),), lease_s=3.0).model_dump_json().encode()
            await bench.nats.publish(subjects.heartbeat(bench.pool, "evil"), foreign)

        async def all_heard() -> bool:
            said = (await get(app, "/metrics"))[1]
            return all(f'outcome="{what}"}} {4 * LINES}.0' in said for what in ("malformed", "foreign"))

        await until(all_heard)
    lines = [one for one in caplog.records if "heartbeat" in one.getMessage()]
    assert 1 <= len(lines) <= LINES + 2, "a minute may have gone by"


def test_a_lease_that_is_too_long_is_refused_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    service = grants(max_lease_s=30)
    service.unrecorded, service.stored_at = True, 0.0
    for _ in range(3):
        assert service.renew(Heartbeat(nodes=(("a", 1),), lease_s=31), 0.0) == LeaseGranted(nodes=())
    assert caplog.text.count("BATON_LEASES_MAX_LEASE_S") == 1


def test_while_the_ledger_may_not_name_a_granter_stored_ticks_are_the_right() -> None:
    service = grants(term_s=3)
    beat = Heartbeat(nodes=(("a", 1), ("b", 2)), lease_s=10)
    assert service.renew(beat, 100.0) is None
    service.unrecorded, service.stored_at = True, 100.0
    assert service.renew(beat, 103.0) == LeaseGranted(nodes=("a", "b"))
    assert service.renew(beat, 103.1) is None
    assert service.watch.age("a", 104.1) == pytest.approx(1.0)  # heard, though not answered


def test_while_ticks_are_the_right_whoever_gets_no_answer_to_them_reports_nobody_lost() -> None:
    """A process that was cut off in one direction heard no node, and its word was stored: all nodes were lost (simulation)."""
    service = grants(term_s=3, max_lease_s=10)
    service.unrecorded = True
    service.watch.joined("a", 1, now() - 1000)
    service.watch.started_at = now() - 1000
    assert [item.subject for item in service.reports(now())] == [subjects.inbox("clock", "tick", "main")]
    service.stored_at = now()
    assert [item.subject for item in service.reports(now())][1] == subjects.node_inbox("lost", "main", "a")


def test_while_ticks_are_the_right_whoever_does_not_hear_its_own_reports_nobody_lost() -> None:
    """A client that did not keep up dropped heartbeats and the other's ticks: nodes that the other had renewed were lost
    (simulation, seed 5808)."""
    service = grants(term_s=3, max_lease_s=10)
    service.unrecorded = True
    service.watch.joined("a", 1, now() - 1000)
    service.watch.started_at = now() - 1000
    service.stored_at = now()
    service.own_ticked(now() - 100)
    assert [item.subject for item in service.reports(now())] == [subjects.inbox("clock", "tick", "main")]


def test_while_ticks_are_the_right_the_first_by_name_grants() -> None:
    service, beat = grants(term_s=3, standby_s=2, max_lease_s=10), Heartbeat(nodes=(("a", 1),), lease_s=10)
    service.unrecorded, service.stored_at = True, 100.0
    service.watch.joined("a", 1, 0.0)
    service.other_ticked(service._source + "z", 100.0)
    assert service.ticks(100.5)
    assert service.renew(beat, 100.5) == LeaseGranted(nodes=("a",))
    service.other_ticked(service._source[:-1], 101.0)
    assert not service.ticks(102.5)
    assert service.renew(beat, 102.5) is None
    assert service.ticks(103.5)
    assert service.watch.started_at > 104.0  # the other may grant for a term after its last tick


def test_ticks_are_new_messages_whatever_the_wall_clock_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes back by two minutes would repeat the ids of two minutes, and the broker would drop the ticks."""
    made, ids = grants(tick_s=0.05), []
    for wall in (1_800_000_000.0, 1_799_999_880.0):
        monkeypatch.setattr("time.time", lambda wall=wall: wall)
        monkeypatch.setattr("time.time_ns", lambda wall=wall: int(wall * 1e9))
        begun = now()
        while now() < begun + 0.06:
            pass
        ids.append(made._tick().headers["Nats-Msg-Id"])
    assert ids[0] != ids[1]
    assert json.loads(made._tick().payload)["readings"][0]["at_us"] > 0


def test_a_tick_carries_other_machines_clocks_as_witnesses() -> None:
    service = grants()
    reading = {"boot": "another-machine", "at_us": 5_000_000}
    service.renew(Heartbeat.model_validate({"nodes": [("a", 1)], "lease_s": 10, "reading": reading}), now() - 2)
    own, witness = json.loads(service._tick().payload)["readings"]
    assert own["boot"] != "another-machine"
    assert witness["boot"] == "another-machine"
    assert 6_900_000 < witness["at_us"] < 30_000_000


def test_a_node_is_one_witness_of_a_clock_that_a_machine_may_have() -> None:
    """One node could be all witnesses, or make ticks that nobody could read: time stood still, or went on by years."""
    service = grants()

    def say(node: str, boot: str, at_us: int) -> None:
        told = {"nodes": [(node, 1)], "lease_s": 10, "reading": {"boot": boot, "at_us": at_us}}
        service.renew(Heartbeat.model_validate(told), now(), node)

    say("bad", "clock-0", 2**63 - 1)
    for number in range(5):
        say("bad", f"clock-{number}", 7)
    say("a", "clock-4", 9_000_000_000)
    say("b", "of-b", 5_000_000)
    _, *others = json.loads(service._tick().payload)["readings"]
    assert [one["boot"] for one in others] == ["clock-4", "of-b"]
    assert others[0]["at_us"] < 9_000_000_000, "it is known as another's"
