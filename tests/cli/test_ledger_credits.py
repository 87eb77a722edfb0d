"""`baton ledger credits`: a policy that cannot be meant is refused with line, field and fix; rows of a real file."""

import json
from pathlib import Path

import pytest

from libs.cli.exits import UsageFault
from libs.cli.ledger_credits import credits_of, read_policy
from libs.cli.output import Format
from libs.core.billing.credits import CreditCause
from tests.core.test_credits import lost_node
from tests.kit.filed import filed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node-lost: 1000\nnode-list: 5\n", ":2: node-list: is no cause; write one of node-lost, hardware-fault"),
        ("node-lost: 1001\n", ":1: node-lost: is 1001: not thousandths; write a whole number from 0 to 1000"),
        ("node-lost: -1\n", "not thousandths"),
        ("node-lost: half\n", "not thousandths"),
        ("- node-lost\n", "not one map"),
        ("node-lost: [\n", ":"),
        ("node-lost: 1\nnode-lost: 2\n", "node-lost"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "credits.yaml"
    path.write_text(text)
    with pytest.raises(UsageFault, match=said.replace("[", r"\[")):
        read_policy(path)


def test_a_policy_names_its_causes(tmp_path: Path) -> None:
    path = tmp_path / "credits.yaml"
    path.write_text("node-lost: 500\npromise-broken: 0\n")
    assert read_policy(path) == {CreditCause.NODE_LOST: 500, CreditCause.PROMISE_BROKEN: 0}


def test_credits_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ledger.jsonl"
    filed(lost_node(), path)
    credits_of([path], output=Format.JSON)
    rows = json.loads(capsys.readouterr().out)
    assert {(row["cause"], row["unit_us"]) for row in rows} == {
        ("node-lost", 434_000_000_000), ("hardware-fault", 840_000_000_000),
    }  # fmt: skip
