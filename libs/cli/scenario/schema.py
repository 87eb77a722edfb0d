"""A scenario file: what is given, what happens when, what is expected. docs/scenarios.md

Amounts are whole devices; times are durations (`90s`, `5m`, `1h`). A job without `run` runs until it is cancelled.
"""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from libs.cli.grammar import parse_duration
from libs.cli.queuesfile import QueueFile
from schemas.base import Name, Strict
from schemas.resources import Level

MOST_JOBS = 200
MOST_STEPS = 100
MOST_EXPECTED = 100
MOST_STEPS_TOLD = 100_000
FOR_EVER_S = 86_400.0


def _seconds(said: Any) -> Any:
    return parse_duration(said) if isinstance(said, str) else said


def _many(said: Any) -> Any:
    return (said,) if isinstance(said, str) else said


Lasting = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=FOR_EVER_S)]
Some = Annotated[tuple[Name, ...], BeforeValidator(_many), Field(min_length=1, max_length=MOST_JOBS)]
"""Names of jobs; one name is a list of one."""
Count = Annotated[int, Field(ge=0, le=100_000)]


class FleetGiven(Strict):
    """Equal nodes of one kind."""

    nodes: int = Field(ge=1, le=64)
    devices: int = Field(default=8, ge=1, le=16, description="of each node")
    model: str = Field(default="H100", pattern=r"^[A-Za-z0-9-]{1,32}$")
    nodes_per_leaf: int = Field(default=8, ge=1, le=64)

    @property
    def text(self) -> str:
        """The same as a fleet file."""
        return (
            f'groups:\n  - name: "node-{{i:02d}}"\n    count: {self.nodes}\n    nodes_per_leaf: {self.nodes_per_leaf}\n'
            f'    leaf: "leaf-{{leaf}}"\n    devices: {{model: {self.model}, count: {self.devices}}}\n'
            "    cpus: 192\n    memory_gib: 2048\n"
        )


class Given(Strict):
    """The world before anything happens. `queues` is a queue file (docs/queues.md); `teams` has the users of each."""

    fleet: FleetGiven
    teams: dict[Name, tuple[Name, ...]] = Field(min_length=1, max_length=32)
    queues: QueueFile | None = None


class Saves(Strict):
    """The job saves its work by itself, and when it is asked to."""

    every: Lasting = 600.0
    grace: Lasting = 30.0


class JobSubmitted(Strict):
    """One job, or `count` of them, called `name-1`, `name-2`, ..."""

    name: Name
    team: Name
    user: Name | None = None
    priority_class: Name = "experiment"
    devices: int = Field(default=1, ge=1, le=1024)
    within: Level | None = Field(default=None, description="all its devices must be in one of these")
    run: Lasting | None = Field(default=None, description="how long it runs; without it until it is cancelled")
    limit: Lasting | None = Field(default=None, description="its declared time limit")
    saves: Saves | None = None
    steps: int | None = Field(
        default=None, ge=10, le=MOST_STEPS_TOLD, description="it tells its progress, in so many steps"
    )
    count: int = Field(default=1, ge=1, le=MOST_JOBS)

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.steps is not None and self.run is None:
            raise ValueError("steps need a run: say how long the job takes, so that each step has its time")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.count == 1 else tuple(f"{self.name}-{n}" for n in range(1, self.count + 1))


class Boosted(Strict):
    """An operator raises a job above its class."""

    job: Name
    to: Name
    length: Lasting = Field(alias="for")


class PreemptedBy(Strict):
    """A job gave way. `because` is a word of the reason in the ledger."""

    job: Name
    by: Name | None = None
    because: str = ""


class RefusalExpected(Strict):
    """Admission refused a job. `field` is the field of the request that was wrong."""

    job: Name
    field: str = ""


class Explained(Strict):
    """What `baton explain` says of a waiting job to its team."""

    job: Name
    reason: str = ""
    behind: Name | None = Field(default=None, description="this job holds what it waits for")
    position: int | None = Field(default=None, ge=1)
    start_known: bool | None = Field(default=None, description="whether an expected start is told")
    suggests: bool | None = Field(default=None, description="whether a smallest change is told")


class Ordered(Strict):
    """`first` started before `then` did, or (`while_running`) while that one ran."""

    first: Name
    then: Name


class Expected(Strict):
    """One expectation: exactly one of the fields up to `promise_kept`."""

    running: Some | None = None
    waiting: Some | None = None
    succeeded: Some | None = None
    failed: Some | None = None
    cancelled: Some | None = None
    started_in_order: Some | None = None
    started_while_running: Ordered | None = None
    preempted: PreemptedBy | None = None
    never_preempted: Some | None = None
    resumed: Some | None = None
    refused: RefusalExpected | None = None
    holds: dict[Name, Count] | None = None
    shares: dict[Name, Count] | None = None
    never_above: dict[Name, Count] | None = None
    next: Name | None = None
    boosted: Some | None = None
    explain: Explained | None = None
    progress: Some | None = None
    promised: Some | None = None
    promise_kept: Some | None = None
    started_within: dict[Name, Lasting] | None = None
    """From its submission; asked in virtual time alone, where a slow machine takes no time."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1:
            said = ", ".join(sorted(self.model_fields_set)) or "nothing"
            raise ValueError(f"says {said}: write one thing in each expectation, e.g. `- running: train`")
        return self

    @property
    def what(self) -> str:
        (said,) = self.model_fields_set
        return said


class ScenarioStep(Strict):
    """One thing that happens, once `once` holds; then `expect` must come to hold before the next one happens."""

    once: Expected | None = None
    submit: tuple[JobSubmitted, ...] | None = Field(default=None, max_length=MOST_JOBS)
    cancel: Some | None = None
    apply: QueueFile | None = None
    boost: Boosted | None = None
    wait: Lasting | None = None
    expect: tuple[Expected, ...] = Field(default=(), max_length=MOST_EXPECTED)

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, said: Any) -> Any:
        if isinstance(said, dict) and isinstance(said.get("submit"), dict):
            return {**said, "submit": (said["submit"],)}
        return said

    @model_validator(mode="after")
    def _one_act(self) -> Self:
        acts = self.model_fields_set & {"submit", "cancel", "apply", "boost", "wait"}
        if len(acts) > 1 or not self.model_fields_set:
            said = ", ".join(sorted(acts)) or "nothing"
            raise ValueError(f"does {said}: let one thing happen in each step, and list them in their order")
        return self


class ScenarioFile(Strict):
    """A file."""

    scenario: str = Field(min_length=1, max_length=200, description="what it shows, in a sentence")
    about: str = ""
    given: Given
    when: tuple[ScenarioStep, ...] = Field(min_length=1, max_length=MOST_STEPS)
    expect: tuple[Expected, ...] = Field(default=(), max_length=MOST_EXPECTED)

    @property
    def jobs(self) -> dict[str, JobSubmitted]:
        """Every job of the scenario, by name."""
        return {name: job for step in self.when for job in step.submit or () for name in job.names}
