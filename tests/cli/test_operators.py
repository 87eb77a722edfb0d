"""What operators say: of nodes and devices into the pool's inbox, of readers of the ledger; and what teams may not say."""

import json

import pytest

from libs.bus.connect import Address, BusConnection
from libs.core.state.formats import FIRST, NEWEST
from libs.ledger.inputs import InboxItem, read_input
from libs.ledger.readers import Declared, Readers
from libs.ledger.tail import Stored
from schemas.inbox import NodeDead, QuarantineLifted
from schemas.subjects import inbox_stream
from tests.cli.test_command import baton

OLD = Declared(pool="main", name="telemetry", process="host-1-7", release="0.1.0", format=FIRST, position=7, resume=5)
NEW = OLD.model_copy(update={"name": "history", "process": "host-2-9", "format": NEWEST})


async def last_input(services: BusConnection) -> InboxItem:
    """What lies last in the pool's inbox, as placement reads it."""
    js = services.jetstream()
    seq = (await js.stream_info(inbox_stream("main"))).state.last_seq
    message = await js.get_msg(inbox_stream("main"), seq)
    headers = message.headers or {}
    return read_input(Stored(seq, message.subject or "", headers, message.data or b"", 1), "main")


async def test_a_node_is_declared_dead_in_the_name_of_who_says_so(
    urls: dict[str, Address], services: BusConnection
) -> None:
    words = ("node", "declare-dead", "n1", "--fenced-by", "BMC power off", "--user", "olga", "--pool", "main")
    result = await baton(*words, "--incarnation", "7", url=urls["operator"])
    assert (result.code, result.out) == (0, "n1\n"), result.err
    said = (await last_input(services)).message
    assert said == NodeDead(node="n1", incarnation=7, fenced_by="BMC power off", user="olga")
    again = await baton(*words, url=urls["operator"])
    assert again.code == 0
    assert (await last_input(services)).message == NodeDead(node="n1", fenced_by="BMC power off", user="olga")


async def test_a_quarantine_is_lifted_with_a_reason(urls: dict[str, Address], services: BusConnection) -> None:
    words = ("node", "release", "n1", "GPU-7", "--reason", "the site's monitor", "--user", "olga", "--pool", "main")
    result = await baton(*words, url=urls["operator"])
    assert (result.code, result.out) == (0, "GPU-7\n"), result.err
    said = (await last_input(services)).message
    assert said == QuarantineLifted(node="n1", device="GPU-7", reason="the site's monitor", user="olga")


@pytest.mark.parametrize(
    "words",
    [
        ("declare-dead", "n1", "--fenced-by", "me"),
        ("release", "n1", "GPU-7", "--reason", "I need it"),
    ],
)
async def test_a_team_may_say_neither(
    words: tuple[str, ...], urls: dict[str, Address], services: BusConnection
) -> None:
    before = (await services.jetstream().stream_info(inbox_stream("main"))).state.last_seq
    result = await baton("node", *words, "--pool", "main", url=urls["blue"])
    assert result.code == 4, "denied"
    assert (await services.jetstream().stream_info(inbox_stream("main"))).state.last_seq == before


@pytest.mark.parametrize("words", [("declare-dead", "n1"), ("release", "n1", "GPU-7")])
async def test_both_ask_for_the_reason(words: tuple[str, ...], urls: dict[str, Address]) -> None:
    result = await baton("node", *words, url=urls["operator"])
    assert result.code == 2
    assert "Missing option" in result.err


async def test_readers_are_shown_and_forgotten_and_an_older_one_holds_the_upgrade(
    urls: dict[str, Address], services: BusConnection
) -> None:
    known, operator = Readers(services.jetstream()), {"url": urls["operator"]}
    for one in (OLD, NEW):
        await known.declare(one)
    shown = json.loads((await baton("ledger", "readers", "-o", "json", "--pool", "main", **operator)).out)
    assert {one["process"]: one["format"] for one in shown["readers"]} == {"host-1-7": FIRST, "host-2-9": NEWEST}
    assert shown["format"] == FIRST
    held = await baton("ledger", "upgrade", "--pool", "main", **operator)
    assert held.code != 0
    assert "telemetry of process host-1-7" in held.err
    assert await known.format("main") == FIRST
    nobody = await baton(
        "ledger", "readers", "--forget", "host-9-9", "--reason", "it is gone", "--pool", "main", **operator
    )
    assert nobody.code != 0
    assert "no reader of process 'host-9-9'" in nobody.err
    forget = ("--forget", "host-1-7", "--reason", "it is gone")
    left = await baton("ledger", "readers", *forget, "-o", "json", "--pool", "main", **operator)
    assert [one["process"] for one in json.loads(left.out)["readers"]] == ["host-2-9"]
    done = await baton("ledger", "upgrade", "--pool", "main", **operator)
    assert done.code == 0, done.err
    assert await known.format("main") == NEWEST


async def test_an_operator_may_upgrade_although_an_older_reader_lives(
    urls: dict[str, Address], services: BusConnection
) -> None:
    known = Readers(services.jetstream())
    await known.raise_format("main", FIRST, "a test")
    await known.declare(OLD)
    assert (await baton("ledger", "upgrade", "--pool", "main", url=urls["operator"])).code != 0
    force = ("--force", "--reason", "it stops in any case")
    forced = await baton("ledger", "upgrade", *force, "--pool", "main", url=urls["operator"])
    assert (forced.code, await known.format("main")) == (0, NEWEST), forced.err
    await known.forget(OLD)
    await known.raise_format("main", FIRST, "a test")
