"""A ledger that was written to a file is the ledger: a stranger's checker, written from the documentation, agrees."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libs.cli.ledger import verify as verify_command
from libs.ledger.chain import GENESIS, Head, encode
from libs.ledger.export import BadLedgerFile, FileStart, LedgerFile, LedgerFileWriter
from libs.ledger.records import FiledLedger
from libs.ledger.tail import Stored
from libs.ledger.verify import export, verify, verify_files
from schemas.subjects import ledger
from tests.core.builders import World as Pool
from tests.core.builders import job, node
from tests.core.lives import EVERY, records_of
from tests.kit.filed import filed
from tests.ledger.world import POOL, World

PAGE = Path(__file__).parents[2] / "docs/ledger-file.md"


def strangers_checker() -> Callable[[list[str]], tuple[int, str, int]]:
    """The program in the documentation."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    return names["head_of"]


async def a_ledger(world: World) -> Head:
    """A pool's short life in the stream, with void messages between: another pool's, an old head's, rubbish."""
    pool = Pool(node("n0"))
    run = pool.submit(job("gang", 2))
    pool.started(run)
    pool.released(run)
    head = GENESIS
    for number, record in enumerate(pool.records):
        head = await world.append(
            head, t_us=record.t_us, inbox_seq=record.inbox_seq, events=record.events, writer="Größe ✓"
        )
        if number == 1:
            await world.put_raw(ledger(POOL), b"\xff\x00 no record")
            await world.append(head, pool="other")
            await world.append(GENESIS)
            await world.put_raw(ledger(POOL), b'{"prev_seq": {}}', headers={"who": "somebody"})
    return head


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger.jsonl.gz"])
async def test_an_exported_ledger_verifies_as_the_stream_does(world: World, tmp_path: Path, name: str) -> None:
    head = await a_ledger(world)
    path = tmp_path / name
    end = await export(world.js, POOL, path)
    assert (end.head, end.last_seq) == (head, await world.ledger_last())
    live, offline = await verify(world.js, POOL), verify_files([path])
    assert live.ok
    assert live == offline
    assert (offline.void, offline.head_hash) == (4, head.hash)
    file = LedgerFile(path)
    stored = [(s.seq, s.payload) for s in file]
    assert stored == [
        (seq, (await world.js.get_msg("LEDGER-main", seq)).data or b"") for seq in range(1, end.last_seq + 1)
    ]
    assert file.end == end
    assert [p.name for p in tmp_path.iterdir() if "ledger" in p.name] == [name], "nothing is left beside it"


async def test_a_stranger_who_read_the_page_finds_the_same_head(world: World, tmp_path: Path) -> None:
    head = await a_ledger(world)
    await export(world.js, POOL, tmp_path / "l")
    lines = (tmp_path / "l").read_text().splitlines()
    assert strangers_checker()(lines) == (head.seq, head.hash, 4)
    lines[2] = lines[2].replace("n0-gpu", "n0-gpU", 1)
    with pytest.raises(AssertionError):
        strangers_checker()(lines)


def written(path: Path, payloads: list[bytes], start: FileStart = FileStart("main")) -> Path:
    with LedgerFileWriter(path, start) as out:
        for seq, payload in enumerate(payloads, start.first_seq):
            out.add(Stored(seq, "s", {"Nats-Msg-Id": "x"}, payload, seq))
        out.finish()
    return path


def _changed(line: int, old: str, new: str) -> Callable[[list[str]], list[str]]:
    def change(lines: list[str]) -> list[str]:
        assert old in lines[line]
        return [text.replace(old, new, 1) if n == line % len(lines) else text for n, text in enumerate(lines)]

    return change


DAMAGE: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "cut short": (lambda lines: lines[:-1], "cut short"),
    "cut within a line": (lambda lines: [*lines[:-1], lines[-1][:-9]], "cut short"),
    "a message missing": (lambda lines: lines[:2] + lines[3:], "2 is missing"),
    "two messages swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "1 is missing"),
    "a void message changed": (_changed(2, "rubbish", "Rubbish"), "another SHA-256"),
    "a time changed": (_changed(1, '"time_us":1', '"time_us":2'), "another SHA-256"),
    "no ledger file": (lambda lines: lines[1:], "no ledger file"),
    "not JSON": (lambda lines: [lines[0], "what?\n", *lines[1:]], "not JSON"),
    "no object": (lambda lines: [lines[0], "[1]\n", *lines[1:]], "not a JSON object"),
    "deep JSON": (lambda lines: [lines[0], "[" * 100_000 + "\n"], "not JSON"),
    "a number that is none": (_changed(1, '"seq":1', '"seq":true'), "no number 'seq'"),
    "a payload that is none": (_changed(1, '"payload"', '"payl"'), "no text 'payload'"),
    "a lone surrogate": (_changed(1, '"payload":"', '"payload":"\\ud800'), "no text"),
    "bad base64": (_changed(3, '"payload_base64":"', '"payload_base64":"?'), "payload_base64"),
    "base64 that is not ASCII": (_changed(3, '"payload_base64":"', '"payload_base64":"é'), "payload_base64"),
    "headers that are a number": (_changed(1, '"payload"', '"headers":5,"payload"'), "headers that are no object"),
    "headers that are a text": (_changed(1, '"payload"', '"headers":"ab","payload"'), "headers that are no object"),
    "a header that is a number": (
        _changed(1, '"payload"', '"headers":{"a":5},"payload"'),
        "headers that are no object",
    ),
    "a pool that is none": (_changed(0, '"main"', '"../x"'), "no pool's name"),
    "a pool that is no text": (_changed(0, '"main"', '"\\ud800"'), "no pool's name"),
    "something after the end": (lambda lines: [*lines, lines[-1]], "nothing may follow"),
    "another end": (_changed(-1, '"messages":3', '"messages":4'), "ends with message"),
    "another head": (_changed(-1, '"head_seq":0', '"head_seq":1'), "chain ends"),
    "an end that is none": (lambda lines: [*lines[:-1], '{"end":7}\n'], "not a JSON object"),
}


@pytest.mark.parametrize(("change", "told"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, change: Any, told: str) -> None:
    path = written(tmp_path / "l", [b"{}", b"rubbish", b"\xff"])
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    with pytest.raises(BadLedgerFile, match=rf"l: line \d+ .*{re.escape(told)}"):
        list(LedgerFile(path))


def test_a_compressed_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "l.gz", [b"x" * 100] * 9)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(BadLedgerFile, match=r"cannot be read|cut short"):
        list(LedgerFile(path))


def _later(payload: bytes) -> bytes:
    return payload.replace(b'"t_us":', b'"t_us":1', 1)


FORGED: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a record changed": lambda r: [*r[:2], _later(r[2]), *r[3:]],
    "a record made no record": lambda r: [*r[:2], b"gone", *r[3:]],
    "a record left out": lambda r: [*r[:2], *r[3:]],
    "a record twice, and another one less": lambda r: [*r[:2], r[1], *r[3:]],
    "two records swapped": lambda r: [*r[:2], r[3], r[2], *r[4:]],
    "a record put in": lambda r: [*r[:2], _later(r[2]), *r[2:]],
}
"""Whoever changes a file can write its numbers and its last line anew; the hashes that records name are not theirs."""


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_file_whose_chain_was_broken_is_no_ledger_that_holds(tmp_path: Path, forge: Any) -> None:
    head, payloads = GENESIS, list[bytes]()
    for seq, record in enumerate(records_of(EVERY[0])[:8], 1):
        payload, digest = encode(
            record.model_copy(update={"pool": "main", "prev_seq": head.seq, "prev_hash": head.hash})
        )
        head = Head(seq, digest)
        payloads.append(payload)
    assert verify_files([written(tmp_path / "as it was", payloads)]).ok
    report = verify_files([written(tmp_path / "forged", forge(payloads))])
    assert report.violations[0].startswith("I10"), report.violations
    assert "was changed" in report.violations[0]


@pytest.mark.parametrize("more", [False, True])
def test_a_ledger_that_ends_in_the_midst_of_a_decision_holds_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: bool
) -> None:
    pool = Pool(node("n0"))
    pool.submit(job("one"))
    pool.records[-1] = pool.records[-1].model_copy(update={"more": more})
    filed(pool, tmp_path / "ledger.jsonl")
    verify_command(file=[tmp_path / "ledger.jsonl"])
    said = capsys.readouterr().err
    assert ("the decision that record 2 begins goes on behind the last record" in said) is more
    assert "every invariant holds" in said


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="message 7 follows 0"),
        LedgerFileWriter(tmp_path / "l", FileStart("main")) as out,
    ):
        out.add(Stored(7, "s", {}, b"{}", 1))
    assert list(tmp_path.iterdir()) == []


def test_files_of_one_ledger_are_verified_as_one(tmp_path: Path) -> None:
    first = written(tmp_path / "a", [b'{"pool":"main","prev_seq":0,"prev_hash":""}'])
    head = LedgerFile(first)
    list(head)
    second = written(tmp_path / "b", [b"void"], FileStart("main", 2, head.head))
    assert head.head.seq == 1
    with pytest.raises(BadLedgerFile, match="give all files of one ledger, in order"):
        verify_files([second])
    with pytest.raises(BadLedgerFile, match="after record 1"):
        verify_files([written(tmp_path / "void", [b"void"]), second])
    assert (
        verify_files(
            [written(tmp_path / "void", [b"void"]), written(tmp_path / "c", [b"x"], FileStart("main", 2))]
        ).void
        == 2
    )


def test_equal_ledgers_give_equal_bytes(tmp_path: Path) -> None:
    paths = [written(tmp_path / folder, [b"{}"] * 3) for folder in ("a.gz", "b.gz")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert json.loads((written(tmp_path / "c", [])).read_text().splitlines()[-1])["end"]["messages"] == 0


def test_a_compressed_file_that_was_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    """What zlib raised ended who read it with a traceback."""
    whole = written(tmp_path / "whole.gz", [bytes([n]) * 3 + b"record" * n for n in range(40)]).read_bytes()
    path = tmp_path / "l.gz"
    for at in range(10, len(whole) - 8):  # behind the header, before the checksum
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(BadLedgerFile):
            list(LedgerFile(path))


async def test_what_a_ledger_got_since_is_a_file_of_its_own_and_files_are_joined(world: World, tmp_path: Path) -> None:
    head = await a_ledger(world)
    source = FiledLedger([])
    for number in range(4):
        start = FileStart(POOL, source.last_seq + 1, source.head)
        await export(world.js, POOL, tmp_path / f"{number}.jsonl", start=start)
        source.add(tmp_path / f"{number}.jsonl")
        assert (source.head, source.last_seq) == (head, await world.ledger_last())
        head = await world.append(head, t_us=10_000_000 + number)
    await export(world.js, POOL, tmp_path / "last.jsonl", start=FileStart(POOL, source.last_seq + 1, source.head))
    added: list[Path] = []

    def more() -> bool:
        if added:
            return False
        source.join(tmp_path / "joined.jsonl")
        source.add(tmp_path / "last.jsonl")
        added.append(tmp_path / "last.jsonl")
        return True

    records = source.live(more)
    told = list(records())
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["0.jsonl", "joined.jsonl", "last.jsonl"]
    await export(world.js, POOL, tmp_path / "whole.jsonl")
    assert told == list(records()) == list(FiledLedger([tmp_path / "whole.jsonl"])())
    assert source.files == 3
    with pytest.raises(BadLedgerFile, match="give all files of one ledger, in order"):
        source.add(tmp_path / "whole.jsonl")
