"""Use as events at a real HTTP server that fails, hangs up and is asked twice: each event counts once."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from libs.cli import bill_push
from libs.client.errors import Failed
from libs.core.billing.charges import charges
from libs.core.billing.usage_events import METER, STRIPE_BACK_US, event_of, openmeter
from tests.billing.ledgers import POOL, filed, priced_world
from tests.billing.test_export import baton


class Metering(ThreadingHTTPServer):
    """Takes events; what it does with the next requests is in `moods`, then it is well."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.moods: list[str] = []
        self.taken: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []

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
            self.send_response({"well": 200, "busy": 429, "broken": 503, "known": 409, "wrong": 400}[mood])
        if mood == "busy":
            self.send_header("retry-after", "0")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def metering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metering]:
    monkeypatch.setattr(bill_push, "_FIRST_S", 0.001)
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


def test_who_is_refused_goes_on_with_that_event(metering: Metering, ledger: Path, tmp_path: Path) -> None:
    metering.moods = ["well", "well", "wrong"]
    with pytest.raises(AssertionError):  # exit code 1
        push(metering, ledger, tmp_path)
    assert json.loads((tmp_path / "state.json").read_text())["sent"] == 2
    push(metering, ledger, tmp_path)
    ids = [json.loads(body)["id"] for _, _, body in metering.taken]
    assert len(ids) == len(set(ids))


def test_a_server_that_is_away_is_given_up_and_a_redirect_is_not_followed(metering: Metering) -> None:
    world = priced_world()
    found = (event_of(c, POOL) for c in charges(lambda: list(enumerate(world.records, start=1))))
    message = openmeter(next(e for e in found if e is not None), "research")
    metering.moods = ["broken"] * 100
    with pytest.raises(Failed, match="not taken"):
        bill_push.patiently_post(metering.address, message, "", 0.05)
    metering.moods = ["elsewhere"]
    with pytest.raises(Failed, match="refuses"):
        bill_push.patiently_post(metering.address, message, "s3cret", 5)


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
    pushed, sent = bill_push.Pushed(POOL, "stripe", "x"), list[Any]()
    now_us = max(c.billed_us for c in found) + 2 * STRIPE_BACK_US
    bill_push.push_all(found, pushed, customers={}, post=sent.append, save=lambda: None, now_us=now_us)
    assert (sent, pushed.sent, pushed.done) == ([], 0, len(found))
    assert pushed.late == sum(event_of(c, POOL) is not None for c in found)


def test_a_state_of_another_endpoint_is_not_used(metering: Metering, ledger: Path, tmp_path: Path) -> None:
    push(metering, ledger, tmp_path)
    words = ("--to", "lago", "--endpoint", metering.address, "--state", tmp_path / "state.json", "--ledger", ledger)
    assert "name another file" in baton("bill", "push", *words, code=2)
