"""One broker with walls for a whole module of attacks: teams blue and green, a pool, a service that answers, and spies."""

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.connect import Address
from libs.bus.streams import provision
from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.walls import broker_claims, claims
from libs.walls.claims import KeyKind, KeyPair
from libs.walls.keyring import Keyring
from schemas import subjects
from tests.client.loop import LoopInBackground

ANSWERED = (subjects.anyone(subjects.QUESTION), subjects.anyone(subjects.POOL_QUESTION))


@dataclass(frozen=True)
class Attacker:
    """Who attacks: its account, what it may say, where its answers come, which streams take what it says."""

    account: str
    stored: str
    question: str
    others: tuple[str, ...]
    replies: str
    streams: tuple[str, ...]

    @property
    def says(self) -> tuple[str, ...]:
        return (self.stored, self.question, *self.others)


TEAM = Attacker(
    "blue",
    subjects.submit("blue", "mallory"),
    "baton.qry.job.v1.get.blue.mallory",
    (subjects.cancel("blue", "mallory"), "baton.qry.pool.v1.status.main.blue.mallory"),
    "_INBOX_blue.mallory",
    ("REQUESTS",),
)
NODE = Attacker(
    "@main.n1",
    "baton.in.node.v1.observed.main.n1",
    "baton.qry.node.v1.desired.main.n1",
    ("baton.tel.node.v1.heartbeat.main.n1", "baton.tel.node.v1.sample.main.n1"),
    "_NODE_main.n1",
    ("INBOX-main", "TELEMETRY"),
)


@contextmanager
def broker(folder: Path) -> Iterator[tuple[str, Keyring]]:
    """(URL, keyring) of a broker in operator mode with the streams of the pool `main`."""
    ring = Keyring(folder)
    for team in ("blue", "green", "blue.ana"):
        ring.team(team)
    ring.service(), ring.operator(), ring.nodes("main"), ring.node("main", "n1"), ring.node("main", "n2")

    async def start() -> Servers:
        servers = Servers(
            folder, ServerOptions(run=("nats",), nats=NatsOptions(trust=broker_claims.trust(ring), sync_always=False))
        )
        await servers.start()
        core = await nats.connect(servers.nats_url, **Address("", ring.service()).options())
        await provision(core.jetstream(), ["main"], scale=0.01)
        await core.close()
        return servers

    with LoopInBackground() as loop:
        servers = loop.run(start())
        try:
            yield servers.nats_url, ring
        finally:
            loop.run(servers.stop())


def unrestricted(ring: Keyring, team: str, seed: str = "") -> str:
    """The text of a credential of `team` without any permissions of its own: what is kept apart then, the account keeps."""
    keys = ring.keys()
    owner = keys.nodes[team[1:]] if team.startswith("@") else keys.teams[team]
    key = KeyPair.of(KeyKind.USER, secrets.token_bytes(32))
    said = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    signer = KeyPair(seed or owner.seed)
    token = claims.claim(signer, key.public, team, {**said, "issuer_account": owner.public}, issued_s=int(time.time()))
    return claims.credentials(token, key)


class World:
    """An attacker, the services' side, and who listens everywhere. `async with World(...)`."""

    def __init__(self, url: str, ring: Keyring, who: Attacker, creds: Path | str) -> None:
        self.url, self.ring, self.who, self._creds = url, ring, who, creds
        self.core_heard: list[Msg] = []
        self.green_heard: list[str] = []
        self.blue_heard: list[Msg] = []
        self.errors: list[str] = []
        self._connections: list[Client] = []

    async def connect(self, creds: Path | str, **options: Any) -> Client:
        async def note(error: Exception) -> None:
            self.errors.append(str(error))

        made = await nats.connect(self.url, error_cb=note, **Address("", creds).options(), **options)
        self._connections.append(made)
        return made

    async def attacker(self) -> Client:
        """One connection more of the attacker."""
        return await self.connect(self._creds, inbox_prefix=self.who.replies)

    async def __aenter__(self) -> "World":
        self.core = await self.connect(self.ring.service())
        self.js = self.core.jetstream()
        green = await self.connect(unrestricted(self.ring, "green"))
        self.green = await self.connect(self.ring.team("green"), inbox_prefix="_INBOX_green.eve")
        self.bad = await self.attacker()

        async def core_hears(message: Msg) -> None:
            self.core_heard.append(message)

        async def green_hears(message: Msg) -> None:
            self.green_heard.append(message.subject)

        async def answer(message: Msg) -> None:
            await message.respond(b"forged answer")

        await self.core.subscribe(">", cb=core_hears)
        for pattern in ANSWERED:
            await self.core.subscribe(pattern, queue="queries", cb=answer)
        await green.subscribe(">", cb=green_hears)
        for connection in self._connections:
            for _ in range(2):  # nats-py writes a flush's PING ahead of what is buffered
                await connection.flush()
        self.before = await self.stored()
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections:
            await connection.close()

    async def stored(self) -> Mapping[str, int]:
        """How many messages each stream has, but those that take what the attacker says."""
        infos = await self.js.streams_info()
        return {i.config.name: i.state.last_seq for i in infos if i.config.name not in self.who.streams}

    async def settle(self) -> None:
        """Until all that was said so far is dealt with: the attacker's own message is stored and its own question answered
        after it, over the connection and in the order of the attack."""
        await self.bad.flush()
        await self.bad.request(self.who.stored, b"{}", timeout=10)
        await self.bad.request(self.who.question, b"{}", timeout=10)
        await asyncio.sleep(0)
        await self.core.flush()

    async def nothing_happened(self) -> None:
        """Nothing but the attacker's own words reached anybody, and no stream but those for them has anything new."""
        await self.settle()
        assert await self.stored() == self.before
        assert self.green_heard == []
        assert any(message.subject == self.who.question for message in self.core_heard), "the spy hears"
        foreign = [
            message.subject
            for message in self.core_heard
            if message.subject not in self.who.says
            and not message.subject.startswith(("_R_.", "$JS.EVENT.", "_INBOX.", "$JS.API.STREAM.LIST"))
        ]
        assert foreign == []


def fill(entity: str, what: str, team: str = "blue", user: str = "mallory") -> str:
    return subjects.fill(subjects.QUESTION, entity=entity, what=what, team=team, user=user)
