"""Admission as it runs: plain NATS clients in, the pool's inbox and teams' events out."""

import asyncio
import json
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

from libs.bus import settle
from libs.bus.dead import LEFT_OUT, replayed
from libs.cli.exits import Exit, code_of
from libs.client import Parked, connect
from libs.core.admission import request_throttle
from libs.core.admission.fleet_shape import FleetShape
from libs.ledger.snapshots import SnapshotStore
from schemas import subjects
from schemas.inbox import CancelRequested, JobAdmitted, NodeRegistered, QuotaChanged
from schemas.jobs import JobRejected, JobSpec
from schemas.ledger import JobQueued
from schemas.subjects import DEAD, EVENTS
from services.admission.app import DURABLE, FOLLOWER, make_app
from services.admission.handlers import RETRY_AFTER_S
from services.admission.settings import AdmissionSettings
from services.queries.app import make_app as make_queries
from services.queries.settings import QueriesSettings
from tests.admission.running import get, running
from tests.admission.test_handlers import GOOD, HOSTILE
from tests.core.builders import World, node
from tests.kit.waiting import stored, until
from tests.redis.ledgers import Stored, chain, store


class Bench:
    """A pool with a ledger, and what admission says."""

    def __init__(self, nats: Client, pool: str, team: str, nats_url: str) -> None:
        self.nats, self.pool, self.team, self.url = nats, pool, team, nats_url
        self.js: JetStreamContext = nats.jetstream()
        self.world = World(node("a", 4), node("b", 4))
        self.ledger: list[Stored] = []
        self.inbox = subjects.inbox_stream(pool)

    def app(self, **settings: Any) -> Any:
        return make_app(AdmissionSettings(nats_url=self.url, pool=self.pool, **settings))

    async def submit(self, body: Any, what: str = "submit", team: str = "") -> None:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.js.publish(f"baton.cmd.job.v1.{what}.{team or self.team}.ana", payload)

    async def write(self, records: int | None = None) -> None:
        """Stores in the ledger what the world has decided; `records`: only the first so many."""
        head = (self.ledger[-1].seq, self.ledger[-1].hash) if self.ledger else (0, "")
        new = chain(self.pool, self.world.records[len(self.ledger) : records], head)
        await store(self.js, self.pool, new)
        self.ledger += new

    async def admitted(self, number: int) -> list[JobAdmitted]:
        subject = subjects.inbox("job", "admitted", self.pool)
        found = await self._stored(self.inbox, subject, number)
        return [JobAdmitted.model_validate_json(m) for m in found]

    async def rests(self) -> None:
        """Every request is acknowledged: none of them comes to the service of the next test, whose team is another."""

        async def none() -> bool:
            info = await self.js.consumer_info(subjects.REQUESTS, DURABLE)
            return info.num_pending == info.num_ack_pending == 0

        await until(none)

    async def rejected(self, number: int) -> list[JobRejected]:
        found = await self._stored(EVENTS, subjects.event("rejected", self.team), number)
        return [JobRejected.model_validate_json(m) for m in found]

    async def _stored(self, stream: str, subject: str, number: int) -> list[bytes]:
        async def enough() -> list[bytes]:
            found = [m.data for m in await stored(self.js, stream, subject)]
            return found if len(found) >= number else []

        found: list[bytes] = await until(enough)
        assert len(found) == number
        return found


@pytest.fixture
async def bench(nats: Client, pool: str, team: str, nats_url: str) -> Bench:
    return Bench(nats, pool, team, nats_url)


async def test_a_plain_client_submits_and_cancels(bench: Bench) -> None:
    await bench.write()
    async with running(bench.app()) as app:
        await bench.submit(GOOD)
        (admitted,) = await bench.admitted(1)
        assert admitted.team == bench.team
        await bench.submit({"job_id": admitted.job_id, "reason": "a mistake"}, "cancel")
        subject = subjects.inbox("job", "cancel-requested", bench.pool)
        (cancel,) = await bench._stored(bench.inbox, subject, 1)
        assert CancelRequested.model_validate_json(cancel).reason == "a mistake"
        status, body = await get(app, "/readyz")
        assert (status, json.loads(body)["checks"]["ledger"]) == (200, "ok")
        _, metrics = await get(app, "/metrics")
        assert 'baton_admission_requests_total{outcome="admitted"} 1.0' in metrics


async def test_what_the_ledger_says_is_what_counts(bench: Bench) -> None:
    bench.world.send(NodeRegistered(incarnation=1, inventory=node("c", 4), lease_s=10))
    bench.world.send(QuotaChanged(team=bench.team, limit_milli=1000))
    await bench.write(1)
    wide = {"command": ["x"], "resources": {"devices": 12}}
    keys = (f"wide-{i}" for i in count())
    async with running(bench.app()):
        await bench.submit({"client_key": next(keys), "job": wide})
        (rejected,) = await bench.rejected(1)
        assert rejected.reasons[0].problem.startswith("this pool has 8 fitting devices")
        await bench.write(2)

        async def admitted() -> bool:
            await bench.submit({"client_key": next(keys), "job": wide})
            return bool(await stored(bench.js, bench.inbox, subjects.inbox("job", "admitted", bench.pool)))

        await until(admitted)
        await bench.write(3)

        async def told() -> bool:
            await bench.submit({"client_key": next(keys), "job": wide})
            found = await stored(bench.js, EVENTS, subjects.event("rejected", bench.team))
            return "may hold 1 accelerator" in JobRejected.model_validate_json(found[-1].data).reasons[0].problem

        await until(told)


async def test_a_repeated_request_is_the_first_job_and_another_body_is_told(bench: Bench) -> None:
    async with running(bench.app()):
        await bench.submit(GOOD)
        (admitted,) = await bench.admitted(1)
        bench.world.submit(admitted)
        await bench.write()
        other = {**GOOD, "job": {"command": ["python", "other.py"]}}

        async def told() -> bool:
            await bench.submit({**other, "client_key": "run-1"})
            return bool(await stored(bench.js, EVENTS, subjects.event("rejected", bench.team)))

        await until(told)
        await bench.submit(GOOD)
        await bench.submit({"client_key": "last", "job": {"command": ["x"]}})
        found = await until(lambda: _has(bench, "last"))
        assert sum(a.spec_hash == admitted.spec_hash for a in found) == 1
        rejected = await stored(bench.js, EVENTS, subjects.event("rejected", bench.team))
        assert "already names" in JobRejected.model_validate_json(rejected[0].data).reasons[0].problem


async def _has(bench: Bench, client_key: str) -> list[JobAdmitted]:
    subject = subjects.inbox("job", "admitted", bench.pool)
    found = await stored(bench.js, bench.inbox, subject)
    admitted = [JobAdmitted.model_validate_json(m.data) for m in found]
    return admitted if any(a.client_key == client_key for a in admitted) else []


async def test_hostile_messages_are_all_answered_and_the_next_good_one_is_admitted(bench: Bench) -> None:
    before = len(await stored(bench.js, DEAD, subjects.dead("admission")))
    small = {name: body for name, body in HOSTILE.items() if len(body) < 1_000_000}
    async with running(bench.app()):
        for body in small.values():
            await bench.submit(body)
        await bench.submit(GOOD, team="Not_A_Team")
        await bench.submit({"client_key": "k"}, "explode")
        await bench.submit(GOOD)
        assert [a.client_key for a in await bench.admitted(1)] == ["run-1"]
        rejected = await bench.rejected(len(small) + 1)
        assert all(r.reasons for r in rejected)
        dead = (await stored(bench.js, DEAD, subjects.dead("admission")))[before:]
        assert {m.data for m in dead} >= {HOSTILE["empty"], HOSTILE["no JSON"], HOSTILE["deep lists"]}
        assert all((m.headers or {})["Baton-Dead-Reason"] for m in dead)


async def test_messages_that_no_letter_could_keep_whole_stop_nobody(bench: Bench) -> None:
    """Thousands of small headers: with the longer names of a dead letter they are more than a stream stores. And an attribute
    that is passed on as a header and would be too large for one."""
    await bench.write()
    short = {f"h{number}": "x" for number in range(5_000)}
    wide = {"w": "\xff" * 20_000, "v": "y"}
    long = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "io.baton.job.submit.v1"}
    long["ce-correlationid"] = "\u00fc" * 30_000
    subject = f"baton.cmd.job.v1.submit.{bench.team}.ana"
    async with running(bench.app()):
        for headers in (short, wide, short):
            await bench.js.publish(subject, b"no JSON", headers=headers)
        await bench.js.publish(subject, json.dumps(GOOD | {"client_key": "long"}).encode(), headers=long)
        await bench.submit(GOOD | {"client_key": "good"}, team=f"{bench.team}-b")
        admitted = await bench.admitted(1)
        assert admitted[0].client_key == "good"
        assert [said.client_key for said in await bench.rejected(4)].count("long") == 1

        async def letters() -> list[Any]:
            found = await stored(bench.js, DEAD, subjects.dead("admission", bench.team))
            return found if len(found) == 3 else []

        many, _, _ = await until(letters)
        left, whole = map(int, many.headers[LEFT_OUT].split(" of "))
        assert (whole, left > 1_000) == (5_000, True)
        assert sum(name.startswith("Baton-Orig-") for name in many.headers) == whole - left
        with pytest.raises(ValueError, match="were not kept"):
            replayed(many.headers, many.data, attempt="1")


async def test_what_was_sent_while_it_was_away_is_judged_when_it_returns(bench: Bench) -> None:
    await bench.write()
    await asyncio.gather(*(bench.submit({**GOOD, "client_key": f"k{i}"}) for i in range(50)))
    async with running(bench.app()):
        assert {a.client_key for a in await bench.admitted(50)} == {f"k{i}" for i in range(50)}


async def test_a_restart_goes_on_from_its_snapshot(bench: Bench) -> None:
    for i in range(120):
        bench.world.send(QuotaChanged(team="t", limit_milli=i * 1000 + 1000))
    await bench.write()
    async with running(bench.app(snapshot_records=100)):
        await until(lambda: SnapshotStore(bench.js, bench.pool).load(FOLLOWER, FleetShape.version, FleetShape.load))
    async with running(bench.app()) as app:
        await bench.submit({"client_key": "wide", "job": {"command": ["x"], "resources": {"devices": 9}}})
        await bench.rejected(1)
        assert (await get(app, "/livez"))[0] == 200


def test_classes_are_read_from_a_file_and_mistakes_are_named(tmp_path: Any) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text('classes: [{name: batch, priority: 1, preempts: false, description: "nightly"}]')
    assert list(AdmissionSettings(classes=path).priority_classes()) == ["batch"]
    path.write_text("classes: [{name: batch, priority: high}]")
    with pytest.raises(
        ValueError, match=r"classes\.yaml: classes\.0\.priority: high: not a whole number: write an integer"
    ):
        AdmissionSettings(classes=path)
    path.write_text("classes: [{name: batch, priority: 1, preempts: false}]\nnotes: ours")
    # As placement and queries say.
    with pytest.raises(ValueError, match="notes: ours: unknown field: remove it; known here: classes"):
        AdmissionSettings(classes=path)


async def test_people_leave_room_in_the_inbox_for_facts_and_are_told_when_to_come_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "PAUSES_S", (0.05,))
    monkeypatch.setattr(settle, "PARKED", 1)
    tick = subjects.inbox("clock", "tick", bench.pool)
    config = (await bench.js.stream_info(bench.inbox)).config
    await bench.js.update_stream(config.evolve(max_bytes=1 << 20))
    for _ in range(16):  # 94 %; submits end at 95
        await bench.js.publish(tick, b"x" * 61_500)
    await bench.write()
    async with running(bench.app()):
        large = GOOD | {"client_key": "large", "job": GOOD["job"] | {"env": dict.fromkeys("ABCDE", "x" * 4000)}}
        await bench.submit(large)
        consumer = "admission"
        await until(lambda: _parked(bench.js, consumer))
        await bench.submit(large | {"client_key": "another"})
        (told,) = await bench.rejected(1)
        assert (told.client_key, told.job_id, told.retry_after_s) == ("another", "", RETRY_AFTER_S)
        assert told.reasons[0].problem.startswith(f"it is busy: {bench.inbox} is 9")
        assert RETRY_AFTER_S > 120, "the broker drops a repeat within its window"
        await bench.js.publish(tick, b"a fact, or the time")
        assert await stored(bench.js, bench.inbox, subjects.inbox("job", "admitted", bench.pool)) == []

        await bench.submit(GOOD | {"client_key": "small"})  # fits into the share
        (admitted,) = await bench.admitted(1)
        assert admitted.client_key == "small"

        await bench.js.purge_stream(bench.inbox)  # as placement trims it
        (admitted,) = await bench.admitted(1)
        assert admitted.client_key == "large"


async def test_who_submits_while_an_inbox_is_full_hears_busy_and_when_to_come_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    """Of a request that is parked its sender heard nothing but that nobody had answered."""
    monkeypatch.setattr(settle, "PAUSES_S", (0.05,))
    config = (await bench.js.stream_info(bench.inbox)).config
    await bench.js.update_stream(config.evolve(max_bytes=1 << 20))
    for _ in range(17):
        await bench.js.publish(subjects.inbox("clock", "tick", bench.pool), b"x" * 60_500)
    await bench.write()
    queries = QueriesSettings(nats_url=bench.url, redis_url=redis_url, pool=bench.pool)
    letters = (await bench.js.stream_info(DEAD)).state.messages
    async with (
        running(bench.app()),
        running(make_queries(queries)),
        await connect(bench.url, bench.team, pool=bench.pool) as team,
    ):
        job = JobSpec.model_validate(GOOD["job"])
        with pytest.raises(
            Parked, match=rf"pool {bench.pool} takes no submits: {bench.inbox} is 9.*again in 30 s"
        ) as told:
            await team.submit(job, "kept", answer_s=0.5)
        assert code_of(told.value) == Exit.UNREACHABLE
        assert (await bench.js.stream_info(DEAD)).state.messages == letters
        await bench.js.purge_stream(bench.inbox)
        (admitted,) = await bench.admitted(1)
        assert admitted.job_id == told.value.job_id


async def _parked(js: JetStreamContext, consumer: str) -> bool:
    info = await js.consumer_info(subjects.REQUESTS, consumer)
    return info.num_redelivered > 0


async def test_a_crowd_of_one_teams_requests_holds_up_no_other_team(bench: Bench) -> None:
    """Hundreds wait in the stream, nothing is decided; who comes last and alone is among the first in the inbox."""
    loud, quiet, burst = f"{bench.team}-loud", f"{bench.team}-quiet", 120
    await bench.write()
    for number in range(burst):
        await bench.submit(GOOD | {"client_key": f"k{number}"}, team=loud)
    await bench.submit(GOOD | {"client_key": "alone"}, team=quiet)
    await bench.submit({"client_key": "wrong", "job": {"name": 7}}, team=quiet)
    await bench.submit(GOOD | {"client_key": "second"}, team=quiet)
    async with running(bench.app(batch=20, undecided=20)):
        admitted = await bench.admitted(burst + 2)
        assert len(admitted) == burst + 2, "each once"
        order = [job.client_key for job in admitted]
        assert [job.client_key for job in admitted if job.team == quiet] == ["alone", "second"]
        assert order.index("second") < burst - 20, f"it waited behind the burst, at place {order.index('second')}"
        assert [key for key in order if key.startswith("k")] == [f"k{n}" for n in range(burst)]
        said = await until(lambda: stored(bench.js, EVENTS, subjects.event("rejected", quiet)))
        assert [JobRejected.model_validate_json(m.data).client_key for m in said] == ["wrong"]
        await bench.rests()


async def test_whose_requests_come_to_nothing_is_read_slowly_and_holds_up_no_other_team(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_throttle, "AT_ONCE", 20.0)
    monkeypatch.setattr(request_throttle, "PER_S", 1e-6)
    other, bad = f"{bench.team}-other", 100
    await bench.write()
    async with running(bench.app(batch=10)):
        for number in range(bad):
            await bench.submit(GOOD | {"client_key": f"bad-{number}", "job": {}})
        for number in range(3):
            await bench.submit(GOOD | {"client_key": f"good-{number}"}, team=other)
        assert {job.team for job in await bench.admitted(3)} == {other}
        answered = await stored(bench.js, EVENTS, subjects.event("rejected", bench.team))
        assert len(answered) < bad // 2, "the others lie in the stream"
        monkeypatch.undo()
        assert len(await bench.rejected(bad)) == bad, "each is answered in the end"
        await bench.rests()


async def test_two_crowds_move_side_by_side(bench: Bench) -> None:
    """The second has come when the first was there as a whole: it waits for a batch_size or two, and then gets its share."""
    first, second, each = f"{bench.team}-first", f"{bench.team}-second", 40
    await bench.write()
    for team in (first, second):
        for number in range(each):
            await bench.submit(GOOD | {"client_key": f"k{number}"}, team=team)
    async with running(bench.app(batch=100, undecided=20, undecided_alone=20)):
        admitted = await bench.admitted(2 * each)
        assert [job.client_key for job in admitted if job.team == second] == [f"k{n}" for n in range(each)]
        early = sum(job.team == second for job in admitted[:each])
        assert 5 <= early <= each - 5, f"{early} of the first {each} were the second burst's"
        await bench.rests()


async def test_a_rate_holds_whichever_process_admits(bench: Bench, tmp_path: Path) -> None:
    """What the first let in, a second one counts when the ledger shows it."""
    file = tmp_path / "teams.yaml"
    file.write_text(f"teams:\n  {bench.team}: {{devices: null, intake: {{submits_per_s: 0.001, burst: 5}}}}\n")
    await bench.write()
    async with running(bench.app(teams=file)):
        for number in range(8):
            await bench.submit(GOOD | {"client_key": f"k{number}"})
        (told, *_) = await bench.rejected(3)
        assert "(submits_per_s)" in told.reasons[0].problem
        assert told.retry_after_s is not None
        admitted = await bench.admitted(5)
        async with running(bench.app(teams=file)) as other:
            for job in admitted:
                bench.world.submit(job)
            now = {"submitted_us": time.time_ns() // 1000}  # the world has a clock of its own
            bench.world.records[:] = [
                r.model_copy(
                    update={
                        "events": tuple(e.model_copy(update=now if isinstance(e, JobQueued) else {}) for e in r.events)
                    }
                )
                for r in bench.world.records
            ]
            await bench.write()

            async def knows() -> bool:
                return "baton_admission_known_jobs 5.0" in (await get(other, "/metrics"))[1]

            await until(knows)
            for number in range(8, 20):
                await bench.submit(GOOD | {"client_key": f"k{number}"})
            await bench.rejected(15)
            assert len(await bench.admitted(5)) == 5
