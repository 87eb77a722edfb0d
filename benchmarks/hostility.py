"""`python -m benchmarks.hostility TEAM`: a team that means harm, in a process of its own: its kinds of message in turns, at
a rate. What it needs is a credential of the team, in the environment (BATON_NATS_URL, BATON_NATS_CREDS).

`KINDS` are the kinds; each says one thing for each `number`, and never waits for an answer. `tests/walls/test_hostile.py` looks
at what becomes of them, `benchmarks.hostile` at what they cost others. `COMMANDS` are requests in good form that a team may
send, too many of them; `benchmarks.commands` looks at what those cost.
"""

import argparse
import asyncio
import json
import os
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import nats
from nats.aio.client import Client

from libs.bus.connect import Address
from schemas import subjects
from schemas.catalog import BY_TYPE, CATALOG
from schemas.ids import job_id
from schemas.resources import Resources

_STEP_S = 0.01
_HEADERS = 4_000
_FIELDS = 4_000
_HUGE = 300 * 1024
"""More than is taken (256 KiB), and less than what the broker cuts the connection for."""
_LONG_S = 100_000.0
_PLAN = b'{"job": {"command": ["x"], "resources": {"devices": 64}}}'
CONTROL = "benchmarks.control"


@dataclass
class Hostile:
    """Who means harm, and to whom. `only`: where everything is published instead, for a control."""

    nats: Client
    team: str
    victim: str = "green"
    pool: str = "main"
    only: str = ""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def say(self, subject: str, body: bytes, headers: dict[str, str] | None = None, reply: str = "") -> None:
        await self.nats.publish(self.only or subject, body, reply, headers)

    async def submit(self, body: bytes, headers: dict[str, str] | None = None, user: str = "eve") -> None:
        await self.say(subjects.submit(self.team, "eve").removesuffix("eve") + user, body, headers)

    async def cancel(self, body: bytes) -> None:
        await self.say(subjects.cancel(self.team, "eve"), body)

    async def ask(self, what: str, body: bytes = b"{}", reply: str = "") -> None:
        pattern = BY_TYPE[f"io.baton.{what}.query.v1"].subject
        keys = {"pool": self.pool, "team": self.team, "user": "eve"}
        subject = subjects.fill(pattern, **{key: keys[key] for key in subjects.keys_in(pattern)})
        await self.say(subject, body, reply=reply or f"_INBOX_{self.team}.eve.x")


def _job(key: str, **more: object) -> bytes:
    return json.dumps({"client_key": key, "job": {"command": ["true"], "resources": {}}, **more}).encode()


async def _headers(bad: Hostile, number: int) -> None:
    """Without a key, so that they become dead letters."""
    await bad.submit(b"%d" % number, {f"a{n}": "" for n in range(_HEADERS)})


async def _bodies(bad: Hostile, number: int) -> None:
    await bad.submit(b'{"client_key": "%d", "x": "' % number + b"x" * _HUGE + b'"}')


async def _wrong(bad: Hostile, number: int) -> None:
    """Each of so many fields is wrong by itself."""
    await bad.submit(_job(f"{bad.run}-wrong-{number}", **dict.fromkeys(map(str, range(_FIELDS)), 1)))


async def _rubbish(bad: Hostile, number: int) -> None:
    await bad.submit(random.Random(number).randbytes(512))


async def _deep(bad: Hostile, number: int) -> None:
    await bad.submit((b'{"a":' if number % 2 else b"[") * 20_000)


async def _unknown(bad: Hostile, number: int) -> None:
    await bad.cancel(json.dumps({"job_id": job_id(bad.team, f"{bad.run}-never-{number}")}).encode())


async def _one_key(bad: Hostile, number: int) -> None:
    """The first is a job; all others have its key and another body."""
    await bad.submit(_job(f"{bad.run}-one", job={"command": ["true", str(number)], "simulation": {"duration_s": 0}}))


async def _replies(bad: Hostile, number: int) -> None:
    targets = (
        subjects.ledger(bad.pool), subjects.submit(bad.victim, "eve"), subjects.inbox("job", "admitted", bad.pool),
        subjects.event("succeeded", bad.victim), "$JS.API.STREAM.PURGE.REQUESTS", f"_INBOX_{bad.victim}.ana.x",
    )  # fmt: skip
    target = targets[number % len(targets)]
    if number % 2:
        await bad.ask("pool.status", reply=target)
    else:
        await bad.say(subjects.cancel(bad.team, "eve"), b"{}", reply=target)


async def _questions(bad: Hostile, number: int) -> None:
    what = ("pool.status", "job.list", "queue.list", "job.plan", "event.list")[number % 5]
    await bad.ask(what, b"{}" if what != "job.plan" else _PLAN)


_ODD: tuple[object, ...] = (
    10**30, -1, 2**63, 1e308, float("nan"), float("inf"), "x" * 20_000, "\x00", "\ud800", None, True, {}, {"a" * 300: 1},
    [[]] * 1_000, ["job-" + "f" * 32] * 2_000,
)  # fmt: skip


async def _odd_questions(bad: Hostile, number: int) -> None:
    """Every question that a team may ask, its fields filled with what no field means."""
    chance = random.Random(number)
    asked = [message for message in CATALOG if message.reply and message.subject.endswith("{team}.{user}")]
    message = asked[number % len(asked)]
    body = {name: chance.choice(_ODD) for name in message.model.model_fields}
    if "job" in body:
        body["job"] = {"command": ["x"], "resources": {name: chance.choice(_ODD) for name in Resources.model_fields}}
    said = json.dumps(body).encode()
    await bad.ask(message.type.removeprefix("io.baton.").removesuffix(".query.v1"), said[: 250 * 1024])


async def _others(bad: Hostile, number: int) -> None:
    """Cancels of a job of the victim, whose key is easily guessed, and words in its name, which the broker refuses."""
    if number % 2:
        await bad.cancel(json.dumps({"job_id": job_id(bad.victim, f"nightly-{number // 2}")}).encode())
    else:
        await bad.say(subjects.submit(bad.victim, "eve"), _job("forged"))


async def _names(bad: Hostile, number: int) -> None:
    keys = ("k" * 100_000, "\x00\x1b[2J", "\u202e" * 300, "a/../../b", "\ud800")
    user = ("eve", "u" * 900, "*", ">")[number % 4]
    await bad.submit(_job(keys[number % 5]), {"ce-id": "i" * 2_000, "Nats-Msg-Id": f"{bad.run}-{number}"}, user)


async def _versions(bad: Hostile, number: int) -> None:
    versions = (
        {"ce-specversion": "9.9", "ce-id": "1", "ce-source": "/x", "ce-type": "io.baton.job.submit.v1"},
        {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "io.baton.job.submit.v999"},
        {"content-type": "application/cloudevents+json"},
    )
    await bad.submit(_job(f"{bad.run}-v{number}"), dict(versions[number % 3]))


async def _subscriptions(bad: Hostile, number: int) -> None:
    made = [await bad.nats.subscribe(subjects.event(f"x{number}-{n}", bad.team)) for n in range(6)]
    for one in made:
        await one.unsubscribe()


KINDS: dict[str, Callable[[Hostile, int], Awaitable[None]]] = {
    "thousands of headers": _headers,
    "huge bodies": _bodies,
    "thousands of wrong fields": _wrong,
    "rubbish bytes": _rubbish,
    "deep JSON": _deep,
    "cancels of unknown jobs": _unknown,
    "one key, other bodies": _one_key,
    "foreign reply subjects": _replies,
    "questions": _questions,
    "questions filled with nonsense": _odd_questions,
    "other teams' jobs and subjects": _others,
    "long names and control characters": _names,
    "other versions": _versions,
    "a storm of subscriptions": _subscriptions,
}


def _runs(
    key: str, duration_s: float = 0.0, exit_code: int = 0, resources: dict[str, object] | None = None, **more: object
) -> bytes:
    """A submit of a job that is simulated."""
    job = {"simulation": {"duration_s": duration_s, "exit_code": exit_code}, "resources": resources or {}}
    return json.dumps({"client_key": key, "job": job | more}).encode()


def _of(bad: Hostile, key: str) -> bytes:
    """A cancel of the job of that key."""
    return json.dumps({"job_id": job_id(bad.team, key)}).encode()


async def _ended(bad: Hostile, number: int) -> None:
    key = f"{bad.run}-ended"
    await (bad.cancel(_of(bad, key)) if number else bad.submit(_runs(key)))


async def _running(bad: Hostile, number: int) -> None:
    key = f"{bad.run}-running"
    await (bad.cancel(_of(bad, key)) if number else bad.submit(_runs(key, _LONG_S)))


async def _repeats(bad: Hostile, number: int) -> None:
    await bad.submit(_runs(f"{bad.run}-repeat", _LONG_S))


async def _large_repeats(bad: Hostile, number: int) -> None:
    await bad.submit(_runs(f"{bad.run}-large", _LONG_S, env={f"E{n}": "x" * 4000 for n in range(50)}))


async def _impossible(bad: Hostile, number: int) -> None:
    await bad.submit(_runs(f"{bad.run}-impossible-{number}", resources={"devices": 600 + number % 1000}))


async def _wide(bad: Hostile, number: int) -> None:
    """Kinds of gangs as wide as the pool, of which the first job keeps one device: a thousand wait, the next are refused."""
    wide: dict[str, object] = {"devices": 512, "memory_mib": number} if number else {}
    await bad.submit(_runs(f"{bad.run}-wide-{number}", _LONG_S, resources=wide))


async def _nested(bad: Hostile, number: int) -> None:
    top = {"level": "node", "policy": "required"}
    roles = [
        {"name": "a", "count": 64, "devices": 5, "memory_mib": number, "topology": top},
        {"name": "b", "count": 64, "devices": 3, "topology": top},
    ]
    await bad.submit(_runs(f"{bad.run}-nested-{number}", _LONG_S, resources={"roles": roles} if number else {}))


async def _ends(bad: Hostile, number: int) -> None:
    await bad.submit(_runs(f"{bad.run}-ends-{number}"))


async def _fails(bad: Hostile, number: int) -> None:
    await bad.submit(_runs(f"{bad.run}-fails-{number}", exit_code=1, retry={"on_failure": 3}))


async def _pairs(bad: Hostile, number: int) -> None:
    key = f"{bad.run}-pair-{number // 2}"
    await (bad.cancel(_of(bad, key)) if number % 2 else bad.submit(_runs(key, _LONG_S)))


async def _early(bad: Hostile, number: int) -> None:
    """A cancel, and then its submit."""
    key = f"{bad.run}-early-{number // 2}"
    await (bad.submit(_runs(key)) if number % 2 else bad.cancel(_of(bad, key)))


async def _admins(bad: Hostile, number: int) -> None:
    await bad.ask("team.manage", b'{"what": "list"}')


COMMANDS: dict[str, Callable[[Hostile, int], Awaitable[None]]] = {
    "cancels of unknown jobs, alone": _unknown,
    "cancels of an ended job": _ended,
    "cancels of a job that is being stopped": _running,
    "repeats of a job": _repeats,
    "repeats of 200 KB": _large_repeats,
    "jobs that no pool could hold": _impossible,
    "an admin's questions, without being one": _admins,
    "kinds of gangs as wide as the pool": _wide,
    "kinds of nested gangs": _nested,
    "cancels before their submits": _early,
    "submits, each cancelled at once": _pairs,
    "jobs that fail and are retried": _fails,
    "jobs that end at once": _ends,
}


async def attacker(address: Address, team: str, victim: str = "green", only: str = "") -> Hostile:
    """Connected without our client, whose checks would be in the way; what the broker refuses is not looked at."""

    async def ignored(_: Exception) -> None:
        """An attacker goes on."""

    prefix = subjects.reply_prefix(team, "eve")
    made = await nats.connect(
        address.url.split(","), error_cb=ignored, inbox_prefix=prefix, pending_size=64 << 20, **address.options()
    )
    return Hostile(made, team, victim, only=only)


async def _run(options: argparse.Namespace) -> int:
    creds = os.environ.get("BATON_NATS_CREDS", "")
    address = Address(os.environ["BATON_NATS_URL"], Path(creds) if creds else None)
    kinds = [(KINDS | COMMANDS)[name] for name in options.kind or KINDS]
    bad = await attacker(address, options.team, options.victim, CONTROL if options.control else "")
    began, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < options.seconds:
        for number in range(sent, int(elapsed * options.rate)):
            await kinds[number % len(kinds)](bad, number // len(kinds))
            sent += 1
        await asyncio.sleep(_STEP_S)
    await bad.nats.close()
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("team")
    parser.add_argument("--victim", default="green")
    parser.add_argument(
        "--kind", choices=list(KINDS | COMMANDS), action="append", help="these alone; default: all, in turns"
    )
    parser.add_argument("--rate", type=float, required=True, help="messages/s")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--control", action="store_true", help="the same bytes to a subject that nobody reads")
    print(asyncio.run(_run(parser.parse_args())))


if __name__ == "__main__":
    main()
