"""What the follower asks of a projection: a fold of the ledger that is read and never writes a record itself."""

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol, Self

from libs.core.state.parts import Part
from schemas.ledger import LedgerRecord


class LedgerProjection(Protocol):
    """A state that is folded from records, each once and in order.

    `version` is of the layout of the parts: parts that another one wrote are not loaded, the ledger is folded anew.
    Every kind of event is either in `handled` or in `ignored` (wire names, `schemas.ledger.EVENT_KINDS`), so that whoever
    adds a kind decides for each projection what it means there (tests/core/test_event_kinds.py).
    """

    version: ClassVar[int]
    handled: ClassVar[frozenset[str]]
    ignored: ClassVar[frozenset[str]]

    def __init__(self) -> None: ...

    def apply(self, record: LedgerRecord, seq: int) -> Any:
        """Fold the valid record at `seq`. What it returns is handed on to whoever follows, for side effects.

        May raise any error when the ledger is impossible: the follower stops there.
        """

    def skip(self, seq: int) -> None:
        """The message at `seq` is void: it counts for nothing."""

    def dump(self) -> Iterable[Part]:
        """The state in parts of a bounded size (one part is fine for a small state); see `libs.ledger.snapshots`.

        Taken on the event loop, with room for other tasks after each part; the follower applies nothing before the last.
        """

    @classmethod
    def load(cls, parts: Iterable[bytes], /) -> Self:
        """The inverse of `dump`, in a thread. Whatever it raises means: fold from the beginning."""
