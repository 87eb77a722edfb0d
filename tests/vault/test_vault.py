"""The service in this process, on a real broker: who is answered, limits, versions, keys, two processes."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeout
from nats.js.kv import KeyValue
from prometheus_client import CollectorRegistry

from libs.bus.asking import FAILED, INVALID, NOT_FOUND, NoAnswer, QueryError, ask
from libs.bus.boxes import BoxKey, ForNode, ForVault, close_box, encoded
from libs.bus.messages import Outgoing
from libs.bus.queries import AskAgain
from libs.bus.secret_names import NAMES_OF, SecretNames
from libs.bus.table import CURSORS_BUCKET, SECRETS_BUCKET
from schemas import inbox, subjects
from schemas.audit import line_hash
from schemas.catalog import BY_TYPE
from schemas.jobs import JobSpec, SecretUse
from schemas.secrets import (
    SECRETS_OF_A_TEAM,
    TEAM_BYTES,
    VALUE_BYTES,
    NodeSecretsQuery,
    SecretListQuery,
    SecretRekey,
    SecretRemove,
    SecretSet,
)
from services.vault import changes
from services.vault.app import Vault, make_app
from services.vault.book import ChangesBook
from services.vault.changes import Requester
from services.vault.keys import BadKeys, KeyFile
from services.vault.settings import VaultSettings
from services.vault.store import TeamSecrets
from tests.admission.running import running
from tests.core.builders import World, job, node
from tests.kit.waiting import stored as kept
from tests.kit.waiting import until
from tests.redis.ledgers import chain, store

NODE_KEY = BoxKey.new()
NONCE = "0f" * 16


class Bench:
    """A pool with one or two processes of vault, and who asks them."""

    def __init__(self, nats: Client, url: str, pool: str, folder: Path, **settings: Any) -> None:
        self.nats, self.pool = nats, pool
        self.keys = folder / "vault" / "keys.json"
        self.settings = VaultSettings(
            nats_url=url, insecure=True, pool=pool, keys=self.keys, seen_wait_s=0.2, **settings
        )

    @asynccontextmanager
    async def open(self, processes: int = 1) -> AsyncIterator[None]:
        """So many processes of vault, which answer."""
        async with AsyncExitStack() as stack:
            for _ in range(processes):
                await stack.enter_async_context(running(make_app(self.settings)))

            async def answers() -> bool:
                with suppress(NoAnswer):
                    await self.ask("list", SecretListQuery(), "somebody")
                    return True
                return False

            await until(answers)
            yield

    async def ask(self, what: str, query: Any, team: str) -> Any:
        question = BY_TYPE[f"io.baton.secret.{what}.query.v1"]
        return await ask(self.nats, question, query, timeout_s=30, team=team, user="ana")

    async def set(self, team: str, name: str, value: bytes, *, seal_as: tuple[str, str] | None = None) -> Any:
        key = (await self.ask("list", SecretListQuery(), team)).key
        for_team, for_name = seal_as or (team, name)
        sealed = close_box(key, ForVault(team=for_team, name=for_name, value=encoded(value)))
        return await self.ask("set", SecretSet(name=name, key=key, sealed=sealed), team)

    async def for_node(self, node: str, job_id: str, attempt: int = 1) -> dict[str, tuple[int, bytes]]:
        """What a node is given: version and value by name. A missing name is version 0."""
        question = BY_TYPE["io.baton.node.secrets.query.v1"]
        query = NodeSecretsQuery(job_id=job_id, attempt=attempt, key=NODE_KEY.public, nonce=NONCE)
        answer = await ask(self.nats, question, query, timeout_s=30, pool=self.pool, node=node)
        if answer.missing:
            assert not answer.sealed
            return dict.fromkeys(answer.missing, (0, b""))
        inside = NODE_KEY.open_as(answer.sealed, ForNode)
        assert (inside.pool, inside.node, inside.job_id, inside.attempt, inside.nonce) == (
            self.pool, node, job_id, attempt, NONCE,
        )  # fmt: skip
        return {name: (secret.version, secret.plain()) for name, secret in inside.secrets.items()}


@pytest.fixture
def bench(nats: Client, nats_url: str, pool: str, tmp_path: Path) -> Bench:
    return Bench(nats, nats_url, pool, tmp_path)


def naming(team: str, key: str, *names: str) -> inbox.JobAdmitted:
    admitted = job(key, team=team)
    uses = tuple(SecretUse(secret=name) for name in names)
    return admitted.model_copy(update={"spec": admitted.spec.model_copy(update={"secrets": uses})})


async def refused(asked: Any, status: str, text: str) -> None:
    with pytest.raises(QueryError, match=text) as error:
        await asked
    assert error.value.status == status


async def test_versions_a_list_without_values_and_a_removal(bench: Bench, team: str) -> None:
    async with bench.open():
        assert (await bench.set(team, "token", b"one")).version == 1
        assert (await bench.set(team, "token", b"one")).version == 1, "the same value again is no new version"
        for n in range(2, 5):
            assert (await bench.set(team, "token", b"%d" % n)).version == n
        await bench.set(team, "other", b"")
        told = (await bench.ask("list", SecretListQuery(), team)).secrets
        assert [(info.name, info.version, info.bytes, info.kept) for info in told] == [
            ("other", 1, 0, (1,)),
            ("token", 4, 1, (4, 3)),
        ]
        assert (await bench.ask("remove", SecretRemove(name="token"), team)).names == ("token",)
        await refused(bench.ask("remove", SecretRemove(name="token"), team), NOT_FOUND, "no secret of this name")
        assert (await bench.ask("remove", SecretRemove(team=team), "operator")).names == ("other",)
        bucket = await bench.nats.jetstream().key_value(SECRETS_BUCKET)
        left = json.loads((await bucket.get(team)).value or b"")
        assert left == {"secrets": {}, "removed": 4, "outbox": []}, (
            "nothing of the team's is left but where its versions go on"
        )


async def test_a_team_reaches_its_own_secrets_alone(bench: Bench, team: str) -> None:
    async with bench.open():
        other = f"{team}-o"
        await bench.set(team, "token", b"mine")
        assert (await bench.ask("list", SecretListQuery(), other)).secrets == ()
        for query in (SecretListQuery(team=team), SecretRemove(name="token", team=team)):
            what = "list" if isinstance(query, SecretListQuery) else "remove"
            await refused(bench.ask(what, query, other), INVALID, "another team")
        await refused(bench.ask("remove", SecretRemove(name="token"), other), NOT_FOUND, "no secret")
        await refused(bench.ask("remove", SecretRemove(), team), INVALID, "which secret is not said")
        await refused(bench.ask("rekey", SecretRekey(), team), INVALID, "only an operator")
        await refused(bench.ask("list", SecretListQuery(), "operator"), INVALID, "name the team")


async def test_a_value_that_was_sealed_for_another_place_is_refused(bench: Bench, team: str) -> None:
    """Whoever sees another team's question cannot make its value his own."""
    async with bench.open():
        for seal_as in ((f"{team}-o", "token"), (team, "another")):
            await refused(bench.set(team, "token", b"x", seal_as=seal_as), INVALID, "another secret's")
        key = (await bench.ask("list", SecretListQuery(), team)).key
        await refused(
            bench.ask("set", SecretSet(name="a", key=key, sealed="AAAA"), team), INVALID, "no value that is sealed"
        )
        box = close_box(key, ForVault(team=team, name="a", value="not base64!"))
        await refused(
            bench.ask("set", SecretSet(name="a", key=key, sealed=box), team), INVALID, "no value that is sealed"
        )
        box = close_box(key, SecretListQuery())
        await refused(
            bench.ask("set", SecretSet(name="a", key=key, sealed=box), team), INVALID, "no value that is sealed"
        )
        unknown = BoxKey.new().public
        await refused(
            bench.ask("set", SecretSet(name="a", key=unknown, sealed=box), team), INVALID, "does not have this key"
        )


async def test_a_value_that_was_long_on_its_way_undoes_no_newer_one(bench: Bench, team: str) -> None:
    """A vault was frozen with a question whose sender had gone on, and carried it out after the next version was set."""
    async with bench.open():
        asked: list[SecretSet] = []
        for value in (b"one", b"two", b"three"):
            held = await bench.ask("list", SecretListQuery(), team)
            sealed = close_box(held.key, ForVault(team=team, name="token", value=encoded(value)))
            asked.append(SecretSet(name="token", key=held.key, sealed=sealed, replaces=held.version_of("token")))
            assert (await bench.ask("set", asked[-1], team)).version == len(asked)
        for late in asked[:2]:
            await refused(bench.ask("set", late, team), FAILED, "is at version 3 by now")
        assert (await bench.ask("set", asked[-1], team)).version == 3, "what is there already is no other version"
        assert (await bench.ask("list", SecretListQuery(), team)).version_of("token") == 3


async def test_a_value_that_was_long_on_its_way_does_not_undo_a_removal(bench: Bench, team: str) -> None:
    async with bench.open():

        async def sealed(value: bytes, **seen: int | None) -> SecretSet:
            held = await bench.ask("list", SecretListQuery(), team)
            box = close_box(held.key, ForVault(team=team, name="token", value=encoded(value)))
            seen = {"replaces": held.version_of("token"), "removed": held.removed} | seen
            return SecretSet(name="token", key=held.key, sealed=box, **seen)

        first = await sealed(b"one")
        assert (await bench.ask("set", first, team)).version == 1
        await bench.ask("remove", SecretRemove(name="token"), team)
        await refused(bench.ask("set", first, team), FAILED, "was removed at version 1 since token was sent")
        again = await sealed(b"two")
        assert (await bench.ask("set", again, team)).version == 2, "no version comes twice"
        await bench.ask("remove", SecretRemove(name="token"), team)
        await refused(bench.ask("set", again, team), FAILED, "was removed at version 2")
        before = await sealed(b"three", removed=None)
        assert (await bench.ask("set", before, team)).version == 3, "a client of before says nothing of removals"


async def test_a_removal_that_was_long_on_its_way_takes_no_newer_version(bench: Bench, team: str) -> None:
    """A vault was frozen with it; its sender asked again, and set another value."""
    async with bench.open():
        await bench.set(team, "token", b"one")
        seen = await bench.ask("list", SecretListQuery(), team)
        late = SecretRemove(name="token", removes=seen.version_of("token"))
        assert seen.revision is None, "it counts what other teams change, too"
        of_all = await bench.ask("list", SecretListQuery(team=team), "operator")
        late_all = SecretRemove(team=team, revision=of_all.revision)
        await bench.set(team, "token", b"two")
        await refused(bench.ask("remove", late, team), FAILED, "is at version 2 by now, not 1")
        await refused(bench.ask("remove", late_all, "operator"), FAILED, "were changed since they were looked at")
        await bench.ask("remove", SecretRemove(name="token", removes=2), team)
        await bench.set(team, "token", b"after the removal")
        for version in (1, 2):
            await refused(
                bench.ask("remove", SecretRemove(name="token", removes=version), team), FAILED, "at version 3"
            )
        await refused(bench.ask("remove", late_all, "operator"), FAILED, "were changed since they were looked at")
        held = await bench.ask("list", SecretListQuery(team=team), "operator")
        assert held.version_of("token") == 3
        assert (await bench.ask("remove", SecretRemove(team=team, revision=held.revision), "operator")).names == (
            "token",
        )


async def test_the_last_secret_goes_from_a_store_that_takes_no_more(bench: Bench, team: str) -> None:
    js, stream = bench.nats.jetstream(), f"KV_{SECRETS_BUCKET}"
    async with bench.open():
        await bench.set(team, "token", b"x" * 1000)
        config = (await js.stream_info(stream)).config
        try:
            await js.update_stream(config, max_bytes=1)
            await refused(bench.set(team, "other", b"y"), FAILED, "takes no more")
            assert (await bench.ask("remove", SecretRemove(name="token"), team)).names == ("token",)
            assert (await bench.ask("list", SecretListQuery(), team)).secrets == ()
        finally:
            await js.update_stream(config)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a b", "-x", ".hidden", "a" * 64, "a\0", "ä", "a\n", "$KV"]
)
async def test_hostile_names_are_refused(bench: Bench, team: str, name: str) -> None:
    async with bench.open():
        question = BY_TYPE["io.baton.secret.set.query.v1"]
        body = json.dumps({"name": name, "key": NODE_KEY.public, "sealed": "AAAA"}).encode()
        reply = await bench.nats.request(question.subject.format(team=team, user="ana"), body, timeout=30)
        assert (reply.headers or {})["Baton-Status"] == INVALID
        with pytest.raises(ValueError):
            JobSpec(command=("x",), secrets=({"secret": name},))
        with pytest.raises(ValueError):
            JobSpec(command=("x",), secrets=({"secret": "a", "file": name},))


async def test_limits_are_named(nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path) -> None:
    bench = Bench(nats, nats_url, pool, tmp_path, asked_at_once=SECRETS_OF_A_TEAM * 4, asked_per_s=0.001)
    async with bench.open():
        await refused(bench.set(team, "large", b"x" * (VALUE_BYTES + 1)), INVALID, f"at most {VALUE_BYTES} bytes")
        for n in range(TEAM_BYTES // VALUE_BYTES):
            await bench.set(team, f"full-{n}", b"x" * VALUE_BYTES)
        await refused(bench.set(team, "one-more", b"x"), INVALID, f"at most {TEAM_BYTES} bytes together")
        await bench.ask("remove", SecretRemove(team=team), "operator")
        for n in range(SECRETS_OF_A_TEAM):
            await bench.set(team, f"s{n}", b"x")
        await refused(bench.set(team, "one-more", b"x"), INVALID, f"at most {SECRETS_OF_A_TEAM} secrets")
        answers = [bench.ask("list", SecretListQuery(), team) for _ in range(SECRETS_OF_A_TEAM * 4)]
        errors = [
            told for told in await asyncio.gather(*answers, return_exceptions=True) if isinstance(told, QueryError)
        ]
        assert errors
        assert all("may ask 0.001 questions about secrets a second" in str(error) for error in errors)
        await bench.ask("list", SecretListQuery(), f"{team}-o")


async def test_a_node_is_given_what_its_attempt_names_while_it_is_to_run(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    world = World(node("n1", 1), node("n2", 1))
    one = world.submit(naming(team, "one", "token"))
    (held,) = world.nodes_of(one)
    other = "n2" if held == "n1" else "n1"
    plain = world.submit(job("plain", team=team))
    stopping = world.submit(naming(team, "waits", "token"))
    ledger = chain(pool, world.records)
    js = nats.jetstream()
    await store(js, pool, ledger)
    bench = Bench(nats, nats_url, pool, tmp_path)
    async with bench.open():
        assert await bench.for_node(held, one) == {"token": (0, b"")}, "missing"
        await bench.set(team, "token", b"first")
        await bench.set(f"{team}-o", "token", b"another team's")
        assert await bench.for_node(held, one) == {"token": (1, b"first")}
        await bench.set(team, "token", b"second")
        assert await bench.for_node(held, one) == {"token": (2, b"second")}
        for name, job_id, attempt in (
            (other, one, 1), (held, one, 2), (held, plain, 1), (other, plain, 1), (held, stopping, 1), ("n3", one, 1),
            (held, "job-" + "0" * 32, 1),
        ):  # fmt: skip
            await refused(bench.for_node(name, job_id, attempt), NOT_FOUND, "holds no part")
        world.started(one)
        world.released(one)
        again = chain(pool, world.records)[len(ledger) :]
        await store(js, pool, again)
        question = BY_TYPE["io.baton.node.secrets.query.v1"]
        query = NodeSecretsQuery(job_id=one, attempt=1, key=NODE_KEY.public, nonce=NONCE)
        with pytest.raises(QueryError, match="holds no part"):
            await ask(nats, question, query, timeout_s=30, at_least=again[-1].seq, pool=pool, node=held)


async def test_an_entry_in_anothers_place_does_not_open(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    """Whoever can write to the bucket gives no team another's value, nor an old version for a new one."""
    world = World(node("n1", 1))
    one = world.submit(naming(team, "one", "token"))
    await store(nats.jetstream(), pool, chain(pool, world.records))
    bench = Bench(nats, nats_url, pool, tmp_path)
    async with bench.open():
        await bench.set(f"{team}-o", "token", b"another team's")
        bucket = await nats.jetstream().key_value(SECRETS_BUCKET)
        await bucket.put(team, (await bucket.get(f"{team}-o")).value or b"")
        await refused(bench.for_node("n1", one), "failed", "was not stored there")
        await bench.set(team, "token", b"mine")
        assert (await bench.for_node("n1", one))["token"][1] == b"mine"


async def test_two_processes_and_another_master_key(
    nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(node("n1", 1))
    names = [f"s{n}" for n in range(12)]
    one = world.submit(naming(team, "one", *names))
    await store(nats.jetstream(), pool, chain(pool, world.records))
    bench = Bench(nats, nats_url, pool, tmp_path)
    async with bench.open(processes=2):
        before = (await bench.ask("list", SecretListQuery(), team)).key
        old = bench.keys.read_text()
        infos = await asyncio.gather(*(bench.set(team, name, b"at once") for name in names))
        assert [info.version for info in infos] == [1] * len(names), "none was lost"
        changing = asyncio.gather(*(bench.set(team, name, name.encode()) for name in names), return_exceptions=True)
        done = await bench.ask("rekey", SecretRekey(), "operator")
        for name, outcome in zip(names, await changing, strict=True):
            if isinstance(outcome, QueryError):  # it was sealed to the key that has just gone: a client does it again
                assert "does not have this key" in str(outcome)
                await bench.set(team, name, name.encode())
        assert done.key != before
        assert done.values >= len(names)
        assert json.loads(old)["keys"][0] not in bench.keys.read_text(), "the old key is gone"
        given = await bench.for_node("n1", one)
        assert {name: value for name, (_, value) in given.items()} == {name: name.encode() for name in names}
    async with bench.open():  # a vault of later
        assert (await bench.for_node("n1", one)).keys() == set(names)
    bench.keys.write_text(old)
    async with bench.open():
        await refused(
            bench.for_node("n1", one), "failed", "put that file back from its backup, or set the secret again"
        )
        assert "no job that needs it starts: secret s" in caplog.text, "an operator reads vault's log first"
        for name in names:
            await bench.set(team, name, b"set again")
        assert {value for _, value in (await bench.for_node("n1", one)).values()} == {b"set again"}


def test_the_file_of_the_master_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "vault" / "keys.json"
    made = KeyFile(path)
    assert f"a master key was made, {path}: back it up" in caplog.text, "so it is seen that it is not the one of before"
    caplog.clear()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert KeyFile(path).newest.id == made.newest.id, "a second process has the same"
    with pytest.raises(RuntimeError), made.rekeying():
        raise RuntimeError("in the midst")
    assert [key.id for key in KeyFile(path).keys][1:] == [made.keys[1].id], "both are there"
    with made.rekeying():
        assert len(KeyFile(path).keys) == 3
    assert len(KeyFile(path).keys) == 1
    assert "keys" not in repr(vars(made.newest)) or made.newest._store not in repr(made.newest).encode()
    os.chmod(path, 0o640)
    with pytest.raises(BadKeys, match="chmod 600"):
        KeyFile(path)
    os.chmod(path, 0o600)
    secret = json.loads(path.read_text())["keys"][0]
    path.write_text(path.read_text().replace('"version": 1', '"version": 7'))
    with pytest.raises(BadKeys, match="BATON_VAULT_KEYS names another file") as error:
        KeyFile(path)  # the broker's keys have the same name, in the state directory of who administers
    assert secret not in str(error.value)
    assert not caplog.text


async def test_who_judges_a_teams_jobs_knows_the_names_of_its_secrets(bench: Bench, team: str) -> None:
    """As soon as `set` or `remove` is answered, through a crash between the two writes, and nothing but names."""
    js, other = bench.nats.jetstream(), f"{team}-o"

    async def known(of: str) -> tuple[str, ...] | None:
        names = SecretNames(js)
        await names.learn([(of, b'{"job": {"secrets": []}}'), (other, b"{}")])
        assert names.of(other) is None or of == other, "it is asked for who names secrets alone"
        return names.of(of)

    async with bench.open(2):
        await bench.set(team, "token", b"a value")
        assert await known(team) == ("token",)
        assert await known(other) == (), "a team that has none"
        await asyncio.gather(*(bench.set(team, f"s{n}", b"a value") for n in range(6)))
        assert await known(team) == (*(f"s{n}" for n in range(6)), "token")
        await bench.ask("remove", SecretRemove(name="s3"), team)
        assert "s3" not in (await known(team) or ("s3",))
        cursors = await js.key_value(CURSORS_BUCKET)
        key = NAMES_OF.format(team=team)
        assert b"a value" not in ((await cursors.get(key)).value or b"")
    await cursors.delete(key)
    await cursors.put(NAMES_OF.format(team=other), b'{"at": 4, "names": ["gone"]}')
    async with bench.open():
        assert await known(team) == ("s0", "s1", "s2", "s4", "s5", "token"), (
            "what a crash left out is told at the start"
        )
        assert await known(other) == ()
        await bench.set(other, "gone", b"back")
        assert await known(other) == ("gone",)
        await bench.ask("remove", SecretRemove(team=team), "operator")
        assert await known(team) == ()
        await bench.set(team, "again", b"1")
        assert await known(team) == ("again",)


async def test_the_ledger_is_told_who_changed_which_secret(bench: Bench, team: str) -> None:
    """Before the answer, in a chain of lines, with nothing of a value; and no more of them than a team may cause."""
    bench.settings = bench.settings.model_copy(update={"changes_at_once": 5, "changes_per_s": 0.001})
    stream = subjects.inbox_stream(bench.pool)
    async with bench.open():
        await bench.set(team, "token", b"a value")
        await bench.set(team, "token", b"another")
        await bench.ask("remove", SecretRemove(name="token"), team)
        await refused(bench.ask("remove", SecretRemove(name="token"), team), NOT_FOUND, "no secret")
        await bench.ask("remove", SecretRemove(team=f"{team}-o"), "operator")
        await bench.set(team, "token", b"again")
        await refused(bench.set(team, "token", b"too often"), FAILED, "5 changes of secrets at once")
        subject = subjects.inbox("secret", "changed", bench.pool)
        told = [message.data for message in await kept(bench.nats.jetstream(), stream, subject)]
        lines = [inbox.SecretChanged.model_validate_json(m) for m in told]
        assert [(line.team, line.user, line.action.what, line.action.target) for line in lines] == [
            (team, "ana", what, f"{team}/token") for what in ("secret.set", "secret.set", "secret.remove", "secret.set")
        ]
        assert [line.action.detail for line in lines] == ["version 1", "version 2", "", "version 3"]
        assert [line.action.number for line in lines] == [1, 2, 3, 4]
        for before, after in pairwise(lines):
            assert after.action.prev_hash == line_hash(before.action)
        assert not any(b"value" in message or b"again" in message for message in told)


async def test_nothing_is_changed_while_the_ledger_takes_no_line(bench: Bench, team: str) -> None:
    """A line that could not be told comes before the next."""
    outbox, full = Taking(), [""]
    book = ChangesBook("main", outbox, lambda items: full[0])  # type: ignore[arg-type]
    ana, olga = Requester("red", "ana"), Requester("operator", "olga")
    await book.changed([ana.note("secret.set", "red/a")])
    full[0] = "the inbox is full"
    set_b = ana.note("secret.set", "red/b")
    with pytest.raises(AskAgain, match="say it again"):
        await book.changed([set_b])
    with pytest.raises(AskAgain):
        await book.ready()
    full[0] = ""
    await book.changed([set_b, olga.note("secret.remove", "red/b")])
    lines = [inbox.SecretChanged.model_validate_json(item.payload) for item in outbox.taken]
    assert [(line.action.number, line.action.target, line.team) for line in lines] == [
        (1, "red/a", "red"),
        (2, "red/b", "red"),
        (3, "red/b", ""),
    ], "and one that was told by and by has one line"


async def test_a_change_that_was_stored_and_never_told_is_told_later(
    bench: Bench, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a full disk: the list had the new version, and the audit had no line; a vault killed in between does the same."""
    monkeypatch.setattr(changes, "OVERDUE_S", 0.3)
    other = f"{team}-o"
    js = bench.nats.jetstream()
    entries = await js.key_value(SECRETS_BUCKET)

    async def lines(of: str) -> list[str]:
        told = await kept(js, subjects.inbox_stream(bench.pool), subjects.inbox("secret", "changed", bench.pool))
        read = [inbox.SecretChanged.model_validate_json(message.data) for message in told]
        return [line.action.detail or line.action.what for line in read if line.team == of]

    async def notes(of: str) -> int:
        return len(TeamSecrets.model_validate_json((await entries.get(of)).value or b"").outbox)

    async with bench.open():
        await bench.set(team, "token", b"a value")
        assert (await lines(team), await notes(team)) == (["version 1"], 0)
        update = KeyValue.update

        async def unanswered(kv: KeyValue, key: str, value: bytes, *args: Any, **kwargs: Any) -> int:
            revision = await update(kv, key, value, *args, **kwargs)
            if key == team and revision and broken:
                broken.clear()
                raise NatsTimeout
            return revision

        broken = ["its answer is lost"]
        monkeypatch.setattr(KeyValue, "update", unanswered)
        with pytest.raises((QueryError, NoAnswer)):
            await bench.set(team, "token", b"another")
        assert (await lines(team), await notes(team)) == (["version 1"], 1), "stored, and not told"

        async def told() -> bool:
            return (await lines(team), await notes(team)) == (["version 1", "version 2"], 0)

        await until(told)
    killed = TeamSecrets(removed=3)
    killed.note(Requester(other, "ana"), "secret.remove", f"{other}/token")
    await entries.put(other, killed.model_dump_json().encode())
    async with bench.open(2):

        async def told_of_the_killed() -> bool:
            return await notes(other) == 0

        await until(told_of_the_killed)
        assert set(await lines(other)) == {"secret.remove"}
        assert await lines(team) == ["version 1", "version 2"], "what was told is not told again"


class Taking:
    """An outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.taken: list[Outgoing] = []

    async def publish_many(self, items: Sequence[Outgoing]) -> None:
        self.taken += items


async def test_a_broker_that_is_away_for_a_moment_does_not_end_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 616 of the simulation: one lost answer ended vault while it told which secrets there are."""
    path = tmp_path / "vault" / "keys.json"
    vault = Vault(VaultSettings(insecure=True, keys=path), KeyFile(path), CollectorRegistry())
    errors: list[Exception] = [NatsTimeout(), OSError("away")]

    class Telling:
        async def tell_names(self) -> list[str]:
            if errors:
                raise errors.pop()
            told.set()
            return []

    told = asyncio.Event()
    monkeypatch.setattr(vault, "store", Telling())
    await vault.tell_names()
    assert told.is_set()
