"""On a broker with accounts: who else tries to be given a secret."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from libs.bus.asking import NoAnswer, QueryError, ask
from libs.bus.boxes import BoxKey, ForNode
from libs.bus.connect import Address, close, connect
from libs.bus.table import SECRETS_BUCKET
from libs.client import connect as connect_client
from libs.walls import roles
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.secrets import NodeSecrets, NodeSecretsQuery
from services.vault.app import make_app
from services.vault.settings import VaultSettings
from tests.admission.running import running
from tests.core.builders import World, node
from tests.kit.waiting import until
from tests.redis.ledgers import chain, store
from tests.vault.test_vault import naming
from tests.walls.world import broker

QUESTION = BY_TYPE["io.baton.node.secrets.query.v1"]
KEY = BoxKey.new()


def test_vault_alone_writes_what_is_stored() -> None:
    for service in roles.SERVICES:
        may = [subject for subject in roles.service_may(service) if SECRETS_BUCKET in subject and "GET" not in subject]
        assert bool(may) == (service == "vault"), service
    assert not [subject for subject in subjects.operator_may() if SECRETS_BUCKET in subject]


async def delivered_question(operator: Client, query: NodeSecretsQuery, held: str) -> list[Msg]:
    """An operator may not ask as a node, but may store a message and have the broker deliver it where nodes ask; what
    comes back is an acknowledgement to the broker, which he may read."""
    heard: list[Msg] = []

    async def note(msg: Msg) -> None:
        heard.append(msg)

    await operator.subscribe("$JS.ACK.>", cb=note)
    js = operator.jetstream()
    stored = await js.publish(subjects.submit("blue", "mallory"), query.model_dump_json().encode())
    config = ConsumerConfig(
        deliver_subject=subjects.fill(subjects.NODE_SECRETS, pool="main", node=held),
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=stored.seq,
        deliver_group="vault",
        ack_policy=AckPolicy.EXPLICIT,
    )
    await js.add_consumer("REQUESTS", config)
    return heard


async def test_nobody_but_the_node_is_given_a_secret(tmp_path: Path) -> None:
    with broker(tmp_path / "broker") as (url, ring):
        connections: list[Client] = []

        async def as_(creds: Path, prefix: str | None = None) -> Client:
            made = await connect(Address(url, creds), name="test", inbox_prefix=prefix)
            connections.append(made)
            return made

        core = await as_(ring.service())
        world = World(node("n1", 1), node("n2", 1))
        one = world.submit(naming("blue", "one", "token"))
        (held,) = world.nodes_of(one)
        other = "n2" if held == "n1" else "n1"
        await store(core.jetstream(), "main", chain("main", world.records))
        query = NodeSecretsQuery(job_id=one, attempt=1, key=KEY.public, nonce="0" * 32)
        settings = VaultSettings(
            nats_url=url, nats_creds=ring.service("vault"), pool="main", keys=tmp_path / "keys.json"
        )

        async def asked(nats: Client, name: str, timeout_s: float = 30.0) -> NodeSecrets:
            answer: Any = await ask(nats, QUESTION, query, pool="main", node=name, timeout_s=timeout_s)
            assert isinstance(answer, NodeSecrets)
            return answer

        async with running(make_app(settings)), await connect_client(Address(url, ring.team("blue")), "blue") as blue:
            await until(lambda: _answers(blue))
            await blue.set_secret("token", b"value")
            holder = await as_(ring.node("main", held), subjects.node_reply_prefix("main", held))
            answer = await asked(holder, held)
            assert KEY.open_as(answer.sealed, ForNode).secrets["token"].plain() == b"value"
            stranger = await as_(ring.node("main", other), subjects.node_reply_prefix("main", other))
            with pytest.raises(QueryError, match="holds no part"):
                await asked(stranger, other)
            operator = await as_(ring.operator(), "_INBOX_operator.ana")
            team = await as_(ring.team("blue"), "_INBOX_blue.ana")
            for nats in (stranger, operator, team, await as_(ring.service("queries"), "_INBOX.queries")):
                with pytest.raises(NoAnswer):
                    await asked(nats, held, timeout_s=0.3)
            heard = await delivered_question(operator, query, held)
            assert await asked(holder, held), "what was delivered before is dealt with"
            await asyncio.sleep(0.2)
            assert not [msg for msg in heard if b"sealed" in msg.data]
        for connection in connections:
            await close(connection)


async def _answers(team: Any) -> bool:
    try:
        await team.secrets()
    except Exception:
        return False
    return True
