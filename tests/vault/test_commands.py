"""`baton secret set|list|remove|rekey`, as people and operators say it, on a real pool; what operators do is in the audit."""

import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.cli.launch import ROOT, LaunchOptions, LocalStack
from libs.walls.book import Book
from tests.audit.test_audit_command import listed, run
from tests.cli.test_command import Result
from tests.kit.commands import fork
from tests.kit.waiting import until


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[LocalStack]:
    options = LaunchOptions(
        state_dir=tmp_path / "state", teams=("red",), services=("placement", "vault"), sync_always=False, scale=0.01
    )
    async with LocalStack(options) as made:
        yield made


async def said(stack: LocalStack, monkeypatch: pytest.MonkeyPatch, value: bytes, *words: str) -> Result:
    """A command of the team's, with this on its stdin."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(value)))
        return await run(stack, *words, "--team", "red")


async def test_a_team_sets_lists_and_removes_and_an_operator_changes_the_master_key(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = await said(stack, monkeypatch, b"one line\n", "secret", "set", "hf-token")
    assert (first.code, first.out) == (0, "hf-token\t1\n"), first.err
    again = await said(stack, monkeypatch, b"another\r\n", "secret", "set", "hf-token", "-o", "json")
    told = json.loads(again.out)
    assert (again.code, told["name"], told["version"], told["done"]) == (0, "hf-token", 2, "set")
    assert "another" not in again.out + again.err
    (tmp_path / "key").write_bytes(b"of a file\n")
    assert (await run(stack, "secret", "set", "key", "--file", str(tmp_path / "key"), "--team", "red")).code == 0
    nothing = await said(stack, monkeypatch, b"", "secret", "set", "empty")
    assert (nothing.code, "there is no value" in nothing.err) == (2, True)
    large = await said(stack, monkeypatch, b"x" * 40_000, "secret", "set", "large")
    assert (large.code, "more than 32768 bytes" in large.err) == (2, True)

    shown = json.loads((await run(stack, "secret", "list", "--team", "red", "-o", "json")).out)
    sizes = {info["name"]: (info["version"], info["bytes"]) for info in shown}
    assert sizes == {"hf-token": (2, len("another")), "key": (1, len("of a file\n"))}, (
        "a line's end is no part of stdin's"
    )
    of = await run(stack, "secret", "list", "--of", "red", "-o", "json")
    assert json.loads(of.out) == shown

    done = await run(stack, "secret", "rekey", "--reason", "a disk was lost", "-o", "json")
    told = json.loads(done.out)
    assert (done.code, told["values"], told["lost"]) == (0, 3, 0), "both versions of one, and the other"
    half = await run(stack, "secret", "remove", "key", "none", "--team", "red", "-o", "json")
    assert (half.code, json.loads(half.out)) == (3, {"team": "red", "removed": ["key"]}), half.err
    gone = await run(stack, "secret", "remove", "key", "--team", "red")
    assert (gone.code, gone.err) == (
        3,
        "baton: team red has no secret key\n  try: `baton secret list` shows those that there are\n",
    )
    assert (await run(stack, "secret", "remove", "--all", "--team", "red")).code == 2
    assert (
        await run(stack, "secret", "remove", "--of", "red", "--all", "--reason", "a clean start")
    ).out == "hf-token\n"

    async def all_there() -> bool:
        return len(await listed(stack)) >= 8

    await until(all_there)
    lines = [(line["actor"], line["kind"], line["target"], line["reason"]) for line in await listed(stack)]
    assert lines == [
        *(("red.olga", "secret.set", f"red/{name}", "") for name in ("hf-token", "hf-token", "key")),
        ("operator.olga", "secret.rekey", "", ""),
        ("operator.olga", "secret.rekey", "", "a disk was lost"),
        ("red.olga", "secret.remove", "red/key", ""),
        ("operator.olga", "secret.remove", "red/hf-token", ""),
        ("operator.olga", "secret.remove", "red (all)", "a clean start"),
    ], "vault says what it did, the operator's tool what was asked of it"
    book = Book(stack.state_dir).lines()
    assert book[0].detail.startswith("3 values, 0 lost")
    assert "another" not in (stack.state_dir / "audit.jsonl").read_text()


async def test_a_team_that_is_revoked_has_no_secrets_any_more(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await said(stack, monkeypatch, b"x\n", "secret", "set", "token")).code == 0
    assert (await run(stack, "team", "add", "red.ana")).code == 0
    assert (await run(stack, "team", "revoke", "red.ana", "--reason", "left")).code == 0
    assert "token" in (await run(stack, "secret", "list", "--of", "red")).out, "one user is not the team"
    revoked = await run(stack, "team", "revoke", "red", "--reason", "its contract has ended")
    assert (revoked.code, revoked.err) == (0, "")
    assert json.loads((await run(stack, "secret", "list", "--of", "red", "-o", "json")).out) == []


async def test_a_team_that_is_revoked_while_vault_is_started_again_has_no_secrets_either(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed, and its jobs that waited were given them."""
    assert (await said(stack, monkeypatch, b"x\n", "secret", "set", "token")).code == 0
    os.kill(stack.supervisor.pid("vault"), signal.SIGKILL)
    revoked = await run(stack, "team", "revoke", "red", "--reason", "its contract has ended")
    assert (revoked.code, revoked.err) == (0, "")
    assert json.loads((await run(stack, "secret", "list", "--of", "red", "-o", "json")).out) == []


async def test_a_value_is_no_argument(tmp_path: Path) -> None:
    environ = {**os.environ, "BATON_STATE_DIR": str(tmp_path)}
    code, _, err = await fork().run(("secret", "set", "token", "value"), environ, ROOT)
    assert (code, b"value" in err) == (2, True)
