"""Options for a job's request, shared by `baton submit` and `baton plan`."""

from typing import Annotated

import typer

JobFileOption = Annotated[
    str | None, typer.Option("--file", "-f", help="Job file, `-` for stdin; see docs/job-spec.md.")
]
GpusOption = Annotated[
    str | None, typer.Option("--gpus", "-G", help="Accelerators: [type:]count[@memory], e.g. H100:4@40GiB.")
]
PriorityClassOption = Annotated[
    str | None, typer.Option("--class", help="Its priority class: serving, production, experiment...")
]
ShareOption = Annotated[str | None, typer.Option("--share", help="A share of one device, e.g. 0.5.")]
MemoryOption = Annotated[str | None, typer.Option("--memory", help="Memory per device, e.g. 40GiB.")]
CpusOption = Annotated[str | None, typer.Option("--cpus", help="Processors beside each device, e.g. 12 or 0.5.")]
HostMemoryOption = Annotated[
    str | None, typer.Option("--host-memory", help="Memory of the node for each device, e.g. 128GiB.")
]
MigOption = Annotated[str | None, typer.Option("--mig", help="A MIG instance of this profile, e.g. 1g.10gb.")]
TopologyOption = Annotated[
    str | None, typer.Option("--topology", help="How close together: level:policy, e.g. node:required.")
]
RoleOption = Annotated[
    list[str] | None,
    typer.Option("--role", help="Of a nested gang: name=[type:]groupsxdevices, e.g. trainer=8x4; may be repeated."),
]
TorusOption = Annotated[str | None, typer.Option("--torus", help="A TPU slice: [type:]AxBxC, e.g. v5p:4x4x8.")]
MinDevicesOption = Annotated[
    int | None, typer.Option("--min-devices", min=1, help="Elastic: start with so many when --gpus are not free.")
]
LabelOption = Annotated[list[str] | None, typer.Option("--label", "-C", help="NAME=VALUE a node must carry.")]
TimeOption = Annotated[str | None, typer.Option("--time", help="Longest run, e.g. 90m, 2h, 1-12:00:00.")]
