"""The chain, without a broker: every reader agrees on what is valid, whatever is in the stream."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.ledger.chain import GENESIS, Decoded, Head, UnknownRecord, continues, encode, judge, remember
from schemas import ledger as led
from schemas.jobs import JobState
from schemas.ledger import LedgerRecord

FORGERIES = ("stale", "fork", "garbage", "wrong-hash", "other-pool", "later-version", "unknown-event", "number")


def record(head: Head, **changes: Any) -> LedgerRecord:
    fields: dict[str, Any] = {"pool": "main", "inbox_seq": 0, "t_us": 1, "writer": "w", "events": ()}
    return LedgerRecord(prev_seq=head.seq, prev_hash=head.hash, **(fields | changes))


def forged(kind: str, head: Head, before: Head) -> bytes:
    """A payload that must not count at `head`, where `before` is an earlier head."""
    other = Head(head.seq, "f" * 64)
    match kind:
        case "stale":
            return encode(record(before if before != head else other))[0]
        case "fork":
            return encode(record(other, inbox_seq=7))[0]
        case "garbage":
            return b"\xff\x00 not JSON"
        case "wrong-hash":
            return encode(record(Head(head.seq, head.hash[::-1] + "0")))[0]
        case "other-pool":
            return encode(record(head, pool="other"))[0]
        case "later-version":
            return json.dumps({"v": 2, "prev_seq": other.seq, "prev_hash": other.hash}).encode()
        case "unknown-event":
            return json.dumps(record(other).model_dump() | {"events": [{"kind": "job.promoted"}]}).encode()
        case _:
            return b"7"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.just("valid"), st.sampled_from(FORGERIES)), max_size=30), st.data())
def test_the_valid_records_are_those_that_were_chained(kinds: list[str], data: st.DataObject) -> None:
    heads, stream, truth = [GENESIS], [], []
    for seq, kind in enumerate(kinds, 1):
        if kind == "valid":
            payload, digest = encode(record(heads[-1], inbox_seq=seq))
            heads.append(Head(seq, digest))
            truth.append(seq)
        else:
            payload = forged(kind, heads[-1], data.draw(st.sampled_from(heads)))
        stream.append(payload)
    head = GENESIS
    applied = []
    for seq, payload in enumerate(stream, 1):
        entry = judge(head, "main", seq, payload, 0)
        assert entry.valid == (not entry.why)
        if entry.valid:
            head = entry.head
            applied.append(seq)
    assert applied == truth
    assert head == heads[-1]


@given(st.integers(0, 5), st.text(max_size=3), st.integers(0, 5), st.text(max_size=3))
def test_a_record_continues_one_head_only(seq: int, digest: str, other: int, other_digest: str) -> None:
    made = record(Head(seq, digest))
    assert continues(Head(other, other_digest), made) == ((seq, digest) == (other, other_digest))


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"v": "1"}, {"events": [{"kind": "job.promoted"}]}, {"events": [{}]}, {"t_us": -1}, {"events": None}],
)
def test_what_continues_the_chain_must_be_understood(change: dict[str, Any]) -> None:
    head = Head(4, "a" * 64)
    payload = json.dumps(record(head).model_dump(mode="json") | change).encode()
    with pytest.raises(UnknownRecord, match="at least as new"):
        judge(head, "main", 5, payload, 0)
    assert not judge(Head(3, "b" * 64), "main", 5, payload, 0).valid


def test_fields_that_a_later_service_added_are_ignored_but_hashed() -> None:
    payload = json.dumps(record(GENESIS).model_dump(mode="json") | {"colour": "red"}).encode()
    entry = judge(GENESIS, "main", 1, payload, 0)
    assert entry.valid
    assert entry.hash != encode(entry.record)[1]


def test_records_that_are_kept_decoded_are_bounded_by_their_bytes() -> None:
    kept = Decoded(most_bytes=100)
    for number in range(10):
        kept.put(f"{number}", record(GENESIS, inbox_seq=number), 40)
        kept.put(f"{number}", record(GENESIS), 40)
    found = [kept.get(f"{number}") for number in range(10)]
    assert [one is not None for one in found] == [False] * 8 + [True] * 2
    assert found[9] == record(GENESIS, inbox_seq=9), "the first to come stays"
    kept.put("large", record(GENESIS), 101)
    assert kept.get("large") is None
    assert kept.get("9") is None


def test_who_wrote_a_record_does_not_decode_it_again() -> None:
    made = record(GENESIS, inbox_seq=77)
    payload, digest = encode(made)
    remember(made, payload, digest)
    assert judge(GENESIS, "main", 1, payload, 0).record is made


def test_a_payload_that_was_read_before_is_judged_by_its_own_place() -> None:
    payload, digest = encode(record(GENESIS))
    first, again = (judge(head, "main", 1, payload, 0) for head in (GENESIS, Head(1, digest)))
    assert (first.valid, again.valid) == (True, False)
    assert again.record is first.record
    assert not judge(GENESIS, "other", 1, payload, 0).valid


def test_a_reader_of_some_kinds_gets_the_same_whether_the_rest_is_understood_or_not() -> None:
    job = "job-" + "0" * 32
    whole = record(
        GENESIS,
        events=(
            led.AttemptRunning(job_id=job, attempt=1),
            led.NodeLeft(node="n", incarnation=1, reason="drained"),
            led.JobFinished(job_id=job, state=JobState.SUCCEEDED),
        ),
    )
    payload, _ = encode(whole)
    strange = payload.replace(b'"kind":"attempt.running"', b'"kind":"attempt.walking"')
    for only in ({"node.left"}, {"node.left", "job.finished"}, {"segment.sealed"}):
        understood, not_understood = (judge(GENESIS, "main", 1, one, 9, only).record for one in (payload, strange))
        assert understood == not_understood
        assert {event.kind for event in understood.events} == only - {"segment.sealed"}
    everything = {event.kind for event in whole.events}
    assert judge(GENESIS, "main", 1, payload, 9, everything).record == whole
