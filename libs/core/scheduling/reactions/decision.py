"""What a reaction works on: the state, and the events decided so far."""

from libs.core.scheduling.changes import Changes
from libs.core.state import fold
from libs.core.state.model import State
from schemas.ledger import LedgerEvent


class InputRefused(ValueError):
    """The message cannot be applied; the text says why."""


class Decision:
    """Events decided at `t_us`, each already applied to `state`; `changes` tell what of it may help who waits."""

    def __init__(self, state: State, t_us: int, changes: Changes | None = None) -> None:
        self.state = state
        self.t_us = t_us
        self.events: list[LedgerEvent] = []
        self.changes = changes if changes is not None else Changes()

    def emit(self, event: LedgerEvent) -> None:
        self.changes.note(self.state, event)
        fold.apply(self.state, event, self.t_us)
        self.events.append(event)
