"""What the checker says of a whole ledger."""

from dataclasses import dataclass, field

MAX_VIOLATIONS = 1000
"""A report names this many; more are counted."""


@dataclass(slots=True)
class Verification:
    """What a whole ledger says. `milli_us`: device-microseconds x thousandths, of claims that were freed."""

    records: int = 0
    void: int = 0
    events: int = 0
    jobs: int = 0
    attempts: int = 0
    open_attempts: int = 0
    terminal: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0
    rejected_inputs: int = 0
    declined_plans: int = 0
    operator_actions: int = 0
    refused_commands: int = 0
    sums: int = 0
    """Over all teams' lines, repeats as well."""
    closed_periods: int = 0
    states: int = 0
    """Saved by placement, each compared with the fold; 0 where nobody asked for it."""
    milli_us: int = 0
    by_team: dict[str, int] = field(default_factory=dict)
    capacity_unit_us: int = 0
    """What existed, capacity units (7,000 a device) x microseconds, up to the last record."""
    held_unit_us: int = 0
    """What of it attempts held, those that still hold as well."""
    accounts: dict[str, int] = field(default_factory=dict)
    """Account -> unit-microseconds: their sum is `capacity_unit_us`. Empty: nobody kept the accounts beside the checker."""
    fragmented_unit_us: int = 0
    """What of the account `idle` was of no use to what waited, as placement told it."""
    violations: list[str] = field(default_factory=list)
    violations_total: int = 0
    last_seq: int = 0
    last_t_us: int = 0
    unfinished: int = 0
    """The record that begins the last decision, if that goes on behind the last record; else 0. Its end is not judged."""
    head_seq: int = 0
    head_hash: str = ""
    """The last valid record: two who verified the same ledger have the same."""

    @property
    def ok(self) -> bool:
        return self.violations_total == 0

    def violated(self, invariant: str, seq: int, what: str) -> None:
        self.violations_total += 1
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(f"{invariant} at seq {seq}: {what}")
