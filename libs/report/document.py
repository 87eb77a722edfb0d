"""`report.json`: the numbers of a report, for programs. Field descriptions are its documentation (docs/demo.md)."""

from pydantic import BaseModel, ConfigDict, Field

REPORT_VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quartiles(_Part):
    """A distribution, by the nearest-rank method (a quantile is a value that occurred). All 0 when `count` is 0."""

    count: int = Field(description="observations")
    p50: float
    p99: float
    max: float


class TeamFigures(_Part):
    """One team."""

    team: str
    jobs: int = Field(description="jobs that were admitted")
    by_state: dict[str, int] = Field(description="jobs per state at the end")
    attempts: int = Field(description="grants")
    preempted: int = Field(description="attempts that ended by preemption")
    device_seconds: float = Field(description="device-seconds of all models, shares counted as shares (bill.get)")
    milli_us: int = Field(description="the same, exact: device-microseconds x thousandths of a device")
    cost_micros: int = Field(description="cost in millionths of the currency unit (bill.get)")
    share_of_capacity: float = Field(description="of the available accelerator-seconds, what this team held: 0 to 1")
    queue_wait_s: Quartiles = Field(description="submit to first grant, seconds")


class LedgerFigures(_Part):
    """What `baton ledger verify` says of the same ledger."""

    verified: bool = Field(description="no violation")
    records: int
    void: int = Field(description="records that do not continue the chain; skipped by every reader")
    events: int
    attempts: int
    open_attempts: int = Field(description="attempts that still hold devices")
    violations: list[str] = Field(description="each with its invariant's name, at most 1,000")
    last_seq: int


class BillFigures(_Part):
    """The bill against the ledger's integral."""

    currency: str = Field(description="ISO 4217")
    total_cost_micros: int
    total_milli_us: int = Field(description="as billed")
    integral_milli_us: int = Field(description="as integrated from the ledger by the checker")
    equal: bool = Field(description="team by team")


class Step(_Part):
    """One check of a story."""

    name: str
    expected: str
    observed: str
    ok: bool
    at_s: float | None = Field(default=None, description="when it happened, seconds after the report's start")


class Report(_Part):
    """The whole document."""

    version: int = REPORT_VERSION
    title: str
    pool: str
    started_us: int = Field(description="first grant, microseconds since the epoch, by the ledger's clock")
    window_s: float = Field(description="the busy window: first grant to last freeing, seconds")
    nodes: int
    devices: dict[str, int] = Field(description="devices per model")
    jobs: int
    by_state: dict[str, int] = Field(description="jobs per state at the end")
    attempts: int = Field(description="grants")
    gangs: int = Field(description="grants of more than one device")
    widest_gang: int = Field(description="devices of the widest grant")
    preempted: int = Field(description="attempts that ended by preemption")
    preemption_rate: float = Field(description="preempted attempts / grants, 0 to 1")
    preemption_cost_device_s: float = Field(
        default=0.0, description="work lost and restarts of the attempts that gave way, device-seconds, as planned"
    )
    utilization: float = Field(
        description="accelerator-seconds allocated / accelerator-seconds available in the busy window, 0 to 1"
    )
    utilization_peak: float = Field(description="the highest allocation at one moment / accelerators, 0 to 1")
    queue_wait_s: Quartiles = Field(description="submit stored by the broker, to the first grant stored; every job, s")
    scheduling_latency_ms: Quartiles = Field(
        description="the same span, ms, of jobs that fitted at once (granted by the record that queued them)"
    )
    teams: list[TeamFigures]
    ledger: LedgerFigures
    bill: BillFigures
    accounts: dict[str, int] = Field(
        default_factory=dict,
        description="account -> capacity units x microseconds, over the whole ledger (docs/billing.md)",
    )
    fragmented_unit_us: int = Field(
        default=0, description="what of the account `idle` was of no use to what waited, by placement's decisions"
    )
    capacity_unit_us: int = Field(default=0, description="what existed, capacity units (7,000 a device) x microseconds")
    steps: list[Step] = Field(description="the story's checks, in order; empty for a report without a story")
    ok: bool = Field(description="ledger verified, bill equal, accounts sum to what existed, and every step ok")
