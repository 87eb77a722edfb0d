"""Poison inputs: those that make placement fail. Each is found, rejected alone and dead-lettered with its stack trace, so that
one of them does not block the pool.

An error leaves the decider half changed, so the ledger is folded again after it. The second time the input at fault is given
to the decider as one that cannot be read, and is rejected like any other such. The error names that input (`inbox_seq`); if it
does not, the batch is halved until one input is left (bisection). When no input is at fault, the error is raised again: nothing
can be decided then, and no input may be lost for it.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from libs.core.state.decided import DecisionFault, stack_of
from libs.ledger.inputs import InboxItem, read_input
from libs.ledger.tail import Stored
from schemas.ledger import InputRejected, LedgerEvent

log = logging.getLogger("baton.ledger")

_TRIES = 20
"""Failed decisions in a row; halving a batch of 1,000 takes ten."""


class PoisonInputs:
    """Of one writer of `pool`. `faults` counts errors of all kinds."""

    def __init__(self, pool: str) -> None:
        self.faults = 0
        self._pool = pool
        self._stacks: dict[int, str] = {}
        self._in_a_row = 0

    def read(self, message: Stored) -> InboxItem:
        """The input, or that it cannot be decided."""
        item = read_input(message, self._pool)
        if message.seq not in self._stacks:
            return item
        return replace(item, error="placement failed on it; its dead letter has the stack")

    def blame(self, error: Exception, stored: Sequence[Stored]) -> bool:
        """A decision about `stored` raised `error`. Returns whether fewer should be tried at once. Raises it again when that
        would not help."""
        self.faults += 1
        self._in_a_row += 1
        seq: int | None = getattr(error, "inbox_seq", None)
        if seq is None and len(stored) == 1:
            seq = stored[0].seq
        log.error("ledger of pool %s: %d inputs cannot be decided", self._pool, len(stored), exc_info=error)
        if seq in self._stacks or self._in_a_row > _TRIES:
            raise error
        if seq:
            self._stacks[seq] = stack_of(error)
        return seq is None

    def rejected(
        self,
        stored: Iterable[Stored],
        events: Iterable[LedgerEvent],
        faults: Iterable[DecisionFault],
    ) -> list[tuple[Stored, str, str]]:
        """(message, reason, stack or "") of each input that a decision says it rejects."""
        reasons = {e.inbox_seq: e.reason for e in events if isinstance(e, InputRejected)}
        stacks = dict(self._stacks)
        for fault in faults:
            self.faults += 1
            log.error("ledger of pool %s: an error at %s:\n%s", self._pool, fault.about, fault.stack)
            stacks[fault.inbox_seq] = fault.stack
        return [(m, reasons[m.seq], stacks.get(m.seq, "")) for m in stored if m.seq in reasons]

    def progressed(self, decided_to: int) -> None:
        """All inputs up to `decided_to` are decided."""
        self._in_a_row = 0
        if self._stacks:
            self._stacks = {seq: stack for seq, stack in self._stacks.items() if seq > decided_to}
