"""`baton simulate`: a workload under several policies, in virtual time, with the production decider."""

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from libs.cli.exits import UsageFault
from libs.cli.files import read_yaml, why_not
from libs.cli.options import Output
from libs.cli.output import Format, document
from libs.cli.queuesfile import QueueFileError, read_tree
from libs.cli.tracefile import MAX_BAD_ROWS_SHOWN, read_file, show_bad_rows
from libs.cli.traces import BadRow, UnknownColumns
from libs.core.scheduling.precedence import DEFAULT_RULE, OrderRule
from libs.ledger.chain import UnknownRecord
from libs.ledger.export import BadLedgerFile
from libs.ledger.records import FiledLedger
from libs.simulation.policy.compare import FleetError, SimulatedPolicy, compare
from libs.simulation.policy.engine import KnownRunTime, SimulatedRun, SimulatedWorld
from libs.simulation.policy.recorded import RecordedWorkload
from libs.simulation.policy.workload import WorkloadRow
from schemas.inbox import ApplyQueues

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
_MOST = 1e9
"""The maximum of any option, against unending times."""


def command(
    *,
    fleet: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="YAML file of nodes, see deploy/fleets/.")],
    workload: Annotated[
        Path,
        typer.Option(exists=True, dir_okay=False, help="CSV (docs/replay.md), or a file of `baton ledger export`."),
    ],
    policy: Annotated[list[OrderRule] | None, typer.Option(help="An order; may be repeated.")] = None,
    queues: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="A queue file, each queue by its order; may be repeated."),
    ] = None,
    knows: Annotated[
        KnownRunTime, typer.Option(help="What the scheduler is told of run times.")
    ] = KnownRunTime.NOTHING,
    preemption_loss_s: Annotated[
        float, typer.Option(min=0, max=_MOST, help="Work lost per preempted device, s.")
    ] = 30.0,
    start_delay_s: Annotated[float, typer.Option(min=0, max=_MOST, help="From the grant until a job runs, s.")] = 0.0,
    stop_delay_s: Annotated[
        float, typer.Option(min=0, max=_MOST, help="To checkpoint and stop a preempted job, s.")
    ] = 0.0,
    node_faults_per_day: Annotated[float, typer.Option(min=0, max=_MOST, help="Of each node, at random.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of all chance.")] = 0,
    fast: Annotated[bool, typer.Option("--fast", help="No scores: each request takes the first good fit.")] = False,
    cycle_s: Annotated[
        float | None,
        typer.Option(min=0, max=_MOST, help="Decide so often, s; 0: at each event; default: 0, from 50,000 jobs on 5."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the first N readable jobs; 0: all.")] = 0,
    page: Annotated[Path | None, typer.Option(help="Write one HTML page with plots here.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """What would become of a workload: waits, completion times and use of a fleet, under one order or several side by side."""
    console = Console(stderr=True)
    rows, bad = _rows(workload, limit)
    show_bad_rows(console, workload, bad)
    if not rows:
        raise UsageFault(f"{workload}: no row could be read; there is nothing to simulate")
    policies = _policies(policy or [], queues or [])
    world = SimulatedWorld(
        knows=knows,
        preemption_loss_s=preemption_loss_s,
        start_delay_s=start_delay_s,
        stop_delay_s=stop_delay_s,
        node_faults_per_day=node_faults_per_day,
        seed=seed,
        fast=fast,
        cycle_s=cycle_s,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=4) as bars:
        tasks = {name: bars.add_task(name, total=len(rows)) for name in policies}
        try:
            found, runs = compare(
                fleet, rows, policies, world, lambda name, ended: bars.update(tasks[name], completed=ended)
            )
        except FleetError as e:
            raise UsageFault(str(e)) from None
    _show_unrun(console, workload, runs)
    if page is not None:
        from libs.report.policies import policies_page

        times = {name: [(j.submit_us, j.end_us, j.row.duration_s) for j in run.jobs] for name, run in runs.items()}
        try:
            page.write_text(
                policies_page(f"{workload.name} on {fleet.name}", knows.value, found, times), encoding="utf-8"
            )
        except OSError as error:
            raise UsageFault(
                f"--page {page} cannot be written: {why_not(error)}; name a file in a folder that is there"
            ) from None
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


def _show_unrun(console: Console, workload: Path, runs: Mapping[str, SimulatedRun]) -> None:
    """Prints the rows that no policy could run, and for each policy how many others never started."""
    refused = next(iter(runs.values())).refused
    for row in refused[:MAX_BAD_ROWS_SHOWN]:
        text = f"{workload.name}:{row.line}: refused: it asks for {row.devices} devices, which the idle fleet does not have"
        console.print(text, highlight=False, markup=False)
    if len(refused) > MAX_BAD_ROWS_SHOWN:
        console.print(f"... and {len(refused) - MAX_BAD_ROWS_SHOWN} more rows are refused")
    for name, run in runs.items():
        if never := [job.row.line for job in run.jobs if job.end_us < 0]:
            text = f"{workload.name}:{min(never)}: {name}: it never started ({len(never)} such rows): no device fits it"
            console.print(text, highlight=False, markup=False)


def _policies(rules: Sequence[OrderRule], files: Sequence[Path]) -> dict[str, SimulatedPolicy]:
    """Policies by name: an order's own, or a queue file's name without its ending."""
    found: dict[str, SimulatedPolicy] = {rule.value: rule for rule in rules}
    for file in files:
        try:
            tree = read_tree(read_yaml(file), str(file))
        except QueueFileError as error:
            raise UsageFault(str(error)) from None
        if file.stem in found:
            raise UsageFault(f"{file}: two policies are called {file.stem}; rename the file")
        found[file.stem] = ApplyQueues(
            version=tree.version, queues=tuple(tree), order=tree.order, half_life_s=tree.half_life_s,
            preemption=tree.preemption, reason="simulated",
        )  # fmt: skip
    return found or {DEFAULT_RULE.value: DEFAULT_RULE}


def _rows(workload: Path, limit: int) -> tuple[list[WorkloadRow], list[BadRow]]:
    """The rows of a trace or of a recorded ledger."""
    if _is_ledger(workload):
        return _recorded(workload, limit)
    try:
        jobs, bad = read_file(workload, limit)
    except UnknownColumns as e:
        raise UsageFault(f"{workload}: {e}") from None
    rows = [
        WorkloadRow(
            j.line, j.key, j.submit_s, j.duration_s, j.devices, j.share_milli, j.team, j.types, name=j.name, user=j.user
        )
        for j in jobs
    ]
    return rows, bad


def _is_ledger(workload: Path) -> bool:
    """Whether its first line is a ledger file's."""
    try:
        with gzip.open(workload) if workload.suffix == ".gz" else workload.open("rb") as file:
            return b'"baton_ledger"' in file.readline(1024)
    except (OSError, EOFError, zlib.error):
        return False


def _recorded(workload: Path, limit: int) -> tuple[list[WorkloadRow], list[BadRow]]:
    recorded = RecordedWorkload()
    try:
        for seq, record in FiledLedger([workload])():
            recorded.add(record, seq)
    except (BadLedgerFile, UnknownRecord) as e:
        raise UsageFault(f"{workload}: {e}") from None
    rows, left_out = recorded.rows()
    return rows[: limit or None], [BadRow(one.line, f"{one.job_id}: {one.reason}") for one in left_out]
