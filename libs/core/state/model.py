"""The state that a ledger folds into: fleet, jobs, attempts, quotas. Changed by `libs.core.state.fold` alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from libs.core.state.attempt import Attempt
from libs.core.state.boosts import BoostsHad
from libs.core.state.budgets import Budgets
from libs.core.state.clock import BothTimes, PastJumps
from libs.core.state.cut import Cuts
from libs.core.state.early_cancels import EarlyCancels
from libs.core.state.ended import EndedJobs
from libs.core.state.fleet import Fleet
from libs.core.state.job import Job, QueueKey
from libs.core.state.limits import Limits, Suspension
from libs.core.state.line import Line
from libs.core.state.past_use import PastUse, UsersPastUse
from libs.core.state.queue_tree import QueueTree
from libs.core.state.recent_preemptions import RecentPreemptions
from libs.core.state.team_claims import TeamClaims
from libs.core.state.unused_cuts import UnusedCuts
from schemas.ledger import BoardRecut, LedgerEvent
from schemas.prices import RateBook


class Silence(NamedTuple):
    """Of a node that is up and not heard."""

    since_us: int
    """When it was heard last."""
    kept: bool
    """It keeps work that no silence ends."""
    ended_lease_s: float = 0.0
    """Leases of at most this length have ended."""


class Quarantine(NamedTuple):
    """Of a device that something uses which is no attempt of ours."""

    node: str
    users: str
    since_us: int
    """By the node's clock: names this quarantine."""
    lifted: bool = False
    """An operator has ended it, and the node may not have heard of that yet."""


class Following(Protocol):
    """What is learned beside the state, and follows each step of its fold (`libs.core.scheduling.precedence`)."""

    def begin(self, state: "State", t_us: int, back: Sequence[Job]) -> Any: ...
    def note(self, state: "State", event: LedgerEvent, t_us: int) -> None: ...
    def dump(self) -> Iterator[bytes]: ...


@dataclass(slots=True)
class State:
    """Everything placement knows. Two states folded from the same ledger are equal (`libs.core.state.snapshot.dump`)."""

    fleet: Fleet = field(default_factory=Fleet)
    jobs: dict[str, Job] = field(default_factory=dict)
    finished: EndedJobs = field(default_factory=EndedJobs)
    """Ids of jobs that ended lately: what deduplicates client keys. Nothing else is kept of an ended job."""
    early_cancels: EarlyCancels = field(default_factory=EarlyCancels)
    """Cancels whose jobs have not come yet, or are being stopped for another reason."""
    queues: dict[QueueKey, Line] = field(default_factory=dict)
    """Each queue, by age. None is empty."""
    backing_off: dict[str, int] = field(default_factory=dict)
    """Queued jobs that are in no queue yet: id -> when they come into theirs, us (`Job.not_before_us`)."""
    next_back_us: int = 0
    """The soonest of these."""
    on_node: dict[str, dict[str, None]] = field(default_factory=dict)
    """Node -> ids of the jobs that hold devices there, in order of grant."""
    quotas: dict[str, Limits] = field(default_factory=dict)
    """Team -> its limits; a team without any is not in it."""
    tree: QueueTree = field(default_factory=QueueTree)
    """Who is guaranteed what; empty until an operator has said so."""
    book: RateBook | None = None
    """The pool's prices; None until an operator has given a book."""
    closed_us: tuple[int, int] | None = None
    """From when to when bills are closed, by the wall; None: no period is."""
    budgets: Budgets = field(default_factory=Budgets)
    """Who may spend how much in a period, and what is spent and held of it."""
    wall_us: int = 0
    """What the broker's clock showed at the last record."""
    jumps: PastJumps = field(default_factory=PastJumps)
    """How that clock was set lately: by it, stamps of requests are compared with ledger time."""
    suspended: dict[str, Suspension] = field(default_factory=dict)
    """Teams that an operator has paused."""
    left: dict[str, int] = field(default_factory=dict)
    """Those of them that have left, and since when, us: nodes remove what they keep of them."""
    resumed: dict[str, BothTimes] = field(default_factory=dict)
    """Team -> when it was resumed last: what it sent before was refused, or would have been. Forgotten as client keys are."""
    parked: dict[QueueKey, Line] = field(default_factory=dict)
    """The queues of these teams: in no cycle, no plan of preemption and no repartition until the team is resumed."""
    past_use: PastUse = field(default_factory=PastUse)
    """What teams held lately, where the tree of queues has a half-life."""
    used: dict[str, dict[str, int]] = field(default_factory=dict)
    """Team -> kind of device -> thousandths of devices that its attempts hold. No entry is zero."""
    used_by: dict[str, dict[str, int]] = field(default_factory=dict)
    """The same of each user (`user_of`)."""
    team_claims: TeamClaims = field(default_factory=TeamClaims)
    """The same of each team, device by device."""
    past_use_by: UsersPastUse = field(default_factory=UsersPastUse)
    """What users held lately, where the tree of queues has a half-life."""
    spread_peers: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)
    """(team, spread key) -> ids of the jobs with an open attempt: the next job of that key must stay away from these."""
    holds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Beneficiary -> devices that are held for it."""
    silent: dict[str, Silence] = field(default_factory=dict)
    """Nodes that are up and not heard. Nothing new is granted there."""
    quarantined: dict[str, Quarantine] = field(default_factory=dict)
    """Devices in quarantine, and those whose quarantine an operator has lifted. Nothing new is granted on the former."""
    cordoned: dict[str, str] = field(default_factory=dict)
    """Nodes that an operator has taken out of use, and why. Nothing new is granted there."""
    reserved: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Gangs that wait -> the devices that are told to be kept free for them. What keeps them is the cycle."""
    fragmented: dict[str, int] = field(default_factory=dict)
    """Kind of device -> capacity units that are told to be free and of no use to what waits."""
    granter_epoch: int = 0
    """Of the last process that got the right to grant leases."""
    limited: dict[str, int] = field(default_factory=dict)
    """Running jobs with a time limit: id -> when they must end, us."""
    repartitions: dict[str, BoardRecut] = field(default_factory=dict)
    """MIG boards that are being repartitioned: board id -> what its node was asked for."""
    withdrawn: set[str] = field(default_factory=set)
    """Those of `repartitions` that were withdrawn. The node is asked what the board is now, no longer to repartition it. The
    instances that were to go stay out of placement until it answers."""
    repartition_number: dict[str, int] = field(default_factory=dict)
    """Board id -> number of its last repartition, done or under way."""
    repartition_us: dict[str, int] = field(default_factory=dict)
    """Board id -> when its last repartition was decided, us: a board rests between two."""
    unused_cuts: UnusedCuts = field(default_factory=UnusedCuts)
    """What teams had boards cut for and have not used."""
    t_us: int = 0
    inbox_seq: int = 0
    grants: int = 0
    preemptions: int = 0
    boosted: dict[str, int] = field(default_factory=dict)
    """Jobs that are raised above their class: id -> until when, us."""
    boosts_had: BoostsHad = field(default_factory=BoostsHad)
    preempted: RecentPreemptions = field(default_factory=RecentPreemptions)
    """When jobs were made to give way lately."""
    finished_by_state: dict[str, int] = field(default_factory=dict)
    turns: Following | None = field(default=None, compare=False, repr=False)
    """Told of every event, after it."""
    cuts: "Cuts[Job]" = field(default_factory=Cuts, compare=False)
    """Snapshots of `jobs` that are being written: each job is shown to them before it changes."""

    def committed(self, team: str) -> dict[str, int]:
        """What a team's attempts hold, and what is kept for its beneficiaries, kind -> thousandths of devices. While those who
        give way for one of them have not gone, what they leave is in both; `libs.core.scheduling.limits` counts it once."""
        total = dict(self.used.get(team, ()))
        for beneficiary in self.holds:
            job = self.jobs.get(beneficiary)
            if job is not None and job.team == team:
                for kind, milli in self.kept(beneficiary).items():
                    total[kind] = total.get(kind, 0) + milli
        return total

    def all_committed(self) -> dict[str, dict[str, int]]:
        """`committed` of every team that holds anything, or for which anything is kept."""
        teams = {*self.used, *(self.jobs[job].team for job in self.holds if job in self.jobs)}
        return {team: self.committed(team) for team in sorted(teams)}

    def kept(self, job_id: str) -> dict[str, int]:
        """The devices that are kept for a job, kind -> thousandths: an elastic one may get fewer than it asked for."""
        total: dict[str, int] = {}
        for device in self.holds.get(job_id, ()):
            kind = self.fleet.kind(self.fleet.row(device))
            total[kind] = total.get(kind, 0) + self.jobs[job_id].shape.milli
        return total

    def devices_of(self, attempt: Attempt) -> list[tuple[str, int]]:
        """(kind, thousandths) of each device that an attempt holds still."""
        kind = self.fleet.kind
        return [
            (kind(self.fleet.row(claim.device)), claim.milli)
            for part in attempt.parts.values()
            if not part.freed
            for claim in part.claims
        ]


def running(state: State) -> list[Job]:
    """The jobs with an open attempt: those that hold devices, found by node, however many jobs wait."""
    ids = dict.fromkeys(job_id for jobs in state.on_node.values() for job_id in jobs)
    return [state.jobs[job_id] for job_id in ids]
