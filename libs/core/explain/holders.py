"""The running jobs that hold devices which a waiting job could use, since when, and until when."""

from typing import NamedTuple

import numpy as np

from libs.core.placement.search.gang import usable
from libs.core.placement.view import View
from libs.core.scheduling.precedence import Precedence
from libs.core.scheduling.precedence.remaining import Basis, Remaining, known_end, remaining
from libs.core.state.job import Job
from libs.core.state.model import State, running
from schemas.explanations import HeldBy
from schemas.subjects import OPERATOR

SHOWN = 8


class Holders(NamedTuple):
    """As `seen_by` may know them."""

    shown: tuple[HeldBy, ...]
    more: int
    others_devices: int
    """Of jobs of other teams, for a team."""


def holders(state: State, job: Job, turns: Precedence | None, *, seen_by: str = OPERATOR) -> Holders:
    """Of what `job`, which waits, could use: the job that ends first comes first. A team is told its own jobs, and of others
    how many devices they hold together."""
    mask = usable(View.of(state.fleet), job.shape)
    found: list[tuple[float, HeldBy]] = []
    others = 0
    for one in running(state):
        attempt = one.current
        assert attempt is not None
        rows = state.fleet.rows_of(attempt.claims)
        devices = int(np.count_nonzero(mask[rows]))
        if not devices:
            continue
        if seen_by not in (OPERATOR, one.team):
            others += devices
            continue
        found.append(_held_by(state, one, devices, turns))
    found.sort(key=lambda each: (each[0], each[1].job_id))
    return Holders(tuple(one for _, one in found[:SHOWN]), max(0, len(found) - SHOWN), others)


def _held_by(state: State, job: Job, devices: int, turns: Precedence | None) -> tuple[float, HeldBy]:
    attempt = job.current
    assert attempt is not None
    left = remaining(turns, job, state.t_us) if turns is not None else None
    p50, p90, basis = _until(state, left, turns)
    told = HeldBy(
        job_id=job.id, team=job.team, name=job.name, devices=devices, since_us=attempt.granted_us,
        p50_us=p50, p90_us=p90, basis=basis,
    )  # fmt: skip
    return float("inf") if p50 is None else p50, told


def _until(state: State, left: Remaining | None, turns: Precedence | None) -> tuple[int | None, int | None, str]:
    if left is None or turns is None:
        return None, None, ""
    if left.basis is Basis.LIMIT and np.isfinite(left.p90_s):
        return None, state.t_us + int(left.p90_s * 1e6), left.basis.value
    if not known_end(left, turns):
        return None, None, ""
    return state.t_us + int(left.p50_s * 1e6), state.t_us + int(left.p90_s * 1e6), left.basis.value
