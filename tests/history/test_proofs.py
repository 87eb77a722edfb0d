"""A team reads its own lines from a real history, proves them, and compares its bill; what somebody changed is found."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from prometheus_client import CollectorRegistry
from pymongo import MongoClient

from libs.adapters.mongo import proofs as proof_documents
from libs.adapters.mongo.proofs import ProofStore
from libs.adapters.mongo.store import JobStore
from libs.bus.queries import NoAnswer, QueryError, ask
from libs.cli.audit_own import Checked, Noted, check
from libs.client.errors import Invalid
from libs.core.proofs.chains import JudgedSum, TeamChains
from libs.core.proofs.lines import TeamLine
from schemas import inbox, subjects
from schemas.catalog import BY_TYPE
from schemas.proofs import AuditPart, AuditRead
from schemas.subjects import OPERATOR
from services.history.app import make_app as make_history
from services.history.proofs import MOST_BYTES, ProofLoop, Proofs
from services.history.settings import HistorySettings
from services.quota_billing import handlers as quota_billing
from services.quota_billing.app import make_app as make_billing
from services.quota_billing.settings import QuotaBillingSettings
from tests.admission.running import get, running
from tests.cli.test_command import baton
from tests.core.builders import World, job, node
from tests.history.written import Written, until
from tests.kit.tasks import beside
from tests.kit.waiting import stored

S = 1_000_000
_FOLDED = "baton_follower_folded_anew_total"


class Pool:
    """History and quota_billing over a ledger, and who asks them."""

    def __init__(self, nats: Client, pool: str, mongo_url: str) -> None:
        self.nats, self.pool, self.mongo = nats, pool, f"{mongo_url}/{pool}"
        self.written = Written(nats.jetstream(), pool)
        self.world = World(node("a", 4), node("b", 4))

    @asynccontextmanager
    async def running(self, nats_url: str, **settings: Any) -> AsyncIterator[None]:
        bus = {"nats_url": nats_url, "pool": self.pool}
        history = HistorySettings(**bus, mongo_url=self.mongo, window_ms=0, leader_ttl_s=0.5, **settings)
        async with running(make_history(history)), running(make_billing(QuotaBillingSettings(**bus))):
            yield

    def asker(self, team: str) -> Callable[[str, Any], Awaitable[Any]]:
        async def asked(what: str, query: Any) -> Any:
            message = BY_TYPE[f"io.baton.{what}.query.v1"]
            return await ask(self.nats, message, query, pool=self.pool, team=team, user="ana", timeout_s=10)

        return asked

    async def check(self, team: str, noted: Noted | None = None) -> Checked:
        return await check(self.asker(team), self.pool, team, noted=noted)

    async def settled(self, team: str, seq: int, number: int) -> None:
        """History has written all up to `seq`, and the sum `number`."""

        async def there() -> bool:
            try:
                told: AuditPart = await self.asker(team)("audit.read", AuditRead(limit=0))
            except (QueryError, NoAnswer, TimeoutError):
                return False
            return told.ledger_seq >= seq and told.sum is not None and told.sum.number >= number

        await until(there, f"lines up to {seq} and sum {number}")


async def test_a_team_checks_its_part_and_bill_and_what_was_changed_is_found(
    nats: Client, nats_url: str, mongo_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    here = Pool(nats, pool, mongo_url)
    other = f"{team}-2"
    chains = TeamChains()
    world = here.world

    def rounds(count: int, start: int) -> None:
        """Jobs of both teams, and a sum of each round, of the records as they are stored."""
        for n in range(start, start + count):
            for one in (team, other):
                runs = world.submit(job(f"j{n}", 1 + n % 3, team=one, submitted_us=world.now_us + 1))
                world.started(runs)
                world.send(inbox.Tick(), after_us=(n + 1) * 1_234_567)
                world.released(runs)
            nonce = bytes([n + 1]) * 32
            while chains.seq < len(world.records):
                chains.apply(world.records[chains.seq].model_copy(update={"pool": pool}), chains.seq + 1)
            world.send(inbox.SumProposed(sum=chains.proposal(pool, nonce), nonce=nonce.hex()))

    rounds(4, 0)
    await here.written.write(world.records)
    async with here.running(nats_url, sum_every_s=1e9):
        await here.settled(team, len(world.records), 4)

        async def billed() -> Checked | None:
            found = await here.check(team)
            return found if found.device_seconds > 0 else None

        first = await until(billed, "billing has read the records, too")
        assert first.findings == []
        assert (first.unproven, first.whole) == (0, True)
        assert first.lines == chains.heads[team].count

        written = len(world.records)
        rounds(5, 4)
        await here.written.write(world.records[written:])
        await here.settled(team, len(world.records), 9)
        later = await here.check(team, first.noted)
        assert later.findings == []
        assert later.sum is not None
        assert later.sum.number == 9

        foreign = await here.asker(OPERATOR)("audit.read", AuditRead(team=other))
        assert foreign.lines
        for wrong in (AuditRead(team=other), AuditRead(sum=99)):
            with pytest.raises(QueryError):
                await here.asker(team)("audit.read", wrong)
        with pytest.raises(QueryError):
            await here.asker(OPERATOR)("audit.read", AuditRead())

        assert later.noted is not None
        forged = Noted(later.noted.number, "ab" * 32, later.noted.count, "cd" * 32)
        told = (await here.check(team, forged)).findings
        assert any("not the one that the notebook has" in one for one in told), told
        assert any("are not those that the notebook has" in one for one in told), told
        ahead = Noted(30, "ab" * 32, 10**6, "cd" * 32)
        assert any("cut off" in one for one in (await here.check(team, ahead)).findings)

        with MongoClient(here.mongo) as client:
            kept = client.get_default_database()["lines"]
            mine = sorted((d for d in kept.find({}) if d["team"] == team), key=lambda d: d["seq"])
            target = next(d for d in mine if d["seq"] > 60 and "devices.freed" in d["text"])
            said = json.loads(target["text"])
            changed = target | {"text": json.dumps(said | {"t_us": said["t_us"] + 7 * S}, separators=(",", ":"))}
            kept.replace_one({"_id": target["_id"]}, changed)
            command = ("audit", "verify", "--team", team, "--pool", pool)
            env = {
                "BATON_NATS_URL": nats_url,
                "XDG_STATE_HOME": str(tmp_path),
                "BATON_STATE_DIR": str(tmp_path / "none"),
            }
            wrong_one = await baton(*command, **env)
            assert wrong_one.code == 1, wrong_one.err
            assert "wrong: the lines up to line" in wrong_one.err
            assert list(tmp_path.rglob("*.json")) == [], "what is wrong is not noted"
            found = (await here.check(team)).findings
            assert any("are not those of sum 9" in one for one in found), found
            place = next(one for one in found if one.startswith("what differs is after record"))
            after, to = (int(number) for number in re.findall(r"record (\d+)", place))
            assert after < target["seq"] <= to
            assert any("milli-us" in one and "job-" in one for one in found), "the attempt is named"
            kept.replace_one({"_id": target["_id"]}, target)
            right = await baton(*command, **env)
            assert (right.code, "the bill is what they come to" in right.err) == (0, True), right.out + right.err
            (notebook,) = tmp_path.rglob("*.json")
            assert json.loads(notebook.read_text())["number"] == 9
            ours = notebook.read_text()
            notebook.write_text(json.dumps(json.loads(ours) | {"number": 99}))
            cut = await baton(*command, **env)
            assert (cut.code, f"the notebook {notebook} has sum 99: the ledger was cut off" in cut.err) == (1, True)
            foreign_one = notebook.rename(notebook.with_name(f"{pool}.{team}.{'0' * 16}.json"))
            another = await baton(*command, **env)
            assert (another.code, notebook.read_text()) == (0, ours), another.err
            assert f"a new notebook begins; of other ledgers of this name: {foreign_one}" in another.err
            foreign_one.unlink()
            before = notebook.rename(notebook.with_name(f"{pool}.{team}.json"))
            again = await baton(*command, **env)
            assert (again.code, "a new notebook" in again.err, before.exists()) == (0, False, False), (
                "of a release before"
            )
            notebook.unlink()

            kept.delete_one({"_id": target["_id"]})
            found = (await here.check(team)).findings
            assert any(one.startswith(f"line {target['count']} is missing") for one in found), found
            kept.replace_one({"_id": target["_id"]}, target, upsert=True)

            kept.delete_one({"_id": mine[-1]["_id"]})
            found = (await here.check(team)).findings
            assert any("has not the lines" in one or "were told" in one for one in found), found


async def test_history_proposes_sums_and_what_mongodb_lost_is_written_again(
    nats: Client, nats_url: str, mongo_url: str, pool: str, team: str
) -> None:
    here = Pool(nats, pool, mongo_url)
    runs = here.world.submit(job("one", 2, team=team, submitted_us=1))
    here.world.started(runs)
    here.world.send(inbox.Tick(), after_us=40 * S)
    await here.written.write(here.world.records)
    async with here.running(nats_url, sum_every_s=10, snapshot_records=100):

        async def proposed() -> list[Any]:
            return await stored(nats.jetstream(), subjects.inbox_stream(pool), subjects.inbox("ledger", "summed", pool))

        (message,) = await until(proposed, "a sum is proposed")
        said = inbox.SumProposed.model_validate_json(message.data)
        assert (said.sum.number, said.sum.upto_seq, said.sum.prev) == (1, len(here.world.records), "")
        here.world.send(said)
        await here.written.write(here.world.records[-1:])
        await here.settled(team, len(here.world.records), 1)
        assert (await here.check(team)).findings == []

        with MongoClient(here.mongo) as client:
            database = client.get_default_database()
            for name in ("lines", "sums", "checkpoints", "jobs"):
                database[name].delete_many({})

        async def whole() -> bool:
            try:
                found = await here.check(team)
            except (QueryError, NoAnswer, TimeoutError):
                return False
            return found.ok and found.lines > 0 and found.sum is not None

        await until(whole, "all is written again")


async def test_a_place_that_arrives_late_does_not_look_like_lost_lines(
    nats: Client, nats_url: str, mongo_url: str, pool: str, team: str
) -> None:
    """It was on its way while its history was cut off from MongoDB. Were the lines taken for lost, the whole ledger would be
    folded anew, archived records and all."""
    here = Pool(nats, pool, mongo_url)
    here.world.submit(job("one", 2, team=team, submitted_us=1))
    await here.written.write(here.world.records)
    bus = {"nats_url": nats_url, "pool": pool}
    app = make_history(HistorySettings(**bus, mongo_url=here.mongo, window_ms=0, leader_ttl_s=0.5))
    jobs = JobStore(here.mongo)
    places = ProofStore(jobs)
    async with running(app):

        async def written() -> bool:
            return await places.written_to(pool) == here.written.records[-1][0]

        await until(written, "all lines are written")
        assert not await places.note(pool, 0, 1)
        here.world.submit(job("two", 2, team=team, submitted_us=2))
        await here.written.write(here.world.records[len(here.written.records) :])
        await until(written, "the next lines are written")
        _, metrics = await get(app, "/metrics")
        (anew,) = [line for line in metrics.splitlines() if _FOLDED in line and "proofs" in line]
        assert anew.endswith(" 1.0")
    jobs.close()


class Emptied(ProofStore):
    """MongoDB loses all that it has when lines were written to it for the first time."""

    times = 0

    async def save(self, pool: str, lines: Iterable[TeamLine], sums: Iterable[JudgedSum]) -> None:
        written = list(lines)
        await super().save(pool, written, sums)
        if written and not self.times:
            self.times += 1
            for collection in (self._lines, self._sums, self._places):
                await collection.delete_many({})


@pytest.mark.parametrize("later", [False, True], ids=["the first lines", "later ones"])
async def test_a_mongodb_that_is_emptied_before_the_place_is_noted_gets_all_lines_again(
    nats: Client, mongo_url: str, pool: str, team: str, later: bool
) -> None:
    """Seen: the place was noted in an empty MongoDB, and the lines of before were missing for good."""
    here = Pool(nats, pool, mongo_url)
    here.world.submit(job("one", 2, team=team, submitted_us=1))
    await here.written.write(here.world.records)
    jobs = JobStore(here.mongo)
    places = Emptied(jobs)
    places.times = int(later)
    loop = ProofLoop(nats.jetstream(), pool, places, CollectorRegistry(), every_s=3600, keep_days=1)

    async def written() -> bool:
        last = here.written.records[-1][0]
        return await places.written_to(pool) == last and bool(await places.lines(pool, team, 0, 1))

    async with beside(loop.run()):
        if later:
            await until(written, "all lines are written")
            places.times = 0
            here.world.submit(job("two", 2, team=team, submitted_us=2))
            await here.written.write(here.world.records[len(here.written.records) :])
        await until(written, "all lines are written, again")
        assert places.times == 1
        chains = TeamChains()
        expected = [line for seq, record in here.written.records for line in chains.apply(record, seq).lines]
        assert await places.lines(pool, team, 0, 100) == [line for line in expected if line.team == team]
    jobs.close()


async def test_what_is_too_old_is_deleted_and_the_rest_is_proven_all_the_same(
    nats: Client, nats_url: str, mongo_url: str, pool: str, team: str
) -> None:
    here = Pool(nats, pool, mongo_url)
    for n in range(3):
        runs = here.world.submit(job(f"j{n}", 2, team=team, submitted_us=here.world.now_us + 1))
        here.world.started(runs)
        here.world.send(inbox.Tick(), after_us=20 * 3600 * S)
        here.world.released(runs)
    await here.written.write(here.world.records)
    async with here.running(nats_url, sum_every_s=10, proof_days=1.2):

        async def proposed() -> Any:
            return await stored(nats.jetstream(), subjects.inbox_stream(pool), subjects.inbox("ledger", "summed", pool))

        (message,) = await until(proposed, "a sum is proposed")
        here.world.send(inbox.SumProposed.model_validate_json(message.data))
        await here.written.write(here.world.records[-1:])
        await here.settled(team, len(here.world.records), 1)

        async def forgotten() -> bool:
            found = await here.check(team)
            return not found.whole and found.ok and found.uncompared_jobs <= 1

        await until(forgotten, "old lines are gone, and the others are proven")


@pytest.mark.parametrize("returns", [False, True], ids=["away", "back"])
async def test_a_team_that_did_nothing_for_longer_than_lines_are_kept_is_not_told_that_something_is_wrong(
    nats: Client, nats_url: str, mongo_url: str, pool: str, team: str, returns: bool
) -> None:
    """Its last line stays: without it no sum proved anything to the team, and all its bill seemed to come from nothing."""
    here = Pool(nats, pool, mongo_url)
    for n in range(3):
        runs = here.world.submit(job(f"j{n}", 2, team=team, submitted_us=here.world.now_us + 1))
        here.world.started(runs)
        here.world.send(inbox.Tick(), after_us=3600 * S)
        here.world.released(runs)
    here.world.send(inbox.Tick(), after_us=3 * 24 * 3600 * S)
    await here.written.write(here.world.records)
    async with here.running(nats_url, sum_every_s=10, proof_days=1):

        async def proposed() -> Any:
            return await stored(nats.jetstream(), subjects.inbox_stream(pool), subjects.inbox("ledger", "summed", pool))

        (message,) = await until(proposed, "a sum is proposed")
        here.world.send(inbox.SumProposed.model_validate_json(message.data))
        if returns:  # since the newest sum
            here.world.submit(job("again", 1, team=team, submitted_us=here.world.now_us + 1))
        here.world.send(inbox.Tick(), after_us=3600 * S)
        await here.written.write(here.world.records[len(here.written.records) :])
        await here.settled(team, len(here.world.records), 1)

        with MongoClient(here.mongo) as client:
            lines = client.get_default_database()["lines"]

            async def forgotten() -> bool:
                return lines.count_documents({}) <= 1 + returns

            await until(forgotten, "old lines are gone")

        async def billed() -> Checked | None:
            found = await here.check(team)
            return found if found.device_seconds > 0 else None

        found = await until(billed, "billing has read the records, too")
        assert found.findings == []
        assert (found.whole, found.unproven) == (False, int(returns))
        assert found.noted is not None


async def test_days_with_more_attempts_than_an_answer_has_are_compared_as_well_when_older_lines_are_gone(
    nats: Client, nats_url: str, mongo_url: str, pool: str, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had more ended with the bill's refusal, and nothing was checked. A job that began before the lines that are kept
    is no part of the comparison."""
    monkeypatch.setattr(quota_billing, "MAX_ROWS", 5)
    here = Pool(nats, pool, mongo_url)
    world, hour_us = here.world, 3600 * S

    def starts(name: str) -> str:
        runs = world.submit(job(name, 1, team=team, submitted_us=world.now_us + 1))
        world.started(runs)
        return runs

    long = starts("long")
    world.send(inbox.Tick(), after_us=62 * hour_us)
    first = starts("first")
    world.send(inbox.Tick(), after_us=hour_us)
    world.released(first)
    world.send(inbox.Tick(), after_us=14 * hour_us)
    for runs in [starts(f"j{number}") for number in range(6)]:
        world.send(inbox.Tick(), after_us=hour_us // 3)
        world.released(runs)
    world.released(long)
    world.send(inbox.Tick(), after_us=6 * hour_us)
    await here.written.write(world.records)

    async def check_now() -> Checked:
        async def asked(what: str, query: Any) -> Any:
            try:
                return await here.asker(team)(what, query)
            except QueryError as error:
                raise Invalid(str(error)) from None

        return await check(asked, pool, team)

    async with here.running(nats_url, sum_every_s=10, proof_days=1.05):

        async def proposed() -> Any:
            return await stored(nats.jetstream(), subjects.inbox_stream(pool), subjects.inbox("ledger", "summed", pool))

        (message,) = await until(proposed, "a sum is proposed")
        world.send(inbox.SumProposed.model_validate_json(message.data))
        world.send(inbox.Tick(), after_us=hour_us)
        await here.written.write(world.records[len(here.written.records) :])
        await here.settled(team, len(world.records), 1)

        async def some_gone() -> bool:
            found = await check_now()
            return not found.whole and found.device_seconds > 0

        await until(some_gone, "old lines are gone, and billing has read the records")
        found = await check_now()
        assert (found.findings, found.uncompared_jobs) == ([], 1)
        with MongoClient(here.mongo) as client:
            kept = client.get_default_database()["lines"]
            freed = sorted((d for d in kept.find({}) if "devices.freed" in d["text"]), key=lambda d: d["seq"])
            before = freed[-2]  # the last is the long job's
            told = json.loads(before["text"])
            kept.replace_one(
                {"_id": before["_id"]},
                before | {"text": json.dumps(told | {"t_us": told["t_us"] - 7 * S}, separators=(",", ":"))},
            )
        assert any("milli-us" in one for one in (await check_now()).findings), "what differs on such a day is found"


async def test_of_each_team_what_the_newest_sum_needs_stays_however_many_lines_are_of_one_moment(
    mongo_url: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_documents, "_AT_ONCE", 3)
    jobs = JobStore(f"{mongo_url}/{pool}")
    places = ProofStore(jobs)
    await places.prepare()
    teams = [f"t{number}" for number in range(8)]
    lines = [
        TeamLine(team, seq, t_us, seq, "{}", "ab" * 32, "cd" * 32)
        for seq, t_us in ((1, 5), (2, 5), (3, 5), (4, 9))
        for team in teams
    ]
    await places.save(pool, lines, [])
    await places.forget(pool, 6, dict.fromkeys(teams[1:], 3) | {teams[1]: 2})
    left = {team: [line.seq for line in await places.lines(pool, team, 0, 10)] for team in teams}
    assert left == {team: [3, 4] for team in teams} | {teams[0]: [1, 2, 3, 4], teams[1]: [2, 3, 4]}
    jobs.close()


class Counting(ProofStore):
    """How much was read of MongoDB."""

    size = 0

    async def _found(self, *asked: Any) -> list[TeamLine]:
        found = await super()._found(*asked)
        self.size += sum(len(line.text) for line in found)
        return found


async def test_of_lines_no_more_are_read_than_an_answer_holds(mongo_url: str, pool: str) -> None:
    """Each question of a team with wide gangs had a thousand of their lines in memory, of which an answer has one or two."""
    jobs = JobStore(f"{mongo_url}/{pool}")
    places = Counting(jobs)
    await places.prepare()
    long, short = "x" * (MOST_BYTES // 3), "x" * 200
    for team, text, count in (("wide", long, 60), ("narrow", short, 1300), ("mixed", short, 600)):
        texts = [long if team == "mixed" and seq % 50 == 0 else text for seq in range(1, count + 1)]
        lines = [TeamLine(team, seq, seq, seq, text, "ab" * 32, "cd" * 32) for seq, text in enumerate(texts, start=1)]
        await places.save(pool, lines, [])
        told, after = list[str](), 0
        while True:
            places.size = 0
            part = await Proofs(pool, places).read(AuditRead(after=after), team)
            assert part.lines
            assert places.size < 4 * MOST_BYTES, team
            told += part.lines
            after = len(told)
            if not part.more:
                break
        assert told == texts
    jobs.close()
