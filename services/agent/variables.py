"""The environment of a job's processes, built from empty: nothing of the agent's own environment reaches a job.

Rendezvous variables are those of torchrun, so that `torch.distributed`, JAX and plain programs start unchanged. With
`launch: per-device` there is one process per device and RANK counts devices; with `per-node` one per node and RANK
counts nodes. All devices of the part are visible to each of its processes; LOCAL_RANK is the index into them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from libs.core.admission.environment import refused_names
from schemas.jobs import Launch
from schemas.nodes import DesiredPart

_PORTS = range(20_000, 30_000)


class BadEnvironment(ValueError):
    """The job sets variables that it may not set; the text names them."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a part's files are, as absolute paths."""

    home: str
    workdir: str
    checkpoints: str
    acknowledgement: str
    """Pattern with {rank}."""


def ranks_of(part: DesiredPart) -> list[tuple[int, int]]:
    """(rank, local rank) of each process of the part."""
    if part.spec.launch is Launch.PER_NODE:
        return [(part.node_rank, 0)]
    return [(rank.rank, local) for local, rank in enumerate(part.ranks)]


def master_port(job_id: str, attempt: int) -> int:
    """The same on every node of the gang, and another for the next attempt, whose predecessor may linger in TIME_WAIT."""
    return _PORTS.start + crc32(f"{job_id}.{attempt}".encode()) % len(_PORTS)


def variables(
    part: DesiredPart,
    rank: int,
    local_rank: int,
    *,
    device: Mapping[str, str],
    paths: Paths,
    search_path: str,
    master_address: str,
    marker: str,
) -> dict[str, str]:
    """The whole environment of one process. Raises BadEnvironment when the job sets names that Baton or a loader owns."""
    if refused := refused_names(part.spec.env):
        raise BadEnvironment(
            f"job.env sets {', '.join(refused)}: these belong to Baton or to the program loader; remove them"
        )
    per_node = part.spec.launch is Launch.PER_NODE
    out = {"PATH": search_path, "HOME": paths.home, "LANG": "C.UTF-8", "TMPDIR": paths.home, **part.spec.env, **device}
    out |= {
        "MASTER_ADDR": master_address,
        "MASTER_PORT": str(master_port(part.job_id, part.attempt)),
        "RANK": str(rank),
        "WORLD_SIZE": str(len(part.nodes) if per_node else part.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(1 if per_node else len(part.ranks)),
        "NODE_RANK": str(part.node_rank),
        "NNODES": str(len(part.nodes)),
        "NPROC_PER_NODE": str(len(part.ranks)),
        "BATON_JOB_ID": part.job_id,
        "BATON_ATTEMPT": str(part.attempt),
        "BATON_TEAM": part.team,
        "BATON_PART": marker,
        "BATON_CHECKPOINT_DIR": paths.checkpoints,
        "BATON_CHECKPOINT_FILE": paths.acknowledgement.format(rank=rank),
    }
    if part.resume is not None:
        out |= {"BATON_RESUME_STEP": str(part.resume.step), "BATON_RESUME_REFERENCE": part.resume.reference}
    return out


def master_address(part: DesiredPart, local_nodes: frozenset[str], template: str) -> str:
    """Where the gang meets: loopback when all its nodes are in this agent, else the first node's address."""
    if local_nodes.issuperset(part.nodes):
        return "127.0.0.1"
    return template.format(node=part.nodes[0])
