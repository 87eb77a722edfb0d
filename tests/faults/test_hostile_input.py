"""Bad messages among good ones, on every stream that is read: each is refused with a reason, and holds up nobody."""

import json
from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio

from libs.cli.launch import LocalStack
from schemas.catalog import CATALOG
from schemas.subjects import EVENTS
from tests.faults import corpus
from tests.faults.books import Auditor, auditor, books_agree
from tests.faults.cluster import TEAMS, clients, deaths, running
from tests.faults.corpus import Bad
from tests.faults.load import Planned, mixed, submit
from tests.kit.waiting import stored, until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

REASON_CHARACTERS = 2100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with running(tmp_path_factory.mktemp("hostile")) as launched:
        yield launched


Place = tuple[str, int]
"""(stream, sequence) of a message."""


async def refusals(audit: Auditor) -> dict[Place, str]:
    """Why each refused message was refused, from dead letters and from what admission told its team."""
    found = {letter.place: letter.reason for letter in await audit.read_letters()}
    for message in await stored(audit.js, EVENTS, "baton.evt.job.v1.rejected.*"):
        stream, _, seq = (message.headers or {})["ce-causationid"].partition(":")
        reasons = json.loads(message.data)["reasons"]
        assert all(reason["problem"] and reason["fix"] for reason in reasons), "a reason without problem or fix"
        found.setdefault((stream, int(seq)), "; ".join(f"{r['field']}: {r['problem']}" for r in reasons))
    return found


async def send(audit: Auditor, messages: Iterable[Bad]) -> dict[Place, str]:
    """Stores the messages; their names by where they lie."""
    places = {}
    for bad in messages:
        ack = await audit.js.publish(bad.subject, bad.payload, headers=dict(bad.headers))
        places[ack.stream, ack.seq] = bad.name
    return places


async def refused(audit: Auditor, places: dict[Place, str]) -> None:
    """Waits until every one of them is refused; each with a reason that a person can read."""

    async def all_of_them() -> bool:
        return places.keys() <= (await refusals(audit)).keys()

    try:
        await until(all_of_them, 60)
    except TimeoutError:
        left = [name for place, name in places.items() if place not in await refusals(audit)]
        pytest.fail(f"{len(left)} bad messages were neither refused nor laid aside: {left[:20]}")
    for place, reason in (await refusals(audit)).items():
        if place in places:
            assert reason.strip(), f"{places[place]}: no reason"
            assert len(reason) < REASON_CHARACTERS, f"{places[place]}: a reason of {len(reason)} characters"
            assert reason.isprintable(), f"{places[place]}: {reason!r}"
            assert "Traceback" not in reason
            assert "given up after" not in reason, f"{places[place]} was taken for a bug: {reason}"


async def good_ones(cluster: LocalStack, name: str) -> list[Planned]:
    jobs = mixed(name, 40)
    async with clients(cluster) as teams:
        await submit(teams, jobs)
    return jobs


@pytest.mark.parametrize("kind", ["requests", "quotas", "inbox"])
async def test_bad_messages_are_refused_with_a_reason_and_good_ones_run(cluster: LocalStack, kind: str) -> None:
    bad = {
        "requests": list(corpus.requests(TEAMS[0])),
        "quotas": list(corpus.quotas(cluster.options.pool)),
        "inbox": list(corpus.inbox(cluster.options.pool)),
    }[kind]
    third = len(bad) // 3
    good: list[Planned] = []
    async with auditor(cluster) as audit:
        places = await send(audit, bad[:third])
        good += await good_ones(cluster, f"{kind} early")
        places |= await send(audit, bad[third:])
        good += await good_ones(cluster, f"{kind} late")
        await refused(audit, places)

    await books_agree(cluster, {job.job_id: job.end for job in good}, letters=None)
    assert not deaths(cluster), f"died of a message: {deaths(cluster)}"


async def test_one_team_cannot_cancel_the_job_of_another(cluster: LocalStack) -> None:
    (job,) = [Planned(TEAMS[0], "mine", mixed("any", 1)[0].spec)]
    slow = job.spec.model_copy(update={"simulation": job.spec.simulation.model_copy(update={"duration_s": 2.0})})  # type: ignore[union-attr]
    mine = Planned(TEAMS[0], "mine", slow)
    async with clients(cluster) as teams, auditor(cluster) as audit:
        await submit(teams, [mine])
        await teams[TEAMS[1]].cancel(mine.job_id)
        await until(lambda: _letter_about(audit, mine.job_id), 60)
    await books_agree(cluster, {mine.job_id: mine.end}, letters=None)


async def _letter_about(audit: Auditor, job_id: str) -> bool:
    return any(job_id in letter.reason for letter in await audit.read_letters())


async def test_bad_questions_are_answered_as_invalid(cluster: LocalStack) -> None:
    async with auditor(cluster) as audit:
        for message in (m for m in CATALOG if m.reply is not None and m.subject.startswith("baton.qry.")):
            if message.type == "io.baton.log.read.query.v1":
                continue  # an agent that does not have the log stays silent
            if message.type == "io.baton.team.manage.query.v1":
                continue  # answered by who holds the keys, and none runs here: tests/tenants/test_team_admins.py
            if "{service}" in message.subject:
                continue  # asked between two processes of one service: there is one of each here
            keys = {"team": TEAMS[0], "user": "ana", "pool": cluster.options.pool, "node": "replay-0"}
            subject = message.subject.format(**keys)
            for name, payload in corpus.unreadable().items():
                if name == "empty":
                    continue  # no conditions: a good question
                reply = await audit.nats.request(subject, payload, timeout=20)
                status = (reply.headers or {}).get("Baton-Status")
                assert status == "invalid", f"{message.type}: {name}: {status} {reply.data[:300]!r}"


async def test_garbage_on_core_subjects_and_in_the_ledger_stops_nobody(cluster: LocalStack) -> None:
    """The ledger's own readers must skip what does not continue the chain, whoever wrote it."""
    pool = cluster.options.pool
    async with auditor(cluster) as audit:
        for payload in corpus.unreadable().values():
            for subject in ("desired", "heartbeat", "sample"):
                kind = "cmd" if subject == "desired" else "tel"
                await audit.nats.publish(f"baton.{kind}.node.v1.{subject}.{pool}.replay-0", payload)
            await audit.js.publish(f"baton.led.pool.v1.record.{pool}", payload or b" ")
    good = await good_ones(cluster, "after garbage")

    books = await books_agree(cluster, {job.job_id: job.end for job in good}, letters=None)
    assert books.report.void >= len(corpus.unreadable())
    assert not deaths(cluster), f"died of a message: {deaths(cluster)}"


async def test_a_forged_record_at_the_end_of_the_ledger_changes_nothing(cluster: LocalStack) -> None:
    before = await books_agree(cluster, letters=None)
    async with auditor(cluster) as audit:
        record = await audit.js.get_msg(f"LEDGER-{cluster.options.pool}", seq=before.seq)
        await audit.js.publish(f"baton.led.pool.v1.record.{cluster.options.pool}", record.data or b"")

    after = await books_agree(cluster, letters=None)

    assert (after.seq, after.report.void) == (before.seq + 1, before.report.void + 1)
    assert (after.hash, after.report.milli_us) == (before.hash, before.report.milli_us)
