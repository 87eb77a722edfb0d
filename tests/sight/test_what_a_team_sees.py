"""Every query and event of the catalogue, asked with the credential of a second team: it is told nothing foreign.

Two ways to see it. Nothing that blue is told contains a name, an id or a word of red's. And all that blue is told is the same
whether red has few jobs or many, on the same devices: so no count of theirs is in it either, whatever field it would be in.

A message that is new in the catalogue must be asked for here, or this test fails.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from pydantic import BaseModel

from libs.bus.boxes import ForVault, close_box
from libs.bus.broker import make_broker
from libs.bus.queries import NoAnswer, QueryError, ask, serve
from libs.core.proofs.chains import TeamChains
from schemas import subjects
from schemas.billing import BillQuery
from schemas.catalog import BY_TYPE, CATALOG, JOB_EVENTS, Message
from schemas.explanations import ExplainQuery, PlanQuery
from schemas.ids import job_id
from schemas.jobs import JobSpec
from schemas.ledger import LedgerSummed
from schemas.nodes import DeviceSample, NodeSampled
from schemas.pool_status import DeviceListQuery, NodeListQuery, PoolStatusQuery
from schemas.proofs import AuditRead
from schemas.queries import EventListQuery, JobGet, JobListQuery, LogQuery
from schemas.queue_status import BudgetsQuery, QueueListQuery, QueuesQuery
from schemas.resources import Resources
from schemas.secrets import SecretListQuery, SecretRemove, SecretSet
from schemas.subjects import EVENTS, OPERATOR
from schemas.use import UseQuery
from services.admission.app import make_app as make_admission
from services.admission.settings import AdmissionSettings
from services.agent.logs import LogStore
from services.history.app import make_app as make_history
from services.history.settings import HistorySettings
from services.queries.app import make_app as make_queries
from services.queries.settings import QueriesSettings
from services.quota_billing.app import make_app as make_billing
from services.quota_billing.settings import QuotaBillingSettings
from services.telemetry.app import make_app as make_telemetry
from services.telemetry.settings import TelemetrySettings
from services.vault.app import make_app as make_vault
from services.vault.settings import VaultSettings
from tests.admission.running import running
from tests.kit.patterns import matches
from tests.kit.waiting import stored, until
from tests.redis.ledgers import chain, store
from tests.sight.two_teams import SECRET, TwoTeams

ASKED_BY_TEAMS = [message for message in CATALOG if message.producer == "teams"]
QUERIES = [message for message in ASKED_BY_TEAMS if subjects.is_question(message.subject)]
COMMANDS = {"io.baton.job.submit.v1", "io.baton.job.cancel.v1"}


def questions(two: TwoTeams) -> dict[str, list[BaseModel]]:
    """What blue asks, by the message's name: of its own jobs, of red's, and of what does not exist."""
    own, theirs, nothing = two.blue["runs"], two.red["high-0"], job_id(two.red_team, "nothing")
    waiting = (two.blue["waits-for-a"], two.blue["waits-for-many"], two.red["waits-0"])

    def plan(devices: int, model: str, klass: str = "experiment", **labels: str) -> PlanQuery:
        resources = Resources(devices=devices, types=(model,), labels=labels)
        return PlanQuery(job=JobSpec(command=("x",), priority_class=klass, resources=resources, time_limit_s=600))

    return {
        "job.get": [JobGet(job_id=one) for one in (*two.blue.values(), theirs, nothing)],
        "job.list": [JobListQuery(), JobListQuery(states=("queued", "failed")), JobListQuery(name=f"{SECRET}-high-0")],
        "event.list": [
            EventListQuery(),
            EventListQuery(after_us=0, seen={}),
            *(EventListQuery(job_id=one) for one in (own, theirs, nothing)),
        ],
        "job.explain": [ExplainQuery(job_id=one) for one in (own, *waiting, theirs, nothing)],
        "job.plan": [
            plan(1, "H100"), plan(2, "H100", at="a"), plan(1, "L40S", "serving"), plan(2, "L40S"), plan(99, "H100"),
            plan(4, "H100", "production", at="a"),
        ],
        "queue.list": [QueueListQuery(), QueueListQuery(limit=1)],
        "queues.list": [QueuesQuery()],
        "budgets.list": [BudgetsQuery()],
        "pool.status": [PoolStatusQuery()],
        "node.list": [NodeListQuery()],
        "device.list": [DeviceListQuery(), DeviceListQuery(node="c"), DeviceListQuery(node="nothing")],
        "bill.get": [
            *(BillQuery(group_by=group) for group in ("team", "user", "day", "job", "attempt", "model", "class")),
            BillQuery(group_by="job", job_id=theirs),
        ],
        "use.list": [*(UseQuery(group_by=by) for by in ("team", "user", "job", "hour")), UseQuery(team=two.red_team)],
        "quota.list": [PoolStatusQuery()],
        "audit.read": [
            AuditRead(),
            AuditRead(after=3, limit=2, since=1),
            AuditRead(sum=1),
            AuditRead(sum=7),
            AuditRead(team=two.red_team),
        ],
        "log.read": [LogQuery(job_id=one) for one in (own, theirs, nothing)],
        "secret.list": [SecretListQuery(), SecretListQuery(team=two.red_team)],
        "secret.set": [SecretSet(name="token", key="A" * 43 + "=", sealed="AAAA")],
        "secret.remove": [
            SecretRemove(name=SECRET),
            SecretRemove(name=SECRET, team=two.red_team),
            SecretRemove(name="none"),
            SecretRemove(),
        ],
    }  # fmt: skip


def name_of(message: Message) -> str:
    return message.type.removeprefix("io.baton.").removesuffix(".v1").removesuffix(".query")


def test_every_query_is_asked_here() -> None:
    two = TwoTeams("blue", "red", few=True)
    assert set(questions(two)) == {name_of(message) for message in QUERIES}, "a new query: ask it in `questions`"
    assert {message.type for message in ASKED_BY_TEAMS} - {message.type for message in QUERIES} == COMMANDS


def test_a_team_may_hear_its_own_events_alone() -> None:
    told = [message for message in CATALOG if message.stream == EVENTS]
    assert {name_of(message) for message in told} == {
        *(f"job.{what}" for what in (*JOB_EVENTS, "rejected")),
        "team.suspended",
        "team.resumed",
        "team.budget-warning",
        "team.budget-spent",
    }
    publish, subscribe = subjects.user_may("blue")
    for team, allowed in (("blue", True), ("red", False)):
        keys = {"team": team, "user": "ana", "pool": "main", "node": "n1", "service": "queries"}
        for message in CATALOG:
            open_keys = subjects.keys_in(message.subject)
            subject = subjects.fill(message.subject, **{key: keys[key] for key in open_keys})
            of_teams = message in told or message in ASKED_BY_TEAMS
            patterns = subscribe if message in told else publish
            assert any(matches(p, subject) for p in patterns) == (allowed and of_teams), subject
    kept = [subjects.dead("admission", "blue"), subjects.ledger("main"), "$JS.API.STREAM.INFO.EVENTS"]
    assert not any(matches(p, subject) for p in (*publish, *subscribe) for subject in kept), "read by operators alone"


class Bench:
    """The services that answer, over one world's ledger, and what a team is told."""

    def __init__(self, nats: Client, pool: str, two: TwoTeams) -> None:
        self.nats, self.js, self.pool, self.two = nats, nats.jetstream(), pool, two

    async def write(self) -> None:
        """With a sum over all teams' lines at its end."""
        written, chains = chain(self.pool, self.two.world.records), TeamChains()
        for entry in written:
            chains.apply(entry.record, entry.seq)
        nonce = self.pool.encode().ljust(32)
        summed = LedgerSummed(sum=chains.proposal(self.pool, nonce), nonce=nonce.hex())
        last = written[-1].record.model_copy(update={"events": (summed,)})
        await store(self.js, self.pool, [*written, *chain(self.pool, [last], (written[-1].seq, written[-1].hash))])

    @asynccontextmanager
    async def answering(self, nats_url: str, redis_url: str, mongo_url: str, root: Path) -> AsyncIterator[None]:
        bus = {"nats_url": nats_url, "pool": self.pool}
        logs = LogStore(root, keep=10)
        for team, jobs in ((self.two.blue_team, self.two.blue), (self.two.red_team, self.two.red)):
            for one in jobs.values():
                logs.begin(one, 1, team)
                logs.log(one, 1, 0).write_text("said" if team == self.two.blue_team else SECRET)
        agent = make_broker(nats_url, "agent")
        serve(agent, BY_TYPE["io.baton.log.read.query.v1"], logs.read)
        async with AsyncExitStack() as stack:
            for app in (
                make_queries(QueriesSettings(**bus, redis_url=redis_url)),
                make_telemetry(TelemetrySettings(**bus, redis_url=redis_url)),
                make_billing(QuotaBillingSettings(**bus)),
                make_history(HistorySettings(**bus, mongo_url=f"{mongo_url}/{self.pool}", window_ms=0)),
                make_admission(AdmissionSettings(**bus)),
                make_vault(VaultSettings(**bus, keys=root / "vault" / "keys.json")),
            ):
                await stack.enter_async_context(running(app))
            await agent.start()
            stack.push_async_callback(agent.stop)
            await self._give_secret(self.two.blue_team, "token")
            for n in range(1 if self.two.few else 3):
                await self._give_secret(self.two.red_team, SECRET if not n else f"{SECRET}-{n}")
            for name, busy in (("a", 90 if self.two.few else 10), ("c", 80 if self.two.few else 20), ("b", 50)):
                await self._sample(name, busy)
            yield

    async def _give_secret(self, team: str, name: str) -> None:
        key = (await self.answer("secret.list", SecretListQuery(), team)).key
        sealed = close_box(key, ForVault(team=team, name=name, value="c2FpZA=="))
        await self.answer("secret.set", SecretSet(name=name, key=key, sealed=sealed), team)

    async def _sample(self, name: str, busy: float) -> None:
        """What its devices do: on a and c, red's work."""
        devices = tuple(
            DeviceSample(device=f"{name}-gpu{i}", utilization_pct=busy, memory_used_mib=int(busy), power_w=busy)
            for i in range({"a": 4, "b": 2, "c": 2}[name])
        )
        sampled = NodeSampled(node=name, incarnation=1, at_us=1, devices=devices)
        body = sampled.model_dump_json().encode()
        await self.nats.publish(subjects.sample(self.pool, name), body)

    async def settled(self) -> None:
        """All that the ledger says is told and written."""
        seq = (await self.js.stream_info(f"LEDGER-{self.pool}")).state.last_seq
        # Promises are told live, of gangs that wait: by design they say when others are expected to end.
        kinds = {f"baton.evt.job.v1.{what}" for what in (*JOB_EVENTS, "rejected") if what != "promised"}

        async def told() -> bool:
            return kinds <= {subject.rpartition(".")[0] for subject, _ in await self.events(self.two.blue_team)}

        async def written() -> bool:
            try:
                documents = (await self.answer("job.list", JobListQuery(limit=1000), OPERATOR)).jobs
                status = await self.answer("pool.status", PoolStatusQuery(), OPERATOR)
                bill = await self.answer("bill.get", BillQuery(), OPERATOR)
                nodes = await self.answer("device.list", DeviceListQuery(), OPERATOR)
            except (NoAnswer, QueryError):
                return False
            ids = {*self.two.blue.values(), *self.two.red.values()}
            newest = max((d.seq for d in documents), default=0)
            whole = {d.job_id for d in documents} >= ids and newest >= seq - 6
            sampled = [d for d in nodes.devices if d.utilization_pct is not None]
            return whole and status.ledger_seq == bill.ledger_seq == seq and len(sampled) == 8

        await until(told)
        await until(written)

    async def events(self, team: str) -> list[tuple[str, dict[str, Any]]]:
        found = await stored(self.js, EVENTS, subjects.events_of(team))
        return [(message.subject, json.loads(message.data)) for message in found]

    async def answer(self, name: str, query: BaseModel, team: str, timeout_s: float = 30.0) -> Any:
        message = BY_TYPE[f"io.baton.{name}.query.v1"]
        return await ask(self.nats, message, query, pool=self.pool, team=team, user="ana", timeout_s=timeout_s)

    async def answers(self, team: str) -> dict[str, list[str]]:
        """What `team` is told to each question, errors and silence too, as text."""
        out: dict[str, list[str]] = {}
        for name, asked in questions(self.two).items():
            for query in asked:
                try:
                    told = (await self.answer(name, query, team, 0.5 if name == "log.read" else 30.0)).model_dump_json()
                except QueryError as error:
                    told = json.dumps([error.status, str(error), [r.model_dump() for r in error.reasons]])
                except NoAnswer as error:
                    assert name == "log.read", f"{name} was not answered"
                    told = json.dumps(["silence", str(error)])
                out.setdefault(name, []).append(told)
        return out

    async def refused(self) -> list[str]:
        """What admission tells blue, of a request that it repeats from red's key, and of bad ones."""
        before = len(await stored(self.js, EVENTS, subjects.event("rejected", self.two.blue_team)))
        for key, spec in (
            (f"{SECRET}-high-0", {"command": ["x"], "resources": {"devices": 40}}),
            ("quota", {"command": ["x"], "resources": {"devices": 14, "types": ["H100"]}}),
            ("class", {"command": ["x"], "priority_class": "none"}),
            ("type", {"command": ["x"], "resources": {"types": ["Z9"]}}),
        ):
            body = json.dumps({"client_key": key, "job": spec}).encode()
            await self.js.publish(subjects.submit(self.two.blue_team, "ana"), body)

        async def told() -> list[str]:
            found = await stored(self.js, EVENTS, subjects.event("rejected", self.two.blue_team))
            return [m.data.decode() for m in found[before:]] if len(found) >= before + 4 else []

        found: list[str] = await until(told)
        return sorted(found, key=lambda text: str(json.loads(text)["client_key"]))

    def neutral(self, text: str) -> str:
        """Without what differs between two pools anyway: names, ids, and times that were measured."""
        known = {job: f"<{name}>" for name, job in {**self.two.blue, **self.two.red}.items()}
        known |= {job_id(self.two.red_team, "nothing"): "<high-0>", self.pool: "<pool>", self.two.blue_team: "<blue>"}
        for word, name in known.items():
            text = text.replace(word, name)
        text = re.sub(r"job-[0-9a-f]{32}", "<id>", text)
        text = re.sub(r"[0-9a-f]{64}", "<hash>", text)
        text = re.sub(r'"place":[0-9]+', '"place":0', text)
        text = re.sub(r'"key":"[^"]+"', '"key":"<vault\'s>"', text)
        text = re.sub(r'"rows":\[(.*?)\]', lambda rows: "".join(sorted(rows[1])), text)  # by id, which differs
        return re.sub(
            r'"(took_ms|heartbeat_age_s|stored_us|set_us|made_us|at_us|p50|p99|max)":[-+0-9.e]+', r'"\1":0', text
        )


@dataclass(frozen=True)
class Told:
    """What blue and the operator were told by each query; blue's also without what differs between two pools anyway."""

    blue: dict[str, list[str]]
    neutral: dict[str, list[str]]
    operator: dict[str, list[str]]
    red_words: tuple[str, ...]
    asked_for: tuple[str, ...]
    """What comes back to blue because it asked for it, e.g. in "no job <id>"."""


@pytest.fixture
async def told(
    nats: Client, nats_url: str, redis_url: str, mongo_url: str, pool: str, other_pool: str, team: str, tmp_path: Path
) -> tuple[Told, Told]:
    """With few jobs of red's, and with many."""
    out = []
    for place, few in ((pool, True), (other_pool, False)):
        two = TwoTeams(f"{team}-b{few:d}", f"{team}-r{few:d}", few)
        bench = Bench(nats, place, two)
        await bench.write()
        async with bench.answering(nats_url, redis_url, mongo_url, tmp_path / place):
            await bench.settled()
            blue, everything = await bench.answers(two.blue_team), await bench.answers(OPERATOR)
            blue["events"] = [json.dumps(event) for event in await bench.events(two.blue_team)]
            blue["refused"] = await bench.refused()
        neutral = {name: [bench.neutral(text) for text in texts] for name, texts in blue.items()}
        asked_for = (f"{SECRET}-high-0", two.red["high-0"], two.red["waits-0"])
        words = (two.red_team, SECRET, *two.red.values())
        out.append(Told(blue, neutral, everything, words, asked_for))
    return out[0], out[1]


async def test_what_blue_is_told_says_nothing_of_red(told: tuple[Told, Told]) -> None:
    few, many = told
    for one in told:
        for name, texts in one.blue.items():
            for text in texts:
                for word in one.asked_for:
                    text = text.replace(word, "")
                assert not [word for word in one.red_words if word in text], f"{name} tells blue of red: {text}"
        for name in set(one.operator) - {
            "job.plan",
            "node.list",
            "pool.status",
            "secret.set",
            "secret.remove",
            "use.list",
        }:
            shown = (word in text for text in one.operator[name] for word in one.red_words)
            assert any(shown), f"{name}: the operator is shown all"
    assert few.operator["pool.status"] != many.operator["pool.status"]
    assert few.neutral.keys() == many.neutral.keys()
    for name, texts in few.neutral.items():
        assert texts == many.neutral[name], f"what blue is told by {name} depends on how many jobs red has"
    for name in ("job.get", "event.list", "job.explain", "log.read"):
        theirs, nothing = few.neutral[name][-2:]
        assert theirs == nothing, f"{name}: another's job is like one that does not exist"
