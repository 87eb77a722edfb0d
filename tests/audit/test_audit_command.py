"""`baton audit` on a real pool: operators act, also while the broker is away; it is listed, and what was changed is found."""

import asyncio
import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest

from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.main import main
from libs.ledger.export import LedgerFile
from libs.walls.book import Book
from tests.cli.test_command import Result
from tests.kit.waiting import until


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[LocalStack]:
    services = ("placement", "quota_billing")
    options = LaunchOptions(
        state_dir=tmp_path / "state", teams=("red",), services=services, sync_always=False, scale=0.01
    )
    async with LocalStack(options) as made:
        yield made


async def run(stack: LocalStack, *words: str) -> Result:
    """A command, in a thread of this process: there are many."""
    env = {"BATON_STATE_DIR": str(stack.state_dir), "BATON_USER": "olga"}
    out, err = io.StringIO(), io.StringIO()

    def call() -> int:
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    with (
        mock.patch.dict(os.environ, env),
        mock.patch.object(sys, "argv", ["baton", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = await asyncio.to_thread(call)
    return Result(code, out.getvalue(), err.getvalue())


async def listed(stack: LocalStack, *words: str) -> list[dict[str, object]]:
    result = await run(stack, "audit", "-o", "json", *words)
    assert result.code == 0, result.err
    return list(json.loads(result.out))


async def test_what_operators_do_is_listed_and_verified_and_a_change_is_found(
    stack: LocalStack, tmp_path: Path
) -> None:
    assert (await run(stack, "team", "add", "vision", "--reason", "a new team")).code == 0
    nothing = await run(stack, "team", "revoke", "vision", "--reason", " ")
    assert (nothing.code, "--reason is empty" in nothing.err) == (2, True)
    assert (await run(stack, "team", "revoke", "nobody", "--reason", "a slip")).code == 3
    assert (await run(stack, "team", "revoke", "vision", "--reason", "its contract has ended")).code == 0
    quota = await run(stack, "quota", "set", "red", "4", "--reason", "less work", "-o", "json")
    assert quota.code == 0, quota.err
    assert (await run(stack, "node", "declare-dead", "n7", "--incarnation", "1", "--fenced-by", "power off")).code == 4

    async def all_there() -> bool:
        return len(await listed(stack)) >= 5

    await until(all_there)
    lines = await listed(stack)
    said = [(line["actor"], line["kind"], line["target"], line["outcome"], line["reason"]) for line in lines]
    assert said[:3] == [
        ("operator.olga", "team.add", "vision", "done", "a new team"),
        ("operator.olga", "team.revoke", "nobody", "failed", "a slip"),
        ("operator.olga", "team.revoke", "vision", "done", "its contract has ended"),
    ]
    assert {line[:4] for line in said[3:]} == {
        ("operator.olga", "quota.set", "red", "accepted"), ("operator.olga", "node.declare-dead", "", "refused"),
    }  # fmt: skip
    line = next(line for line in lines if line["kind"] == "quota.set")
    assert (line["reason"], str(line["source"]).startswith("REQUESTS:")) == ("less work", True)
    assert json.loads(quota.out) == {
        "pool": "main", "team": "red", "limit_milli": 4000, "by_type": {}, "done": "set", "ledger_seq": line["seq"],
    }  # fmt: skip
    assert [line["target"] for line in await listed(stack, "--kind", "team.add")] == ["vision"]
    unknown = await run(stack, "audit", "--kind", "quota.sett")
    assert "no line is of the kind quota.sett: did you mean quota.set? there are node.declare-dead, " in unknown.err
    assert {line["kind"] for line in await listed(stack, "--team", "vision")} == {"team.add", "team.revoke"}
    assert len(await listed(stack, "--actor", "operator.olga")) == 5
    assert await listed(stack, "--actor", "red") == []
    assert await listed(stack, "--until", "1h") == []
    assert len(await listed(stack, "--since", "1h")) == len(lines)
    assert (await run(stack, "audit", "--since", "yesterday")).code == 2

    verified = await run(stack, "audit", "verify")
    assert (verified.code, "the chain holds" in verified.err) == (0, True), verified.err

    # Offline: the file of the ledger, then one in which a record's author was changed and all hashes made anew around it.
    ledger = tmp_path / "ledger.jsonl"
    assert (await run(stack, "ledger", "export", str(ledger))).code == 0
    assert (await run(stack, "audit", "verify", "--file", str(ledger))).code == 0
    forged = tmp_path / "forged.jsonl"
    at = rewritten(ledger, forged, b"its contract has ended", b"they asked to be let go")
    found = await run(stack, "audit", "verify", "--file", str(forged), "-o", "json")
    broken = json.loads(found.out)
    assert found.code == 1
    assert f"record {at} was changed" in broken["broken"], broken
    elsewhere = await run(stack, "audit", "verify", "--file", str(ledger), "--state-dir", str(tmp_path))
    assert elsewhere.code == 0, "the books of other hosts follow by themselves"

    # The book of this host is changed.
    book = Book(stack.state_dir)
    whole = book.file.read_bytes()
    book.file.write_bytes(whole.replace(b"a slip", b"a test"))
    found = await run(stack, "audit", "verify")
    assert (found.code, "line 2" in found.err) == (1, True), found.err
    book.file.write_bytes(b"".join(whole.splitlines(keepends=True)[:1]))
    found = await run(stack, "audit", "verify")
    assert (found.code, "the file ends before it" in found.err) == (1, True), found.err
    book.file.unlink()
    found = await run(stack, "audit", "verify")
    assert (found.code, f"no book lies in {stack.state_dir}" in found.err) == (0, True), found.err
    book.file.write_bytes(whole)

    # While the broker is away the line waits.
    before = len(book.lines())
    stopped = await run(stack, "team", "add", "late", "--reason", "while it was away", "--url", "nats://127.0.0.1:9")
    assert stopped.code == 6
    assert len(book.untold("main")) == 1
    found = await run(stack, "audit", "verify")
    waits = f"1 line of book {book.lines()[0].book}"
    assert (found.code, f"{waits} was not told yet: `baton audit push` tells it" in found.err) == (0, True), found.err
    older = await run(stack, "audit", "verify", "--file", str(ledger))
    assert (older.code, f"{waits} is later than this file, or was not told yet" in older.err) == (0, True), older.err
    plain = json.loads((await run(stack, "audit", "verify", "-o", "json")).out)
    assert (plain["ok"], plain["untold"], plain["problems"]) == (True, 1, [])
    assert (await run(stack, "team", "push")).code == 0
    assert book.untold("main") == []
    assert book.lines()[-1].target == "late"

    async def told() -> bool:
        return len(await listed(stack, "--kind", "team.add")) == 2

    await until(told)
    pushed = await run(stack, "audit", "push", "--all", "-o", "json")
    assert json.loads(pushed.out) == {"done": "told", "actions_told": before + 1}
    assert (await run(stack, "audit", "verify")).code == 0

    # Another pool has the whole book when it is told, and nothing else tells it.
    assert (await run(stack, "provision", "--pool", "west", "--reason", "a second pool")).code == 0
    there = await run(stack, "audit", "verify", "--pool", "west")
    assert "`baton audit push --pool west` tells them" in there.err
    assert (await run(stack, "audit", "push")).out == "0 told\n"
    pushed = await run(stack, "audit", "push", "--pool", "west", "-o", "json")
    assert json.loads(pushed.out)["actions_told"] == len(book.lines())
    assert book.untold("west") == []


def rewritten(source: Path, target: Path, old: bytes, new: bytes) -> int:
    """The ledger file with one record changed, and the file's own hashes as a forger would leave them: which record it was."""
    lines = source.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if old in line)
    seq = json.loads(lines[at])["seq"]
    lines[at] = lines[at].replace(old, new)
    payload = json.loads(lines[at])["payload"].encode()
    end = json.loads(lines[-1])
    end["end"] |= {"head_seq": seq, "head_hash": hashlib.sha256(payload).hexdigest()}
    end["end"]["sha256"] = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    lines[-1] = json.dumps(end).encode() + b"\n"
    target.write_bytes(b"".join(lines))
    list(LedgerFile(target))  # the file itself has no fault
    return int(seq)
