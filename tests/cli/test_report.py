"""The report says what the ledger says: figures against arithmetic by hand, the page against what a browser needs."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from libs.bus.connect import BusConnection
from libs.cli.demo import checks
from libs.client import Baton
from libs.client.where import Place
from libs.ledger.append import AppendOutcome, append
from libs.ledger.chain import encode
from libs.report import RunStory, collect, summary, write
from libs.report.document import Report, Step
from libs.report.facts import Facts
from libs.report.figures import allocation, queue_length, report, spread, window
from libs.report.page import page
from libs.report.picture import draw
from schemas.subjects import ledger
from tests.cli.simulated import Ask, Run, busy, fleet

DOCS = Path(__file__).parents[2] / "docs" / "demo.md"
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(busy(120))


def numbers(run: Run, steps: tuple[Step, ...] = ()) -> Report:
    return report(run.facts, run.audit, run.bill, title="a run", pool="test", steps=steps)


# ------------------------------------------------------------------------------------------------------------ figures


def test_one_job_of_two_devices_by_hand():
    run = Run([Ask("only", "red", 1, 9.97, devices=2)], nodes=fleet(1, 1)[:1])
    found = numbers(run)
    # It starts 30 ms after its grant, runs 9.97 s, and its end is the run's: 10 s on 2 of 8 devices.
    assert found.window_s == pytest.approx(10, abs=0.001)
    assert found.utilization == pytest.approx(2 / 8, abs=1e-4)
    assert found.utilization_peak == 0.25
    assert found.teams[0].device_seconds == pytest.approx(20, abs=0.001)
    assert (found.attempts, found.gangs, found.widest_gang, found.by_state) == (1, 1, 2, {"succeeded": 1})
    # Submitted 3 ms before its inbox message, stored 4 ms after it was decided.
    assert found.queue_wait_s.max == pytest.approx(0.007, abs=1e-4)
    assert found.scheduling_latency_ms.p50 == pytest.approx(7, abs=0.1)


def test_a_job_that_waits_counts_as_a_wait_and_not_as_latency():
    run = Run([Ask("first", "red", 1, 5, devices=8), Ask("second", "red", 2, 1, devices=8)], nodes=fleet(1, 1)[:1])
    found = numbers(run)
    assert found.queue_wait_s.count == 2
    assert found.queue_wait_s.max == pytest.approx(4.03, abs=0.05)
    assert found.scheduling_latency_ms.count == 1
    assert max(length for _, length in queue_length(run.facts)) == 1


def test_the_bill_equals_the_integral_and_teams_add_up(run: Run):
    found = numbers(run)
    assert found.ok
    assert found.bill.equal
    assert found.bill.total_milli_us == found.bill.integral_milli_us == sum(t.milli_us for t in found.teams)
    assert found.utilization == pytest.approx(sum(t.share_of_capacity for t in found.teams), abs=1e-5)
    assert found.jobs == sum(t.jobs for t in found.teams) == sum(found.by_state.values())


def test_preemption_is_seen(run: Run):
    found = numbers(run)
    gang = run.job("train-16")
    assert found.preempted == 1
    assert found.preemption_rate == pytest.approx(1 / found.attempts, abs=1e-6)
    assert [a.outcome for a in gang.attempts] == ["preempted", "succeeded"]
    assert gang.attempts[1].resume == gang.attempts[0].checkpoints[-1][1]
    assert gang.attempts[0].beneficiary == run.job("answer").id


def test_allocation_never_exceeds_the_fleet_and_ends_at_nothing(run: Run):
    curves = allocation(run.facts)
    assert all(steps[-1][1] == 0 for steps in curves.values())
    assert numbers(run).utilization_peak <= 1


def test_cpus_do_not_count_as_accelerators():
    run = Run([Ask("count", "red", 1, 5, types=("CPU",))])
    found = numbers(run)
    assert found.utilization == 0
    assert found.teams[0].device_seconds > 0


def test_a_wrong_bill_a_failed_step_or_a_violation_makes_the_report_fail(run: Run):
    row = run.bill.rows[0]
    wrong = run.bill.model_copy(
        update={"rows": (row.model_copy(update={"milli_us": row.milli_us + 1}), *run.bill.rows[1:])}
    )
    assert not report(run.facts, run.audit, wrong, title="t", pool="p", steps=()).ok
    failed = Step(name="n", expected="e", observed="o", ok=False)
    assert not numbers(run, (failed,)).ok
    broken = Run([Ask("a", "red", 0, 1)])
    broken.world.checker.report.violated("I1", 1, "two holders")
    assert not numbers(broken).ok
    assert "two holders" in page(broken.facts, numbers(broken))


def test_the_accounts_are_in_the_numbers_and_a_picture(run: Run):
    found = numbers(run)
    assert sum(found.accounts.values()) == found.capacity_unit_us > 0
    assert found.accounts["billed"] == 7 * run.audit.milli_us
    shown = page(run.facts, found, run.curves)
    assert f"{found.capacity_unit_us:,}" in shown
    assert "exactly what existed" in shown
    assert "Capacity over time, stacked by account" in shown
    parts = run.curves.shares(7)
    assert sum(sum(values) for values in parts.values()) > 0
    wrong = replace(run.audit, capacity_unit_us=run.audit.capacity_unit_us + 1)
    assert not report(run.facts, wrong, run.bill, title="t", pool="p", steps=()).ok
    assert not checks.accounted(wrong).ok


def test_quantiles_are_values_that_occurred():
    found = spread([5, 1, 4, 2, 3])
    assert (found.count, found.p50, found.p99, found.max) == (5, 3, 5, 5)
    assert spread([]).count == 0


def test_a_pool_without_jobs_has_a_report_and_a_page():
    run = Run([])
    assert numbers(run).ok
    assert "<!doctype html>" in page(run.facts, numbers(run))
    assert page(Facts(), report(Facts(), run.audit, run.bill, title="nothing", pool="p", steps=()))


def test_shares_of_one_device_do_not_overlap(run: Run):
    spans: dict[str, list[tuple[int, int, int, int]]] = {}
    for attempt in run.facts.attempts():
        for hold in attempt.holds:
            spans.setdefault(hold.device, []).append(
                (attempt.granted_us, attempt.freed_us[hold.node], hold.offset, hold.offset + hold.milli)
            )
    for boxes in spans.values():
        for i, (from_a, to_a, low_a, high_a) in enumerate(boxes):
            for from_b, to_b, low_b, high_b in boxes[i + 1 :]:
                assert to_a <= from_b or to_b <= from_a or high_a <= low_b or high_b <= low_a


# --------------------------------------------------------------------------------------------------------------- page


class _Strict(HTMLParser):
    """Notes what a self-contained, well-formed page must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href") and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")


def test_the_page_is_well_formed_and_needs_nothing_else(run: Run):
    html = page(run.facts, numbers(run, (Step(name="A <b>step</b>", expected="x", observed="y", ok=False, at_s=1),)))
    parser = _Strict()
    parser.feed(html)
    assert (parser.problems, parser.open, parser.outside) == ([], [], [])
    assert not re.search(r"(url\(|@import|//[a-z])", html.replace("// Tooltips", ""))
    assert "A &lt;b&gt;step" in html
    assert "{{" not in html


def test_names_cannot_end_the_script():
    run = Run([Ask("a", "red", 0, 1)])
    job = run.job("a")
    job.spec = job.spec.model_copy(update={"name": "</script><script>alert(1)"})
    html = page(run.facts, numbers(run))
    assert "<script>alert" not in html


def test_each_attempt_is_one_path_and_a_gang_one_block_per_node(run: Run):
    picture = draw(run.facts, window(run.facts))
    assert len(picture.drawn) == len(run.facts.attempts())
    gang = next(d for d in picture.drawn if d.attempt.job.spec.name == "train-16")
    assert len(gang.blocks) == 2
    assert gang.blocks[0].height == 8 * 7
    assert gang.yielding
    assert picture.waits
    assert page(run.facts, numbers(run)).count('class="a t') == len(picture.drawn)


def test_fifteen_hundred_attempts_stay_below_three_megabytes():
    run = Run(busy(1500))
    assert len(run.facts.attempts()) > 1500
    assert len(page(run.facts, numbers(run)).encode()) < 3_000_000


def test_a_large_picture_is_bounded_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("libs.report.picture.MAX_ROWS", 40)
    monkeypatch.setattr("libs.report.picture.MAX_ATTEMPTS", 10)
    html = page(run.facts, numbers(run))
    assert "89 devices more are not drawn" in html
    assert "shorter attempts are not drawn" in html


# --------------------------------------------------------------------------------------------------- files and the rest


def test_both_files_are_written(run: Run, tmp_path: Path):
    story = RunStory("test", run.facts, run.audit, run.bill, run.curves)
    found, as_json, as_html = write(story, tmp_path / "new" / "folder", title="a run")
    assert Report.model_validate_json(as_json.read_text()) == found
    assert as_html.read_text().startswith("<!doctype html>")
    assert summary(found)


def test_every_field_of_the_document_is_documented():
    text = DOCS.read_text()
    schema = Report.model_json_schema()
    names = set(schema["properties"])
    for part in ("TeamFigures", "LedgerFigures", "BillFigures", "Step", "Quartiles"):
        names |= set(schema["$defs"][part]["properties"])
    assert [name for name in sorted(names) if f"`{name}`" not in text and f"`{name}[]`" not in text] == []


async def test_a_real_ledger_is_read_whole(nats: BusConnection, pool: str, monkeypatch: pytest.MonkeyPatch):
    run = Run([Ask("a", "red", 0, 2, devices=4), Ask("b", "blue", 1, 2)])
    head = ""
    for position, record in enumerate(run.world.records):
        payload, digest = encode(record.model_copy(update={"pool": pool, "prev_seq": position, "prev_hash": head}))
        assert await append(nats.jetstream(), ledger(pool), payload, digest, position, 5.0) is AppendOutcome.COMMITTED
        head = digest
    baton = Baton(nats, Place("", "operator", pool))

    async def bill(query: object) -> object:
        return run.bill.model_copy(update={"ledger_seq": len(run.world.records)})

    monkeypatch.setattr(baton, "bill", bill)
    story = await collect(baton)
    assert story.audit.records == len(run.world.records)
    assert set(story.facts.jobs) == set(run.facts.jobs)
