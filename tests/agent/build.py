"""Builders with defaults: a test states only what matters."""

import sys
from itertools import count
from typing import Any

from schemas.ids import job_id
from schemas.jobs import JobSpec
from schemas.nodes import Action, DesiredPart, DesiredState, Rank
from schemas.resources import Device, Inventory, Recut

_NUMBERS = count()


def spec(code: str = "", **fields: Any) -> JobSpec:
    """A job that runs Python `code`."""
    return JobSpec(**{"command": (sys.executable, "-c", code)} | fields) if code else JobSpec(**fields)


def simulated(duration_s: float = 60.0, **fields: Any) -> JobSpec:
    exit_code = fields.pop("exit_code", 0)
    return JobSpec(simulation={"duration_s": duration_s, "exit_code": exit_code}, **fields)


def rank(device: str = "n0-gpu0", epoch: int = 1, number: int = 0, milli: int = 1000) -> Rank:
    return Rank(rank=number, device=device, epoch=epoch, milli=milli, memory_mib=1024)


def part(job: JobSpec | None = None, *ranks: Rank, key: str = "", **fields: Any) -> DesiredPart:
    ranks = ranks or (rank(),)
    defaults: dict[str, Any] = {
        "job_id": job_id("blue", key or f"job {next(_NUMBERS)}"),
        "attempt": 1,
        "team": "blue",
        "action": Action.RUN,
        "spec": job or simulated(),
        "ranks": ranks,
        "world_size": len(ranks),
        "node_rank": 0,
        "nodes": ("n0",),
    }
    return DesiredPart(**defaults | fields)


def state(
    *parts: DesiredPart,
    seq: int = 1,
    node: str = "n0",
    incarnation: int = 1,
    pool: str = "main",
    recuts: tuple[Recut, ...] = (),
    withdrawn: tuple[Recut, ...] = (),
) -> DesiredState:
    return DesiredState(
        pool=pool, node=node, incarnation=incarnation, ledger_seq=seq, parts=parts, recuts=recuts, withdrawn=withdrawn
    )


def but(wanted: DesiredPart, action: Action) -> DesiredPart:
    return wanted.model_copy(update={"action": action})


def inventory(node: str = "n0", devices: int = 8, simulated: bool = True) -> Inventory:
    found = tuple(Device(id=f"{node}-gpu{i}", index=i, model="H100", memory_mib=81_920) for i in range(devices))
    return Inventory(node=node, devices=found, simulated=simulated)
