"""What an agent makes of secrets: asked for again and again, opened only when they answer the question, written, removed."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.boxes import BoxKey, ForNode, NodeSecret, close_box, encoded
from schemas.attempts import Category
from schemas.jobs import JobSpec
from schemas.secrets import NodeSecrets, NodeSecretsQuery
from services.agent.failures import why_not_started
from services.agent.secrets import (
    NotWanted,
    SecretFolders,
    SecretMissing,
    SecretSource,
    SecretsUnavailable,
    memory_folder,
)
from tests.agent.build import part as desired

Answer = Callable[[NodeSecretsQuery, int], NodeSecrets | None]


def asking(*uses: dict[str, str]) -> Any:
    return desired(JobSpec(command=("x",), secrets=uses or ({"secret": "token"},)))


def sealed(query: NodeSecretsQuery, pool: str, **other: Any) -> NodeSecrets:
    about = {"pool": pool, "node": "n1", "job_id": query.job_id, "attempt": query.attempt, "nonce": query.nonce}
    found = {"token": NodeSecret(version=1, value=encoded(b"value"))}
    return NodeSecrets(sealed=close_box(query.key, ForNode(**{**about, "secrets": found, **other})))


@asynccontextmanager
async def vault(nats: Client, pool: str, answer: Answer) -> AsyncIterator[list[NodeSecretsQuery]]:
    """Somebody who answers the node's questions; `answer` gets the question and how many came before."""
    asked: list[NodeSecretsQuery] = []

    async def heard(msg: Msg) -> None:
        query = NodeSecretsQuery.model_validate_json(msg.data)
        asked.append(query)
        if (told := answer(query, len(asked) - 1)) is not None:
            await msg.respond(told.model_dump_json().encode())

    listening = await nats.subscribe(f"baton.qry.node.v1.secrets.{pool}.n1", cb=heard)
    await nats.flush()
    yield asked
    await listening.unsubscribe()


def wanted() -> bool:
    return True


async def test_only_the_answer_to_the_very_question_opens(nats: Client, pool: str) -> None:
    """Answers of before, to other questions, for others or to another key are of no use, and the question is asked again."""
    earlier: list[NodeSecrets] = []
    wrong: list[Callable[[NodeSecretsQuery], NodeSecrets]] = [
        lambda q: sealed(q, pool),
        lambda q: earlier[0],
        lambda q: sealed(q, pool, nonce="0" * 32),
        lambda q: sealed(q, pool, node="n2"),
        lambda q: sealed(q, pool, attempt=2),
        lambda q: sealed(q, "elsewhere"),
        lambda q: sealed(q.model_copy(update={"key": BoxKey.new().public}), pool),
        lambda q: NodeSecrets(sealed="AAAA"),
        lambda q: NodeSecrets(),
    ]

    def answer(query: NodeSecretsQuery, before: int) -> NodeSecrets:
        told = wrong[before](query) if before < len(wrong) else sealed(query, pool)
        earlier.append(told)
        return told

    source, part = SecretSource(nats, pool, wait_s=60.0, pause_s=0.01), asking()
    async with vault(nats, pool, answer) as asked:
        assert await source.of(part, "n1", 0, wanted) == {"token": b"value"}
        assert len(asked) == 1
        assert await source.of(part, "n1", 0, wanted) == {"token": b"value"}
        assert len(asked) == len(wrong) + 1
        assert len({query.nonce for query in asked}) == len(asked)


async def test_a_vault_that_is_away_is_waited_for_and_is_not_the_jobs_fault(nats: Client, pool: str) -> None:
    with pytest.raises(SecretsUnavailable, match=r"not to be had within 0\.2 s: nobody answers") as error:
        await SecretSource(nats, pool, wait_s=0.2, pause_s=0.01).of(asking(), "n1", 0, wanted)
    assert why_not_started(error.value) is Category.HARDWARE
    source = SecretSource(nats, pool, wait_s=60.0, pause_s=0.01)
    waiting = asyncio.create_task(source.of(asking(), "n1", 0, wanted))
    await asyncio.sleep(0.05)
    async with vault(nats, pool, lambda query, before: sealed(query, pool)):
        assert await waiting == {"token": b"value"}
    with pytest.raises(NotWanted):
        await source.of(asking(), "n1", 0, lambda: False)


async def test_a_secret_that_is_not_there_is_told_at_once(nats: Client, pool: str) -> None:
    async with vault(nats, pool, lambda query, before: NodeSecrets(missing=("token",))) as asked:
        with pytest.raises(
            SecretMissing, match=r"secret-missing: job\.secrets: team blue has no secret token; `baton secret set"
        ) as error:
            await SecretSource(nats, pool, wait_s=60.0).of(asking(), "n1", 0, wanted)
    assert len(asked) == 1
    assert why_not_started(error.value) is Category.INPUT_MISSING


def test_files_and_variables(tmp_path: Path) -> None:
    folders = SecretFolders(tmp_path / "state", tmp_path)
    value = bytes(range(1, 256))
    part = asking(
        {"secret": "a"},
        {"secret": "a", "file": "b"},
        {"secret": "a", "env": "A"},
        {"secret": "c", "file": "d", "env": "C"},
    )
    given = folders.deliver("n1/job.1", part, {"a": value, "c": b"see"})
    folder = folders.folder("n1/job.1")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": value, "b": value, "d": b"see"}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o400}
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    assert {name: os.fsencode(text) for name, text in given.environment.items()} == {"A": value, "C": b"see"}
    assert "see" not in repr(given)
    folders.deliver(
        "n1/job.1", asking({"secret": "c"}), {"c": b"again"}
    )  # an agent that died before it had told the keeper
    assert [path.name for path in folder.iterdir()] == ["c"]
    assert folders.sweep(["n1/job.1"]) == 0
    folders.deliver("n1/job.2", asking(), {"token": b"x"})
    assert folders.sweep(["n1/job.1"]) == 1
    folders.remove("n1/job.1")
    folders.remove("n1/job.1")
    assert list(folder.parent.iterdir()) == []


def test_what_cannot_be_delivered_is_told_without_the_value(tmp_path: Path) -> None:
    folders = SecretFolders(tmp_path / "state", tmp_path)
    with pytest.raises(SecretMissing, match="secret token has a NUL byte") as error:
        folders.deliver("x", asking({"secret": "token", "env": "A"}), {"token": b"va\0lue"})
    assert "lue" not in str(error.value).replace("value", "")
    with pytest.raises(SecretsUnavailable, match="has no secret token"):
        folders.deliver("x", asking(), {})
    (tmp_path / "file").write_text("")
    with pytest.raises(SecretsUnavailable, match="cannot be written"):
        SecretFolders(tmp_path / "state", tmp_path / "file").deliver("x", asking(), {"token": b"x"})


def test_a_folder_that_somebody_else_made_is_not_used(tmp_path: Path) -> None:
    """/dev/shm is everybody's: who guesses the name must not be given the files."""
    folders = SecretFolders(tmp_path / "state", tmp_path)
    root = folders.folder("x").parent
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    root.symlink_to(theirs)
    with pytest.raises(SecretsUnavailable, match="belongs to somebody else"):
        folders.deliver("x", asking(), {"token": b"x"})
    assert list(theirs.iterdir()) == []
    root.unlink()
    root.mkdir(mode=0o777)
    root.chmod(0o777)
    folders.deliver("x", asking(), {"token": b"x"})
    assert root.stat().st_mode & 0o777 == 0o700


def test_this_machine_has_a_folder_in_memory() -> None:
    found = memory_folder()
    assert found is not None
    assert found in (Path(os.environ.get("XDG_RUNTIME_DIR", "/run")), Path("/run"), Path("/dev/shm"))
