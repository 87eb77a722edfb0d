"""`baton plan -f job.yaml`, or `baton plan --gpus H100:4`: what would happen to jobs, without submitting them.

Exit codes: 0 all would run now, 3 some would run later or never, 4 admission would refuse one, 2 the file is wrong.
"""

from typing import Annotated

import typer

from libs.cli import job_options, units
from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.jobfile import JobRequest
from libs.cli.options import Output, Pool, Team, Url
from libs.cli.output import Column, Format, document, fields, say, show
from libs.cli.session import run
from libs.cli.submit import requested, team_of
from libs.cli.why import REMOVED
from libs.client import Baton, Rejected
from schemas.explanations import PlanReply, PlanVerdict, RightSize

NOT_NOW = 3

_NODES = [
    Column("NODE", lambda n: n.node),
    Column("TYPE", lambda n: n.model),
    Column("COUNT", lambda n: len(n.devices), right=True),
    Column("DEVICES", lambda n: n.devices),
]
_VICTIMS = [
    Column("GIVES WAY", lambda v: v.job_id or "another team's job"),
    Column("CLASS", lambda v: v.priority_class),
    Column("DEVICES", lambda v: v.devices, right=True),
    Column("LOST DEVICE-S", lambda v: f"{v.lost_device_s:.0f}", right=True),
]


def command(
    *,
    file: job_options.JobFileOption = None,
    gpus: job_options.GpusOption = None,
    priority_class: job_options.PriorityClassOption = None,
    share: job_options.ShareOption = None,
    memory: job_options.MemoryOption = None,
    cpus: job_options.CpusOption = None,
    host_memory: job_options.HostMemoryOption = None,
    mig: job_options.MigOption = None,
    topology: job_options.TopologyOption = None,
    role: job_options.RoleOption = None,
    torus: job_options.TorusOption = None,
    min_devices: job_options.MinDevicesOption = None,
    label: job_options.LabelOption = None,
    time: job_options.TimeOption = None,
    steps: Annotated[
        float | None, typer.Option("--steps", min=1, help="Training steps to do: for time and cost, where measured.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Whether, where, when and at what price jobs would run. Exits with 0 only if all would run now."""
    given = {
        "class": priority_class, "gpus": gpus, "share": share, "memory": memory, "cpus": cpus, "host-memory": host_memory,
        "mig": mig, "topology": topology, "role": role, "torus": torus, "min-devices": min_devices, "label": label,
        "time": time,
    }  # fmt: skip
    if file is None and not any(given.values()):
        raise UsageFault(
            "nothing to plan: give a job file with -f, or say what a job would ask for, e.g. --gpus H100:4"
        )
    requests = requested(file, given, [] if file is not None else ["true"])
    output = Format.JSON if as_json else output

    async def ask(baton: Baton) -> list[PlanReply]:
        return [await baton.plan(request.spec, steps=steps) for request in requests]

    replies = run(ask, team_of(requests, team), url, pool=pool, operator=False)
    if output in (Format.JSON, Format.YAML):
        document(replies[0] if len(replies) == 1 else replies, output)
    for request, reply in zip(requests, replies, strict=True):
        if output is Format.NAME:
            say(reply.verdict.value)
        elif output in (Format.TABLE, Format.WIDE) and reply.verdict is not PlanVerdict.REFUSED:
            _print(request, reply)
    for request, reply in zip(requests, replies, strict=True):
        if reply.verdict is PlanVerdict.REFUSED:
            if output in (Format.TABLE, Format.WIDE):
                raise Rejected(request.spec.name, reply.reasons)
            raise Ended(Exit.DENIED)
    if any(reply.verdict is not PlanVerdict.NOW for reply in replies):
        raise Ended(NOT_NOW)


def _print(request: JobRequest, reply: PlanReply) -> None:
    fields(
        [
            ("job", request.spec.name),
            ("would run", reply.verdict.value),
            ("because", f"{reply.reason}: {reply.text}" if reply.reason else reply.text),
            ("start", _start(reply)),
            ("level", reply.level),
            ("slowest link", f"{reply.link_gb_s:g} GB/s" if reply.link_gb_s else ""),
            ("ahead of it", units.counted(reply.ahead, "job") if reply.ahead else ""),
            ("cost", _cost(reply)),
            ("memory", f"{reply.memory_mib} MiB per device" if reply.memory_mib else ""),
            ("arithmetic", reply.memory_text),
            ("would help", reply.suggestion),
            *(("or", other) for other in reply.alternatives),
            *(("smaller", f"{s.change}: {s.why}; saves {_saving(reply, s)}") for s in reply.right_size),
            ("answered in", f"{reply.took_ms:.1f} ms"),
        ]
    )
    for items, columns in ((reply.nodes, _NODES), (reply.victims, _VICTIMS), (reply.removed, REMOVED)):
        if items:
            say("")
            show(items, columns)


def _start(reply: PlanReply) -> str:
    if reply.start_s is None:
        return reply.start_basis
    if reply.start_s == 0:
        return reply.start_basis or "now"
    latest = f", at the latest in {units.duration(reply.latest_s)}" if reply.latest_s is not None else ""
    return f"in about {units.duration(reply.start_s)}{latest} ({reply.start_basis})"


def _cost(reply: PlanReply) -> str:
    cost = reply.cost
    if cost is None:
        return ""
    hour = f"{_money(cost.micros_per_hour)} {cost.currency} per hour"
    if cost.total_micros is None or cost.run_s is None:
        return hour
    run = f"{_money(cost.total_micros)} {cost.currency} for {units.duration(cost.run_s)} ({cost.run_basis})"
    return f"{hour}, {run}"


def _saving(reply: PlanReply, smaller: RightSize) -> str:
    currency = reply.cost.currency if reply.cost else ""
    step = smaller.saves_micros_per_step
    per_step = f", {step / 1e6:.3g} {currency} per step" if step else ""
    return f"{_money(smaller.saves_micros_per_hour)} {currency} per hour{per_step}"


def _money(micros: int) -> str:
    return f"{micros / 1e6:.2f}"
