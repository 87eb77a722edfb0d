"""What a decision says beside its events: where a record may end, and which errors of ours it went on from.

The decider makes these (`libs.core.scheduling.decider`), the ledger's writer reads them (`libs.ledger.writer`).
"""

import traceback
from typing import NamedTuple

_STACK_CHARACTERS = 8_000


class RecordEnd(NamedTuple):
    """A record may end after so many `events` of a decision; it has decided the inputs to `inbox_seq` then. Were nothing
    behind it committed, deciding from there on would do the rest."""

    events: int
    inbox_seq: int


class DecisionFault(NamedTuple):
    """An error of ours that a decision met and went on from: at an input (`inbox_seq`, else 0), or at what `about` names."""

    inbox_seq: int
    about: str
    stack: str


def stack_of(error: BaseException) -> str:
    """The stack of an error as a fault and a dead letter keep it: its end, where it is long."""
    return "".join(traceback.format_exception(error))[-_STACK_CHARACTERS:]
