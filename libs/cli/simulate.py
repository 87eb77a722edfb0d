"""`baton simulate`: a workload under several rules, in virtual time, by the decider that runs in production."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from libs.cli.exits import UsageFault
from libs.cli.options import Output
from libs.cli.output import Format, document
from libs.cli.tracefile import read_file, show_bad_rows
from libs.cli.traces import TraceJob, UnknownColumns
from libs.core.scheduling.precedence import DEFAULT_RULE, OrderRule
from libs.simulation.policy.compare import FleetError, compare
from libs.simulation.policy.engine import Knows, SimulatedWorld
from libs.simulation.policy.workload import WorkloadRow

_SHOWN = {
    "ended": "ended",
    "jct_mean_s": "mean JCT, s",
    "jct_p99_s": "p99 JCT, s",
    "queueing_mean_s": "mean queueing, s",
    "wait_max_s": "longest wait, s",
    "utilization_pct": "in use, %",
    "preemptions": "preemptions",
    "lost_device_s": "lost, device-s",
    "promises_kept_pct": "promises kept, %",
}


def command(
    *,
    fleet: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="YAML file of nodes, see deploy/fleets/")],
    workload: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="CSV: see docs/replay.md")],
    policy: Annotated[list[OrderRule] | None, typer.Option(help="an order; may be repeated")] = None,
    knows: Annotated[Knows, typer.Option(help="what the scheduler is told of run times")] = Knows.NOTHING,
    preemption_loss_s: Annotated[float, typer.Option(min=0, help="work lost per preempted device, s")] = 30.0,
    start_delay_s: Annotated[float, typer.Option(min=0, help="from the grant until a job runs, s")] = 0.0,
    stop_delay_s: Annotated[float, typer.Option(min=0, help="to checkpoint and stop a preempted job, s")] = 0.0,
    node_faults_per_day: Annotated[float, typer.Option(min=0, help="of each node, at random")] = 0.0,
    seed: Annotated[int, typer.Option(help="of all chance")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="only the first N readable jobs; 0: all")] = 0,
    page: Annotated[Path | None, typer.Option(help="write one HTML page with plots here")] = None,
    output: Output = Format.TABLE,
) -> None:
    """What would become of a workload: waits, completion times and use of a fleet, under one order or several side by side."""
    console = Console(stderr=True)
    try:
        jobs, bad = read_file(workload, limit)
    except UnknownColumns as e:
        raise UsageFault(f"{workload}: {e}") from None
    show_bad_rows(console, workload, bad)
    if not jobs:
        raise UsageFault(f"{workload}: no row could be read; there is nothing to simulate")
    rules = list(dict.fromkeys(policy or [DEFAULT_RULE]))
    world = SimulatedWorld(
        knows=knows,
        preemption_loss_s=preemption_loss_s,
        start_delay_s=start_delay_s,
        stop_delay_s=stop_delay_s,
        node_faults_per_day=node_faults_per_day,
        seed=seed,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=4) as bars:
        tasks = {rule: bars.add_task(rule.value, total=len(jobs)) for rule in rules}
        try:
            found, runs = compare(
                fleet, [_row(job) for job in jobs], rules, world,
                lambda rule, ended: bars.update(tasks[rule], completed=ended),
            )  # fmt: skip
        except FleetError as e:
            raise UsageFault(str(e)) from None
    if page is not None:
        from libs.report.policies import policies_page

        told = {name: [(j.submit_us, j.end_us, j.row.duration_s) for j in run.jobs] for name, run in runs.items()}
        page.write_text(policies_page(f"{workload.name} on {fleet.name}", knows.value, found, told), encoding="utf-8")
    if output is not Format.TABLE:
        document({"knows": knows.value, "rows_left_out": len(bad), "policies": found}, output)
        return
    table = Table(title=f"{workload.name} on {fleet.name}, {knows.value} known")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for field, heading in _SHOWN.items():
        table.add_row(heading, *(f"{values[field]:,}" for values in found.values()))
    Console().print(table)


def _row(job: TraceJob) -> WorkloadRow:
    return WorkloadRow(
        job.line, job.key, job.submit_s, job.duration_s, job.devices, job.share_milli, job.team, job.types
    )
