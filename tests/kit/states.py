"""Comparing what two folds made of a ledger."""

from libs.core.state import snapshot
from libs.core.state.model import State


def dumped(state: State) -> list[bytes]:
    """The parts of a state without what a decider learns beside it, which a bare fold does not."""
    return [part for part in snapshot.dump(state) if not part.startswith(b"P")]
