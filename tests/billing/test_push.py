"""Use as events at a real HTTP server that fails, hangs up and is asked twice: each event counts once."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from libs.cli import bill_events, bill_push
from libs.cli.main import app
from libs.client.errors import Failed
from libs.core.billing.charges import charges
from libs.core.billing.usage_events import METER, STRIPE_BACK_US, event_of, openmeter
from libs.core.billing.wall import HOUR_US
from libs.ledger.export import FileStart, LedgerFile, LedgerFileWriter
from libs.ledger.records import FiledLedger
from tests.billing.ledgers import POOL, ask, filed, over_the_month, priced_world
from tests.billing.test_export import baton, killed_after

OWNERS = ((Path, "replace"), (Path, "write_text"), (os, "fsync"), (bill_events, "_answer"))
"""What a push does outside of itself."""


class Metering(ThreadingHTTPServer):
    """Takes events; what it does with the next requests is in `moods`, then it is well."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.moods: list[str] = []
        self.taken: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.asked: list[str] = []
        self.refused = b""
        """An event that it never takes."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Metering

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        mood = self.server.moods.pop(0) if self.server.moods else "well"
        mood = "wrong" if body == self.server.refused else mood
        if mood in ("well", "takes and hangs up"):
            self.server.taken.append((self.path, self.headers["content-type"], body))
            self.server.headers.append(dict(self.headers))
        if mood.endswith("hangs up"):
            self.close_connection = True
            return
        if mood == "elsewhere":
            self.send_response(302)
            self.send_header("location", "http://127.0.0.1:9/")
        else:
            self.send_response(
                {"well": 200, "busy": 429, "broken": 503, "known": 409, "wrong": 400, "locked": 401}[mood]
            )
        if mood == "busy":
            self.send_header("retry-after", "0")
        self.server.asked.append(mood)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def metering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metering]:
    monkeypatch.setattr(bill_events, "FIRST_S", 0.001)
    with Metering() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filed(priced_world().records, tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


def units() -> dict[str, int]:
    """Team -> device-nanoseconds that have a price."""
    world = priced_world()
    found: dict[str, int] = {}
    for charge in charges(lambda: list(enumerate(world.records, start=1))):
        if charge.amount.quote is not None:
            found[charge.use.team] = found.get(charge.use.team, 0) + charge.amount.units
    return found


def push(server: Metering, ledger: Path, tmp_path: Path, to: str = "openmeter", *words: Any) -> str:
    return baton(
        "bill",
        "push",
        "--to",
        to,
        "--endpoint",
        server.address,
        "--state",
        tmp_path / "state.json",
        "--ledger",
        ledger,
        *words,
    )


def test_each_event_counts_once_at_a_server_that_fails_repeats_and_hangs_up(
    metering: Metering, ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_METERING_TOKEN", "s3cret")
    metering.moods = ["busy", "broken", "hangs up", "takes and hangs up", "known", "well", "takes and hangs up"]
    push(metering, ledger, tmp_path)
    events = [json.loads(body) for _, _, body in metering.taken]
    once = {(e["source"], e["id"]): e for e in events}
    assert len(once) == len(events) - 1, "one answer was lost, and that event was sent again, as it was"
    sums: dict[str, int] = {}
    for event in once.values():
        assert (event["specversion"], event["type"]) == ("1.0", METER)
        sums[event["subject"]] = sums.get(event["subject"], 0) + int(event["data"]["value"])
    assert sums == units()
    assert {h["Authorization"] for h in metering.headers} == {"Bearer s3cret"}
    count = len(metering.taken)
    push(metering, ledger, tmp_path)
    assert len(metering.taken) == count, "nothing new, nothing sent"


def test_an_event_that_is_refused_is_a_dead_letter_and_may_be_sent_again(
    metering: Metering, ledger: Path, tmp_path: Path
) -> None:
    metering.moods = ["well", "well", "wrong", "wrong"]
    assert "2 events were refused" in push(metering, ledger, tmp_path)
    assert metering.asked.count("wrong") == 2, "each of them was sent once, and not for ever"
    told = [json.loads(line) for line in (tmp_path / "state.json.dead").read_text().splitlines()]
    taken = {json.loads(body)["id"] for _, _, body in metering.taken}
    assert [d["why"] for d in told] == ["400 Bad Request"] * 2
    assert not taken & {d["id"] for d in told}
    metering.moods = ["well", "wrong"]
    assert "1 of 2 that were refused are taken now" in push(metering, ledger, tmp_path, "openmeter", "--again")
    push(metering, ledger, tmp_path, "openmeter", "--again")
    events = [json.loads(body) for _, _, body in metering.taken]
    assert len({e["id"] for e in events}) == len(events)
    assert sum(int(e["data"]["value"]) for e in events) == sum(units().values())
    assert (tmp_path / "state.json.dead").read_bytes() == b""


def test_a_wrong_credential_is_told_and_no_event_is_skipped_for_it(
    metering: Metering, ledger: Path, tmp_path: Path
) -> None:
    metering.moods = ["well", "locked"]
    with pytest.raises(AssertionError):  # exit code 1
        push(metering, ledger, tmp_path)
    assert not (tmp_path / "state.json.dead").exists()
    assert json.loads((tmp_path / "state.json").read_text())["sent"] == 1
    push(metering, ledger, tmp_path)
    ids = [json.loads(body)["id"] for _, _, body in metering.taken]
    assert len(ids) == len(set(ids))


def test_one_that_is_killed_anywhere_loses_no_event_and_repeats_under_the_same_id(
    metering: Metering, ledger: Path, tmp_path: Path
) -> None:
    push(metering, ledger, tmp_path)
    whole = {json.loads(body)["id"]: body for _, _, body in metering.taken}
    one = next(iter(whole.values()))
    (tmp_path / "state.json").unlink()
    metering.taken.clear()
    metering.refused = one
    kills = 0
    while not killed_after(5 + kills % 7, lambda: push(metering, ledger, tmp_path), OWNERS):
        kills += 1
    assert kills > 5
    refused = json.loads(one)["id"]
    taken = {json.loads(body)["id"]: body for _, _, body in metering.taken}
    assert taken == {name: body for name, body in whole.items() if name != refused}
    dead = [json.loads(line) for line in (tmp_path / "state.json.dead").read_bytes().splitlines()]
    assert {d["body"].encode() for d in dead} == {one}
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["sent"] + state["dead"] == len(whole)


def test_a_push_that_follows_sends_what_comes_and_waits_for_a_server_that_is_away(
    metering: Metering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = over_the_month().records
    whole = filed(records, tmp_path / "whole.jsonl")
    rows = [event_of(c, POOL) for c in charges(FiledLedger([whole]))]
    parts = parted(whole, [7, 8, 20, len(records) // 2], tmp_path)
    source = FiledLedger([parts.pop(0)])
    behind: list[int] = []

    def grows(ledger: FiledLedger, target: Path, pool: str | None, url: str | None) -> bool:
        if not parts:
            raise KeyboardInterrupt
        parts.pop(0).rename(target)
        ledger.add(target)
        behind.append(figures.behind)
        return True

    monkeypatch.setattr(bill_push, "grown", grows)
    monkeypatch.setattr(bill_push, "_FILES", 2)
    pushed = bill_events.Pushed(POOL, "openmeter", metering.address)
    figures = bill_push.PushFigures(source, pushed)
    out = bill_events.Outbound(metering.address, "", None, figures.trying)
    metering.moods = ["broken", "locked", "hangs up", "well", "takes and hangs up"]
    port = figures.serve(0)
    with pytest.raises(KeyboardInterrupt), bill_push._rows(source, None, None, 0.0, figures.idle) as found:
        bill_events.push_all(
            figures.seen(found), pushed, customers={}, post=out.post, bury=lambda *_: None, save=lambda: None,
            now_us=lambda: source.wall_us,
        )  # fmt: skip
    once = {json.loads(body)["id"] for _, _, body in metering.taken}
    assert once == {e.id for e in rows if e is not None}
    assert (pushed.sent, pushed.done) == (len(once), len(rows))
    assert len(metering.taken) == len(once) + 1, "one answer was lost"
    assert all(count > 0 for count in behind), "what came was not sent yet"
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    assert f'baton_push_behind_records{{pool="{POOL}",to="openmeter"}} 0.0' in text
    assert f'baton_push_sent{{pool="{POOL}",to="openmeter"}} {len(once)}.0' in text


def parted(whole: Path, at: list[int], folder: Path) -> list[Path]:
    """A ledger file in parts: the first with the first so many messages, and so on."""
    parts: list[Path] = []
    source = LedgerFile(whole)
    start = FileStart(POOL)
    messages = list(source)
    for low, high in pairwise([0, *at, len(messages)]):
        path = folder / f"part{low}"
        with LedgerFileWriter(path, start) as writer:
            for stored in messages[low:high]:
                writer.add(stored)
            end = writer.finish()
        start = FileStart(POOL, end.last_seq + 1, end.head)
        parts.append(path)
    return parts


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0), ("0", 0.0), ("99999999", bill_events.ASKED_S), ("Mon, 23 Nov 2026 12:00:30 GMT", 30.0),
        ("Mon, 23 Nov 2026 11:00:30 GMT", 0.0), ("soon", 0.0), ("-5", 0.0), ("\u0663", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_a_server_says_when_it_may_be_asked_again(text: str, seconds: float) -> None:
    assert bill_events.seconds_of(text, datetime(2026, 11, 23, 12, 0, tzinfo=UTC)) == seconds


def test_a_server_that_is_away_is_given_up_and_a_redirect_is_not_followed(metering: Metering) -> None:
    world = priced_world()
    found = (event_of(c, POOL) for c in charges(lambda: list(enumerate(world.records, start=1))))
    message = openmeter(next(e for e in found if e is not None), "research")
    metering.moods = ["broken"] * 100
    with pytest.raises(Failed, match="not taken"):
        bill_events.Outbound(metering.address, "", 0.05).post(message)
    metering.moods = ["elsewhere"]
    with pytest.raises(Failed, match="refuses"):
        bill_events.Outbound(metering.address, "s3cret", 5).post(message)


def test_lago_and_stripe_get_their_own_shapes(metering: Metering, ledger: Path, tmp_path: Path) -> None:
    customers = tmp_path / "customers.yaml"
    customers.write_text("research: cus_1\nblue: cus_2\n")
    push(metering, ledger, tmp_path, "lago", "--customers", customers)
    events = [json.loads(body)["event"] for _, _, body in metering.taken]
    assert {e["external_subscription_id"] for e in events} == {"cus_1", "cus_2"}
    assert sum(int(e["properties"]["value"]) for e in events) == sum(units().values())
    assert len({e["transaction_id"] for e in events}) == len(events)
    (tmp_path / "state.json").unlink()
    metering.taken.clear()
    push(metering, ledger, tmp_path, "stripe", "--customers", customers)
    forms = [parse_qs(body.decode()) for _, _, body in metering.taken]
    assert sum(int(f["payload[value]"][0]) for f in forms) == sum(units().values())
    assert {path for path, _, _ in metering.taken} == {"/v1/billing/meter_events"}


def test_what_a_system_takes_no_more_is_told_and_not_sent_with_another_time() -> None:
    world = priced_world()
    found = list(charges(lambda: list(enumerate(world.records, start=1))))
    pushed, sent = bill_events.Pushed(POOL, "stripe", "x"), list[Any]()
    now_us = max(c.billed_us for c in found) + 2 * STRIPE_BACK_US
    bill_events.push_all(
        found, pushed, customers={}, post=lambda m: str(sent.append(m)), bury=lambda *_: None, save=lambda: None,
        now_us=lambda: now_us,
    )  # fmt: skip
    assert (sent, pushed.sent, pushed.done) == ([], 0, len(found))
    assert pushed.late == sum(event_of(c, POOL) is not None for c in found)


def test_a_state_of_another_endpoint_is_not_used(metering: Metering, ledger: Path, tmp_path: Path) -> None:
    push(metering, ledger, tmp_path)
    words = ("--to", "lago", "--endpoint", metering.address, "--state", tmp_path / "state.json", "--ledger", ledger)
    assert "name another file" in baton("bill", "push", *words, code=2)


@pytest.mark.parametrize("hours", [0, 90], ids=["shorter", "longer"])
def test_a_ledger_that_went_on_otherwise_after_a_restore_is_told_and_none_of_its_rows_is_skipped(
    metering: Metering, tmp_path: Path, hours: int
) -> None:
    """As many of its rows as had been sent of the other one were passed over: nobody was ever billed for them."""

    def goes_on(name: str, hours: int) -> Path:
        world = priced_world()
        if hours:
            world.started(runs := ask(world, name, 1))
            world.send(after_us=hours * HOUR_US)
            world.released(runs)
        return filed(world.records, tmp_path / f"{name}.jsonl")

    lost, restored = goes_on("lost", 50), goes_on("restored", hours)
    push(metering, lost, tmp_path)
    sent, state = len(metering.taken), (tmp_path / "state.json").read_text()
    words = ("--to", "openmeter", "--endpoint", metering.address, "--state", tmp_path / "state.json")
    for _ in range(2):
        told = CliRunner().invoke(app, ["bill", "push", *map(str, words), "--ledger", str(restored)]).exception
        assert isinstance(told, Failed), told
        assert "is not the one of which" in str(told)
    assert (len(metering.taken), (tmp_path / "state.json").read_text()) == (sent, state)
    push(metering, lost, tmp_path)
    assert len(metering.taken) == sent, "the ledger of before is still that one"


def test_a_push_that_follows_does_not_wait_for_a_shorter_ledger_to_have_as_many_rows(
    metering: Metering, ledger: Path
) -> None:
    source = FiledLedger([ledger])
    pushed = bill_events.Pushed(POOL, "openmeter", metering.address, done=10_000, rows="ab" * 32)
    figures = bill_push.PushFigures(source, pushed)
    with pytest.raises(Failed, match="is not the one"), bill_push._rows(source, None, None, 0.0, figures.idle) as found:
        bill_events.push_all(
            figures.seen(found), pushed, customers={}, post=lambda _: "", bury=lambda *_: None, save=lambda: None,
            now_us=lambda: source.wall_us,
        )  # fmt: skip


def test_a_state_of_a_release_before_goes_on_and_knows_its_rows_from_then_on(
    metering: Metering, ledger: Path, tmp_path: Path
) -> None:
    push(metering, ledger, tmp_path)
    file, sent = tmp_path / "state.json", len(metering.taken)
    now = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in now.items() if name != "rows"}))
    push(metering, ledger, tmp_path)
    assert (json.loads(file.read_text()), len(metering.taken)) == (now, sent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_push_that_is_ended_by_a_signal_leaves_no_copy_of_the_ledger(
    number: signal.Signals, ledger: Path, tmp_path: Path
) -> None:
    """Seen: `kill` left a folder with the whole ledger in the temporary one, each time."""
    (folder := tmp_path / "tmp").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = ("--to", "lago", "--endpoint", f"http://127.0.0.1:{silent.getsockname()[1]}", "--state", "state.json")
        command = [sys.executable, "-m", "libs.cli", "bill", "push", *words, "--ledger", str(ledger)]
        env = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
        with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE) as process:
            silent.settimeout(20)
            connection, _ = silent.accept()
            with connection:
                assert len(list(folder.iterdir())) == 1
                process.send_signal(number)
                _, err = process.communicate(timeout=20)
    assert (process.returncode, err, list(folder.iterdir())) == (128 + number, b"", [])
