"""Every released message of v1 stays readable, whole, by today's models and by today's JSON Schemas."""

import json
import typing
from typing import Any

import pytest

from schemas import envelope
from schemas.catalog import BY_TYPE, CATALOG
from schemas.json_schema import FAILED, documents, models
from schemas.ledger import LedgerEvent, LedgerRecord
from tests.schemas.checker import Checker, fields
from tests.schemas.golden_files import FOLDER, Golden, load, lost

GOLDEN = load()
each = pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g.name)


def test_every_message_of_the_catalogue_has_a_golden_file() -> None:
    missing = {m.type for m in CATALOG} | {FAILED}
    missing -= {golden.name for golden in GOLDEN}
    assert not missing, f"write {FOLDER.name}/<type>.json with every field set, for {sorted(missing)}"


def test_every_golden_file_is_of_a_message_that_exists() -> None:
    unknown = {golden.type for golden in GOLDEN} - documents().keys()
    assert not unknown, f"released messages are gone from the catalogue: {sorted(unknown)}"


@each
def test_a_released_message_is_read_whole(golden: Golden) -> None:
    data = _data(golden)
    model = models()[golden.type]
    assert lost(json.loads(data), model.model_validate_json(data).model_dump(mode="json")) == []


@each
def test_a_released_message_fits_its_json_schema(golden: Golden) -> None:
    assert Checker(documents()[golden.type]).problems(json.loads(_data(golden))) == []


@pytest.mark.parametrize("golden", [g for g in GOLDEN if g.answer is not None], ids=lambda g: g.name)
def test_a_released_answer_is_read_whole(golden: Golden) -> None:
    message = BY_TYPE[golden.type]
    assert message.reply
    read = message.reply.model_validate_json(json.dumps(golden.answer)).model_dump(mode="json")
    assert lost(golden.answer, read) == []
    assert Checker(documents()[message.reply_type]).problems(golden.answer) == []


def test_every_question_has_a_golden_answer() -> None:
    answered = {golden.type for golden in GOLDEN if golden.answer is not None}
    assert answered == {m.type for m in CATALOG if m.reply}


@each
def test_a_golden_file_lies_where_its_message_is_sent(golden: Golden) -> None:
    if golden.type == FAILED:
        return
    pattern, subject = BY_TYPE[golden.type].subject.split("."), golden.subject.split(".")
    assert [p if not p.startswith("{") else s for p, s in zip(pattern, subject, strict=True)] == subject


def test_golden_files_show_every_field() -> None:
    """A field that no golden file shows could be renamed unseen."""
    for type_, document in documents().items():
        checker = Checker(document)
        for golden in GOLDEN:
            if golden.type == type_:
                checker.problems(json.loads(_data(golden)))
            elif golden.type in BY_TYPE and BY_TYPE[golden.type].reply_type == type_:
                checker.problems(golden.answer)
        missing = sorted(f"{owner}.{name}" for owner, name in fields(document) - checker.seen)
        assert not missing, f"{type_}: no golden file shows {missing}: add them to one"


def test_the_golden_ledger_records_hold_every_kind_of_event() -> None:
    records = [LedgerRecord.model_validate_json(g.wire) for g in GOLDEN if g.type == "io.baton.ledger.record.v1"]
    kinds = {event.kind for record in records for event in record.events}
    variants = typing.get_args(typing.get_args(LedgerEvent)[0])
    assert kinds == {variant.model_fields["kind"].default for variant in variants}


def test_an_unknown_kind_of_event_is_refused_never_skipped() -> None:
    record = _ledger().model_dump(mode="json")
    record["events"].append({"kind": "job.teleported", "job_id": "job-" + "0" * 32})
    with pytest.raises(ValueError, match=r"job\.teleported"):
        LedgerRecord.model_validate(record)


def test_an_unknown_version_of_the_record_is_refused() -> None:
    with pytest.raises(ValueError, match="v\n"):
        LedgerRecord.model_validate(_ledger().model_dump(mode="json") | {"v": 2})


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({"a": 1}, {}, "$.a is lost"),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, "$.a.b is lost"),
        ({"a": [1, 2]}, {"a": [1]}, "$.a: [1, 2] became [1]"),
        ({"a": [1]}, {"a": ["1"]}, "$.a[0]: 1 became '1'"),
    ],
)
def test_a_planted_loss_is_found(old: Any, new: Any, text: str) -> None:
    assert lost(old, new) == [text]


def test_a_new_field_is_no_loss() -> None:
    assert lost({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}], "d": 3}) == []


def _data(golden: Golden) -> bytes:
    """The data as a service gets it: out of the envelope, whatever its mode. Answers have none."""
    if golden.type == FAILED:
        return golden.wire
    read, data = envelope.read(golden.headers, golden.wire)
    assert read.type == golden.type
    return data


def _ledger() -> LedgerRecord:
    golden = next(g for g in GOLDEN if g.type == "io.baton.ledger.record.v1")
    return LedgerRecord.model_validate_json(golden.wire)
