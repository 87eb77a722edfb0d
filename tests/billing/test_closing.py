"""Which period may be the first that is closed, and how a closed one is told."""

from pathlib import Path

import pytest

from libs.cli.bill_close import seal_of
from libs.cli.exits import UsageFault
from libs.core.billing.wall import DAY_US, HOUR_US, month_us
from libs.core.projections.audit import AuditLines
from libs.core.state.moments import text_of
from libs.ledger.records import FiledLedger
from schemas import inbox
from tests.billing.ledgers import DECEMBER, NOVEMBER, filed, over_the_month

OCTOBER = month_us(2026, 10)[0]
LONG_AGO = month_us(2020, 1)


@pytest.fixture
def source(tmp_path: Path) -> FiledLedger:
    """Its first use is two hours before November."""
    return FiledLedger([filed(over_the_month().records, tmp_path / "ledger.jsonl")])


def test_a_first_period_in_which_nothing_was_billed_is_refused_unless_it_is_meant(source: FiledLedger) -> None:
    """Seen: `--from 2020-01`, a slip of the pen, was sealed, and all periods since 2020 had to follow it."""
    with pytest.raises(UsageFault, match="has no rows, and would be the first") as refused:
        seal_of(source, LONG_AGO, empty=False)
    assert f"the first that was billed is of {text_of(NOVEMBER - 2 * HOUR_US)}" in str(refused.value)
    seal, rows = seal_of(source, LONG_AGO, empty=True)
    assert (rows, seal.totals) == (0, ())


@pytest.mark.parametrize("empty", [False, True])
def test_a_first_period_leaves_nothing_out_for_good(source: FiledLedger, empty: bool) -> None:
    """Seen: November was sealed first, and no seal could ever have October."""
    with pytest.raises(UsageFault, match="no seal would ever have them") as refused:
        seal_of(source, (NOVEMBER, DECEMBER), empty=empty)
    assert "--from 2026-10-31" in str(refused.value)
    assert seal_of(source, (OCTOBER, NOVEMBER), empty=False)[1] > 0
    assert seal_of(source, (OCTOBER, DECEMBER), empty=False)[1] > 0


def test_a_later_period_may_be_empty(tmp_path: Path) -> None:
    """A month without use is closed like any other: the next one follows it."""
    world = over_the_month()
    seal, _ = seal_of(FiledLedger([filed(world.records, tmp_path / "l.jsonl")]), (OCTOBER, DECEMBER), empty=False)
    world.send(inbox.ClosePeriod(period=seal, user="olga"), after_us=DAY_US)
    again = FiledLedger([filed(world.records, tmp_path / "later.jsonl")])
    assert len(again.closed) == 1
    assert seal_of(again, (DECEMBER, DECEMBER + HOUR_US), empty=False)[1] == 0


def test_the_audit_tells_which_period_was_closed_as_people_write_it(source: FiledLedger) -> None:
    """Seen: `1793491200000000-1796083200000000`."""
    world = over_the_month()
    seal, _ = seal_of(source, (OCTOBER, DECEMBER), empty=False)
    world.send(inbox.ClosePeriod(period=seal, reason="invoiced", user="olga"))
    audit = AuditLines()
    lines = [line for seq, record in enumerate(world.records, 1) for line in audit.of(record, seq)]
    (told,) = [line.target for line in lines if line.kind == "bill.close"]
    assert told == "2026-10-01T00:00:00Z to 2026-12-01T00:00:00Z"
