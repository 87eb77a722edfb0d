"""What the keeper knows and what it is told: pure, and hostile on the wire."""

import json
import struct

import pytest

from services.agent.keeper import table, wire
from services.agent.keeper.client import packed
from services.agent.keeper.table import GONE, STARTING, HeldAttempt, StartRefused, Table


@pytest.fixture
def held() -> Table:
    made = Table()
    made.begin("n0", 7)
    made.until("n0", 7, 100.0, now=0.0)
    return made


def enter(
    held: Table, id: str = "n0/a.1", incarnation: int = 7, now: float = 1.0, early: float | None = 0.0
) -> HeldAttempt:
    return held.enter(id, "n0", incarnation, {}, "", now=now, early=early)


def test_an_attempt_needs_a_life_with_a_lease_that_holds(held):
    enter(held)
    for wrong, problem in (
        ({}, "was started before"),
        ({"id": "n0/b.1", "incarnation": 8}, "has no life 8 here"),
        ({"id": "n0/b.1", "now": 100.0}, "lease ended"),
    ):
        with pytest.raises(StartRefused, match=problem):
            enter(held, **wrong)
    held.begin("n0", 8)
    with pytest.raises(StartRefused, match="lease ended"):
        enter(held, "n0/b.1", 8)  # no lease was granted to it yet


def test_deadlines_are_of_one_life_and_a_lease_that_ended_never_revives(held):
    made = enter(held)
    held.until("n0", 6, 500.0, now=1.0)
    assert held.next_deadline(1.0) == 100.0
    assert held.over(99.9) == []
    assert held.over(100.0) == [made]
    assert not held.until("n0", 7, 500.0, now=100.0)
    assert held.over(100.0) == [made]
    assert held.begin("n0", 8) == [made]
    held.until("n0", 7, 500.0, now=1.0)
    assert held.next_deadline(1.0) is None, "a new life has no lease yet"


def test_a_life_that_outlived_its_lease_with_kept_work_goes_on_also_when_that_work_has_ended_meanwhile(held):
    """The agent goes on with the life, and every start was refused from then on."""
    kept, other = enter(held, early=None), enter(held, "n0/b.1")
    assert held.over(100.0) == [other]
    kept.state = GONE
    held.forget([kept.id])
    assert held.until("n0", 7, 200.0, now=110.0)
    assert enter(held, "n0/c.1", now=110.0).state == STARTING
    assert held.over(110.0) == [other], "its lease has ended for good"
    held.until("n0", 7, 300.0, now=200.0)
    with pytest.raises(StartRefused, match="lease ended"):
        enter(held, "n0/d.1", now=200.0)


def test_work_without_a_deadline_is_never_over(held):
    enter(held)
    held.until("n0", 7, None, now=1.0)
    assert held.over(1e12) == []
    assert not held.unwanted(1e12)


def test_nothing_is_kept_for_nobody(held):
    assert not held.unwanted(99.0)
    assert held.unwanted(100.0)


def test_ends_are_forgotten_when_they_are_acknowledged_or_their_life_is_over(held):
    for id in ("n0/a.1", "n0/b.1", "n0/c.1"):
        enter(held, id)
    held.forget(["n0/a.1", "n0/x.1"])
    assert "n0/a.1" in held.attempts, "it runs"
    held.attempts["n0/a.1"].state = held.attempts["n0/b.1"].state = GONE
    held.forget(["n0/a.1"])
    assert set(held.attempts) == {"n0/b.1", "n0/c.1"}
    assert [a.id for a in held.begin("n0", 8)] == ["n0/c.1"]
    assert set(held.attempts) == {"n0/c.1"}


def test_the_table_is_bounded(held, monkeypatch):
    monkeypatch.setattr(table, "MOST_ATTEMPTS", 1)
    enter(held)
    with pytest.raises(StartRefused, match="1 attempts are kept already"):
        enter(held, "n0/b.1")


def test_messages_come_whole_however_they_are_cut():
    messages = [{"do": "ping", "n": 1}, {"text": "ä" * 300}]
    stream = b"".join(map(wire.pack, messages))
    reader, heard = wire.Reader(), []
    for i in range(0, len(stream), 7):
        heard += reader.feed(stream[i : i + 7])
    assert heard == messages


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (struct.pack(">I", wire.LARGEST + 1), "at most"),
        (struct.pack(">I", 4) + b"nope", "not JSON"),
        (struct.pack(">I", 2) + b"[]", "a message is a JSON object"),
        (struct.pack(">I", 40_000) + b"[" * 40_000, "not JSON"),
    ],
)
def test_what_is_not_the_protocol_ends_the_connection(data, problem):
    with pytest.raises(wire.BadMessage, match=problem):
        wire.Reader().feed(data)


def test_a_message_that_the_other_side_would_refuse_is_not_sent(monkeypatch):
    monkeypatch.setattr(wire, "LARGEST", 100)
    with pytest.raises(wire.BadMessage):
        wire.pack({"text": "x" * 100})


def test_an_agent_says_the_same_in_its_own_way(monkeypatch):
    messages = [
        {"do": "start", "early": None, "ranks": ({"rank": 0, "environment": {"A": "ä\n\x01"}},), "until": 1.5},
        {"workdir": "/data/\udcff"},  # a file's name that is no UTF-8
    ]
    ours = wire.Reader().feed(b"".join(map(packed, messages)))
    assert ours == wire.Reader().feed(b"".join(map(wire.pack, messages)))
    monkeypatch.setattr(wire, "LARGEST", 100)
    with pytest.raises(wire.BadMessage):
        packed({"text": "x" * 100})


def test_two_sides_use_the_newest_version_that_both_speak(monkeypatch):
    monkeypatch.setattr(wire, "OLDEST", 2)
    monkeypatch.setattr(wire, "NEWEST", 4)
    assert [wire.agreed(*theirs) for theirs in ((1, 2), (3, 3), (4, 9))] == [2, 3, 4]
    for theirs in ((1, 1), (5, 6)):
        with pytest.raises(wire.TooOld):
            wire.agreed(*theirs)


def test_a_row_shows_what_an_agent_must_know(held):
    made = enter(held)
    made.codes[0], made.note["phase"] = -9, 2
    shown = json.loads(json.dumps(made.shown()))
    assert (shown["codes"], shown["note"], shown["state"]) == ({"0": -9}, {"phase": 2}, "starting")


def test_what_is_long_over_its_time_limit_ends_also_without_a_lease_that_ends(held):
    """A node whose work is kept while its agent is away had nobody who ended a job at its limit."""
    made = enter(held, early=None)
    made.ends_by = 500.0
    held.until("n0", 7, None, now=1.0)
    assert held.next_deadline(1.0) == 500.0
    assert held.over(499.9) == []
    assert held.over(500.0) == [made]
    assert made.overtime
    assert not made.doomed
    made.state = GONE
    assert held.over(501.0) == []
    assert held.next_deadline(1.0) is None


def test_an_attempt_that_has_ended_by_itself_is_not_said_to_be_over_its_time(held):
    made = enter(held)
    made.ends_by, made.state = 50.0, GONE
    assert held.over(60.0) == []
    assert not made.overtime
