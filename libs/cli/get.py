"""`baton get jobs|waiting|nodes|devices|queues|quotas|pools`: lists."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from libs.cli import get_pools, units
from libs.cli.bars import progress
from libs.cli.budget import standing, tightest
from libs.cli.exits import UsageFault
from libs.cli.options import Limit, NoHeader, Output, Pool, Team, Url
from libs.cli.output import Column, Format, hint, show
from libs.cli.people import Names, names_of, shown
from libs.cli.session import run, short, whole_id
from libs.cli.why import start_in
from libs.client import Baton
from libs.client.asking import ask
from schemas.billing import TeamUsage
from schemas.jobs import JobState
from schemas.queries import JobDocument
from schemas.queue_status import BudgetsReply, QueueShare, QueuesQuery, QueuesReply
from schemas.queues import Queue
from schemas.resources import ANY_ACCELERATOR, WHOLE_MILLI

app = typer.Typer(
    help="List jobs, waiting jobs, nodes, devices, queues, quotas or pools.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _job_columns(names: Names) -> list[Column]:
    people = sys.stdout.isatty()
    return [
        Column("JOB", lambda j: short(j.job_id) if people else j.job_id),
        Column("NAME", lambda j: j.name),
        Column("TEAM", lambda j: j.team),
        Column("USER", lambda j: shown(names, j.team, j.user), wide=True),
        Column("POOL", lambda j: j.pool, wide=True),
        Column("CLASS", lambda j: j.priority_class),
        Column("STATE", lambda j: j.state.value),
        Column("DEVICES", lambda j: j.devices, right=True),
        Column("TYPES", lambda j: j.spec.resources.types, wide=True),
        Column("NODES", lambda j: j.attempts[-1].nodes if j.attempts else ""),
        Column("ATTEMPTS", lambda j: len(j.attempts), right=True),
        Column("PREEMPTED", lambda j: j.preemptions, wide=True, right=True),
        Column("WAITED", _waited),
        Column("RAN", _ran),
        Column("PROGRESS", progress),
        Column("AGE", lambda j: units.age(j.submitted_us)),
        Column("KEY", lambda j: j.client_key, wide=True),
        Column("REASON", lambda j: j.reason),
    ]


def _waited(job: JobDocument) -> str:
    first = job.attempts[0].granted_us if job.attempts else job.finished_us
    return units.between(job.submitted_us, first)


def _ran(job: JobDocument) -> str:
    if not job.attempts or job.attempts[-1].running_us is None:
        return "-"
    return units.between(job.attempts[-1].running_us, job.attempts[-1].closed_us)


@app.command("jobs")
@app.command("job", hidden=True)
def jobs(
    ids: Annotated[list[str] | None, typer.Argument(help="Only these.", metavar="JOB")] = None,
    *,
    state: Annotated[list[str] | None, typer.Option("--state", help="Only in this state; may be repeated.")] = None,
    name: Annotated[str, typer.Option("--name", help="Only of this name.")] = "",
    limit: Limit = 100,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Jobs, newest first."""
    states = [_state(text) for part in state or [] for text in part.split(",")]

    async def ask(baton: Baton) -> tuple[Sequence[JobDocument], Names]:
        found = await chosen(baton)
        return found, await names_of(baton, ((j.team, j.user) for j in found)) if output is Format.WIDE else {}

    async def chosen(baton: Baton) -> Sequence[JobDocument]:
        if ids:
            return [await baton.get(await whole_id(baton, text)) for text in ids]
        found = await baton.list(states, name, limit)
        if len(found) == limit:
            hint(f"only the newest are shown, {limit}; use --limit for more")
        return found

    found, names = run(ask, team, url)
    show(found, _job_columns(names), output, name=lambda j: j.job_id, header=not no_header)


def _state(text: str) -> JobState:
    try:
        return JobState(text.strip().lower())
    except ValueError:
        raise UsageFault(f"{text!r} is not a state: use {', '.join(JobState)}") from None


_NODES = [
    Column("NODE", lambda n: n.node),
    Column("STATUS", lambda n: n.status),
    Column("MODELS", lambda n: [f"{model}:{count}" for model, count in sorted(n.models.items())]),
    Column("USED", lambda n: units.devices(n.milli_used), right=True),
    Column("TOTAL", lambda n: units.devices(n.milli_total), right=True),
    Column("UTIL%", lambda n: None if n.utilization_pct is None else round(n.utilization_pct), right=True),
    Column("PLACE", lambda n: f"{n.zone}/{n.spine}/{n.leaf}"),
    Column("HEARTBEAT", lambda n: None if n.heartbeat_age_s is None else units.duration(n.heartbeat_age_s)),
    Column("WALLS", lambda n: "" if n.walls is None else n.walls.tier),
    Column("SIMULATED", lambda n: "yes" if n.simulated else "no", wide=True),
    Column("CPUS", lambda n: n.cpus, wide=True, right=True),
    Column("MEMORY", lambda n: units.gib(n.memory_mib), wide=True, right=True),
    Column("INCARNATION", lambda n: n.incarnation, wide=True, right=True),
    Column("LABELS", lambda n: [f"{k}={v}" for k, v in sorted(n.labels.items())], wide=True),
    Column("OUT OF USE", lambda n: n.out_of_use, wide=True),
    Column("CLEARED", lambda n: n.cleared_seq, wide=True, right=True),
]

DEVICES = [
    Column("DEVICE", lambda d: d.device),
    Column("NODE", lambda d: d.node),
    Column("INDEX", lambda d: d.index, right=True),
    Column("KIND", lambda d: d.kind, wide=True),
    Column("MODEL", lambda d: d.model),
    Column("MEMORY", lambda d: units.gib(d.memory_mib), right=True),
    Column("USED", lambda d: units.devices(d.milli_used), right=True),
    Column("UTIL%", lambda d: None if d.utilization_pct is None else round(d.utilization_pct), right=True),
    Column("MEM-USED", lambda d: None if d.memory_used_mib is None else units.gib(d.memory_used_mib), wide=True),
    Column("WATTS", lambda d: d.power_w, wide=True, right=True),
    Column("CELSIUS", lambda d: d.temperature_c, wide=True, right=True),
    Column("QUARANTINE", lambda d: d.quarantine, wide=True),
    Column("JOBS", lambda d: [short(job) if sys.stdout.isatty() else job for job in d.jobs]),
]

WAITING = [
    Column("JOB", lambda j: short(j.job_id) if sys.stdout.isatty() else j.job_id),
    Column("NAME", lambda j: j.name),
    Column("TEAM", lambda j: j.team),
    Column("CLASS", lambda j: j.priority_class),
    Column("PRIORITY", lambda j: j.priority, right=True, wide=True),
    Column("DEVICES", lambda j: j.devices, right=True),
    Column("WAITING", lambda j: units.age(j.waiting_since_us)),
    Column("POSITION", lambda j: j.position or "", right=True),
    Column("STARTS-IN", lambda j: start_in(j.start)),
    Column("REASON", lambda j: j.reason),
]


def _time_limits(queue: Queue) -> str:
    """`4h/7d`: of jobs that say none, and the longest."""
    said = (queue.default_time_limit_s, queue.longest_time_limit_s)
    return "/".join("-" if limit_s is None else units.duration(limit_s) for limit_s in said) if any(said) else ""


QUEUES = [
    Column("QUEUE", lambda s: s.queue.name),
    Column("GUARANTEED", lambda s: units.devices(s.queue.guaranteed.get(ANY_ACCELERATOR, 0)), right=True),
    Column("USED", lambda s: units.devices(s.held_milli), right=True),
    Column("BORROWED", lambda s: units.devices(s.borrowed_milli), right=True),
    Column("SHARE", lambda s: units.devices(s.share_milli) if s.applied or s.share_milli else None, right=True),
    Column("LATELY", lambda s: units.devices(s.recent_milli), right=True, wide=True),
    Column("USERS", lambda s: [f"{u.user or '?'} {units.devices(u.held_milli)}" for u in s.users[:8]], wide=True),
    Column("LIMIT", lambda s: units.devices(s.queue.limit.get(ANY_ACCELERATOR)), right=True),
    Column("WEIGHT", lambda s: f"{s.queue.weight_milli / WHOLE_MILLI:g}", right=True),
    Column("ORDER", lambda s: s.queue.order or "", wide=True),
    Column("TIME-LIMIT", lambda s: _time_limits(s.queue), wide=True),
    Column("WAITING", lambda s: s.waiting_jobs, right=True),
    Column("NEXT-START", lambda s: start_in(s.next_start)),
    Column("ASKED", lambda s: units.devices(s.waiting_milli), right=True),
    Column("TYPES", lambda s: [f"{kind} {units.devices(milli)}" for kind, milli in s.holds.items()], wide=True),
    Column("CLASSES", lambda s: "all" if s.queue.classes is None else list(s.queue.classes), wide=True),
]


def _by_type(team: TeamUsage) -> list[str]:
    """`H100 7/8`: used of limit, and use of types without a limit."""
    of = {key: f"/{units.devices(limit)}" for key, limit in team.by_type.items()}
    return [f"{key} {units.devices(used)}{of.get(key, '')}" for key, used in team.used_by_type.items()]


_QUOTAS = [
    Column("TEAM", lambda t: t.team),
    Column("LIMIT", lambda t: units.devices(t.limit_milli), right=True),
    Column("USED", lambda t: units.devices(t.used_milli), right=True),
    Column("BY-TYPE", _by_type),
    Column("QUEUED", lambda t: t.queued_jobs, right=True),
    Column("RUNNING", lambda t: t.running_jobs, right=True),
]


@app.command("nodes")
@app.command("node", hidden=True)
def nodes(
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """The pool's machines: what they offer, what is held, how well they are."""
    _list(run(lambda b: b.nodes(), team, url, pool=pool).nodes, _NODES, output, no_header, "node")


@app.command("devices")
@app.command("device", hidden=True)
@app.command("gpus", hidden=True)
def devices(
    node: Annotated[str, typer.Option("--node", help="Only of this node.")] = "",
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Devices; who holds one is shown to its own team and to operators."""
    _list(run(lambda b: b.devices(node), team, url, pool=pool).devices, DEVICES, output, no_header, "device")


@app.command("waiting")
def waiting(
    limit: Limit = 200,
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Waiting jobs in the order in which they are considered."""
    reply = run(lambda b: b.queue(min(limit, 5000)), team, url, pool=pool)
    if reply.total > len(reply.jobs):
        hint(f"{reply.total} jobs wait; the first {len(reply.jobs)} are shown")
    _list(reply.jobs, WAITING, output, no_header, "job_id")


@app.command("queues")
@app.command("queue", hidden=True)
def queues(
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """How the pool is shared, in accelerators: what each queue is guaranteed, holds, has borrowed and should have now."""

    async def asked(baton: Baton) -> QueuesReply:
        reply: QueuesReply = await ask(baton.nats, "queues.list", baton.place, QueuesQuery())
        return reply

    if output not in (Format.TABLE, Format.WIDE):
        shares = run(asked, team, url, pool=pool).shares
        show(shares, QUEUES, output, name=lambda share: share.queue.name, header=not no_header)
        return

    async def with_budgets(baton: Baton) -> tuple[QueuesReply, BudgetsReply]:
        return await asked(baton), await standing(baton)

    reply, budgets = run(with_budgets, team, url, pool=pool)
    rows = indented(reply.shares)
    spent = tightest(budgets)
    columns = [*QUEUES, Column("BUDGET", lambda share: spent.get(share.queue.name.strip(), ""))] if spent else QUEUES
    show(rows, columns, output, name=lambda share: share.queue.name, header=not no_header)


def indented(shares: Sequence[QueueShare]) -> list[QueueShare]:
    """Names indented below their parents."""
    depth: dict[str, int] = {}
    rows = []
    for share in shares:
        queue = share.queue
        depth[queue.name] = depth[queue.parent] + 1 if queue.parent in depth else 0
        shown = "  " * depth[queue.name] + queue.name
        rows.append(share.model_copy(update={"queue": queue.model_copy(update={"name": shown})}))
    return rows


@app.command("quotas")
@app.command("quota", hidden=True)
def quotas(
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Each team's limits and present use: accelerators, and by device type and MIG profile what it holds or is limited in."""
    _list(run(lambda b: b.quotas(), team, url, pool=pool).teams, _QUOTAS, output, no_header, "team")


def _list(items: Sequence[Any], columns: list[Column], output: Format, no_header: bool, key: str) -> None:
    show(items, columns, output, name=lambda item: str(getattr(item, key)), header=not no_header)


app.command("pools")(get_pools.command)
app.command("pool", hidden=True)(get_pools.command)
