"""Records each change of a secret in the ledger before its sender is answered, for audit.

A process of vault keeps a *book*, as an operator's host does (`schemas.audit.OperatorAction`): a hash chain with a line for
each change. Each process begins a new one. A sender whose line was not yet stored when the process was killed got no answer,
and asks again. A line that the inbox does not take is sent again before the next; until then nothing is changed.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import Outbox
from libs.bus.queries import AskAgain
from libs.bus.retry import UNAVAILABLE
from libs.ports import clock
from schemas import subjects
from schemas.audit import ActionOutcome, OperatorAction, line_hash
from schemas.catalog import TYPE_OF
from schemas.inbox import SecretChanged
from schemas.subjects import OPERATOR

_LATER = (
    "what is done with secrets is written into the ledger, and that takes nothing just now: say it again in a moment"
)


class ChangesBook:
    """Of one process. `pool`: whose ledger has the lines."""

    def __init__(self, pool: str, outbox: Outbox, lacks: Callable[[Sequence[Outgoing]], str]) -> None:
        """`lacks`: why the pool's inbox has no room for messages; "" when it has."""
        self.name = secrets.token_hex(8)
        self._pool, self._outbox, self._lacks = pool, outbox, lacks
        self._number, self._last = 0, ""
        self._untold: list[Outgoing] = []
        self._telling = asyncio.Lock()

    async def ready(self) -> None:
        """Raises AskAgain when no line can be told now."""
        await self._tell()

    async def changed(
        self, what: str, target: str, team: str, user: str, *, detail: str = "", digest: str = ""
    ) -> None:
        """One line: `user` of `team` did this. Raises AskAgain."""
        self._number += 1
        line = OperatorAction(
            book=self.name,
            number=self._number,
            prev_hash=self._last,
            what=what,
            target=target[:512],
            reason="",
            outcome=ActionOutcome.DONE,
            detail=detail[:1024],
            digest=digest,
            at_us=clock.wall_us(),
            tool="vault",
        )
        self._last = line_hash(line)
        self._untold.append(
            outgoing(
                SecretChanged(action=line, team="" if team == OPERATOR else team, user=user),
                subject=subjects.inbox("secret", "changed", self._pool),
                type=TYPE_OF[SecretChanged],
                source=f"/baton/{self._pool}/vault",
                cause=f"{line.book}:{line.number}:{self._last}",
            )
        )
        await self._tell()

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
