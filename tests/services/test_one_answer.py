"""One request, two admissions that judge it differently: it has one answer, whoever comes first and whatever is lost.

Nobody stands still here. A queue of requests is shared, so what one has answered comes to the other when an acknowledgement is
lost; and what one takes out of its turn comes to the other in its turn.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

from libs.bus import settle
from libs.bus.connect import BusConnection
from libs.bus.dead import REASON, Received, dead_letter
from libs.bus.messages import Outgoing
from libs.core.admission.evaluate import AdmissionContext
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.priority_class import PriorityClass
from libs.core.scheduling import limits
from schemas import subjects
from schemas.audit import RefusedCommand
from schemas.ids import job_id
from schemas.inbox import JobAdmitted
from schemas.jobs import JobRejected
from schemas.subjects import DEAD, EVENTS, REQUESTS
from services.admission.app import DURABLE, make_app
from services.admission.handlers import Recent, handle
from services.admission.one_answer import AnswerOnce, placed
from services.admission.settings import AdmissionSettings
from services.admission.window import AdmissionWindow
from tests.admission.running import running
from tests.core.builders import World, node
from tests.kit.waiting import stored, until
from tests.redis.ledgers import chain, store

CLASSES = """
classes:
- {{name: {name}, priority: 10, preempts: false, latency: normal, description: theirs}}
"""


@pytest.mark.parametrize("first", ["admits", "refuses"])
async def test_a_request_whose_acknowledgement_was_lost_has_the_answer_that_it_had(
    nats: Client, pool: str, team: str, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    js = nats.jetstream()
    await store(js, pool, chain(pool, World(node("a", 4)).records))
    apps = {}
    for verdict, name in (("admits", "asked"), ("refuses", "other")):
        (file := tmp_path / f"{verdict}.yaml").write_text(CLASSES.format(name=name))
        apps[verdict] = make_app(AdmissionSettings(nats_url=nats_url, pool=pool, classes=file))
    real, lost = settle._settle, asyncio.Event()

    async def not_acknowledged(case: Any) -> None:
        if lost.is_set():
            await real(case)
        else:
            lost.set()
            await case.msg.nak(delay=1.0)

    monkeypatch.setattr(settle, "_settle", not_acknowledged)
    body = {"client_key": "once", "job": {"command": ["x"], "priority_class": "asked"}}
    async with running(apps.pop(first)):
        await js.publish(f"baton.cmd.job.v1.submit.{team}.ana", json.dumps(body).encode())
        await lost.wait()
    (second,) = apps.values()
    async with running(second):
        await until(lambda: _acknowledged(js))
    assert await _answers(js, pool, team) == ((set(), {"once"}) if first == "admits" else ({"once"}, set()))


class Process:
    """What an admission does with one request, apart from reading it."""

    def __init__(self, nats: Client, context: AdmissionContext) -> None:
        self.context, self.recent, self.refused = context, Recent(), list[RefusedCommand]()
        self.outbox = AnswerOnce(nats.jetstream(), batches=True)
        self.outbox.window = AdmissionWindow(lambda pool: 0, 32, 512)
        self.outbox.lost, self.outbox.refused = self.recent.put_off, self.refused.append

    async def answers(self, *requests: Received, pool: str) -> None:
        await self.outbox.publish_many([item for request in requests for item in self.judges(request, pool)])

    def judges(self, request: Received, pool: str) -> list[Outgoing]:
        return placed(request, handle(request, {pool: self.context}, self.recent).out, pool)


def process(nats: Client, named: str) -> Process:
    """It knows one class."""
    classes = {named: PriorityClass(name=named, priority=1, preempts=False, description="theirs")}
    return Process(nats, AdmissionContext(FleetShape(), limits.room, classes))


def request(team: str, key: str, number: int) -> Received:
    body = json.dumps({"client_key": key, "job": {"command": ["x"], "priority_class": "asked"}}).encode()
    return Received(f"baton.cmd.job.v1.submit.{team}.ana", {}, body, "REQUESTS", number, 1_000_000_000_000_000 + number)


async def test_of_two_that_judge_a_request_at_once_one_answers(nats: BusConnection, pool: str, team: str) -> None:
    """So it is when one takes a request out of its turn: it comes to the other for the first time. Whoever gives way tells
    nothing, remembers no job, and writes no line of a refusal."""
    one, other = process(nats, "asked"), process(nats, "unknown")
    requests = [request(team, f"k{number}", number) for number in range(1, 41)]

    async def all_of(who: Process, order: Sequence[Received], together: int = 10) -> None:
        for first in range(0, len(order), together):  # ten go as one atomic batch, three do not
            await who.answers(*order[first : first + together], pool=pool)

    await asyncio.gather(all_of(one, requests), all_of(other, requests[::-1], together=3))
    told, admitted = await _answers(nats.jetstream(), pool, team)
    keys = {f"k{number}" for number in range(1, 41)}
    assert told | admitted == keys
    assert not told & admitted
    assert told, "each was first with some"
    assert admitted
    assert set(one.recent) == {job_id(team, key) for key in admitted}
    assert len(other.refused) == len(told)
    for who in (one, other):  # and once more, as after lost acknowledgements
        await all_of(who, requests)
    assert await _answers(nats.jetstream(), pool, team) == (told, admitted)


async def test_a_refusal_that_its_process_did_not_come_to_tell_is_told_by_the_next(
    nats: BusConnection, pool: str, team: str
) -> None:
    """It was killed between taking the place and telling the team: nobody has heard of it, and the place is taken."""
    one, other, asked = process(nats, "asked"), process(nats, "unknown"), request(team, "k", 1)
    said = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/ci", "ce-type": "io.baton.job.submit.v1"}
    asked = replace(asked, headers={**said, "ce-correlationid": "100%25%20%C3%BC"})
    taken, rejected = other.judges(asked, pool)
    await other.outbox.publish_many([taken])
    await one.answers(asked, pool=pool)
    assert await _answers(nats.jetstream(), pool, team) == ({"k"}, set())
    (told,) = await stored(nats.jetstream(), EVENTS, subjects.event("rejected", team))
    assert told.data == rejected.payload
    assert {name: told.headers[name] for name in rejected.headers} == rejected.headers


async def test_what_was_laid_aside_is_not_let_in_and_what_was_let_in_is_not_laid_aside(
    nats: BusConnection, pool: str, team: str
) -> None:
    js, one = nats.jetstream(), process(nats, "asked")
    sent = [await js.publish(asked.subject, asked.payload) for asked in (request(team, key, 0) for key in ("a", "b"))]
    first, second = (replace(request(team, key, 0), stream_seq=ack.seq) for key, ack in zip("ab", sent, strict=True))
    await one.outbox.publish_many(placed(first, [dead_letter("admission", first, "a bug met it")], pool)[:1])
    await one.answers(first, second, pool=pool)
    await one.outbox.publish_many(placed(second, [dead_letter("admission", second, "a bug met it")], pool))
    assert await _answers(js, pool, team) == (set(), {"b"})
    (letter,) = await stored(js, DEAD, subjects.dead("admission", team))
    assert (letter.data, letter.headers[REASON]) == (first.payload, "a bug met it")


async def _answers(js: JetStreamContext, pool: str, team: str) -> tuple[set[str], set[str]]:
    """Keys of what was refused and of what was let in, each once."""
    told = [JobRejected.model_validate_json(m.data) for m in await stored(js, EVENTS, subjects.event("rejected", team))]
    inputs = await stored(js, subjects.inbox_stream(pool), subjects.inbox("job", "admitted", pool))
    admitted = [JobAdmitted.model_validate_json(m.data).client_key for m in inputs]
    found = {one.client_key for one in told}, set(admitted)
    assert (len(told), len(admitted)) == tuple(map(len, found))
    return found


async def _acknowledged(js: JetStreamContext) -> bool:
    info = await js.consumer_info(REQUESTS, DURABLE)
    return info.num_pending == info.num_ack_pending == 0
