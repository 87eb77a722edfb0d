"""`baton replay FILE`: a real trace through the live services, in compressed time, to its end and its bill.

Jobs run as timers on simulated nodes; everything else is real: admission, ledger, placement, preemption, billing. At the
end the ledger is verified and the bill is compared with its integral, to the microsecond.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from libs.cli.launch import ROOT, LaunchOptions, LocalStack
from libs.cli.output import hint
from libs.cli.scratch_state import emptied
from libs.cli.tracefile import read_file, show_bad_rows
from libs.cli.traces import TraceJob, UnknownColumns
from libs.core.admission.priority_class import DEFAULT_CLASSES
from schemas import subjects
from schemas.jobs import JobSpec, RetryPolicy, Simulation
from schemas.resources import Resources
from schemas.subjects import OPERATOR

DEFAULT_FLEET = ROOT / "deploy" / "fleets" / "replay-8x8.yaml"
TERMINAL = ("succeeded", "failed", "cancelled")
BILL_WAIT_S = 60.0


@dataclass(slots=True)
class ReplayOutcome:
    """The result of a replay. Times are seconds of the trace unless they end in `wall_s`."""

    trace: str
    speed: float
    rows: int = 0
    bad_rows: list[dict[str, Any]] = field(default_factory=list)
    submitted: int = 0
    rejected: int = 0
    rejections: dict[str, int] = field(default_factory=dict)
    terminal: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    makespan_s: float = 0.0
    queue_wait_p50_s: float = 0.0
    queue_wait_p99_s: float = 0.0
    allocation_pct: float = 0.0
    device_seconds_wall: float = 0.0
    ledger_records: int = 0
    violations: list[str] = field(default_factory=list)
    integral_milli_us: int = 0
    billed_milli_us: int = 0
    cost_micros: int = 0
    currency: str = ""

    @property
    def ok(self) -> bool:
        carried = sum(self.terminal.values())
        agree = not self.violations and self.billed_milli_us == self.integral_milli_us
        return agree and carried > 0 and carried + self.rejected == self.submitted


def command(
    trace: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="CSV: see docs/replay.md for its columns.", metavar="TRACE"),
    ],
    *,
    speed: Annotated[float, typer.Option(help="How many seconds of the trace pass in one second.")] = 1000.0,
    limit: Annotated[int, typer.Option(help="Only the first N readable jobs; 0: all.")] = 0,
    fleet: Annotated[Path, typer.Option(exists=True, help="YAML file of simulated nodes.")] = DEFAULT_FLEET,
    priority_class: Annotated[str, typer.Option("--class", help="Priority class of all jobs.")] = "experiment",
    keep_types: Annotated[bool, typer.Option(help="Ask for the device types that the trace names.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the result.")] = Path("out/replay"),
    state_dir: Annotated[
        Path, typer.Option(help="Where its state is; what an earlier replay left there is removed.")
    ] = Path(".baton/replay"),
) -> None:
    """Run a job trace through a Baton of its own and check the books. Exit code 1 when they disagree or no job ran."""
    console = Console(stderr=True)
    if speed <= 0:
        raise typer.BadParameter(f"{speed:g} is not a speed: give a number above 0, e.g. 1000", param_hint="--speed")
    known = [c.name for c in DEFAULT_CLASSES]
    if priority_class not in known:
        raise typer.BadParameter(f"no class {priority_class!r}; there are: {', '.join(known)}", param_hint="--class")
    try:
        jobs, bad = read_file(trace, limit)
    except UnknownColumns as e:
        raise typer.BadParameter(f"{trace}: {e}", param_hint="TRACE") from None
    show_bad_rows(console, trace, bad)
    if not jobs:
        hint(f"{trace}: no row could be read; nothing to replay")
        raise typer.Exit(1)
    specs = [_spec(job, speed, priority_class, keep_types) for job in jobs]
    outcome = ReplayOutcome(str(trace), speed, rows=len(jobs) + len(bad), bad_rows=[asdict(b) for b in bad])
    asyncio.run(_replay(console, jobs, specs, outcome, fleet, state_dir))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{trace.name.removesuffix('.csv')}.json"
    path.write_text(json.dumps(asdict(outcome) | {"ok": outcome.ok}, indent=2))
    _show(Console(), outcome, path)
    raise typer.Exit(0 if outcome.ok else 1)


async def _replay(
    console: Console,
    jobs: Sequence[TraceJob],
    specs: Sequence[JobSpec],
    outcome: ReplayOutcome,
    fleet: Path,
    state_dir: Path,
) -> None:
    from libs.client import connect

    emptied(state_dir, "replay")
    teams = tuple(sorted({job.team for job in jobs}))
    hint(f"starting Baton with {fleet.name} and {len(teams)} team(s)")
    options = LaunchOptions(state_dir=state_dir, teams=teams, fleet=fleet, real_node="none")
    pool = options.pool  # explicit, as are the teams: BATON_POOL and BATON_TEAM refer to another Baton
    async with (
        LocalStack(options) as cluster,
        await connect(cluster.address(OPERATOR), OPERATOR, pool=pool) as operator,
    ):
        clients = {team: await connect(cluster.address(team), team, pool=pool) for team in teams}
        rejected = await _count_rejections(operator, outcome)
        began = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            sending = progress.add_task("submitted", total=len(jobs))
            ending = progress.add_task("ended", total=len(jobs))
            submit = asyncio.create_task(
                _submit(clients, jobs, specs, outcome, lambda: progress.update(sending, completed=outcome.submitted))
            )
            while True:
                status = await operator.status()
                outcome.terminal = {s: status.jobs[s] for s in TERMINAL if s in status.jobs}
                outcome.rejected = rejected()
                done = sum(outcome.terminal.values()) + outcome.rejected
                progress.update(ending, completed=done)
                if submit.done() and (submit.exception() or done >= len(jobs)):
                    break
                await asyncio.sleep(0.3)
        submit.result()
        outcome.wall_s = time.monotonic() - began
        outcome.makespan_s = outcome.wall_s * outcome.speed
        await _check_books(operator, outcome, status)
        for client in clients.values():
            await client.close()


async def _submit(
    clients: dict[str, Any], jobs: Sequence[TraceJob], specs: Sequence[JobSpec], outcome: ReplayOutcome, tell: Any
) -> None:
    """Submits each job at its time in the trace, in batches."""
    first = jobs[0].submit_s
    began = time.monotonic()
    position = 0
    while position < len(jobs):
        now_s = (time.monotonic() - began) * outcome.speed + first
        due = position
        while due < len(jobs) and jobs[due].submit_s <= now_s:
            due += 1
        for team in sorted({job.team for job in jobs[position:due]}):
            mine = [(jobs[i].key, specs[i]) for i in range(position, due) if jobs[i].team == team]
            await clients[team].submit_many(mine)
        outcome.submitted += due - position
        position = due
        tell()
        await asyncio.sleep(0.02)


async def _count_rejections(operator: Any, outcome: ReplayOutcome) -> Any:
    """Counts admission's refusals as published, by the refused field."""
    from schemas.jobs import JobRejected

    seen: dict[str, str] = {}

    async def heard(message: Any) -> None:
        rejection = JobRejected.model_validate_json(message.data)
        seen[f"{rejection.team}/{rejection.client_key}"] = rejection.reasons[0].field
        outcome.rejections = {f: list(seen.values()).count(f) for f in sorted(set(seen.values()))}

    await operator.nats.subscribe(subjects.event("rejected"), cb=heard)
    return lambda: len(seen)


async def _check_books(operator: Any, outcome: ReplayOutcome, status: Any) -> None:
    """Verifies the ledger, and waits until the bill covers all of it."""
    from libs.ledger.verify import verify

    report = await verify(operator.nats.jetstream(), status.pool)
    outcome.ledger_records, outcome.violations = report.records, report.violations
    outcome.integral_milli_us = report.milli_us
    deadline = time.monotonic() + BILL_WAIT_S
    while True:
        bill = await operator.bill()
        if bill.ledger_seq >= report.last_seq or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.2)
    outcome.billed_milli_us, outcome.cost_micros, outcome.currency = (
        bill.total_milli_us,
        bill.total_cost_micros,
        bill.currency,
    )
    outcome.device_seconds_wall = report.milli_us / 1e9
    outcome.allocation_pct = 100 * report.milli_us / 1e6 / max(1e-9, status.milli_total * outcome.wall_s)
    outcome.queue_wait_p50_s = status.queue_wait_ms.p50 / 1000 * outcome.speed
    outcome.queue_wait_p99_s = status.queue_wait_ms.p99 / 1000 * outcome.speed


def _spec(job: TraceJob, speed: float, priority_class: str, keep_types: bool) -> JobSpec:
    return JobSpec(
        name=f"trace-{job.line}",
        priority_class=priority_class,
        resources=Resources(devices=job.devices, share_milli=job.share_milli, types=job.types if keep_types else ()),
        retry=RetryPolicy(on_lost=3),
        simulation=Simulation(duration_s=job.duration_s / speed),
    )


def _job_counts(outcome: ReplayOutcome) -> str:
    ended = ", ".join(f"{n} {state}" for state, n in outcome.terminal.items() if n)
    return f"{outcome.submitted} submitted; {ended or 'none ended'}; {outcome.rejected} rejected"


def _show(console: Console, outcome: ReplayOutcome, path: Path) -> None:
    from rich.table import Table

    table = Table(title=f"replay of {Path(outcome.trace).name} at {outcome.speed:g}x", show_header=False)
    equal = "equal" if outcome.billed_milli_us == outcome.integral_milli_us else "DIFFERENT"
    rows = [
        ("rows", f"{outcome.rows}, {len(outcome.bad_rows)} left out"),
        ("jobs", _job_counts(outcome)),
        ("time", f"{outcome.wall_s:.1f} s, {outcome.makespan_s / 3600:.1f} h of the trace"),
        ("queue wait", f"p50 {outcome.queue_wait_p50_s:.0f} s, p99 {outcome.queue_wait_p99_s:.0f} s of the trace"),
        ("allocation", f"{outcome.allocation_pct:.1f} % of the devices' time"),
        ("ledger", f"{outcome.ledger_records} records, {len(outcome.violations)} violations"),
        (
            "bill",
            f"{outcome.device_seconds_wall:.3f} device-seconds, {outcome.cost_micros / 1e6:.4f} {outcome.currency}",
        ),
        ("bill and integral", f"{equal}: {outcome.billed_milli_us} and {outcome.integral_milli_us} milli-us"),
        ("result", str(path)),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    for violation in outcome.violations[:10]:
        console.print(violation, style="red", highlight=False, markup=False)
    if outcome.rejected and outcome.rejected == outcome.submitted:
        fields = ", ".join(f"{field} ({n})" for field, n in outcome.rejections.items())
        text = f"no job was carried: admission refused all {outcome.rejected}, because of {fields}"
        console.print(text, style="red", highlight=False, markup=False)
