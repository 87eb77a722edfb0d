"""Records each change of a secret in the ledger before its sender is answered, for audit.

A process of vault keeps a *book*, as an operator's host does (`schemas.audit.OperatorAction`): a hash chain with a line for
each change. Each process begins a new one; a line that a killed process had not sent is a note beside the secret
(`services.vault.changes`). A line that the inbox does not take is sent again before the next; until then nothing is changed.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence

from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import Outbox
from libs.bus.queries import AskAgain
from libs.bus.retry import UNAVAILABLE
from schemas import subjects
from schemas.audit import ActionOutcome, OperatorAction, line_hash
from schemas.catalog import TYPE_OF
from schemas.inbox import SecretChanged
from schemas.subjects import OPERATOR
from services.vault.changes import ChangeNote

_LATER = (
    "what is done with secrets is written into the ledger, and that takes nothing just now: say it again in a moment"
)
_NOTED = 4096
"""Of the last changes it is known that they have a line."""


class ChangesBook:
    """Of one process. `pool`: whose ledger has the lines."""

    def __init__(self, pool: str, outbox: Outbox, lacks: Callable[[Sequence[Outgoing]], str]) -> None:
        """`lacks`: why the pool's inbox has no room for messages; "" when it has."""
        self.name = secrets.token_hex(8)
        self._pool, self._outbox, self._lacks = pool, outbox, lacks
        self._number, self._last = 0, ""
        self._untold: list[Outgoing] = []
        self._telling = asyncio.Lock()
        self._noted: deque[str] = deque(maxlen=_NOTED)

    async def ready(self) -> None:
        """Raises AskAgain when no line can be told now."""
        await self._tell()

    async def changed(self, changes: Sequence[ChangeNote]) -> None:
        """A line for each; one that has a line already gets no other. Returns when all lines are told. Raises AskAgain."""
        for change in changes:
            if change.id not in self._noted:
                self._noted.append(change.id)
                self._write(change)
        await self._tell()

    def _write(self, change: ChangeNote) -> None:
        self._number += 1
        line = OperatorAction(
            book=self.name,
            number=self._number,
            prev_hash=self._last,
            what=change.what,
            target=change.target[:512],
            reason="",
            outcome=ActionOutcome.DONE,
            detail=change.detail[:1024],
            digest=change.digest,
            at_us=change.at_us,
            tool="vault",
        )
        self._last = line_hash(line)
        self._untold.append(
            outgoing(
                SecretChanged(action=line, team="" if change.team == OPERATOR else change.team, user=change.user),
                subject=subjects.inbox("secret", "changed", self._pool),
                type=TYPE_OF[SecretChanged],
                source=f"/baton/{self._pool}/vault",
                cause=f"{line.book}:{line.number}:{self._last}",
            )
        )

    async def _tell(self) -> None:
        async with self._telling:
            while self._untold:
                items = list(self._untold[:64])
                if self._lacks(items):
                    raise AskAgain(_LATER)
                try:
                    await self._outbox.publish_many(items)
                except UNAVAILABLE as e:
                    raise AskAgain(_LATER) from e
                del self._untold[: len(items)]
