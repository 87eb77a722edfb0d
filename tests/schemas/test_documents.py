"""The generated documents: complete, deterministic, and every reference in them leads somewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas import asyncapi, generate, json_schema, messages_page
from schemas.base import BEYOND_DOUBLE
from schemas.catalog import BY_TYPE, CATALOG, Message
from tests.schemas.checker import Checker, references, resolve
from tests.schemas.golden_files import load

ROOT = Path(__file__).parents[2]
TYPES = sorted(json_schema.models())


@pytest.mark.parametrize("type_", TYPES)
def test_json_schemas_are_named_and_self_contained(type_: str) -> None:
    document = json_schema.documents()[type_]
    assert document["$id"] == f"urn:baton:{type_}"
    for reference in references(document):
        resolve(document, reference)


def test_sums_over_device_time_are_marked_for_readers_whose_numbers_are_doubles() -> None:
    """By their units: a new field of one of them is to be a `LargeSum`."""
    units = re.compile(r".*(milli|unit)_us|.*_nj|units|energy_known_us")
    found: dict[str, list[dict[str, Any]]] = {}

    def look(node: Any) -> None:
        if isinstance(node, dict):
            for name, field in node.get("properties", {}).items():
                if field.get("type") == "integer":
                    found.setdefault(name, []).append(field)
            node = list(node.values())
        for one in node if isinstance(node, list) else ():
            look(one)

    look(json_schema.documents())
    sums = {name: fields for name, fields in found.items() if units.fullmatch(name)}
    assert {"milli_us", "allocated_unit_us", "energy_nj", "units"} < sums.keys()
    marked = {name for name, fields in found.items() if any(field.get(BEYOND_DOUBLE) for field in fields)}
    assert marked == sums.keys()
    assert all(field.get(BEYOND_DOUBLE) for fields in sums.values() for field in fields)


def test_every_reference_of_asyncapi_resolves() -> None:
    found = list(references(asyncapi.document()))
    assert len(found) > 200
    for reference in found:
        resolve(asyncapi.document(), reference)


def test_every_key_of_an_address_is_a_parameter_and_no_other() -> None:
    for name, channel in asyncapi.document()["channels"].items():
        keys = re.findall(r"{(\w+)}", channel["address"] or "")
        assert sorted(keys) == sorted(channel.get("parameters", {})), name


def test_ids_are_those_that_asyncapi_allows() -> None:
    for table in asyncapi.document()["components"].values():
        assert [key for key in table if not re.fullmatch(r"[a-zA-Z0-9._-]+", key)] == []


def test_every_message_has_its_channel_stream_and_operations() -> None:
    for m in CATALOG:
        channel = asyncapi.document()["channels"][m.type]
        assert (channel["address"], channel.get("x-stream", "")) == (m.subject, m.stream)
        ends = [(m.producer, "send"), *((consumer, "receive") for consumer in m.consumers)]
        for who, action in ends:
            operation = asyncapi.document()["operations"][f"{who}.{action}.{m.type}"]
            assert operation["action"] == action
            assert operation["channel"] == {"$ref": f"#/channels/{m.type}"}
            assert ("reply" in operation) == (m.reply is not None)


def test_operations_speak_only_of_messages_of_their_channel() -> None:
    for name, operation in asyncapi.document()["operations"].items():
        for part in (operation, operation.get("reply")):
            if part:
                prefix = part["channel"]["$ref"] + "/messages/"
                assert all(message["$ref"].startswith(prefix) for message in part["messages"]), name


def test_questions_may_be_answered_with_a_failure() -> None:
    for m in CATALOG:
        if m.subject.startswith("baton.qry."):
            assert set(asyncapi.document()["channels"][m.reply_type]["messages"]) == {m.reply_type, json_schema.FAILED}


@pytest.mark.parametrize("golden", load(), ids=lambda g: g.name)
def test_asyncapi_describes_what_is_on_the_wire(golden: Any) -> None:
    if "~" in golden.name:
        return
    message = asyncapi.document()["components"]["messages"][golden.type]
    checker = Checker(asyncapi.document())
    assert checker.problems(golden.payload, message["payload"]) == []
    assert _all_of(checker, golden.headers, message["headers"]) == []


def test_commands_refuse_unknown_fields_and_facts_do_not() -> None:
    schemas = asyncapi.document()["components"]["schemas"]
    assert schemas["JobSpec.request"]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["JobSpec"]


def test_every_model_says_what_it_is() -> None:
    silent = [m.__name__ for m in json_schema.models().values() if not m.__doc__]
    assert silent == []
    assert [m.type for m in CATALOG if not m.about.endswith((".", "?"))] == []


def test_the_page_shows_every_message_once() -> None:
    page = messages_page.page()
    assert [m.type for m in CATALOG if page.count(f"[`{m.type}`]") != 1] == []


def test_a_message_that_no_section_shows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Message("io.baton.odd.v1", CATALOG[0].model, "baton.odd.v1.odd.{team}", "", "teams", ("history",))
    monkeypatch.setattr(messages_page, "CATALOG", (*CATALOG, odd))
    with pytest.raises(ValueError, match=r"io\.baton\.odd\.v1"):
        messages_page.page()


def test_types_and_subjects_are_unique() -> None:
    assert len(BY_TYPE) == len(CATALOG)
    assert len({m.subject for m in CATALOG}) == len(CATALOG)


def test_writing_twice_writes_once(tmp_path: Path) -> None:
    files = generate.wanted()
    assert generate.write(tmp_path, files) == sorted(files)
    assert generate.write(tmp_path, files) == []
    left_over = tmp_path / generate.GENERATED / "io.baton.gone.v1.json"
    left_over.write_text("{}")
    assert generate.stale(tmp_path, files) == [f"{generate.GENERATED}/io.baton.gone.v1.json"]
    generate.write(tmp_path, files)
    assert not left_over.exists()


def test_another_hash_seed_generates_the_same() -> None:
    script = "import json; from schemas import generate; print(json.dumps(generate.wanted()))"
    for seed in ("1", "2"):
        made = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(made.stdout) == generate.wanted()


def test_what_is_committed_is_current() -> None:
    assert generate.stale(ROOT, generate.wanted()) == [], "run `./dev schemas` and commit the result"


def test_check_says_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "docs/messages.md is not current: run `./dev schemas`" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def _all_of(checker: Checker, value: Any, schema: dict[str, Any]) -> list[str]:
    return [p for part in schema.get("allOf", [schema]) for p in checker.problems(value, part)]
