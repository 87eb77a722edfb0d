"""What a decision says beside its events: where a record may end, and which errors of ours it went on from.

The decider makes these (`libs.core.scheduling.decider`), the ledger's writer reads them (`libs.ledger.writer`).
"""

from typing import NamedTuple


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
