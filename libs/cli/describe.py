"""`baton describe job|node ID`: everything about one job or node."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from libs.cli import units
from libs.cli.bars import progress_in_full
from libs.cli.get import DEVICES as DEVICE_COLUMNS
from libs.cli.options import JobArgument, Output, Pool, Team, Url
from libs.cli.output import Column, Format, document, fields, say, show
from libs.cli.people import Names, names_of, shown
from libs.cli.session import run, whole_id
from libs.cli.why import BEHIND, why
from libs.client import Baton, NotFound
from libs.client.errors import ClientError
from schemas.explanations import Explanation
from schemas.jobs import JobState
from schemas.pool_status import DeviceView, NodeView
from schemas.queries import AttemptDocument, JobDocument
from schemas.resources import Resources


class _Describable(TyperGroup):
    """The group of `describe`; a name without its kind is an error."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            ctx.fail(f"{args[0]!r} of what? Write baton describe job {args[0]}, or baton describe node {args[0]}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Describable, help="Everything about one job or node.", no_args_is_help=True, rich_markup_mode=None
)

_ATTEMPTS = [
    Column("ATTEMPT", lambda a: a.attempt, right=True),
    Column("OUTCOME", lambda a: a.outcome or "open"),
    Column("WHY", lambda a: "" if a.category in ("success", a.outcome) else a.category),
    Column("GRANTED", lambda a: units.moment(a.granted_us)),
    Column("HELD", lambda a: units.between(a.granted_us, a.closed_us), right=True),
    Column("EXIT", lambda a: a.exit_code, right=True),
    Column("NODES", lambda a: a.nodes),
    Column("DEVICES", lambda a: a.devices),
    Column("TOGETHER", lambda a: a.span and a.span.text),
    Column("RESUMED", lambda a: a.resume and f"step {a.resume.step}"),
    Column("CHECKPOINT", lambda a: a.checkpoint and f"step {a.checkpoint.step}"),
]


@app.command("job")
def job(job: JobArgument, team: Team = None, url: Url = None, output: Output = Format.TABLE) -> None:
    """A job: what was asked for, where it stands, every attempt."""

    async def ask(baton: Baton) -> tuple[JobDocument, Names, Explanation | None]:
        found = await baton.get(await whole_id(baton, job))
        reasons = await _why(baton, found) if output in (Format.TABLE, Format.WIDE) else None
        names = await names_of(baton, [(found.team, found.user)]) if output in (Format.TABLE, Format.WIDE) else {}
        return found, names, reasons

    found, names, reasons = run(ask, team, url)
    if output in (Format.JSON, Format.YAML):
        document(found, output)
    elif output is Format.NAME:
        say(found.job_id)
    else:
        fields(
            [*_job_fields(found, shown(names, found.team, found.user)), *(why(reasons) if reasons is not None else ())]
        )
        if reasons is not None and reasons.behind:
            say("")
            show(reasons.behind, BEHIND)
        if found.attempts:
            say("")
            show(found.attempts, _ATTEMPTS)


async def _why(baton: Baton, job: JobDocument) -> Explanation | None:
    """Why a job waits; None when nobody can answer now, and then the rest is shown without it."""
    if job.state is not JobState.QUEUED:
        return None
    try:
        return await baton.explain(job.job_id)
    except ClientError:
        return None


def _job_fields(job: JobDocument, user: str) -> Iterable[tuple[str, object]]:
    spec, attempts = job.spec, job.attempts
    last: AttemptDocument | None = attempts[-1] if attempts else None
    yield "job", job.job_id
    yield "name", job.name
    yield "team", job.team
    yield "user", user
    yield "pool", job.pool
    yield "key", job.client_key
    yield "class", f"{job.priority_class} (priority {job.priority})"
    yield "state", job.state.value
    yield "reason", job.reason
    yield "wants", _wants(spec.resources)
    yield "command", " ".join(spec.command) or (spec.simulation and f"timer of {spec.simulation.duration_s:g} s")
    yield "environment", [f"{k}={v}" for k, v in sorted(spec.env.items())]
    yield "checkpoint", spec.checkpoint and f"{spec.checkpoint.signal}, {spec.checkpoint.grace_s:g} s of grace"
    yield "time limit", units.duration(spec.time_limit_s) if spec.time_limit_s else ""
    yield "submitted", units.moment(job.submitted_us)
    yield "waited", units.between(job.submitted_us, attempts[0].granted_us if attempts else job.finished_us)
    yield "finished", job.finished_us and units.moment(job.finished_us)
    yield "promised first", job.promised_us and units.moment(job.promised_us)
    yield "progress", progress_in_full(last) if last else ""
    yield "preempted", _preempted(job)
    yield "on", last.nodes if last and last.closed_us is None else ""


def _preempted(job: JobDocument) -> str:
    costs = [a.preemption_cost_device_s for a in job.attempts if a.preemption_cost_device_s is not None]
    cost = f", at a cost of {sum(costs):,.0f} device-seconds of work and restarts" if costs else ""
    return f"{units.times(job.preemptions)}{cost}" if job.preemptions else ""


def _wants(r: Resources) -> str:
    parts = [f"{r.devices} x {'|'.join(r.types) or 'any'}"]
    if r.share_milli < 1000:
        parts.append(f"share {r.share_milli / 1000:g}")
    if r.mig_profile:
        parts.append(f"MIG {r.mig_profile}")
    if r.memory_mib:
        parts.append(f"{units.gib(r.memory_mib)} each")
    if r.devices > 1:
        parts.append(f"{r.topology.level.value} {r.topology.policy.value}")
    parts += [f"{name}={value}" for name, value in sorted(r.labels.items())]
    return ", ".join(parts)


@app.command("node")
def node(
    node: Annotated[str, typer.Argument(help="A node's name.", metavar="NODE")],
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """A node and its devices."""

    async def ask(baton: Baton) -> tuple[NodeView, list[DeviceView]]:
        views = {view.node: view for view in (await baton.nodes()).nodes}
        if node not in views:
            raise NotFound(f"there is no node {node!r}", fix="`baton get nodes` lists them")
        return views[node], [d for d in (await baton.devices(node)).devices if d.node == node]

    view, devices = run(ask, team, url, pool=pool)
    if output in (Format.JSON, Format.YAML):
        document({"node": view, "devices": devices}, output)
        return
    if output is Format.NAME:
        say(view.node)
        return
    age = view.heartbeat_age_s
    fields(
        [
            ("node", view.node),
            ("status", view.status),
            ("place", f"{view.zone}/{view.spine}/{view.leaf}"),
            ("devices", [f"{model}:{count}" for model, count in sorted(view.models.items())]),
            ("held", f"{units.devices(view.milli_used)} of {units.devices(view.milli_total)}"),
            ("utilization", "" if view.utilization_pct is None else f"{view.utilization_pct:.0f} %"),
            ("last heard", "" if age is None else f"{units.duration(age)} ago"),
            ("processors", view.cpus),
            ("memory", units.gib(view.memory_mib)),
            ("labels", [f"{k}={v}" for k, v in sorted(view.labels.items())]),
            ("incarnation", view.incarnation),
            ("simulated", "yes" if view.simulated else ""),
            ("walls", "" if view.walls is None else view.walls.tier),
            *(("walls lack", lack) for lack in (view.walls.lacks if view.walls else ())),
            ("cleared", "" if view.cleared_seq is None else f"of teams that left by record {view.cleared_seq}"),
        ]
    )
    say("")
    show(devices, DEVICE_COLUMNS)
