"""An attempt: one run of a job, and what each node has of it."""

from dataclasses import dataclass, field

from libs.core.state.lifecycle import AttemptState
from schemas.attempts import Category, Cause
from schemas.jobs import Checkpoint, StepProgress
from schemas.resources import Claim, Span


@dataclass(slots=True)
class NodePart:
    """The part of an attempt that runs on one node."""

    node: str
    claims: tuple[Claim, ...]
    started: bool = False
    freed: bool = False
    exit_code: int | None = None
    own_exit: bool = False


@dataclass(slots=True)
class Attempt:
    """One run of a job: it holds its claims from `granted_us` until each part was seen to be gone."""

    number: int
    claims: tuple[Claim, ...]
    parts: dict[str, NodePart]
    granted_us: int
    state: AttemptState = AttemptState.GRANTED
    """Moved by `libs.core.state.lifecycle` alone, like the job's."""
    running_us: int = 0
    ended_us: int = 0
    """When its end was decided, or a part of it ended otherwise than well; of a node that fell silent, when it was heard
    last. 0: neither yet."""
    cause: Cause | None = None
    """Why it must end, once that was decided."""
    reason: str = ""
    failed_code: int | None = None
    """Exit code of the first part that failed, if its processes ended by themselves."""
    failed_category: Category | None = None
    """What the agent of the first part that failed knows of why."""
    beneficiary: str = ""
    cost_device_s: float | None = None
    """What giving way to `beneficiary` costs, device-seconds."""
    checkpoint: Checkpoint | None = None
    checkpoint_us: int = 0
    progress: StepProgress | None = None
    """How far it was when that was told last."""
    progress_us: int = 0
    span: Span | None = None
    """Of a gang: how close together it is."""
    unstarted: int = field(init=False, compare=False)
    """Parts that were not seen to start. Kept beside the parts: each of a thousand asks whether it is the last."""
    unfreed: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.unstarted = sum(not part.started for part in self.parts.values())
        self.unfreed = sum(not part.freed for part in self.parts.values())

    @property
    def ran_us(self) -> int:
        """How long all of it ran before `ended_us`, us; 0: it never did, or it ended well."""
        return max(0, self.ended_us - self.running_us) if self.running_us else 0
