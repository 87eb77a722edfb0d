"""The report on a terminal: the headline figures, one line per team."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from libs.report.document import Quartiles, Report


def summary(report: Report) -> RenderableType:
    """What a person wants to know without opening the page."""
    return Group(_figures(report), _teams(report))


def _figures(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    wait, latency = report.queue_wait_s, report.scheduling_latency_ms
    states = ", ".join(f"{count} {state}" for state, count in report.by_state.items())
    verified = f"{report.ledger.records:,} records, {len(report.ledger.violations)} violations"
    rows = [
        ("jobs", f"{report.jobs}: {states}; {report.gangs} gangs"),
        ("utilisation", f"{report.utilization:.1%} of the accelerators' time, {report.window_s:.0f} s"),
        ("queue wait", _spread(wait, "s", 2)),
        ("scheduling latency", f"{_spread(latency, 'ms', 0)} ({latency.count} jobs)"),
        ("preemption rate", f"{report.preemption_rate:.2%} ({report.preempted} of {report.attempts} attempts)"),
        ("lost to preemption", f"{report.preemption_cost_device_s:,.0f} device-seconds of work and restarts"),
        ("ledger", f"{'verified' if report.ledger.verified else 'BROKEN'}, {verified}"),
        ("bill", f"{_money(report, report.bill.total_cost_micros)}, {_equal(report)}"),
    ]
    if report.accounts:
        rows.append(("accounts", _accounts(report)))
    for name, text in rows:
        table.add_row(name, Text(text))
    return table


def _teams(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("team")
    for name in ("jobs", "yielded", "wait p50", "wait p99", "device-s", "share", report.bill.currency):
        table.add_column(name, justify="right")
    for team in report.teams:
        table.add_row(
            Text(team.team),
            str(team.jobs),
            str(team.preempted),
            f"{team.queue_wait_s.p50:.2f} s",
            f"{team.queue_wait_s.p99:.2f} s",
            f"{team.device_seconds:,.1f}",
            f"{team.share_of_capacity:.1%}",
            f"{team.cost_micros / 1e6:,.4f}",
        )
    return table


def _spread(values: Quartiles, unit: str, digits: int) -> str:
    return f"p50 {values.p50:.{digits}f} {unit}, p99 {values.p99:.{digits}f} {unit}, max {values.max:.{digits}f} {unit}"


def _equal(report: Report) -> str:
    same = report.bill.total_milli_us == report.bill.integral_milli_us and report.bill.equal
    return "equal to the ledger's integral" if same else "DIFFERENT from the ledger's integral"


def _accounts(report: Report) -> str:
    total = sum(report.accounts.values())
    parts = ", ".join(f"{name} {n / total:.1%}" for name, n in report.accounts.items() if n)
    exact = "is exactly what existed" if total == report.capacity_unit_us else f"is NOT {report.capacity_unit_us:,}"
    split = f" (of idle {report.fragmented_unit_us / total:.1%} fragmented)" if report.fragmented_unit_us else ""
    return f"{parts}{split}: {total:,} unit-us, which {exact}"


def _money(report: Report, micros: int) -> str:
    return f"{micros / 1e6:,.4f} {report.bill.currency}"
