"""A standby writer: one whose append was refused follows the other writer until that seems to have stopped. Only speed depends
on it, never safety."""

import asyncio
from collections import deque
from typing import Any

from libs.ledger.folded import FoldedLedger
from libs.ledger.inputs import read_input
from libs.ledger.tail import Tail
from schemas.inbox import Tick

_TICK_PATIENCE = 10  # ticks alone call for a takeover this many times later
_MOST_WATCHED = 4096
"""Inputs that are watched at once; it is the oldest that counts."""


async def follow(ledger: FoldedLedger[Any], inbox: Tail, takeover_s: float) -> None:
    """Folds what the other writer commits. Returns when an input has waited for `takeover_s` while the ledger stood still."""
    reader = ledger.reader
    assert reader is not None
    loop = asyncio.get_running_loop()
    waiting: deque[tuple[int, float]] = deque()  # inputs other than ticks: (sequence, when first seen)
    moved = loop.time()
    while True:
        if entries := await reader.next(256, min(0.1, max(0.01, takeover_s / 4))):
            ledger.follow(entries)
            moved = loop.time()
        now = loop.time()
        for message in await inbox.messages(256, 0.0) if len(waiting) < _MOST_WATCHED else ():
            if not isinstance(read_input(message, ledger.pool).message, Tick):
                waiting.append((message.seq, now))
        while waiting and waiting[0][0] <= ledger.decided_to:
            waiting.popleft()
        still = now - moved
        if waiting and min(still, now - waiting[0][1]) > takeover_s:
            return
        if inbox.position > ledger.decided_to and still > _TICK_PATIENCE * takeover_s:
            return
