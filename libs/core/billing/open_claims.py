"""Unfinished jobs and the devices that each holds: current use, by owner."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from libs.core.accelerators.kinds import accelerators_milli, counted_milli
from libs.core.billing.unbillable import Unbillable
from libs.core.state.by_job import ByJob
from libs.core.state.limits import Limits
from schemas import ledger as led
from schemas.billing import TeamUsage, UsageSegment

OpenClaim = tuple[str, str, int]
"""Device, device kind, thousandths of the device."""


class JobPayer(NamedTuple):
    """Who pays for a job, and in which class."""

    team: str
    priority_class: str
    user: str


@lru_cache(maxsize=4096)
def _payer(team: str, priority_class: str, user: str) -> JobPayer:
    """One shared object per user and class."""
    return JobPayer(team, priority_class, user)


@dataclass(slots=True)
class OpenAttempt:
    """An attempt that holds devices. `by_node`: node -> open claims."""

    attempt: int
    opened_us: int
    by_node: dict[str, list[OpenClaim]] = field(default_factory=dict)

    def claims(self) -> Iterator[OpenClaim]:
        return chain.from_iterable(self.by_node.values())


@dataclass(frozen=True, slots=True)
class TeamUse:
    """What a team holds now, device kind -> thousandths of devices, and its limits, if any."""

    limits: Limits | None
    used: Mapping[str, int]
    queued_jobs: int
    running_jobs: int

    @property
    def used_milli(self) -> int:
        """Thousandths of whole accelerators, rounded up."""
        return accelerators_milli(self.used)

    def used_by_type(self) -> dict[str, int]:
        """Use against each limit by type and of each kind held: thousandths of what the key names, rounded up."""
        keys = {key for key, _ in self.limits.by_type} if self.limits is not None else set()
        return {key: counted_milli(key, self.used) for key in sorted(keys | self.used.keys())}

    def usage_of(self, team: str) -> TeamUsage:
        """The answer to a query about `team`."""
        limits = self.limits or Limits()
        return TeamUsage(
            team=team,
            limit_milli=limits.total_milli,
            by_type=dict(limits.by_type),
            used_by_type=self.used_by_type(),
            used_milli=self.used_milli,
            queued_jobs=self.queued_jobs,
            running_jobs=self.running_jobs,
        )


class OpenClaims:
    """Follows a ledger's events. Each method raises Unbillable for what no valid ledger contains."""

    def __init__(self) -> None:
        self.jobs: ByJob[JobPayer] = ByJob()
        """Each unfinished job."""
        self.held: dict[str, OpenAttempt] = {}
        """Job -> its attempt with devices."""

    def queued(self, event: led.JobQueued) -> None:
        self.jobs[event.job_id] = _payer(event.team, event.spec.priority_class, event.user)

    def granted(self, event: led.JobGranted, kinds: Mapping[str, str], t_us: int) -> None:
        """`kinds`: the kind of each device, from its node's inventory."""
        if event.job_id not in self.jobs:
            raise Unbillable(f"{event.job_id} is granted devices and was never queued, or has ended")
        if event.job_id in self.held:
            raise Unbillable(f"{event.job_id}.{event.attempt} opens while attempt {self.held[event.job_id].attempt} is")
        held = OpenAttempt(event.attempt, t_us)
        for claim in event.claims:
            kind = kinds.get(claim.device)
            if kind is None:
                raise Unbillable(f"{event.job_id} is granted {claim.device}, which no node has brought")
            held.by_node.setdefault(claim.node, []).append((claim.device, kind, claim.milli))
        self.held[event.job_id] = held

    def freed(self, event: led.DevicesFreed) -> tuple[OpenAttempt, list[OpenClaim]]:
        """The attempt, and which of its claims are freed."""
        held = self.held.get(event.job_id)
        if held is None or held.attempt != event.attempt:
            raise Unbillable(f"{event.job_id}.{event.attempt} frees devices and holds none")
        claims = held.by_node.pop(event.node, [])
        if {device for device, _, _ in claims} != set(event.devices):
            raise Unbillable(f"{event.job_id}.{event.attempt} frees on {event.node} what it does not hold there")
        if not held.by_node:
            del self.held[event.job_id]
        return held, claims

    def finished(self, event: led.JobFinished) -> None:
        if event.job_id in self.held:
            raise Unbillable(f"{event.job_id} ends while it holds devices")
        if self.jobs.pop(event.job_id, None) is None:
            raise Unbillable(f"{event.job_id} ends and was never queued, or ends twice")

    def segments(self) -> list[UsageSegment]:
        """Each open claim."""
        out = []
        for job, held in self.held.items():
            team, priority_class, _ = self.jobs[job]
            for node, claims in held.by_node.items():
                for device, kind, milli in claims:
                    out.append(
                        UsageSegment(
                            job_id=job,
                            attempt=held.attempt,
                            team=team,
                            priority_class=priority_class,
                            node=node,
                            device=device,
                            model=kind,
                            milli=milli,
                            opened_us=held.opened_us,
                            closed_us=None,
                        )
                    )
        return out

    def teams(self, quotas: Mapping[str, Limits]) -> dict[str, TeamUse]:
        """Every team with a quota or an unfinished job."""
        queued: Counter[str] = Counter()
        running: Counter[str] = Counter()
        used: dict[str, Counter[str]] = {team: Counter() for team in quotas}
        for job, (team, _, _) in self.jobs.items():
            kinds = used.setdefault(team, Counter())
            held = self.held.get(job)
            if held is None:
                queued[team] += 1
                continue
            running[team] += 1
            for _, kind, milli in held.claims():
                kinds[kind] += milli
        return {team: TeamUse(quotas.get(team), used[team], queued[team], running[team]) for team in sorted(used)}

    def dump(self) -> dict[str, Iterable[Any]]:
        """Tables of a snapshot."""
        return {
            "jobs": self.jobs.items(),
            "held": ((job, one.attempt, one.opened_us, one.by_node) for job, one in self.held.items()),
        }

    def load(self, table: str, rows: Iterable[list[Any]]) -> None:
        """Rows of one table of `dump`."""
        if table == "jobs":
            self.jobs.fill((job, _payer(*whose)) for job, whose in rows)
            return
        for job, attempt, opened_us, nodes in rows:
            by_node = {node: [(device, kind, milli) for device, kind, milli in some] for node, some in nodes.items()}
            self.held[job] = OpenAttempt(attempt, opened_us, by_node)


def by_kind(claims: Iterable[OpenClaim]) -> list[tuple[str, int]]:
    """Thousandths of devices of each kind."""
    sums: dict[str, int] = {}
    for _, kind, milli in claims:
        sums[kind] = sums.get(kind, 0) + milli
    return list(sums.items())
