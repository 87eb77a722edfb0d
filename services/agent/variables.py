"""The environment of a job's processes, built from empty: nothing of the agent's own environment reaches a job.

Rendezvous variables are those of torchrun, so that `torch.distributed`, JAX and plain programs start unchanged. With
`launch: per-device` there is one process per device and RANK counts devices; with `per-node` one per node and RANK
counts nodes. All devices of the part are visible to each of its processes; LOCAL_RANK is the index into them.

In a nested gang each process serves one role. BATON_ROLE* give its role, its rank, the number of processes in the role,
and the addresses of all roles. With `per-node`, a node that serves two roles has a process for each; RANK then counts
these, role by role, and each sees the devices of its own role only.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from libs.core.admission.environment import refused_names, variable_part
from schemas.jobs import Launch, unusable
from schemas.nodes import DesiredPart, Rank

log = logging.getLogger("baton.agent")

GANG_PORTS = range(20_000, 30_000)
"""Processes of an attempt meet at one of these."""


class BadEnvironment(ValueError):
    """The job sets variables that it may not set. The text names them."""


@dataclass(frozen=True, slots=True)
class Paths:
    """A part's files, as absolute paths."""

    home: str
    workdir: str
    checkpoints: str
    acknowledgement: str
    """Pattern with {rank}."""


@dataclass(frozen=True, slots=True)
class RoleSlot:
    """A process's place in its role: `rank` of `size` processes."""

    role: str
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class ProcessSlot:
    """A process's place in its gang. `devices`: those that it sees; `role`: None without roles."""

    rank: int
    local_rank: int
    devices: tuple[Rank, ...]
    role: RoleSlot | None = None


def slots(part: DesiredPart) -> list[ProcessSlot]:
    """The part's processes in rank order."""
    if part.spec.launch is Launch.PER_NODE:
        return list(_slots_of_roles(part)) if part.roles else [ProcessSlot(part.node_rank, 0, part.ranks)]
    sizes = {role.name: role.devices for role in part.roles}
    return [
        ProcessSlot(r.rank, local, part.ranks, RoleSlot(r.role, r.role_rank, sizes[r.role]) if r.role else None)
        for local, r in enumerate(part.ranks)
    ]


def _slots_of_roles(part: DesiredPart) -> Iterator[ProcessSlot]:
    """One process for each role that this node serves."""
    before = local = 0
    for role in part.roles:
        if part.node_rank in role.nodes:
            mine = tuple(rank for rank in part.ranks if rank.role == role.name)
            place = role.nodes.index(part.node_rank)
            yield ProcessSlot(before + place, local, mine, RoleSlot(role.name, place, len(role.nodes)))
            local += 1
        before += len(role.nodes)


def world_size(part: DesiredPart) -> int:
    """Number of processes in the whole gang."""
    if part.spec.launch is not Launch.PER_NODE:
        return part.world_size
    return sum(len(role.nodes) for role in part.roles) or len(part.nodes)


def master_port(job_id: str, attempt: int) -> int:
    """Equal on all nodes of the gang, and different for the next attempt, whose predecessor may linger in TIME_WAIT."""
    return GANG_PORTS.start + crc32(f"{job_id}.{attempt}".encode()) % len(GANG_PORTS)


def variables(
    part: DesiredPart,
    slot: ProcessSlot,
    *,
    device: Mapping[str, str],
    paths: Paths,
    search_path: str,
    addresses: Mapping[str, str],
    marker: str,
    secrets: Path | None = None,
) -> dict[str, str]:
    """The whole environment of one process. Raises BadEnvironment when the job sets names that Baton or a loader owns.

    Args:
        device: variables that make the slot's devices visible.
        addresses: address of each node of the gang from here (`addresses_of`).
        secrets: the folder of the attempt's secrets, if it has any. Their values are not here.
    """
    if refused := refused_names([*part.spec.env, *(use.env for use in part.spec.secrets if use.env)]):
        raise BadEnvironment(
            f"job.env sets {', '.join(refused)}: these belong to Baton or to the program loader; remove them"
        )
    per_node = part.spec.launch is Launch.PER_NODE
    rank = slot.rank
    out = {"PATH": search_path, "HOME": paths.home, "TMPDIR": paths.home, **_login(part.team), **_locale(part.spec.env)}
    out |= {**part.spec.env, **device}
    out |= {
        "MASTER_ADDR": addresses[part.nodes[0]],
        "MASTER_PORT": str(master_port(part.job_id, part.attempt)),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size(part)),
        "LOCAL_RANK": str(slot.local_rank),
        "LOCAL_WORLD_SIZE": str(len(slots(part)) if per_node else len(part.ranks)),
        "NODE_RANK": str(part.node_rank),
        "NNODES": str(len(part.nodes)),
        "NPROC_PER_NODE": str(len(slot.devices)),
        "BATON_JOB_ID": part.job_id,
        "BATON_ATTEMPT": str(part.attempt),
        "BATON_TEAM": part.team,
        "BATON_PART": marker,
        "BATON_CHECKPOINT_DIR": paths.checkpoints,
        "BATON_CHECKPOINT_FILE": paths.acknowledgement.format(rank=rank),
        "BATON_PROGRESS_FILE": progress_of(paths.acknowledgement.format(rank=rank)),
    }
    if secrets is not None:
        out["BATON_SECRETS_DIR"] = str(secrets)
    if slot.role is not None:
        out |= _of_roles(part, slot.role, addresses)
    if part.resume is not None:
        if problem := unusable(part.resume):  # an earlier agent accepted it
            log.warning("attempt %d of %s begins anew: its checkpoint's %s", part.attempt, part.job_id, problem)
        else:
            out |= {"BATON_RESUME_STEP": str(part.resume.step), "BATON_RESUME_REFERENCE": part.resume.reference}
    return out


def _login(team: str) -> dict[str, str]:
    """Variables for what programs otherwise look up in the machine's list of users, e.g. each start of `bash` (1 ms of
    its 3). The user of a team's jobs is in no such list."""
    return {"SHELL": "/bin/sh", "USER": team, "LOGNAME": team}


def _locale(said: Mapping[str, str]) -> dict[str, str]:
    """UTF-8, and all else as in the C locale, unless the job says its own. `LANG` would mean the same, as C.UTF-8 differs from
    C in nothing but LC_CTYPE; and with it a program that asks for its locale, as `bash` does, reads twelve files at its start
    in place of one."""
    return {} if said.keys() & {"LANG", "LC_ALL", "LC_CTYPE"} else {"LC_CTYPE": "C.UTF-8"}


def _of_roles(part: DesiredPart, slot: RoleSlot, addresses: Mapping[str, str]) -> dict[str, str]:
    out = {"BATON_ROLE": slot.role, "BATON_ROLE_RANK": str(slot.rank), "BATON_ROLE_WORLD_SIZE": str(slot.size)}
    for role in part.roles:
        hosts = ",".join(addresses[part.nodes[i]] for i in role.nodes)
        out[f"BATON_ROLE_HOSTS_{variable_part(role.name)}"] = hosts
    return out


def progress_of(acknowledgement: str) -> str:
    """The progress file of a process, beside its acknowledgement."""
    return acknowledgement.removesuffix(".json") + ".progress"


def addresses_of(part: DesiredPart, local_nodes: frozenset[str], template: str) -> dict[str, str]:
    """Addresses of the gang's nodes: loopback if all are in this agent, else by `template`."""
    if local_nodes.issuperset(part.nodes):
        return dict.fromkeys(part.nodes, "127.0.0.1")
    return {node: template.format(node=node) for node in part.nodes}
