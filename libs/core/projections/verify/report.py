"""The checker's report on a ledger."""

from dataclasses import dataclass, field

MAX_VIOLATIONS = 1000
"""Listed violations; further ones are only counted."""


@dataclass(slots=True)
class Verification:
    """Totals and violations of a ledger. `milli_us`: device-microseconds x thousandths, of freed claims."""

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
    """Sums over all teams' lines, with repeats."""
    closed_periods: int = 0
    states: int = 0
    """Saved states of placement that were compared with the fold; 0 if none were requested."""
    milli_us: int = 0
    by_team: dict[str, int] = field(default_factory=dict)
    capacity_unit_us: int = 0
    """Existing capacity, units (7,000 per device) x microseconds, up to the last record."""
    held_unit_us: int = 0
    """Part of it held by attempts, including open ones."""
    accounts: dict[str, int] = field(default_factory=dict)
    """Account -> unit-microseconds, summing to `capacity_unit_us`. Empty: no accounts were kept."""
    fragmented_unit_us: int = 0
    """Part of `idle` that fitted no waiting job, as placement reported."""
    violations: list[str] = field(default_factory=list)
    violations_total: int = 0
    last_seq: int = 0
    last_t_us: int = 0
    unfinished: int = 0
    """First record of a last decision that is incomplete at the end; else 0. Its end is not checked."""
    head_seq: int = 0
    head_hash: str = ""
    """Hash of the last valid record. Equal for everyone who verified the same ledger."""

    @property
    def ok(self) -> bool:
        return self.violations_total == 0

    def violated(self, invariant: str, seq: int, what: str) -> None:
        self.violations_total += 1
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(f"{invariant} at seq {seq}: {what}")
