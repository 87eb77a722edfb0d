"""The client against a real broker: nothing is lost, nothing is told twice, refusals carry their reasons."""

import asyncio
import contextlib
import gc
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

import libs.client.baton as client
from libs.bus.connect import Address
from libs.cli import team_export
from libs.client import (
    Baton,
    Conflict,
    Denied,
    Failed,
    HasEnded,
    Invalid,
    NotFound,
    Rejected,
    TimedOut,
    Unreachable,
    asking,
    connect,
    event_subscriptions,
    following,
    sending,
    watching,
)
from libs.client.event_subscriptions import EventSubscriptions
from libs.embedded.servers import NATS
from libs.walls.keyring import Keyring
from schemas import subjects
from schemas.ids import job_id as job_id_of
from schemas.jobs import JobEvent, JobSpec, JobState, Simulation
from schemas.queries import EventList
from schemas.resources import Resources
from tests.client.fakes import Fakes, until
from tests.kit.background import ServerInBackground

TRAIN = JobSpec(name="train", command=("python", "train.py"))


async def test_submit_returns_when_the_job_is_admitted(blue: Baton, fakes: Fakes, key: str) -> None:
    submitted = await blue.submit(TRAIN, key)
    assert submitted.job_id == job_id_of("blue", key)
    ((team, headers, submit),) = [entry for entry in fakes.submits if entry[2].client_key == key]
    assert (team, submit.job) == ("blue", TRAIN)
    assert headers["ce-type"] == "io.baton.job.submit.v1"
    assert headers["Nats-Msg-Id"] not in ("", headers["ce-id"]), "nobody else can guess it"


async def test_a_refused_job_raises_every_reason(blue: Baton, fakes: Fakes, key: str) -> None:
    with pytest.raises(Rejected, match="no such device") as refused:
        await blue.submit(JobSpec(name="refuse", command=("x",)), key)
    assert [reason.field for reason in refused.value.reasons] == ["job.resources.types"]


async def test_a_refused_job_is_refused_again_when_it_is_sent_again(blue: Baton, fakes: Fakes, key: str) -> None:
    for _ in range(2):
        with pytest.raises(Rejected):
            await blue.submit(JobSpec(name="refuse", command=("x",)), key)


async def test_the_same_key_and_body_is_the_same_job(blue: Baton, fakes: Fakes, key: str) -> None:
    assert await blue.submit(TRAIN, key) == await blue.submit(TRAIN, key)
    assert len([job for job in fakes.jobs.values() if job.client_key == key]) == 1


@pytest.mark.parametrize("hashes", [True, False], ids=["as now", "with a document of an older release"])
async def test_a_job_that_admission_filled_in_is_the_same_job_when_it_is_sent_again(
    blue: Baton, fakes: Fakes, key: str, hashes: bool
) -> None:
    """Its document has the limits of its class, which nobody sent."""
    fakes.hashes = hashes
    submitted = await blue.submit(TRAIN, key)
    assert (await blue.get(submitted.job_id)).spec != TRAIN
    assert await blue.submit(TRAIN, key) == submitted
    await fakes.happens(submitted.job_id, "succeeded")
    again = await blue.submit(TRAIN, key)
    assert again == submitted
    assert submitted.found is None
    assert again.found is not None
    assert again.found.state is JobState.SUCCEEDED


async def test_a_conflict_is_told_again_when_it_is_sent_again(blue: Baton, fakes: Fakes, key: str) -> None:
    await blue.submit(TRAIN, key)
    for _ in range(2):
        with pytest.raises(Conflict):
            await blue.submit(JobSpec(name="other", command=("x",)), key, answer_s=math.inf)


async def test_what_became_of_a_job_that_has_ended_is_said_in_place_of_why_it_waits(
    blue: Baton, fakes: Fakes, key: str
) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.starts(job, 1, "")
    await fakes.starts(job, 2, "")
    with pytest.raises(NotFound, match="is waiting or running"):
        await blue.explain(job)
    await fakes.happens(job, "failed")
    fakes.jobs[job] = fakes.jobs[job].model_copy(
        update={"reason": "it ended with exit code 3", "finished_us": 1_700_000_000_000_000}
    )
    with pytest.raises(HasEnded) as told:
        await blue.explain(job)
    assert told.value.document == await blue.get(job)
    assert (told.value.what, told.value.why) == (
        f"{job} has ended: failed at 2023-11-14 22:13:20 UTC, after 2 attempts",
        "it ended with exit code 3",
    )
    assert f"`baton describe job {job}`" in told.value.fix
    unknown = job_id_of("blue", "nobody's")
    with pytest.raises(NotFound, match=f"no job {unknown} is known.*nor does history have it"):
        await blue.explain(unknown)


async def test_a_connection_has_one_subscription_for_all_that_wait(blue: Baton, fakes: Fakes, key: str) -> None:
    """The broker copies each event for every subscription, and cuts off who has too many."""
    most = 3  # answers to publishes and to questions, and one for events
    submitting = asyncio.gather(*(blue.submit(TRAIN, f"{key}-{i}") for i in range(120)))
    while not submitting.done():
        assert len(blue.nats._subs) <= most
        await asyncio.sleep(0.01)
    jobs = [submitted.job_id for submitted in await submitting]
    waiting = asyncio.gather(*(blue.wait(job, 60) for job in jobs))
    for job in jobs:
        await fakes.happens(job, "succeeded")
        assert len(blue.nats._subs) <= most
    assert [event.job_id for event in await waiting] == jobs


async def test_the_same_key_with_another_body_is_a_conflict(blue: Baton, fakes: Fakes, key: str) -> None:
    await blue.submit(TRAIN, key)
    with pytest.raises(Conflict):
        await blue.submit(JobSpec(name="other", command=("x",)), key)


async def test_a_stored_request_without_an_answer_says_so(blue: Baton, fakes: Fakes, key: str) -> None:
    fakes.silent = True
    with pytest.raises(TimedOut, match="is stored"):
        await blue.submit(TRAIN, key, answer_s=0.1)


async def test_many_are_stored_once_each(blue: Baton, fakes: Fakes, key: str) -> None:
    wanted = [(f"{key}-{i}", TRAIN) for i in range(300)]  # nothing is answered here, and a user may have 512 waiting
    first = await blue.submit_many(wanted)
    assert first == await blue.submit_many(wanted)
    assert len({submitted.job_id for submitted in first}) == len(wanted)
    await until(lambda: len([j for j in fakes.jobs.values() if j.client_key.startswith(key)]) == len(wanted))


async def test_a_request_that_is_too_large_is_refused_before_it_is_sent(blue: Baton) -> None:
    with pytest.raises(Invalid, match="262144"):
        await blue.submit(JobSpec(command=tuple(["x" * 4096] * 100)), "large")


async def test_watching_tells_each_event_once_and_ends(blue: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.happens(job, "granted")
    seen = []
    async with contextlib.aclosing(blue.watch(job)) as events:
        async for event in events:
            seen.append(event.what)
            if event.what == "granted":
                await fakes.happens(job, "running", live=False)  # lost on its way
                await fakes.happens(job, "preempting", recorded=False)  # history lags
            if event.what == "preempting":
                await fakes.happens(job, "succeeded")
    assert seen == ["queued", "granted", "running", "preempting", "succeeded"]


async def test_a_rejection_ends_the_watching(blue: Baton, fakes: Fakes, key: str) -> None:
    job = job_id_of("blue", key)

    async def watch() -> list[str]:
        return [event.what async for event in blue.watch(job)]

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.2)
    await blue.submit(JobSpec(name="refuse", command=("x",)), key, wait_admitted=False)
    assert await watching == ["rejected"]


async def test_a_refused_second_message_does_not_end_the_watching(blue: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    waiting = asyncio.create_task(blue.wait(job, 20))
    await asyncio.sleep(0.2)
    with pytest.raises(Conflict):
        await blue.submit(JobSpec(name="other", command=("x",)), key)
    await fakes.happens(job, "succeeded")
    assert (await waiting).state is JobState.SUCCEEDED


async def test_waiting_does_not_wait_for_history(
    blue: Baton, fakes: Fakes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "HISTORY_LAGS_S", math.inf)
    job = (await blue.submit(TRAIN, key)).job_id
    waiting = asyncio.create_task(blue.wait(job, 60))
    while not waiting.done():  # until it listens
        await fakes.happens(job, "succeeded", recorded=False)
        await asyncio.sleep(0.05)
    assert (await waiting).state is JobState.SUCCEEDED


async def test_of_a_job_that_was_submitted_just_now_history_is_asked_nothing_before_its_end_is_told(
    blue: Baton, fakes: Fakes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question costs the stores more than the job, while its node is to start it."""
    monkeypatch.setattr("libs.client.baton._JUST_NOW_S", math.inf)
    monkeypatch.setattr("libs.client.watching._TOLD_S", math.inf)
    job = (await blue.submit(TRAIN, key)).job_id
    asked = fakes.questions
    waiting = asyncio.create_task(blue.wait(job, 60))
    while not waiting.done():  # until it listens
        await fakes.happens(job, "succeeded")
        await asyncio.sleep(0.05)
    assert (await waiting).state is JobState.SUCCEEDED
    assert fakes.questions == asked


async def test_an_end_that_was_told_while_the_job_was_submitted_is_not_waited_for(
    blue: Baton, fakes: Fakes, key: str
) -> None:
    """As of a job that ends at once: its events come together. It was waited for until history had it, up to 2.2 s."""
    over = JobSpec(name="over", command=("x",))
    jobs = await asyncio.gather(*(blue.submit(over, f"{key}-{i}") for i in range(3)))
    for job in jobs:
        assert (await blue.wait(job.job_id, 20)).state is JobState.SUCCEEDED
    assert fakes.questions == 0


async def test_who_has_waited_for_the_end_gets_a_document_with_it(blue: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.happens(job, "succeeded")
    await blue.wait(job, 20)
    ended = fakes.jobs[job]
    fakes.jobs[job] = ended.model_copy(
        update={"state": JobState.RUNNING}
    )  # history has the event, and not yet the document
    asking = asyncio.create_task(blue.get(job))
    await asyncio.sleep(0.1)
    fakes.jobs[job] = ended
    assert (await asking).state is JobState.SUCCEEDED


async def test_waiting_returns_the_outcome(blue: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.happens(job, "failed")
    assert (await blue.wait(job, 20)).state is JobState.FAILED


async def test_waiting_in_vain_changes_nothing(blue: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    with pytest.raises(TimedOut):
        await blue.wait(job, 0.1)


async def test_a_team_follows_all_its_jobs_from_any_time(blue: Baton, fakes: Fakes, key: str) -> None:
    before = (await blue.submit(TRAIN, f"{key}-1")).job_id
    seen: list[str] = []
    async with contextlib.aclosing(blue.events(after_us=0)) as events:
        async for event in events:
            if event.job_id == before and event.what == "queued":
                seen.append("past")
                await blue.submit(TRAIN, f"{key}-2")
            elif event.job_id == job_id_of("blue", f"{key}-2"):
                seen.append("live")
                break
    assert seen == ["past", "live"]


async def test_cancelling_is_a_command_of_the_team(blue: Baton, operator: Baton, fakes: Fakes, key: str) -> None:
    mine = (await blue.submit(TRAIN, f"{key}-1")).job_id
    theirs = (await blue.submit(TRAIN, f"{key}-2")).job_id
    await blue.cancel(mine)
    await operator.cancel(theirs)
    assert (await blue.wait(mine, 20)).state is JobState.CANCELLED
    assert (await blue.wait(theirs, 20)).state is JobState.CANCELLED


async def test_logs_go_on_over_attempts_until_the_job_ends(blue: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.starts(job, 1, "one\n")
    text = ""
    async with contextlib.aclosing(blue.logs(job, follow=True)) as pieces:
        async for piece in pieces:
            text += piece.text
            if text == "one\n" and not fakes.ended:
                fakes.ended.add((job, 1))
                await fakes.starts(job, 2, "two\n")
            elif text == "one\ntwo\n" and (job, 2) not in fakes.ended:
                fakes.ended.add((job, 2))
                await fakes.happens(job, "succeeded")
    assert text == "one\ntwo\n"


async def test_logs_that_are_followed_outlast_a_history_whose_store_is_away(
    blue: Baton, fakes: Fakes, key: str
) -> None:
    """Seen: `baton logs -f` ended when MongoDB was away for a moment, in the midst of a run."""
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.starts(job, 1, "one\n")
    text = ""
    async with contextlib.aclosing(blue.logs(job, follow=True)) as pieces:
        async for piece in pieces:
            text += piece.text
            if text == "one\n" and not fakes.ended:
                fakes.lacking = 2
                fakes.logs[job, 1, 0] += "two\n"
            elif text == "one\ntwo\n" and not fakes.ended:
                assert fakes.lacking == 0
                fakes.ended.add((job, 1))
                fakes.lacking = 2
                await fakes.happens(job, "succeeded")
    assert text == "one\ntwo\n"
    fakes.lacking = 1
    with pytest.raises(Failed, match="MongoDB"):
        [piece async for piece in blue.logs(job)]


async def test_a_job_that_never_started_has_no_logs(blue: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    with pytest.raises(NotFound, match="has not started"):
        [piece async for piece in blue.logs(job)]


async def test_a_history_that_was_away_and_is_behind_then_does_not_make_a_job_unknown(
    blue: Baton, fakes: Fakes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with MongoDB frozen for 14 s: `submit --wait` ended with "there is no job", while the job ran."""
    monkeypatch.setattr(watching, "_STARTS_WITHIN_S", 0.0)
    job = (await blue.submit(TRAIN, key)).job_id
    fakes.told.pop(job)  # nothing of it is written yet
    fakes.lacking, fakes.unread = 2, 1
    waiting = asyncio.create_task(blue.wait(job, 20))
    await until(lambda: waiting.done() or not fakes.unread)
    await fakes.happens(job, "succeeded")
    assert (await waiting).what == "succeeded"


async def test_while_history_is_frozen_a_new_job_is_known_to_be_admitted_and_its_end_is_waited_for(
    blue: Baton, fakes: Fakes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: `submit --wait` ended with "is stored" after 10 s, while the job ran and queries knew it."""
    monkeypatch.setitem(asking.ask.__kwdefaults__, "timeout_s", 0.2)
    fakes.unanswered = True
    job = (await blue.submit(TRAIN, answer_s=0.1)).job_id
    waiting = asyncio.create_task(blue.wait(job, 20))
    asked = fakes.questions
    await until(lambda: waiting.done() or fakes.questions > asked + 1)
    fakes.unanswered = False
    await fakes.happens(job, "succeeded")
    assert (await waiting).what == "succeeded"
    fakes.unanswered = True
    with pytest.raises(TimedOut, match=r"no answer to job\.get: history is who tells it"):
        await blue.submit(TRAIN, key, answer_s=0.1)  # the key may be an older job's, of which queries knows no body
    with pytest.raises(Unreachable, match=r"no answer to event\.list"):
        await blue.wait(job_id_of("blue", key), 20)


async def test_of_a_request_that_history_has_nothing_of_it_is_not_history_that_is_said_to_be_away(
    blue: Baton, fakes: Fakes, key: str
) -> None:
    fakes.silent = True
    with pytest.raises(TimedOut, match="history answers, and has nothing of it: admission or placement is away"):
        await blue.submit(TRAIN, key, answer_s=0.1)


async def test_a_service_that_says_nothing_is_not_said_to_be_away(
    blue: Baton, fakes: Fakes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(asking.ask.__kwdefaults__, "timeout_s", 0.2)
    fakes.unanswered = True
    with pytest.raises(Unreachable) as silent:
        await blue.get(job_id_of("blue", key))
    assert "it is there, and busy, still starting, or standing still" in silent.value.why
    assert silent.value.fix == "ask again; if that does not help, an operator should look at history"
    with pytest.raises(Unreachable) as nobody:
        await blue.status()
    assert "is queries running?" in nobody.value.why


async def test_a_broker_that_says_nothing_is_not_taken_for_a_service_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(asking.ask.__kwdefaults__, "timeout_s", 0.2)
    with ServerInBackground(NATS, tmp_path) as server:
        async with await connect(server.url, "blue", user="ana") as baton:
            with server.frozen(), pytest.raises(Unreachable, match="NATS does not answer either"):
                await baton.status()


async def test_what_a_question_raises_when_its_asker_is_cancelled_is_seen(blue: Baton) -> None:
    """Seen in a storm: asyncio printed "Task exception was never retrieved" to who used the client."""
    unseen: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, said: unseen.append(said["message"]))
    begun = asyncio.Event()

    async def answered_while_it_is_cancelled() -> None:
        """As nats-py's request in Python 3.11: it drops a cancel that comes together with the answer."""
        begun.set()
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            raise NotFound("no such job") from None

    asked = asyncio.create_task(sending.unless_denied(blue.nats, answered_while_it_is_cancelled()))
    await begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await asyncio.sleep(0)
    del asked
    gc.collect()
    loop.set_exception_handler(None)
    assert unseen == []


async def test_of_many_submits_at_once_some_are_sent_and_the_others_when_these_are_answered(
    urls: dict[str, Address], fakes: Fakes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with ten thousand: the broker ended a connection that was read too slowly, and 8,830 failed."""
    monkeypatch.setattr(client, "_AT_ONCE", 4)
    fakes.silent = True
    async with await connect(urls["blue"]) as blue:
        submits = [asyncio.create_task(blue.submit(TRAIN, f"{key}-{n}", answer_s=math.inf)) for n in range(8)]
        await until(lambda: len(fakes.submits) >= 4)
        await blue.list()  # answered after what was sent before it
        assert len(fakes.submits) == 4
        fakes.silent = False
        for submit in submits[:4]:
            submit.cancel()
        await asyncio.gather(*submits[4:])
    assert len(fakes.submits) == 8


async def test_who_uses_a_client_that_it_has_closed_is_told_so(
    urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    """Seen: that the credential was revoked, or an error of nats-py's."""
    blue = await connect(urls["blue"])
    job = (await blue.submit(TRAIN, key)).job_id
    waiting = asyncio.create_task(blue.wait(job))
    await until(lambda: fakes.questions)
    for _ in range(2):
        await blue.close()
    again = (
        blue.submit(TRAIN),
        blue.submit_many([TRAIN]),
        blue.wait(job),
        blue.get(job),
        blue.cancel(job),
        blue.list(),
    )
    for use in (waiting, *again, anext(blue.watch(job)), anext(blue.events()), anext(blue.logs(job, follow=True))):
        with pytest.raises(Invalid, match="this client is closed"):
            await use


async def test_who_uses_a_client_in_another_event_loop_is_told_so(
    blue: Baton, urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    """Seen: a submit that waited in vain for half a minute, and an answer that history was away; also in the client's own loop
    from then on."""
    job = (await blue.submit(TRAIN, key)).job_id
    for use in (lambda: blue.submit(TRAIN), lambda: blue.get(job), lambda: blue.wait(job)):
        with pytest.raises(Invalid, match="belongs to another event loop"):
            await asyncio.to_thread(lambda use=use: asyncio.run(use()))
    assert (await blue.get(job)).job_id == job


async def test_a_timer_has_no_logs_and_is_not_looked_for(blue: Baton, fakes: Fakes, key: str) -> None:
    """Seen: "its node is gone, the rank does not exist, or the output was removed"."""
    job = (await blue.submit(JobSpec(simulation=Simulation(duration_s=1)), key)).job_id
    await fakes.starts(job, 1, "")
    with pytest.raises(NotFound, match="a timer writes nothing"):
        [piece async for piece in blue.logs(job, follow=True)]


async def test_what_who_answers_says_to_do_is_told_in_place_of_what_is_said_of_all(
    blue: Baton, key: str, fakes: Fakes
) -> None:
    """Seen: "no node 'nosuch' in this pool; `baton get nodes` lists them", and to check the id and the team."""
    with pytest.raises(NotFound) as told:
        await blue.get(job_id_of("blue", key))
    assert (told.value.what, told.value.fix) == (f"no job {job_id_of('blue', key)}", "`baton get jobs` lists them")


async def test_logs_that_nobody_has_are_not_found(blue: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.starts(job, 1, "one")
    with pytest.raises(NotFound, match="no agent has"):
        [piece async for piece in blue.logs(job, attempt=7)]


async def test_of_a_node_that_does_not_answer_the_output_is_not_said_to_be_gone(
    blue: Baton, fakes: Fakes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with an agent frozen for half a minute: `baton logs` ended with 3, not found, while the job ran."""
    monkeypatch.setattr(client, "LOGS_ANSWER_S", 0.2)
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.starts(job, 1, "one")
    del fakes.logs[job, 1, 0]
    with pytest.raises(Unreachable, match="it runs, and its node does not answer"):
        [piece async for piece in blue.logs(job)]
    await fakes.happens(job, "succeeded")
    with pytest.raises(NotFound, match="no agent has"):
        [piece async for piece in blue.logs(job)]


@pytest.mark.parametrize("follow", [False, True])
async def test_a_rank_that_never_was_is_not_waited_for(blue: Baton, fakes: Fakes, key: str, follow: bool) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    await fakes.starts(job, 1, "one")
    with pytest.raises(NotFound, match=r"has no rank 7\. see `baton describe job` for its attempts and nodes"):
        [piece async for piece in blue.logs(job, rank=7, follow=follow)]


async def test_an_owner_that_does_not_run_is_named(blue: Baton) -> None:
    with pytest.raises(Unreachable, match="queries"):
        await blue.status()


async def test_an_owner_that_is_started_anew_is_waited_for(blue: Baton, urls: dict[str, Address], key: str) -> None:
    """Who asked in the half second in which history was restarted was told that it does not run: a `wait` failed."""
    async with Fakes(urls["services"]) as before:
        job = (await blue.submit(TRAIN, key)).job_id
    asked = asyncio.create_task(blue.get(job))
    await asyncio.sleep(0.3)
    assert not asked.done()
    after = Fakes(urls["services"])
    after.jobs = before.jobs
    async with after:
        assert (await asked).job_id == job


async def test_another_teams_job_does_not_exist(blue: Baton, green: Baton, fakes: Fakes, key: str) -> None:
    job = (await blue.submit(TRAIN, key)).job_id
    with pytest.raises(NotFound):
        await green.get(job)


async def test_the_operator_has_no_jobs_of_its_own(operator: Baton) -> None:
    with pytest.raises(Invalid, match="no jobs"):
        await operator.submit(TRAIN)


async def test_nobody_there_is_said_without_the_password() -> None:
    with pytest.raises(Unreachable) as e:
        await connect("nats://blue:secret@127.0.0.1:9", wait_s=0.5)
    assert "secret" not in str(e.value)


async def test_a_server_that_does_not_answer_is_said_to_who_wants_to_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As whoever waits or watches does first: nothing is asked for then. Whoever submits hears it of the request itself."""
    monkeypatch.setattr(event_subscriptions, "_ANSWERS_S", 1)
    with ServerInBackground(NATS, tmp_path) as server:
        async with await connect(server.url, "blue", user="ana") as baton:
            with server.frozen():
                with pytest.raises(Unreachable, match="NATS does not answer"):
                    await baton.wait("job-" + "0" * 32)
                with pytest.raises(Unreachable, match="is not stored for certain"):
                    await baton.submit(TRAIN, give_up_s=1)


async def test_a_foreign_credential_is_refused_at_once(urls: dict[str, Address], tmp_path: Path) -> None:
    """One that another operator has signed."""
    with pytest.raises(Unreachable, match="credential"):
        await connect(Address(urls["blue"].url, Keyring(tmp_path).team("blue")), wait_s=60)


@pytest.mark.parametrize(
    "work",
    [
        lambda baton: baton.set_quota("blue", None, give_up_s=20),
        lambda baton: Baton(baton.nats, type(baton.place)(baton.place.address, "green")).submit(TRAIN),
        lambda baton: Baton(baton.nats, type(baton.place)(baton.place.address, "green")).get("job-" + "0" * 32),
        lambda baton: Baton(baton.nats, type(baton.place)(baton.place.address, subjects.OPERATOR)).status(),
    ],
    ids=["quota", "submit as another team", "ask as another team", "ask as the operator"],
)
async def test_what_a_credential_does_not_allow_is_denied(blue: Baton, work) -> None:
    with pytest.raises(Denied, match=r"(?i)permissions violation"):
        await work(blue)


async def test_finance_is_told_what_its_credential_is_for(blue: Baton) -> None:
    """To speak as somebody else's team helps it nothing. `--job NAME` is looked up among jobs, which it may not list."""
    finance = Baton(blue.nats, type(blue.place)(blue.place.address, subjects.FINANCE))
    with pytest.raises(Denied, match="names jobs by their whole ids"):
        await finance.list()


async def test_who_is_cut_off_for_good_while_following_is_told(urls: dict[str, Address]) -> None:
    """As the broker does with a credential that is revoked, or has ended. `baton watch` and `baton wait` went on for ever."""
    began = False
    async with await connect(urls["blue"], "blue") as baton:

        async def ask(*_: object) -> EventList:
            nonlocal began
            if began:
                await baton.nats.close()
                raise Denied("the connection was closed for good")
            began = True
            return EventList(events=())

        async with following.Live(EventSubscriptions(baton.nats), "blue") as live:
            with pytest.raises(Denied):
                await anext(following.follow(live, ask, after_us=0, quiet_s=0.01))


async def test_what_was_told_before_one_listened_is_asked_for_before_all_is_quiet(urls: dict[str, Address]) -> None:
    over = JobEvent(job_id=f"job-{0:032x}", team="blue", name="x", what="succeeded", state=JobState.SUCCEEDED, at_us=1)
    pages = iter([(), (), (over,)])  # history writes it meanwhile

    async def ask(*_: object) -> EventList:
        return EventList(events=next(pages))

    async with (
        await connect(urls["blue"], "blue") as baton,
        following.Live(EventSubscriptions(baton.nats), "blue") as live,
    ):
        assert await anext(following.follow(live, ask, after_us=0, quiet_s=math.inf)) == over


@pytest.mark.parametrize("missed", [0, 5], ids=["all heard", "some missed"])
async def test_who_follows_long_is_told_each_event_once_and_in_order(
    urls: dict[str, Address], fakes: Fakes, monkeypatch: pytest.MonkeyPatch, missed: int
) -> None:
    """More events than are remembered, and never a pause: at the first one all that was forgotten was told again. What was
    missed at a reconnect was told behind what came later, as the first page of history was told already, and a short one."""
    monkeypatch.setattr(following, "_REMEMBERED", 60)
    monkeypatch.setattr(following, "_CATCH_UP", 20, raising=False)
    monkeypatch.setattr(following, "HISTORY_LAGS_S", 0.0)
    happened: list[JobEvent] = []
    written = 0  # of these, as far as history has read
    job = f"job-{0:032x}"

    async def happens(count: int, *, heard: bool = True) -> None:
        for _ in range(count):
            number = len(happened) + 1
            event = JobEvent(
                job_id=job, team="blue", name="x", what="progress", state=JobState.RUNNING, at_us=number, number=number
            )
            happened.append(event)
            if heard:
                await fakes.tell(event)

    async def ask(after_us: int | None, limit: int, _: Mapping[str, int]) -> EventList:
        found = [event for event in happened[:written] if event.at_us > (after_us or 0)][:limit]
        return EventList(events=tuple(found[:10]), more=len(found) > 10)

    async with (
        await connect(urls["blue"], "blue") as baton,
        following.Live(EventSubscriptions(baton.nats), "blue") as live,
        contextlib.aclosing(following.follow(live, ask, after_us=0, quiet_s=0.5)) as events,
    ):
        told = []
        for _ in range(5 if missed else 20):
            written = len(happened)
            await happens(10)
            while len(told) < len(happened):
                told.append(await anext(events))
        await happens(missed, heard=False)
        live._lost = bool(missed)
        await happens(2)
        written = len(happened)
        while told[-1] != happened[-1]:
            told.append(await anext(events))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):  # quiet: history is asked again, and has nothing that was not told
                told.append(await anext(events))
        assert [event.number for event in told] == [event.number for event in happened]


async def test_what_comes_faster_than_it_is_read_is_told_although_it_happened_long_ago(
    urls: dict[str, Address], fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a pool whose history was away while another's went on: by time all of it lies before what was told last."""
    monkeypatch.setattr(following, "_WAITING", 5)
    happened: list[JobEvent] = []

    async def happens(pool: str, *times: int) -> None:
        for at_us in times:
            event = JobEvent(
                job_id=f"job-{0:032x}", team="blue", name="x", what="progress", state=JobState.RUNNING, at_us=at_us,
                number=at_us, pool=pool,
            )  # fmt: skip
            happened.append(event)
            await fakes.tell(event)

    async def ask(after_us: int | None, limit: int, _: Mapping[str, int]) -> EventList:
        found = sorted((e for e in happened if e.at_us > (after_us or 0)), key=lambda e: e.at_us)
        return EventList(events=tuple(found[:limit]))

    async with (
        await connect(urls["blue"], "blue") as baton,
        following.Live(EventSubscriptions(baton.nats), "blue") as live,
        contextlib.aclosing(following.follow(live, ask, after_us=0, quiet_s=0.2)) as events,
    ):
        told = []
        await happens("main", *range(1001, 1004))
        while len(told) < 3:
            told.append((await anext(events)).at_us)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)  # quiet: history is read up to here
        await happens("west", *range(1, 31))
        told.append((await waiting).at_us)
        async with asyncio.timeout(20):
            while len(told) < len(happened):
                told.append((await anext(events)).at_us)
        assert sorted(told) == sorted(event.at_us for event in happened)


async def test_an_event_as_large_as_an_answer_hides_none_behind_it(blue: Baton, fakes: Fakes, key: str) -> None:
    """That a gang of thousands of devices was granted: `wait` for a job that had ended heard of it never, and an export had
    nothing behind it."""
    job = (await blue.submit(TRAIN, key)).job_id
    for what in ("granted", "running", "succeeded"):
        await fakes.happens(job, what)
    devices = tuple(f"GPU-{number:08x}-1111-2222-3333-444455556666" for number in range(8000))
    fakes.told[job] = [
        event.model_copy(update={"devices": devices if event.what == "granted" else ()}) for event in fakes.told[job]
    ]
    async with asyncio.timeout(20):
        assert [event.what async for event in blue.watch(job)] == ["queued", "granted", "running", "succeeded"]
    assert [e.what for e in await team_export._events(blue, job)] == ["queued", "granted", "running", "succeeded"]


async def test_wrong_arguments_are_named(blue: Baton) -> None:
    with pytest.raises(Invalid, match="job_id"):
        await blue.get("../etc")
    with pytest.raises(Invalid, match="limit"):
        await blue.list(limit=0)


def test_a_spec_is_a_value() -> None:
    assert JobSpec(command=("x",), resources=Resources(devices=2)) != TRAIN
