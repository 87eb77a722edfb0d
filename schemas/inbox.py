"""A pool's inbox: all that placement reads (stream INBOX-<pool>).

Requests that were admitted, facts that agents and telemetry observed, plans of preemption, quota changes, ticks.
Placement decides about them in the stream's order, and says in each ledger record how far it has come.
Decided is not observed: only what an agent saw (`NodeObserved`) or a node's absence (`NodeLost`, a new incarnation)
frees a device.
"""

from typing import Annotated, Final, Literal, get_args

from pydantic import FailFast, Field

from schemas.attempts import KnownByAgent
from schemas.audit import OperatorAction, PolicyVersion, RefusedCommand
from schemas.base import IN_64_BITS, DeviceId, Fact, JobId, Micros, Name, NodeName, User
from schemas.budgets import BudgetAmount, BudgetKey, BudgetSet
from schemas.clock import MOST_READINGS, BootReading
from schemas.jobs import (
    LEASE_SAYS,
    NETWORK_SAYS,
    UNSAID_LEASE_S,
    Checkpoint,
    JobRejected,
    Latency,
    Network,
    StepProgress,
)
from schemas.known_specs import AcceptedSpec
from schemas.prices import ClosedPeriod, RateBook
from schemas.proofs import Hash, Sum
from schemas.queues import LONGEST_BOOST_S, HalfLife, PreemptionLimits, QueueOrder, Queues, QueuesVersion
from schemas.resources import MOST_DEVICES, Inventory, LimitsByType


class JobAdmitted(Fact):
    """Admission found the request well-formed, allowed and possible. Sent by admission, once per job id."""

    job_id: JobId
    team: Name
    spec: AcceptedSpec
    spec_hash: str = Field(description="of the submitted body: the same key with another body is refused")
    client_key: str
    priority: int = Field(description="of its class; higher goes first")
    preempts: bool = Field(default=False, description="its class may take devices from lower classes")
    latency: Latency = Field(default=Latency.NORMAL, description="of its class: fast skips the placement score")
    submitted_us: Micros = Field(description="broker's time of the submit")
    user: User = Field(default="", description="who submitted it")
    lease_s: float = Field(default=UNSAID_LEASE_S, ge=0, description=LEASE_SAYS)
    network: Network = Field(default=Network.HOST, description=NETWORK_SAYS)
    longest_grace_s: float | None = Field(default=None, gt=0, description="of its class; null: no limit but the spec's")
    cause: str = Field(default="", max_length=128, description="the request, by stream and sequence")
    policy: PolicyVersion = Field(default="", description="of the classes and limits by which it was let in")


class CancelRequested(Fact):
    """A team cancels its job. Sent by admission, which checked the form; placement checks that the team owns it."""

    job_id: JobId
    team: Name
    reason: str
    user: User = Field(default="", description="who cancels it")
    requested_us: Micros = Field(default=0, description="broker's time of the cancel; 0: its sender does not say")


class BusyDevice(Fact):
    """A device that something uses which is no attempt of ours."""

    device: DeviceId
    users: str = Field(max_length=512, description="who: name and process id of each")
    since_us: Annotated[Micros, IN_64_BITS] = Field(
        description="when the agent saw it first, by the node's clock: names this quarantine"
    )


class NodeRegistered(Fact):
    """An agent (re)started: nothing of an earlier incarnation runs on the node any more. Sent by the agent."""

    incarnation: int = Field(ge=1, description="grows with every start of the node's agent")
    inventory: Inventory
    lease_s: float = Field(gt=0, description="the node stops its work by itself this long after its last renewal, s")
    quarantine: Annotated[tuple[BusyDevice, ...], FailFast()] = Field(
        default=(), max_length=4096, description="devices that something else than an attempt uses"
    )


class Started(Fact):
    """All processes of the attempt's part on this node run."""

    kind: Literal["started"] = "started"
    job_id: JobId
    attempt: int = Field(ge=1)


class CheckpointTaken(Fact):
    """The job acknowledged a checkpoint: asked for, or on its own."""

    kind: Literal["checkpointed"] = "checkpointed"
    job_id: JobId
    attempt: int = Field(ge=1)
    checkpoint: Checkpoint


class Released(Fact):
    """No process of the attempt is left on this node: its devices there are free. The only evidence that frees them."""

    kind: Literal["released"] = "released"
    job_id: JobId
    attempt: int = Field(ge=1)
    exit_code: Annotated[int, IN_64_BITS] = Field(
        description="of the first process that failed, else 0; 128 + n when ended by signal n"
    )
    reason: str = Field(
        default="", max_length=1024, description="what the agent knows: could not start, grace passed..."
    )
    own_exit: bool = Field(description="true when the processes ended by themselves, false when the agent stopped them")
    category: KnownByAgent | None = Field(
        default=None, description="what the agent knows of why it failed, beyond the exit code"
    )
    over: Literal["disk"] | None = Field(
        default=None, description="the limit that it was ended for; who does not know this field goes by `category`"
    )
    unproven: bool = Field(
        default=False,
        description="its category rests on what teams can bring about: words of its output, a port that others held",
    )
    port_held: bool = Field(
        default=False,
        description="others held the port at which its processes meet: its end says nothing of its nodes",
    )
    over_limit: bool = Field(
        default=False,
        description="its node ended it because its time limit was over; who does not know this field goes by `own_exit`",
    )


class Refused(Fact):
    """The agent did not start a part: stale epoch, unknown device, lease about to end. It holds nothing."""

    kind: Literal["refused"] = "refused"
    job_id: JobId
    attempt: int = Field(ge=1)
    reason: str = Field(max_length=1024)
    category: KnownByAgent | None = Field(default=None, description="null: a reason that passes")


Observation = Annotated[Started | CheckpointTaken | Released | Refused, Field(discriminator="kind")]
OBSERVATION_KINDS: Final = frozenset(model.model_fields["kind"].default for model in get_args(get_args(Observation)[0]))
"""Every kind of observation that this version knows."""


class ProgressSeen(Fact):
    """How far an attempt is: the word of its rank 0, with the rate as its agent measured it. Only the newest counts."""

    job_id: JobId
    attempt: int = Field(ge=1)
    progress: StepProgress


SeenOfPart = Observation | ProgressSeen
"""What an agent sees of a part that runs on its node."""


class NodeObserved(Fact):
    """What an agent saw on its node, in order. Sent by the agent, repeated until the ledger shows it.

    An observation whose `kind` a reader does not know is left out, and the others count.
    """

    node: NodeName
    incarnation: int = Field(ge=1)
    observations: Annotated[tuple[Observation, ...], FailFast()] = Field(max_length=4096)
    progress: Annotated[tuple[ProgressSeen, ...], FailFast()] = Field(default=(), max_length=4096)


_EPOCH = "of the granter of leases that says so: after its successor nobody heeds it; 0: not told"
_SINCE = "which silence this is about: when the node was heard last, as the ledger has it; null: one that it does not know yet"


class NodeLost(Fact):
    """A node is gone and nothing runs there. Sent by leases once its lease has surely ended, that is after
    (lease + kill bound) x (1 + 2 x clock-rate error) + margin since the last renewal that was received; or, `planned`, by
    the node's own agent when it is stopped, after it has stopped everything."""

    node: NodeName
    incarnation: int = Field(ge=1)
    silent_s: float = Field(ge=0, description="time since the last renewal, s")
    planned: bool = Field(default=False, description="it left in good order: its jobs do not count this as a loss")
    epoch: int = Field(default=0, ge=0, description=_EPOCH)
    since_us: Micros | None = Field(default=None, description=_SINCE)


class NodeSilent(Fact):
    """A node was not heard for a while. Sent by leases; once the ledger says so, again as more of its leases have ended."""

    node: NodeName
    incarnation: int = Field(ge=1)
    silent_s: float = Field(ge=0, description="time since the last renewal, s")
    ended_lease_s: float = Field(default=0, ge=0, description="leases of at most this length have surely ended, s")
    epoch: int = Field(default=0, ge=0, description=_EPOCH)
    since_us: Micros | None = Field(default=None, description=_SINCE)


class NodeHeardAgain(Fact):
    """A node that the ledger calls silent is heard again, in the same life. Sent by leases."""

    node: NodeName
    incarnation: int = Field(ge=1)
    epoch: int = Field(default=0, ge=0, description=_EPOCH)


class NodeDead(Fact):
    """An operator declares a silent node dead: its power is off, or nobody can reach it any more. Sent by
    `baton node declare-dead`. If it is not true, two attempts of one job may run at once."""

    node: NodeName
    incarnation: int | None = Field(
        default=None,
        ge=1,
        description="of which life, as the operator was shown it; null: of the one that the ledger knows",
    )
    fenced_by: str = Field(min_length=1, max_length=1024, description="how it was made sure that nothing runs there")
    user: User = ""


class CordonNode(Fact):
    """An operator takes a node out of use, for maintenance. Sent by `baton node cordon`."""

    node: NodeName
    reason: str = Field(min_length=1, max_length=1024)
    user: User = ""


class UncordonNode(Fact):
    """An operator puts a node into use again. Sent by `baton node uncordon`."""

    node: NodeName
    reason: str = Field(default="", max_length=1024)
    user: User = ""


class NodeQuarantine(Fact):
    """All devices of a node that something else than an attempt uses. Sent by the agent when they change, and when it goes on
    with a life that an earlier agent began."""

    node: NodeName
    incarnation: int = Field(ge=1)
    devices: Annotated[tuple[BusyDevice, ...], FailFast()] = Field(default=(), max_length=4096)


class QuarantineLifted(Fact):
    """An operator says that a device may be used again, whoever uses it: one quarantine is meant, and no later one. Sent by
    `baton node release`."""

    node: NodeName
    device: DeviceId
    since_us: Micros = Field(
        default=0,
        description="names the quarantine; 0: the one there is when this is decided (said by a release before)",
    )
    reason: str = Field(min_length=1, max_length=1024, description="why that is right, in the operator's words")
    user: User = ""


class GranterClaimed(Fact):
    """A process of leases claims the right to grant them: the first claim of an epoch gets it. Sent by leases."""

    epoch: int = Field(ge=1, description="one more than the last that the ledger names")
    holder: str = Field(min_length=1, max_length=128, description="the process")
    term_s: float = Field(gt=0, description="it grants so long after it last saw the ledger name it, s")
    max_lease_s: float = Field(gt=0, description="no longer lease is granted, s")
    readings: Annotated[tuple[BootReading, ...], FailFast()] = Field(
        default=(), max_length=MOST_READINGS, description="as of a tick: none is sent before somebody is named"
    )


class BoardCut(Fact):
    """An agent has repartitioned a MIG board as its desired state asked, or has put it back as it was. Sent by the agent,
    repeated until the desired state no longer asks."""

    node: NodeName
    incarnation: int = Field(ge=1)
    board: DeviceId
    number: int = Field(ge=1, description="of the repartition that it answers")
    ok: bool
    reason: str = Field(default="", max_length=1024, description="why it failed; the board is as it was")
    inventory: Inventory = Field(description="what the node offers now")


class Tick(Fact):
    """Time passes. Sent by leases every second. Ledger time follows the broker's timestamps of inputs; what the ticker's
    boot clock read tells a jump of the broker's clock from time that passed (`libs.core.state.clock`)."""

    readings: Annotated[tuple[BootReading, ...], FailFast()] = Field(
        default=(),
        max_length=MOST_READINGS,
        description="the ticker's boot clock first, then those of machines that it hears",
    )


class QuotaChanged(Fact):
    """A team's hard quota, all of its limits. Sent by quota_billing from its configuration or an operator's command."""

    team: Name
    limit_milli: int | None = Field(
        ge=0, description="accelerators in thousandths that it may hold at once; null: no such limit"
    )
    by_type: LimitsByType = Field(
        default_factory=dict, description="limits by device type and MIG profile, thousandths of what the key names"
    )
    user: User = Field(default="", description="the operator who set it; empty: the teams' file")
    cause: str = Field(default="", max_length=128, description="the command, by stream and sequence, or the file")
    policy: PolicyVersion = Field(default="", description="of the teams' file, when that is where it is from")
    reason: str = Field(default="", max_length=1024, description="in the operator's words")


class ActionTold(Fact):
    """What an operator did outside the ledger, to be written into it. Sent by the tool that did it; repeats are harmless."""

    action: OperatorAction
    user: User = ""


class RefusalTold(Fact):
    """A command was refused. Sent by the service that refused it; by admission also to take the one place that a request has in
    the inbox, with the answer and without a line in the ledger."""

    command: RefusedCommand
    line: bool = Field(
        default=True, description="whether the ledger is to have a line of it; an older writer writes it"
    )
    answer: JobRejected | None = Field(
        default=None,
        description="what its team is told; null: nothing, it is laid aside, or this is a line for the ledger",
    )


class SecretChanged(Fact):
    """A secret was set or removed. Sent by vault before it answers who did it; repeats are harmless."""

    action: OperatorAction = Field(description="a line of the book of that process of vault")
    team: Name | Literal[""] = Field(default="", description="whose user did it; empty: an operator")
    user: User = ""


class SumProposed(Fact):
    """What all teams' parts of the ledger come to, to be written into it. Sent by history; repeats are harmless."""

    sum: Sum
    nonce: Hash


class ApplyQueues(Fact):
    """An operator gives a pool its queues, all of them, or none. Sent by `baton apply`; placement refuses the whole when
    anything in it is wrong, or another version was applied meanwhile."""

    version: QueuesVersion = Field(description="above that of the queues there are, unless they are the same")
    queues: Queues
    order: QueueOrder | None = Field(default=None, description="of queues that say none; null: fair-share")
    half_life_s: HalfLife = None
    preemption: PreemptionLimits | None = Field(default=None, description="against thrash; null: the defaults")
    reason: str = Field(default="", max_length=1024)
    user: User = ""


class BoostJob(Fact):
    """An operator raises a job above its class for a time, or ends that; or an admin of its team does, for whom the holder of
    the keys says it. Sent by `baton boost`; placement refuses it when its team's budget is spent, and of an admin when the job
    is another team's. What the job may do does not change: only where it comes, and to whom it gives way."""

    job_id: JobId
    priority: int = Field(ge=-1_000_000, le=1_000_000, description="above that of its class")
    for_s: float = Field(ge=0, le=LONGEST_BOOST_S, description="how long, s; 0: it ends now")
    reason: str = Field(min_length=1, max_length=1024, description="why, in the words of who says it")
    user: User = ""
    team: Name | Literal[""] = Field(default="", description="whose admin says it; empty: an operator does")


class ApplyPrices(Fact):
    """An operator gives a pool its price book. Sent by `baton prices apply`; placement refuses the whole when anything in it is
    wrong, or another version was applied meanwhile."""

    book: RateBook
    reason: str = Field(default="", max_length=1024)
    user: User = ""


class ClosePeriod(Fact):
    """An operator closes a period of bills. Sent by `baton bill close`; periods follow each other without a gap."""

    period: ClosedPeriod
    reason: str = Field(default="", max_length=1024)
    user: User = ""


class ApplyBudgets(Fact):
    """An operator gives a pool its budgets, all of them, or none. Sent by `baton apply`; placement refuses the whole when
    anything in it is wrong, or another version was applied meanwhile."""

    budgets: BudgetSet
    reason: str = Field(default="", max_length=1024)
    user: User = ""


class TopUpBudget(Fact):
    """An operator gives a budget more, until its present period ends. Sent by `baton budget top-up`."""

    budget: BudgetKey
    amount: BudgetAmount = Field(ge=1)
    reason: str = Field(min_length=1, max_length=1024, description="why, in the operator's words")
    user: User = ""


class SuspendTeam(Fact):
    """An operator pauses a team: nothing new of it is admitted or granted. Sent by `baton team suspend`. Said again it changes
    the reason, or stops what runs."""

    team: Name
    reason: str = Field(min_length=1, max_length=1024, description="why, in the operator's words; the team is told")
    stop: bool = Field(default=False, description="what runs saves its work and waits, too")
    user: User = ""


class OffboardTeam(Fact):
    """An operator says that a suspended team has left, once nothing of it waits or runs: nodes remove what they keep of it.
    Sent by `baton team offboard`."""

    team: Name
    reason: str = Field(default="", max_length=1024)
    user: User = ""


class ResumeTeam(Fact):
    """An operator lets a suspended team go on, also one that had left. Sent by `baton team resume`."""

    team: Name
    reason: str = Field(default="", max_length=1024)
    user: User = ""


MOST_VICTIMS = 1024
"""Of one plan."""


class PreemptionPlanned(Fact):
    """Who should give way to whom, and where the beneficiary would then run. Sent by preemption; placement checks it
    against the present and accepts it (`DevicesHeld`) or declines it (`PlanDeclined`): a stale plan is normal."""

    plan_id: str
    base_seq: int = Field(ge=0, description="ledger sequence that the plan was made on")
    beneficiary: JobId
    victims: tuple[JobId, ...] = Field(min_length=1, max_length=MOST_VICTIMS)
    devices: tuple[DeviceId, ...] = Field(
        min_length=1, max_length=MOST_DEVICES, description="the beneficiary's, in rank order"
    )
    cost_device_s: float = Field(ge=0, description="device-seconds of work that the victims lose")
    costs_device_s: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        default=(), max_length=MOST_VICTIMS, description="of each victim, in their order; may be left out"
    )
    reason: str = "priority"


InboxMessage = (
    JobAdmitted
    | CancelRequested
    | NodeRegistered
    | NodeObserved
    | NodeLost
    | NodeSilent
    | NodeHeardAgain
    | NodeDead
    | NodeQuarantine
    | QuarantineLifted
    | CordonNode
    | UncordonNode
    | GranterClaimed
    | BoardCut
    | Tick
    | QuotaChanged
    | ApplyQueues
    | BoostJob
    | ApplyPrices
    | ClosePeriod
    | ApplyBudgets
    | TopUpBudget
    | SuspendTeam
    | OffboardTeam
    | ResumeTeam
    | PreemptionPlanned
    | ActionTold
    | RefusalTold
    | SecretChanged
    | SumProposed
)
