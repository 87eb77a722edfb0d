"""A state as bytes and back. Two equal states give equal bytes, so snapshots also prove that folds agree (I9)."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from libs.core.state.fleet import Fleet
from libs.core.state.fold import mark_holds, mark_repartitions
from libs.core.state.lifecycle import AttemptState
from libs.core.state.limits import Limits
from libs.core.state.model import Attempt, Job, NodePart, State, shape_of
from schemas.attempts import Category, Cause
from schemas.jobs import Checkpoint, JobSpec, JobState, Latency
from schemas.ledger import BoardRecut
from schemas.resources import Claim, Inventory, Span

VERSION = 5
"""Of the layout of `dump`; whoever keeps the parts keeps it beside them, and reads no other (`libs.ledger.snapshots`)."""
_PLAIN = (
    "finished", "used", "limited", "t_us", "inbox_seq", "grants", "preemptions", "finished_by_state"
)  # fmt: skip
_JOB_PLAIN = (
    "id", "team", "spec_hash", "priority", "preempts", "submitted_us", "queued_us", "attempts",
    "preemptions", "first_grant_us",
)  # fmt: skip
_ATTEMPT_PLAIN = (
    "number", "granted_us", "running_us", "reason", "failed_code", "beneficiary", "cost_device_s", "checkpoint_us",
)  # fmt: skip


def dump(state: State, learned: Any = None) -> tuple[bytes, ...]:
    """JSON with sorted keys, UTF-8. `learned`: what the placer knows of the mix of requests."""
    body = {
        "learned": learned,
        "fleet": _dump_fleet(state.fleet),
        "jobs": [_dump_job(job) for job in sorted(state.jobs.values(), key=lambda j: j.id)],
        "repartitions": [asked.model_dump(mode="json") for asked in state.repartitions.values()],
        "withdrawn": sorted(state.withdrawn),
        "repartition_number": state.repartition_number,
        "repartition_us": state.repartition_us,
        "holds": [[holder, list(devices)] for holder, devices in state.holds.items()],
        "quotas": {team: limits.dump() for team, limits in state.quotas.items()},
        **{name: getattr(state, name) for name in _PLAIN},
    }
    return (json.dumps(body, sort_keys=True, separators=(",", ":")).encode(),)


def load(parts: Iterable[bytes]) -> State:
    """The inverse of `dump`, of parts that this `VERSION` wrote."""
    return load_learned(parts)[0]


def load_learned(parts: Iterable[bytes]) -> tuple[State, Any]:
    """The state, and what was `learned` (None: nothing)."""
    body = json.loads(b"".join(parts))
    state = State(fleet=_load_fleet(body["fleet"]), **{name: body[name] for name in _PLAIN})
    state.quotas = {team: Limits.load(limits) for team, limits in body["quotas"].items()}
    jobs = [_load_job(j) for j in body["jobs"]]
    state.jobs = {job.id: job for job in jobs}
    for job in sorted(jobs, key=lambda j: (j.submitted_us, j.id)):
        if job.state is JobState.QUEUED:
            state.queues.setdefault(job.queue, {})[job.id] = job.submitted_us
    state.on_node = {name: {} for name in state.fleet.nodes}
    for job in sorted(jobs, key=_grant_order):
        if job.current and job.shape.spread[0]:
            state.spread_peers.setdefault((job.team, job.shape.spread[0]), {})[job.id] = None
        for part in job.current.parts.values() if job.current else ():
            if not part.freed:
                state.on_node[part.node][job.id] = None
                state.fleet.occupy_hosts(part.claims)
    state.holds = {holder: tuple(devices) for holder, devices in body["holds"]}
    mark_holds(state)
    asked = [BoardRecut.model_validate(raw) for raw in body.get("repartitions", ())]
    state.repartitions = {one.recut.board: one for one in asked}
    state.withdrawn = set(body.get("withdrawn", ()))
    state.repartition_number, state.repartition_us = body.get("repartition_number", {}), body.get("repartition_us", {})
    mark_repartitions(state)
    return state, body.get("learned")


def _grant_order(job: Job) -> tuple[int, int, str]:
    """Agents start parts in this order, and of two shares of one device the older epoch must come first."""
    attempt = job.current
    return (attempt.granted_us, attempt.claims[0].epoch, job.id) if attempt is not None else (0, 0, job.id)


def _dump_fleet(fleet: Fleet) -> dict[str, Any]:
    n = len(fleet)
    return {
        "nodes": [
            [fleet.nodes[name].inventory.model_dump(mode="json"), fleet.nodes[name].incarnation, fleet.nodes[name].up]
            for name in fleet.node_names.names
        ],
        "devices": [
            [name, int(fleet.epoch[i]), int(fleet.free_milli[i]), int(fleet.free_mib[i]), int(fleet.memory_mib[i])]
            for i, name in enumerate(fleet.devices.names[:n])
        ],
    }


def _load_fleet(body: dict[str, Any]) -> Fleet:
    """Devices get their rows back: of two equal ones the lower row is taken, and recuts add rows out of node order."""
    fleet = Fleet()
    for name, *_ in body["devices"]:  # also those that no node has now: their epochs must still never go back
        fleet.adopt(name)
    for raw, incarnation, up in body["nodes"]:
        node = fleet.join(Inventory.model_validate(raw), incarnation)
        if not up:
            fleet.leave(node.name)
    for name, epoch, free_milli, free_mib, memory_mib in body["devices"]:
        row = fleet.row(name)
        fleet.epoch[row], fleet.free_milli[row] = epoch, free_milli
        fleet.free_mib[row], fleet.memory_mib[row] = free_mib, memory_mib
    return fleet


def _dump_job(job: Job) -> dict[str, Any]:
    return {
        **{name: getattr(job, name) for name in _JOB_PLAIN},
        "spec": job.spec.model_dump(mode="json"),
        "state": job.state.value,
        "latency": job.latency.value,
        "endings": job.endings,
        "resume": job.resume.model_dump(mode="json") if job.resume else None,
        "current": _dump_attempt(job.current) if job.current else None,
    }


def _dump_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        **{name: getattr(attempt, name) for name in _ATTEMPT_PLAIN},
        "state": attempt.state.value,
        "cause": attempt.cause,
        "failed_category": attempt.failed_category,
        "claims": [c.model_dump(mode="json") for c in attempt.claims],
        "parts": [asdict(part) | {"claims": None} for part in attempt.parts.values()],
        "checkpoint": attempt.checkpoint.model_dump(mode="json") if attempt.checkpoint else None,
        "span": attempt.span.model_dump(mode="json") if attempt.span else None,
    }


def _load_job(raw: dict[str, Any]) -> Job:
    spec = JobSpec.model_validate(raw["spec"])
    return Job(
        **{name: raw[name] for name in _JOB_PLAIN},
        spec=spec,
        shape=shape_of(spec),
        state=JobState(raw["state"]),
        latency=Latency(raw.get("latency", Latency.NORMAL)),
        endings={Category(name): count for name, count in raw["endings"].items()},
        resume=_checkpoint(raw["resume"]),
        current=_load_attempt(raw["current"]) if raw["current"] else None,
    )


def _load_attempt(raw: dict[str, Any]) -> Attempt:
    claims = tuple(Claim.model_validate(c) for c in raw["claims"])
    parts = {
        p["node"]: NodePart(**p | {"claims": tuple(c for c in claims if c.node == p["node"])}) for p in raw["parts"]
    }
    return Attempt(
        **{name: raw[name] for name in _ATTEMPT_PLAIN},
        state=AttemptState(raw["state"]),
        cause=Cause(raw["cause"]) if raw["cause"] else None,
        failed_category=Category(raw["failed_category"]) if raw["failed_category"] else None,
        claims=claims,
        parts=parts,
        checkpoint=_checkpoint(raw["checkpoint"]),
        span=Span.model_validate(raw["span"]) if raw.get("span") else None,
    )


def _checkpoint(raw: dict[str, Any] | None) -> Checkpoint | None:
    return Checkpoint.model_validate(raw) if raw else None
