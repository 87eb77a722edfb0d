"""Exports conform to FOCUS, come to the oracle's money, are the same bytes again, also when cut off, and are verified."""

import csv
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from libs.cli import bill_files
from libs.cli.bill_close import seal_of
from libs.cli.exits import Exit, UsageFault, code_of, tell
from libs.cli.main import app
from libs.core.billing.charges import charges
from libs.core.billing.focus import COLUMNS, ColumnKind, columns_of, facts_of
from libs.core.billing.prices import PriceList
from libs.core.billing.wall import HOUR_US
from libs.core.projections.verify import Checker
from libs.ledger.records import FiledLedger
from libs.report import focus_files
from schemas import inbox
from schemas.ledger import DevicesFreed, JobGranted, PricesApplied
from schemas.prices import ClosedPeriod, ListRate, Term
from tests.billing.focus_rules import problems
from tests.billing.ledgers import DECEMBER, FIRST, NOVEMBER, ask, filed, over_the_month, priced_world
from tests.core.builders import World

VERSIONS = ("1.2", "1.3", "1.4")


@pytest.fixture(scope="module")
def world() -> World:
    return priced_world()


@pytest.fixture(scope="module")
def ledger(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filed(world.records, tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


def baton(*words: Any, code: int = 0) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(found.exception, UsageFault):
        assert code == 2, found.exception
        return str(found.exception)
    assert found.exit_code == code, (found.output, found.exception)
    return found.output


def exported(path: Path, ledger: Path, *words: str) -> list[dict[str, str | None]]:
    """A CSV export's rows; an empty field is null."""
    baton("bill", "export", path, "--ledger", ledger, "--from", "2026-10-01", "--to", "2027-02-01", *words)
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_export_conforms_to_the_specification(ledger: Path, tmp_path: Path, version: str) -> None:
    rows = exported(tmp_path / "bill.csv", ledger, "--focus-version", version)
    assert problems(list(rows[0]), rows, version) == []
    assert {r["PricingCategory"] for r in rows} >= {"Standard", "Committed"}
    assert {r["ChargeClass"] for r in rows} == {None, "Correction"}, "October's hours were corrected in November"
    assert "Adjustment" in {r["ChargeCategory"] for r in rows}
    about = json.loads((tmp_path / "bill.csv.metadata.json").read_text())
    assert about["FocusVersion"] == version
    assert [c["ColumnName"] for c in about["ColumnDefinition"]] == list(rows[0])
    assert ("ContractApplied" in rows[0], "InvoiceDetailId" in rows[0]) == (version >= "1.3", version >= "1.4")
    assert [(u["device"], u["units"] > 0) for u in about["x_Unpriced"]] == [("A100", True)], "billed at no guess"


def test_a_part_of_a_device_is_an_allocated_charge_and_a_reservation_a_commitment(ledger: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "bill.csv", ledger, "--focus-version", "1.4")
    shared = {r["x_JobId"] for r in rows if r["AllocatedMethodId"]}
    assert len(shared) == 1, "one job holds 333 thousandths of a device"
    for row in rows:
        whole = row["x_JobId"] not in shared
        assert row["AllocatedResourceId"] == (None if whole else f"{row['x_JobId']}.{row['x_Attempt']}")
        assert (row["CommitmentProgramEligibilityDetails"] is None) == (row["PricingCategory"] != "Committed")


def test_what_has_a_price_of_a_reservation_could_have_been_committed_to() -> None:
    day = 24 * HOUR_US
    book = FIRST.model_copy(
        update={
            "prices": (
                ListRate(device="H100", micros=3, from_us=0),
                ListRate(device="H100", term=Term.RESERVATION, micros=2, from_us=day, to_us=2 * day),
            ),
            "contracts": (),
        }
    )
    prices = PriceList(book)
    quotes = [prices.at("research", "H100", "batch", moment) for moment in (0, day, 2 * day)]
    assert [q and (q.reservable, q.list_micros, q.term) for q in quotes] == [
        (False, 3, Term.STANDARD), (True, 3, Term.STANDARD), (False, 3, Term.STANDARD),
    ]  # fmt: skip


def test_the_checker_finds_what_breaks_a_rule_of_later_versions(ledger: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "bill.csv", ledger, "--focus-version", "1.4")
    commited = next(n for n, r in enumerate(rows) if r["CommitmentDiscountId"])
    lies = {
        "AllocatedMethodId": None, "AllocatedResourceName": None, "AllocatedTags": '{"baton/job":"x"}',
        "ContractApplied": '{"Elements":[{"ContractId":"c"}]}', "CommitmentProgramEligibilityDetails": None,
    }  # fmt: skip
    for name, value in lies.items():
        changed = [*rows[:commited], {**rows[commited], name: value}, *rows[commited + 1 :]]
        assert problems(list(rows[0]), changed, "1.4"), f"{name} = {value!r} was not found"
    assert problems([n for n in rows[0] if n != "InvoiceDetailId"], rows, "1.4")
    assert problems(list(rows[0]), rows, "1.3"), "it has columns that 1.3 does not have"


def test_the_checker_finds_what_breaks_a_rule(ledger: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "bill.csv", ledger)
    lies = {
        "ContractedCost": "0.000001", "ChargeClass": "Correction", "PricingUnit": "gpu hours", "BilledCost": "+1",
        "ChargeCategory": "Use", "ChargePeriodStart": "2026-11-01 00:00", "SkuPriceId": None, "Tags": "{'a': 1}",
        "ConsumedQuantity": None, "ServiceName": "", "CommitmentDiscountId": "c-9", "BillingCurrency": "usd",
    }  # fmt: skip
    usual = next(n for n, r in enumerate(rows) if r["PricingCategory"] == "Standard" and r["ChargeClass"] is None)
    for name, value in lies.items():
        changed = [*rows[:usual], {**rows[usual], name: value}, *rows[usual + 1 :]]
        assert problems(list(rows[0]), changed, "1.3"), f"{name} = {value!r} was not found"
    assert problems([n for n in rows[0] if n != "ListCost"], rows, "1.3")
    assert problems(list(rows[0]), rows, "1.4")


# ---------------------------------------------------------------------------------------------------------------- money


def oracle(world: World) -> dict[str, Fraction]:
    """Team -> money, exactly: what the last book makes of every claim, hour by hour and millionth by millionth, because in the
    end corrections leave what the last book comes to. In fractions, from the records, with nothing of ours."""
    book = [e.book for r in world.records for e in r.events if isinstance(e, PricesApplied)][-1]
    at_book = next(r.t_us for r in world.records for e in r.events if isinstance(e, PricesApplied) and e.book == book)
    teams = {
        e.job_id: (e.team, e.spec.priority_class) for r in world.records for e in r.events if e.kind == "job.queued"
    }
    held: dict[str, tuple[JobGranted, int]] = {}
    money: dict[str, Fraction] = {}
    tiers: dict[tuple[str, int], Fraction] = {}
    assert at_book
    for record in world.records:
        for event in record.events:
            if isinstance(event, JobGranted):
                held[event.job_id] = (event, record.t_us)
            if not isinstance(event, DevicesFreed):
                continue
            grant, since = held[event.job_id]
            team, klass = teams[event.job_id]
            for claim in grant.claims:
                if claim.device not in event.devices or not claim.device.startswith("n"):
                    continue
                points = sorted(
                    {since, record.t_us}
                    | {h * HOUR_US for h in range(since // HOUR_US + 1, record.t_us // HOUR_US + 1)}
                )
                for low, high in pairwise(points):
                    hours = Fraction((high - low) * claim.milli, 1000 * HOUR_US)
                    listed = [p for p in book.prices if p.from_us <= low and (p.to_us is None or low < p.to_us)]
                    listed = [p for p in listed if p.priority_class == klass] or [
                        p for p in listed if p.priority_class == "*"
                    ]
                    deal = [c for c in book.contracts if c.team == team and c.from_us <= low]
                    if not deal:
                        money[team] = money.get(team, Fraction(0)) + round(hours * listed[0].micros)
                        continue
                    month = (team, 0 if low < NOVEMBER else 1 if low < DECEMBER else 2)
                    before = tiers.get(month, Fraction(0))
                    tiers[month] = after = before + hours
                    for place, tier in enumerate(deal[0].tiers):
                        until = deal[0].tiers[place + 1].above_hours if place + 1 < len(deal[0].tiers) else after
                        part = min(after, until) - max(before, tier.above_hours)
                        money[team] = money.get(team, Fraction(0)) + (round(part * tier.micros) if part > 0 else 0)
    return money


def test_an_exports_sums_are_the_oracles_to_the_millionth(world: World, ledger: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "bill.csv", ledger)
    found: dict[str, Fraction] = {}
    for row in rows:
        team = row["SubAccountId"] or ""
        found[team] = found.get(team, Fraction(0)) + Fraction(row["BilledCost"] or "") * 1_000_000
    assert found == oracle(world)
    checker = Checker()
    for seq, record in enumerate(world.records, start=1):
        checker.step(seq, record, True)
    about = json.loads((tmp_path / "bill.csv.metadata.json").read_text())
    units = sum(int(r["x_Units"] or 0) for r in rows) + sum(u["units"] for u in about["x_Unpriced"])
    assert units == sum(checker.finish().by_team.values()), "every microsecond is billed or told to be unpriced"


def test_a_book_that_comes_later_changes_no_row_that_was_posted(world: World, ledger: Path, tmp_path: Path) -> None:
    second = [n for n, r in enumerate(world.records, 1) for e in r.events if isinstance(e, PricesApplied)][1]
    before = filed(world.records[: second - 1], tmp_path / "before.jsonl")
    early = list(charges(FiledLedger([before])))
    late = list(charges(FiledLedger([ledger])))
    assert late[: len(early)] == early
    corrections = [c for c in late if c.correction]
    assert {c.posted_seq for c in corrections} == {second}
    assert sum(c.amount.cost_micros for c in corrections) < 0, "it is cheaper for research"


def test_a_value_that_is_made_once_for_alike_rows_is_the_value_of_each(world: World) -> None:
    found = charges(lambda: list(enumerate(world.records, start=1)))
    facts = [facts_of(charge, "test", "USD") for charge in found if charge.amount.quote is not None]
    columns = [column for column in COLUMNS if column.name not in ("ProviderName", "PublisherName")]
    for column, cells in zip(columns, focus_files.cells_of(facts, columns), strict=True):
        assert [cells.values[code] for code in cells.codes] == [column.value(f) for f in facts], column.name


# ------------------------------------------------------------------------------------------------------- files, periods


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_the_same_again_is_the_same_bytes_also_when_it_was_cut_off(
    ledger: Path, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(focus_files, "PART_ROWS", 7)
    words = ("--ledger", ledger, "--from", "2026-10-01", "--to", "2027-02-01", "--format", format)
    one, two = tmp_path / "one", tmp_path / "two"
    baton("bill", "export", one, *words)
    rendering: Any = focus_files._RENDERINGS[format]
    made: list[str] = []
    render = rendering.part

    def dies(self: Any, rows: Any, path: Path) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(path.name)
        render(self, rows, path)

    monkeypatch.setattr(rendering, "part", dies)
    CliRunner().invoke(app, [str(w) for w in ("bill", "export", two, *words)])
    assert not two.exists(), "what is not whole is not there"
    made_before = len(list((tmp_path / "two.parts").glob("0*")))
    again: list[Path] = []
    monkeypatch.setattr(rendering, "part", lambda self, rows, path: (again.append(path), render(self, rows, path)))
    baton("bill", "export", two, *words)
    rows = json.loads((tmp_path / "two.metadata.json").read_text())["x_RowCount"]
    assert len(again) == -(-rows // 7) - 2, "the parts that were there are not made again"
    assert made_before == 2
    assert two.read_bytes() == one.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "one.metadata.json", "two", "two.metadata.json"]
    assert (tmp_path / "one.metadata.json").read_bytes() == (tmp_path / "two.metadata.json").read_bytes()


def test_an_export_that_is_killed_anywhere_is_not_there_or_whole_and_goes_on(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(focus_files, "PART_ROWS", 60)
    words = ("--ledger", ledger, "--from", "2026-10-01", "--to", "2027-02-01")
    baton("bill", "export", tmp_path / "one", *words)
    whole, beside = (tmp_path / "one").read_bytes(), (tmp_path / "one.metadata.json").read_bytes()
    two, beside_two = tmp_path / "two", tmp_path / "two.metadata.json"
    for at in range(100):
        over = killed_after(at, lambda: baton("bill", "export", two, *words))
        assert not two.exists() or two.read_bytes() == whole, f"killed after {at} steps"
        if not over:
            killed_after(at // 2, lambda: baton("bill", "export", two, *words))
            baton("bill", "export", two, *words)
        assert (two.read_bytes(), beside_two.read_bytes()) == (whole, beside), f"killed after {at} steps"
        two.unlink()
        beside_two.unlink()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "one.metadata.json"]
        if over:
            break
    assert at > 10, "there are more steps than that"


OWNERS: Final = (
    (Path, "replace"), (Path, "write_bytes"), (Path, "write_text"), (Path, "unlink"), (os, "fsync"), (shutil, "rmtree"),
    (shutil, "copyfileobj"),
)  # fmt: skip
"""What an export does outside of itself."""


def killed_after(steps: int, work: Callable[[], object], owners: Iterable[tuple[Any, str]] = OWNERS) -> bool:
    """Does `work` in a child that is killed at its file system call number `steps`, a write when half of it is done; whether it
    came to its end before."""
    with tempfile.TemporaryDirectory() as scratch:  # what is killed leaves its own folder for temporary files
        child = os.fork()
        if child == 0:
            left = [steps]
            tempfile.tempdir = scratch

            def dies_in(owner: Any, name: str) -> None:
                real = getattr(owner, name)

                def call(*args: Any, **more: Any) -> Any:
                    left[0] -= 1
                    if left[0] < 0:
                        if name.startswith("write"):
                            real(args[0], args[1][: len(args[1]) // 2], *args[2:], **more)
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **more)

                setattr(owner, name, call)

            for owner, name in owners:
                dies_in(owner, name)
            try:
                work()
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_two_exports_to_one_file_at_once_do_not_mix(ledger: Path, tmp_path: Path) -> None:
    words = ("--ledger", ledger, "--from", "2026-10-01", "--to", "2027-02-01")
    (tmp_path / "one.parts").mkdir()
    handle = os.open(tmp_path / "one.parts", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert "another process is making it" in baton("bill", "export", tmp_path / "one", *words, code=2)
    os.close(handle)
    baton("bill", "export", tmp_path / "one", *words)


def test_who_makes_a_file_makes_its_metadata_before_another_begins(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, describe = tmp_path / "one", bill_files.described
    words = ("--ledger", ledger, "--from", "2026-10-01", "--to")

    def as_another_comes(*of: Any) -> Any:
        monkeypatch.setattr(bill_files, "described", describe)
        assert "another process is making it" in baton("bill", "export", path, *words, "2026-11-01", code=2)
        return describe(*of)

    monkeypatch.setattr(bill_files, "described", as_another_comes)
    baton("bill", "export", path, *words, "2027-02-01")
    assert "are what the ledger comes to" in baton("bill", "verify", path, "--ledger", ledger)


def test_a_disk_that_is_full_is_said_and_the_export_goes_on_once_there_is_room(ledger: Path, tmp_path: Path) -> None:
    words = ("bill", "export", tmp_path / "one", "--ledger", ledger, "--from", "2026-10-01", "--to", "2027-02-01")
    assert not killed_after(0, lambda: baton(*words), [(bill_files, "described")])
    (tmp_path / "one").unlink()
    full = tmp_path / "one.parts" / "whole"
    full.unlink(missing_ok=True)
    full.symlink_to("/dev/full")
    error = CliRunner().invoke(app, [str(word) for word in words]).exception
    assert error is not None
    assert (getattr(error, "errno", 0), code_of(error)) == (errno.ENOSPC, 1), "the command says: make room"
    assert [p.name for p in tmp_path.iterdir()] == ["one.parts"]
    full.unlink()
    baton(*words)
    assert "are what the ledger comes to" in baton("bill", "verify", tmp_path / "one", "--ledger", ledger)


def test_parts_of_another_release_are_not_used(ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("bill", "export", tmp_path / "one", "--ledger", ledger, "--from", "2026-10-01", "--to", "2027-02-01")
    assert not killed_after(0, lambda: baton(*words), [(bill_files, "described")])
    part = tmp_path / "one.parts" / "000000"
    part.write_bytes(b"of a release that wrote otherwise\r\n")
    monkeypatch.setattr(bill_files, "release", lambda: "0.0.1")
    baton(*words)
    assert "are what the ledger comes to" in baton("bill", "verify", tmp_path / "one", "--ledger", ledger)


def test_all_formats_say_the_same(ledger: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "bill.csv", ledger)
    exported(tmp_path / "copy.csv", ledger)
    words = ("--ledger", ledger, "--from", "2026-10-01", "--to", "2027-02-01")
    baton("bill", "export", tmp_path / "bill.json", *words, "--format", "json")
    told = json.loads((tmp_path / "bill.json").read_text())
    baton("bill", "export", tmp_path / "bill.parquet", *words, "--format", "parquet")
    table = parquet.read_table(tmp_path / "bill.parquet")
    assert str(table.schema.field("BilledCost").type) == "decimal128(38, 12)"
    assert len(rows) == len(told) == table.num_rows
    for name in ("BilledCost", "ConsumedQuantity", "ContractedUnitPrice", "PricingQuantity"):
        column = [None if v is None else Fraction(v) for v in table.column(name).to_pylist()]
        assert column == [None if r[name] is None else Fraction(r[name] or "") for r in rows]
        assert column == [None if r[name] is None else Fraction(r[name]) for r in told]
    assert [r["x_JobId"] for r in told] == table.column("x_JobId").to_pylist()
    assert (
        table.column("ChargePeriodStart").to_pylist()[0].strftime("%Y-%m-%dT%H:%M:%SZ") == rows[0]["ChargePeriodStart"]
    )


HOSTILE = ('=HYPERLINK("x")', "+1", "-A1", "@SUM(A1)", "\t=1", 'a,b"c\r\n=1', "Größe ✓")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_csv_export_opens_in_a_spreadsheet_as_it_is_and_computes_nothing(
    world: World, tmp_path: Path, version: str
) -> None:
    found = charges(lambda: list(enumerate(world.records, start=1)))
    facts = []
    for number, charge in enumerate(c for c in found if c.amount.quote is not None):
        name = HOSTILE[number % len(HOSTILE)]
        use = charge.use._replace(user=name, device_kind=name, device=name, node=name)
        assert charge.amount.quote is not None
        amount = charge.amount._replace(quote=charge.amount.quote._replace(sku=f"{name}:*:standard"))
        facts.append(facts_of(charge._replace(use=use, amount=amount), "test", "USD"))
    columns = columns_of(version)
    path = tmp_path / "bill.csv"
    focus_files.write(facts, columns, "csv", path, {}, lambda rows, digest: {})
    raw = path.read_bytes()
    assert not raw.startswith(b"\xef\xbb\xbf"), "the first column's name is its name for every reader"
    assert raw.endswith(b"\r\n")
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file, strict=True))
    assert {len(line) for line in lines} == {len(columns)}
    numbers = {ColumnKind.DECIMAL, ColumnKind.INTEGER}
    for line in lines[1:]:
        for column, cell in zip(columns, line, strict=True):
            assert len(cell) <= 32_767, "the most that a cell of a spreadsheet holds"
            if column.kind in numbers:
                assert re.fullmatch(r"(-?\d+(\.\d+)?)?", cell), f"{column.name}: {cell!r} is no plain number"
            elif column.kind is ColumnKind.TIME:
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:00:00Z", cell), f"{column.name}: {cell!r}"
            else:
                assert not re.match(r"[=+\-@\t\r\n]", cell), f"{column.name}: {cell!r} is a formula"
    names = [column.name for column in columns]
    rows = [{n: v or None for n, v in zip(names, line, strict=True)} for line in lines[1:]]
    assert problems(names, rows, version) == []
    users = [row["x_User"] for row in rows]
    assert users == [f"'{f.charge.use.user}" if f.charge.use.user[0] in "=+-@\t" else f.charge.use.user for f in facts]
    focus_files.write(facts, columns, "json", tmp_path / "bill.json", {}, lambda rows, digest: {})
    told = json.loads((tmp_path / "bill.json").read_text("utf-8"))
    assert [row["x_User"] for row in told] == [f.charge.use.user for f in facts], (
        "where nothing computes, it is as it is"
    )


@pytest.mark.parametrize(
    ("name", "value", "code", "said"),
    [
        ("x_Totals", [], 1, "differs: x_Totals is []"),
        ("x_Rounding", "up", 1, 'differs: x_Rounding is "up"'),
        ("x_Closed", True, 1, "differs: x_Closed is true, by the ledger it is false"),
        ("ColumnDefinition", [], 1, "differs: ColumnDefinition is []"),
        ("x_UptoSeq", 5, 1, "differs: x_LedgerTime"),
        ("x_UptoSeq", -1, 2, "has no record -1"),
        ("x_FromUs", 10**30, 2, "is no metadata of an export"),
        ("x_ToUs", "tomorrow", 2, "is no metadata of an export"),
        ("x_Format", "exe", 2, "which there are not"),
    ],
)
def test_metadata_that_was_changed_is_found(
    ledger: Path, tmp_path: Path, name: str, value: Any, code: int, said: str
) -> None:
    path = tmp_path / "bill.csv"
    baton("bill", "export", path, "--ledger", ledger, "--from", "2026-11")
    assert "are what the ledger comes to" in baton("bill", "verify", path, "--ledger", ledger)
    beside = focus_files.metadata_of(path)
    beside.write_text(json.dumps(json.loads(beside.read_text("utf-8")) | {name: value}), "utf-8")
    assert said in baton("bill", "verify", path, "--ledger", ledger, code=code)


def test_what_is_no_file_is_said_before_anything_is_made(ledger: Path, tmp_path: Path) -> None:
    words = ("--ledger", ledger, "--from", "2026-11")
    assert "is a folder; name a file" in baton("bill", "export", tmp_path, *words, code=2)
    assert "bill.csv.metadata.json is not there" in baton(
        "bill", "verify", tmp_path / "bill.csv", "--ledger", ledger, code=2
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("research: a\nresearch: b\n", ":2: research: the key stands twice"),
        ("research: 0042\n", ":1: research: '0042' is not a number that is read"),
        ("research: {a: b}\n", ":1: research: has no cost centre"),
        ("research: a\nblue:\n", ":2: blue: has no cost centre"),
        ("- research\n", ":1: file: is not one mapping"),
        ("research: a\n---\nblue: b\n", ":1: file: is not one mapping"),
    ],
)
def test_cost_centres_that_cannot_be_read_are_refused_with_line_field_and_fix(
    ledger: Path, tmp_path: Path, text: str, said: str
) -> None:
    centres = tmp_path / "centres.yaml"
    centres.write_text(text, "utf-8")
    words = ("--by", "cost-centre", "--cost-centres", centres, "--ledger", ledger)
    assert f"centres.yaml{said}" in baton("bill", "statement", *words, code=2)


def test_periods_part_the_rows_and_months_of_a_zone_are_its_own(ledger: Path, tmp_path: Path) -> None:
    whole = exported(tmp_path / "bill.csv", ledger)
    parts = []
    for number, (start, end) in enumerate(
        [("2026-10-01", "2026-10"), ("2026-11-01", "2026-11-01"), ("2026-11-02", "2027-02-01")]
    ):
        words = ("--ledger", ledger, "--from", start, "--to", end, "--time-zone", "Europe/Berlin")
        baton("bill", "export", tmp_path / f"{number}.csv", *words)
        with (tmp_path / f"{number}.csv").open(encoding="utf-8", newline="") as file:
            parts.append([{n: v or None for n, v in row.items()} for row in csv.DictReader(file)])
    assert sorted(map(str, whole)) == sorted(str(row) for part in parts for row in part)
    assert max(r["ChargePeriodStart"] or "" for r in parts[0]) == "2026-10-31T22:00:00Z", (
        "November begins an hour earlier there"
    )


def close(world: World) -> ClosedPeriod:
    """Seals November as `baton bill close` does: of what the ledger was then."""
    from libs.core.billing.sealing import Sealing

    sealing = Sealing()
    for charge in charges(lambda: list(enumerate(world.records, start=1))):
        if NOVEMBER <= charge.billed_us < DECEMBER:
            sealing.take(charge)
    return ClosedPeriod(
        from_us=NOVEMBER, to_us=DECEMBER, upto_seq=len(world.records), head="a" * 64, rows=sealing.digest, currency="USD",
        totals=sealing.totals,
    )  # fmt: skip


def test_a_closed_period_stays_as_it_is_and_what_comes_later_is_a_row_of_the_open_one(tmp_path: Path) -> None:
    world = over_the_month()
    world.send(inbox.ClosePeriod(period=close(world), reason="invoiced", user="olga"))
    sealed = filed(world.records, tmp_path / "sealed.jsonl")
    world.released(world.long)  # type: ignore[attr-defined]
    later = filed(world.records, tmp_path / "later.jsonl")
    november = ("--from", "2026-11")
    baton("bill", "export", tmp_path / "a.csv", "--ledger", sealed, *november)
    baton("bill", "export", tmp_path / "b.csv", "--ledger", later, *november)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert "what the ledger comes to" in baton("bill", "verify", tmp_path / "a.csv", "--ledger", later)

    baton("bill", "export", tmp_path / "december.csv", "--ledger", later, "--from", "2026-12")
    with (tmp_path / "december.csv").open(encoding="utf-8", newline="") as file:
        rows = [{n: v or None for n, v in row.items()} for row in csv.DictReader(file)]
    assert problems(list(rows[0]), rows, "1.3") == []
    of_november = [r for r in rows if (r["ChargePeriodStart"] or "") < "2026-12"]
    assert of_november
    assert {r["ChargeClass"] for r in of_november} == {"Correction"}
    assert {r["BillingPeriodStart"] for r in rows} == {"2026-12-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        ({}, ""),
        ({"head": "a" * 64}, "the hash of that record is a"),
        ({"rows": "b" * 64}, "the hash of its rows is b"),
        ({"currency": "EUR"}, "its currency is EUR in its seal, and comes to USD"),
        ({"totals": ()}, "its totals is ()"),
        ({"upto_seq": 3}, "up to record 3: the hash of its rows"),
        ({"to_us": DECEMBER - 1}, ""),
        ({"to_us": NOVEMBER + 3_600_000_000}, "the hash of its rows"),
    ],
)
def test_ledger_verify_makes_the_rows_of_closed_periods_again(tmp_path: Path, lie: dict[str, Any], found: str) -> None:
    world = over_the_month()
    head = FiledLedger([filed(world.records, tmp_path / "open.jsonl")]).head
    seal = close(world).model_copy(update={"head": head.hash, "upto_seq": head.seq} | lie)
    world.send(inbox.ClosePeriod(period=seal, reason="invoiced", user="olga"))
    world.released(world.long)  # type: ignore[attr-defined]
    later = filed(world.records, tmp_path / "later.jsonl")
    said = baton("ledger", "verify", "--file", later, code=1 if found else 0)
    assert found in said
    assert ("I17" in said) == bool(found)


def test_what_was_changed_in_an_export_is_found(ledger: Path, tmp_path: Path) -> None:
    path = tmp_path / "bill.csv"
    exported(path, ledger)
    words = ("bill", "verify", path, "--ledger", ledger)
    baton(*words)
    good = path.read_bytes()
    path.write_bytes(good.replace(b"research", b"researcj", 1))
    assert "was changed" in baton(*words, code=1)
    about = json.loads((tmp_path / "bill.csv.metadata.json").read_text())
    about["x_Sha256"] = focus_files.digest_of(path)
    (tmp_path / "bill.csv.metadata.json").write_text(json.dumps(about))
    assert "by the ledger it is" in baton(*words, code=1)
    (tmp_path / "bill.csv.metadata.json").write_text("{}")
    assert "no metadata" in baton(*words, code=2)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_file_that_was_tampered_with_is_told_also_when_its_metadata_agrees(
    ledger: Path, tmp_path: Path, format: str
) -> None:
    """A cell, a row less, a row twice, the end cut off, another period's metadata."""
    path, other = tmp_path / f"bill.{format}", tmp_path / f"other.{format}"
    words = ("--ledger", ledger, "--format", format)
    baton("bill", "export", path, *words, "--from", "2026-11")
    baton("bill", "export", other, *words, "--from", "2026-12")
    good, beside = path.read_bytes(), focus_files.metadata_of(path)
    told = beside.read_text("utf-8")
    lines = good.splitlines(keepends=True)
    wrong = [good[: len(good) * 2 // 3], good[:-1], b""]
    if format == "csv":
        wrong += [
            b"".join([*lines[:1], *lines[2:]]),
            b"".join([*lines, lines[-1]]),
            good.replace(b"research", b"resEarch", 1),
        ]
    for changed in wrong:
        path.write_bytes(changed)
        beside.write_text(told, "utf-8")
        assert "has another SHA-256 than its metadata says" in baton("bill", "verify", path, "--ledger", ledger, code=1)
        beside.write_text(json.dumps(json.loads(told) | {"x_Sha256": focus_files.digest_of(path)}), "utf-8")
        assert "by the ledger it is" in baton("bill", "verify", path, "--ledger", ledger, code=1)
    path.write_bytes(good)
    beside.write_text(focus_files.metadata_of(other).read_text("utf-8"), "utf-8")
    assert "has another SHA-256" in baton("bill", "verify", path, "--ledger", ledger, code=1)
    path.write_bytes(other.read_bytes())  # both: a whole export, under another's name
    assert "from 2026-12-01T00:00:00Z to 2027-01-01T00:00:00Z are what" in baton(
        "bill", "verify", path, "--ledger", ledger
    )


def test_an_export_of_an_early_record_is_told_to_lack_what_came_since(
    world: World, ledger: Path, tmp_path: Path
) -> None:
    """Whoever keeps the later half from finance names an early record: rows, hashes and metadata are right then."""
    path, early = tmp_path / "bill.csv", filed(world.records[:-1], tmp_path / "early.jsonl")
    baton("bill", "export", path, "--ledger", early, "--from", "2026-11")
    assert "since is not in bill.csv" in baton("bill", "verify", path, "--ledger", ledger)
    assert "since is not in" not in baton("bill", "verify", path, "--ledger", early)


def test_an_export_tells_that_the_ledger_was_restored_from_before_it(tmp_path: Path) -> None:
    """Seen: of a lost seal it said that dates and hashes differ; of a ledger that was shorter, that the question was wrong."""
    world = over_the_month()
    backup = len(world.records)
    source = FiledLedger([filed(world.records, tmp_path / "open.jsonl")])
    seal, _ = seal_of(source, (NOVEMBER - 31 * 24 * HOUR_US, DECEMBER), empty=False)
    world.send(inbox.ClosePeriod(period=seal, reason="invoiced", user="olga"))
    world.released(world.long)  # type: ignore[attr-defined]
    whole = filed(world.records, tmp_path / "whole.jsonl")
    closed, later = tmp_path / "closed.csv", tmp_path / "later.csv"
    baton("bill", "export", closed, "--ledger", whole, "--from", "2026-10-01", "--to", "2026-11")
    baton("bill", "export", later, "--ledger", whole, "--from", "2026-12")
    for one in (closed, later):
        baton("bill", "verify", one, "--ledger", whole)
    restored = filed(world.records[:backup], tmp_path / "restored.jsonl")
    assert "this ledger has no seal of it" in baton("bill", "verify", closed, "--ledger", restored, code=1)
    assert f"the ledger ends with record {backup}" in baton("bill", "verify", later, "--ledger", restored, code=1)

    other = over_the_month()
    while len(other.records) < len(world.records) + 3:
        other.started(again := ask(other, f"again-{len(other.records)}", 1))
        other.released(again)
    goes_on = filed(other.records, tmp_path / "goes_on.jsonl")
    assert "went on otherwise after it was restored" in baton("bill", "verify", later, "--ledger", goes_on, code=1)
    assert "this ledger has no seal of it" in baton("bill", "verify", closed, "--ledger", goes_on, code=1)


@pytest.mark.parametrize(("name", "format"), [("bill.parquet", "parquet"), ("bill.JSON", "json"), ("bill", "csv")])
def test_a_name_says_by_its_end_what_is_written(ledger: Path, tmp_path: Path, name: str, format: str) -> None:
    """Seen: `bill.parquet` was CSV."""
    baton("bill", "export", tmp_path / name, "--ledger", ledger, "--from", "2026-11")
    assert json.loads((tmp_path / f"{name}.metadata.json").read_text())["x_Format"] == format
    baton("bill", "export", tmp_path / "bill.txt", "--ledger", ledger, "--from", "2026-11", "--format", format)
    said = baton("bill", "export", tmp_path / "bill.gz", "--ledger", ledger, "--from", "2026-11")
    assert "bill.gz is written as CSV; --format says otherwise (csv, json, parquet)" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "2026-13"), "no such day"),
        (("--from", "2026-11-02", "--to", "2026-11-01"), "a period ends after it begins"),
        (("--from", "2026-11-01", "--to", "2026-11-01T00:30Z"), "bills are kept by the hour"),
        (("--time-zone", "Europe/Nowhere"), "no such zone"),
        (("--focus-version", "0.9"), "use 1.2, 1.3, 1.4"),
        (("--format", "xls"), "use csv, json, parquet"),
        (("--from", "9999-01"), "correct the year"),
    ],
)
def test_a_wrong_question_is_told_with_its_fix(ledger: Path, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    assert says in baton("bill", "export", tmp_path / "x.csv", "--ledger", ledger, *words, code=2)


@pytest.mark.parametrize("words", [("statement",), ("export", "{}/bill.csv"), ("page", "{}/bill.html")])
def test_a_team_that_was_never_billed_is_told(words: tuple[str, ...], ledger: Path, tmp_path: Path) -> None:
    """Seen: `--of reserach` made an empty bill of 0.00 USD, and nothing said why."""
    asked = ("bill", *(word.format(tmp_path) for word in words), "--ledger", ledger, "--from")
    told = baton(*asked, "2026-11", "--of", "reserach")
    assert "--of reserach: no team of that name was ever billed" in told
    assert "use of blue, research" in told
    for month in ("2026-11", "2026-01"):
        assert "was ever billed" not in baton(*asked, month, "--of", "research"), "also in a month without any use"


def test_a_statement_is_the_sum_of_an_exports_rows(ledger: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "bill.csv", ledger)
    total = sum(Fraction(r["BilledCost"] or "") for r in rows) * 1_000_000
    centres = tmp_path / "centres.yaml"
    centres.write_text("research: 4711\n")
    for by in ("team", "user", "job", "device", "class", "day", "cost-centre"):
        words = (
            "--ledger",
            ledger,
            "--from",
            "2026-10-01",
            "--to",
            "2027-02-01",
            "--cost-centres",
            centres,
            "-o",
            "json",
        )
        told = json.loads(baton("bill", "statement", "--by", by, *words))
        assert told["total"]["cost_micros"] == sum(line["cost_micros"] for line in told["rows"]) == total
        assert told["total"]["unpriced_units"] > 0
        if by == "cost-centre":
            assert [line["key"] for line in told["rows"]] == ["(none)", "4711"]


def test_a_forecast_is_what_runs_until_the_period_ends(tmp_path: Path) -> None:
    world = over_the_month()
    ledger = filed(world.records, tmp_path / "ledger.jsonl")
    words = ("--ledger", ledger, "--from", "2026-12", "--forecast", "-o", "json")
    told = json.loads(baton("bill", "statement", *words))
    hours = Fraction(31 * 24)
    assert told["total"]["cost_micros"] == 0, "it runs still"
    rate_a, rate_b = 1_500_000, 999_999  # the tiers of its contract: 7 hours at the first
    assert abs(told["total"]["forecast_micros"] - (7 * rate_a + (hours - 7) * rate_b)) <= hours


def test_the_page_shows_the_teams_money_and_needs_nothing_else(ledger: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "bill.csv", ledger, "--of", "research")
    total = sum(Fraction(r["BilledCost"] or "") for r in rows)
    words = ("--ledger", ledger, "--of", "research", "--from", "2026-10-01", "--to", "2027-02-01")
    told = json.loads(baton("bill", "page", tmp_path / "page.html", *words, "-o", "json"))
    assert (told["file"], told["team"], told["closed"]) == (str(tmp_path / "page.html"), "research", False)
    text = (tmp_path / "page.html").read_text()
    assert f"<b>{round(total * 100) / 100:.2f} USD</b>cost" in text
    assert json.loads((tmp_path / "bill.csv.metadata.json").read_text())["x_Rows"] in text
    assert "blue" not in text, "another team's"
    assert not re.search(r"(src|href)=|https?:|@import|url\(", text)
    assert "<td>succeeded</td>" in text
    (whole,) = re.findall(r"<td>research</td>(.*?)</tr>", text)
    hours, used, unused, unknown, money, energy = re.findall(r"<td>(.*?)</td>", whole)
    assert (used, unused) == ("0.00", "0.00")
    assert (hours, money, energy) == (unknown, "unknown", "unknown"), "without a sample nothing is taken for unused"


def test_a_ledger_that_is_not_there_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("bill", "export", tmp_path / "rows.csv", "--ledger", tmp_path / "none.jsonl", "--from", "2026-10-01")
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exception is not None
    assert code_of(found.exception) == Exit.NOT_FOUND
    tell(found.exception)
    assert "none.jsonl: No such file or directory: name one that exists" in capsys.readouterr().err
