"""What the writer asks of a decider (placement's is `libs.core.scheduling.decider.Decider`), and what it tells of itself."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from libs.core.state.decided import DecisionFault, RecordEnd
from libs.ledger.inputs import InboxItem
from schemas.ledger import ClockJumped, LedgerEvent, LedgerRecord


class RecordDecider(Protocol):
    """A deterministic state: `apply` folds what was committed, `decide` takes inputs in and gives events out.

    `decide` changes the state as if its events were committed already. If the commit is refused, or `decide` raises, the
    writer throws the decider away and folds a new one. An error whose `inbox_seq` is that of an input was met at that input.
    `behind`: ledger time lags what the next tick will say, or what the inbox holds, so nothing may begin now that is measured
    from now on. `jumps` of the broker's clock stand in the record, before the events. A decision without either changes
    `inbox_seq` and `t_us` only. `record_ends` and `faults` are of the last decision.
    """

    @property
    def inbox_seq(self) -> int: ...
    @property
    def t_us(self) -> int: ...
    @property
    def record_ends(self) -> Sequence[RecordEnd]: ...
    @property
    def faults(self) -> Sequence[DecisionFault]: ...
    def apply(self, record: LedgerRecord, seq: int) -> None: ...
    def decide(
        self, inputs: Sequence[InboxItem], t_us: int, *, behind: bool = False, jumps: Sequence[ClockJumped] = ()
    ) -> Sequence[LedgerEvent]: ...
    def dump(self) -> Iterable[bytes]:
        """The state as it is now, in parts that are made as they are asked for, between later changes."""


D = TypeVar("D", bound=RecordDecider)
D_co = TypeVar("D_co", bound=RecordDecider, covariant=True)


class DeciderFactory(Protocol[D_co]):
    """`version` is of the layout of the parts: what another one wrote is not loaded."""

    @property
    def version(self) -> int: ...
    def new(self) -> D_co: ...
    def load(self, parts: Iterable[bytes]) -> D_co: ...


OnCommit = Callable[[int, LedgerRecord, D], Awaitable[None]]
OnRefold = Callable[[D], Awaitable[None]]


@dataclass(slots=True)
class Counters:
    """What a writer has done since it was made."""

    commits: int = 0
    events: int = 0
    inputs: int = 0
    skipped: int = 0
    rejected: int = 0
    refused: int = 0
    unclear: int = 0
    refolds: int = 0
    takeovers: int = 0
    voids: int = 0
    expired: int = 0
    clock_jumps: int = 0
    late: int = 0
    hook_failures: int = 0
    faults: int = 0
    unknown_observations: int = 0
