"""Facts may gain fields at any depth; commands refuse what they do not know, by name."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from schemas.base import Fact, Strict, sent
from schemas.billing import SetQuota
from schemas.catalog import BY_TYPE
from schemas.inbox import InboxMessage, NodeLost
from schemas.jobs import JobSpec
from schemas.json_schema import models
from schemas.known_specs import AcceptedSpec
from schemas.ledger import LedgerRecord, NodeSilence
from tests.schemas.golden_files import Golden, load

GOLDEN = [golden for golden in load() if golden.type in BY_TYPE and "~" not in golden.name]
FACTS = [g for g in GOLDEN if issubclass(BY_TYPE[g.type].model, Fact)]
COMMANDS = [g for g in GOLDEN if issubclass(BY_TYPE[g.type].model, Strict)]
NEW = "from_the_future"
TABLES = {"labels", "env", "models", "jobs", "specs", "guaranteed", "limit", "holds"}  # their keys are data, not fields


def objects(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every object with fields below `node`."""
    if isinstance(node, dict):
        if not (path and path[-1] in TABLES):
            yield path
        for key, value in node.items():
            yield from objects(value, (*path, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from objects(value, (*path, number))


def with_new_field(payload: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(payload)
    node = changed
    for step in path:
        node = node[step]
    node[NEW] = {"any": "thing"}
    return changed


@pytest.mark.parametrize("golden", FACTS, ids=lambda g: g.name)
def test_a_fact_may_gain_a_field_anywhere(golden: Golden) -> None:
    model = BY_TYPE[golden.type].model
    today = model.model_validate(golden.payload)
    for path in objects(golden.payload):
        assert model.model_validate(with_new_field(golden.payload, path)) == today, path


def test_an_answer_may_gain_a_field_anywhere() -> None:
    for golden in GOLDEN:
        if (reply := BY_TYPE[golden.type].reply) and golden.answer is not None:
            for path in objects(golden.answer):
                new = reply.model_validate(with_new_field(golden.answer, path))
                assert new == reply.model_validate(golden.answer), (golden.name, path)


@pytest.mark.parametrize("golden", COMMANDS, ids=lambda g: g.name)
def test_a_command_refuses_an_unknown_field_by_its_name(golden: Golden) -> None:
    for path in objects(golden.payload):
        with pytest.raises(ValidationError) as refused:
            BY_TYPE[golden.type].model.model_validate(with_new_field(golden.payload, path))
        assert [error["loc"] for error in refused.value.errors()] == [(*path, NEW)]


@pytest.mark.parametrize("golden", COMMANDS, ids=lambda golden: golden.name)
def test_a_command_says_nothing_of_a_field_that_it_leaves_empty(golden: Golden) -> None:
    """Who reads it may be of before there was that field. Seen: `secret set` and `cancel` of a new client were refused by the
    services of the release before, for a null."""
    kind = BY_TYPE[golden.type].model
    empty = {name for name, field in kind.model_fields.items() if field.default is None}
    bare = kind.model_validate({name: value for name, value in golden.payload.items() if name not in empty})
    assert not empty & json.loads(sent(bare)).keys()
    assert kind.model_validate_json(sent(bare)) == bare
    whole = kind.model_validate(golden.payload)
    assert kind.model_validate_json(sent(whole)) == whole


def test_a_null_that_says_something_is_sent() -> None:
    unlimited = SetQuota(team="research", limit_milli=None)
    assert SetQuota.model_validate_json(sent(unlimited)) == unlimited


def test_a_wrong_value_inside_an_accepted_spec_is_named_by_its_whole_path() -> None:
    golden = next(g for g in FACTS if g.type == "io.baton.job.admitted.v1")
    payload = copy.deepcopy(golden.payload)
    payload["spec"]["resources"]["devices"] = 0
    with pytest.raises(ValidationError) as refused:
        BY_TYPE[golden.type].model.model_validate(payload)
    assert refused.value.errors()[0]["loc"] == ("spec", "resources", "devices")


def test_readers_that_validate_through_an_adapter_are_tolerant_too() -> None:
    """libs.ledger reads records with a TypeAdapter's validator, past the methods of the model."""
    golden = next(g for g in FACTS if g.type == "io.baton.ledger.record.v1")
    record = LedgerRecord.model_validate(golden.payload)
    queued = next(n for n, event in enumerate(golden.payload["events"]) if event["kind"] == "job.queued")
    newer = with_new_field(golden.payload, ("events", queued, "spec", "resources"))
    assert TypeAdapter(LedgerRecord).validate_python(newer) == record


@pytest.mark.parametrize("golden", [g for g in FACTS if g.subject.startswith("baton.in.")], ids=lambda g: g.name)
def test_everything_in_the_inbox_is_an_inbox_message(golden: Golden) -> None:
    assert isinstance(BY_TYPE[golden.type].model.model_validate(golden.payload), InboxMessage)


def test_models_are_frozen() -> None:
    assert [m.__name__ for m in models().values() if not m.model_config.get("frozen")] == []


def test_specs_that_are_alike_are_one_object_and_others_are_not_mistaken_for_them() -> None:
    accepted = TypeAdapter(AcceptedSpec)
    plain: dict[str, Any] = {"name": "a", "command": ["true"], "resources": {"devices": 1}}
    first = accepted.validate_python(plain)
    assert accepted.validate_json(json.dumps(plain)) is first
    assert accepted.validate_python(plain | {"name": "b"}).name == "b"
    later = accepted.validate_python(plain | {NEW: [1]})
    assert later == first, "what a later service wrote is passed over"
    with pytest.raises(ValidationError):
        accepted.validate_python(plain | {"resources": {"devices": 1.5}})
    with pytest.raises(ValidationError):
        accepted.validate_python(plain | {"resources": {"devices": 1.5}})
    assert [accepted.validate_python(plain | {"name": f"n{n}"}).name for n in range(600)] == [
        f"n{n}" for n in range(600)
    ]


def test_specs_that_differ_in_their_names_share_what_is_alike() -> None:
    accepted = TypeAdapter(AcceptedSpec)
    parts: dict[str, Any] = {
        "command": ["true"],
        "resources": {"devices": 2},
        "env": {"A": "1"},
        "retry": {"on_failure": 1},
    }
    one, two = (accepted.validate_python({"name": name, **parts}) for name in ("one", "two"))
    other = accepted.validate_python({"name": "three", **parts, "resources": {"devices": 2, "cpu_milli": 1}})
    for part in parts:
        assert getattr(one, part) is getattr(two, part)
    assert (one.resources.cpu_milli, other.resources.cpu_milli) == (0, 1)
    assert two == JobSpec(name="two", **parts)
    assert two.model_dump(exclude_unset=True) == JobSpec(name="two", **parts).model_dump(exclude_unset=True)


@pytest.mark.parametrize("silent_s", [b"1e400", b"9" * 400])
def test_no_number_becomes_infinite(silent_s: bytes) -> None:
    """It would be stored as null, which no reader of the ledger can read."""
    with pytest.raises(ValidationError, match="finite"):
        NodeLost.model_validate_json(b'{"node":"n0","incarnation":1,"silent_s":' + silent_s + b"}")
    with pytest.raises(ValidationError, match="finite"):
        NodeSilence(node="n0", incarnation=1, silent_s=float(silent_s))
