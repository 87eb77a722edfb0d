"""Within v1 messages only grow: nothing that a released schema accepted is refused today."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from schemas.json_schema import documents, models
from tests.schemas import release
from tests.schemas.compat import narrowed

ADMITTED = "io.baton.job.admitted.v1"
SUBMIT = "io.baton.job.submit.v1"
LEDGER = "io.baton.ledger.record.v1"
BILL = "io.baton.bill.get.query.v1"
HOW = (
    "after a release a narrower message is a new type in a new file; before the first one, "
    "delete tests/schemas/released.json and run `python -m tests.schemas.release`"
)


def test_nothing_that_was_released_is_refused() -> None:
    assert release.released(), f"{release.FILE.name} is missing: python -m tests.schemas.release"
    assert release.problems() == [], HOW


@pytest.mark.parametrize("type_", sorted(models()))
def test_every_message_is_as_wide_as_itself(type_: str) -> None:
    document = documents()[type_]
    assert narrowed(release.wordless(document), document) == []
    assert narrowed(document, release.wordless(document)) == []


def change(document: dict[str, Any], edit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    edit(changed)
    return changed


def spec(d: dict[str, Any]) -> dict[str, Any]:
    return d["$defs"]["JobSpec"]


@pytest.mark.parametrize(
    ("type_", "edit", "text"),
    [
        (ADMITTED, lambda d: d["properties"].pop("preempts"), "$.preempts is gone"),
        (ADMITTED, lambda d: d["required"].append("preempts"), "$.preempts is required now"),
        (SUBMIT, lambda d: spec(d)["properties"].pop("workdir"), "$.job.workdir is gone"),
        (SUBMIT, lambda d: spec(d).setdefault("required", []).append("name"), "$.job.name is required now"),
        (SUBMIT, lambda d: d["properties"]["client_key"].update(maxLength=255), "maxLength fell from 256 to 255"),
        (SUBMIT, lambda d: d["properties"]["client_key"].update(minLength=2), "minLength rose from 1 to 2"),
        (SUBMIT, lambda d: d["properties"]["client_key"].update(pattern="^a$"), "pattern was None and is '^a$'"),
        (BILL, lambda d: d["properties"]["group_by"].update(pattern="^(team|day)$"), "$.group_by: pattern was '^(team|"),
        (SUBMIT, lambda d: d["properties"]["client_key"].update(type="integer"), "type was 'string' and is 'integer'"),
        (SUBMIT, lambda d: d["$defs"]["Launch"]["enum"].remove("per-node"), "'per-node' is refused now"),
        (SUBMIT, lambda d: d["$defs"]["Resources"]["properties"]["devices"].update(maximum=8), "maximum fell from 9216"),
        (SUBMIT, lambda d: d["$defs"]["RetryPolicy"]["properties"].pop("on_lost"), "$.job.retry.on_lost is gone"),
        (SUBMIT, lambda d: spec(d)["properties"]["checkpoint"]["anyOf"].pop(), "$.job.checkpoint"),
        (ADMITTED, lambda d: d.update(additionalProperties=False), "$ refuses unknown fields now"),
        (LEDGER, lambda d: d["properties"]["events"]["items"]["oneOf"].pop(), "$.events[]"),
        (LEDGER, lambda d: d["$defs"]["Outcome"]["enum"].remove("lost"), "'lost' is refused now"),
        (LEDGER, lambda d: d["$defs"]["Claim"]["required"].append("surprise"), "surprise is required now"),
    ],
)  # fmt: skip
def test_a_planted_narrowing_is_found(type_: str, edit: Callable[[Any], Any], text: str) -> None:
    document = documents()[type_]
    found = narrowed(document, change(document, edit))
    assert found
    assert text in found[0], found


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: spec(d)["properties"].update(colour={"type": "string"}),
        lambda d: d["properties"]["client_key"].update(maxLength=1000),
        lambda d: d["properties"]["client_key"].pop("minLength"),
        lambda d: d["$defs"]["Launch"]["enum"].append("per-rack"),
        lambda d: d["required"].remove("client_key"),
        lambda d: d.pop("additionalProperties"),
        lambda d: spec(d)["properties"]["checkpoint"]["anyOf"].append({"type": "string"}),
        lambda d: d["properties"]["client_key"].update(description="other words"),
    ],
)
def test_growing_is_left_alone(edit: Callable[[Any], Any]) -> None:
    document = documents()[SUBMIT]
    assert narrowed(document, change(document, edit)) == []
