"""Whether a gang waits for jobs of its own team, and for nobody else: had they ended, it would have room.

`stays` names the jobs of its team that were expected to run on beyond its promised start; these, and all jobs of other teams,
are in nobody's way here. What counts is devices that are in use now and of the kind, profile and labels that it asks for, so
many of one model (and within one group of the level that it requires) as it needs at the least. What is held for a job is as
good as granted to it. Nothing else of the request is looked at, so that whoever reads the ledger can count the same
(`projections.verify.promised`).
"""

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from libs.core.state.attempt import Attempt
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.job import Job
from libs.core.state.model import State, running
from schemas.resources import WHOLE_MILLI, Level, Resources, TopologyPolicy

TeamsHeld = Mapping[str, Mapping[str, list[tuple[int, int]]]]
"""Team -> job -> (row, thousandths) of each device that it holds."""


def held_by_teams(state: State, teams: Collection[str]) -> TeamsHeld:
    """What these teams hold now."""
    found: dict[str, dict[str, list[tuple[int, int]]]] = {team: {} for team in teams}
    for job in running(state):
        if job.current is not None and (jobs := found.get(job.team)) is not None:
            jobs[job.id] = list(held_by(state.fleet, job.current))
    return found


def in_the_way(state: State, held: TeamsHeld, job: Job, stays: Collection[str]) -> bool:
    """Whether `job`, which waits, would have room if the jobs of its team but those in `stays` held nothing."""
    fleet, asked = state.fleet, job.spec.resources
    usable = asked_for(state, asked)
    theirs = np.zeros(len(fleet.up), dtype=np.int64)
    own = [one for job_id, devices in held[job.team].items() if job_id not in stays for one in devices]
    if own:
        rows, milli = np.array(own, dtype=np.int64).T
        np.add.at(theirs, rows, milli)
    kept = np.zeros(len(fleet.up), dtype=np.bool_)
    for beneficiary, devices in state.holds.items():
        whose = state.jobs.get(beneficiary)
        if whose is not None and whose is not job:
            at = [fleet.row(device) for device in devices]
            if whose.team == job.team:
                kept[at] = True
            else:
                usable[at] = False
    if not (kept | (theirs > 0))[usable].any():
        return False
    most = WHOLE_MILLI - job.shape.milli
    taken = WHOLE_MILLI - fleet.free_milli
    now, then = usable & ~kept & (taken <= most), usable & (taken - theirs <= most)
    for group in _together(fleet, asked):
        has, would_have = (
            np.bincount(group[mask & (group >= 0)], minlength=1 + int(group.max())) for mask in (now, then)
        )
        if ((would_have >= job.shape.least) & (would_have > has)).any():
            return True
    return False


def asked_for(state: State, asked: Resources) -> Bools:
    """Devices (mask of shape (D,)) in use of the kinds and labels that are asked for."""
    fleet = state.fleet
    kinds = np.zeros(len(fleet.up), dtype=np.bool_)
    for types in [role.types or asked.types for role in asked.roles] or [asked.types]:
        kinds |= np.isin(fleet.model, [fleet.models.find(name) for name in types]) if types else ~fleet.cpu
    mask: Bools = fleet.up & kinds & (fleet.profile == fleet.profiles.find(asked.mig_profile))
    if asked.labels:
        names, wanted = fleet.node_names.names, asked.labels.items()
        for code in np.unique(fleet.node[mask]).tolist():
            if not wanted <= fleet.nodes[names[code]].labels.items():
                mask &= fleet.node != code
    return mask


def held_by(fleet: Fleet, attempt: Attempt) -> Iterator[tuple[int, int]]:
    """(row, thousandths) of each device that an attempt holds still."""
    for part in attempt.parts.values():
        if not part.freed:
            yield from ((fleet.row(claim.device), claim.milli) for claim in part.claims)


def _together(fleet: Fleet, asked: Resources) -> Iterator[Ints]:
    """Numbers of groups (shape (D,); negative: of none): the gang takes devices of one group."""
    topology = asked.topology
    if asked.roles:
        yield np.zeros(len(fleet.up), dtype=np.int64)
    elif topology.policy is not TopologyPolicy.REQUIRED or topology.level is Level.POOL:
        yield fleet.model
    else:
        above = {Level.LEAF: fleet.leaf, Level.SPINE: fleet.spine, Level.ZONE: fleet.zone}.get(topology.level)
        for where in (fleet.node if above is None else above[fleet.node], fleet.domain):
            yield np.where(where >= 0, where * len(fleet.models) + fleet.model, -1)
