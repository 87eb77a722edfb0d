"""What was done with a team's secrets, kept in the team's entry until the ledger was told of it.

This is a transactional outbox: the note of a change is stored with the change, in one write, so that neither is there without
the other. The process that made the change tells the ledger before it answers, and removes the note. A process that was killed
leaves its notes behind, as does one whose broker did not answer. Any process of vault that sees such a note tells the ledger
`OVERDUE_S` later. So the ledger has each change once; twice, where a process was killed between telling and removing.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from pydantic import BaseModel, Field

from libs.ports import clock

OVERDUE_S: Final = 10.0
"""A note this old is left behind: its process would have told it, or said that it could not."""


class ChangeNote(BaseModel):
    """The note of one change. `team` and `user`: who asked for it. It says nothing of a value."""

    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    what: str
    target: str
    team: str
    user: str
    detail: str = ""
    digest: str = ""
    at_us: int = Field(default_factory=lambda: clock.wall_us())

    def overdue(self) -> bool:
        return abs(clock.wall_us() - self.at_us) >= OVERDUE_S * 1e6  # or another clock is wrong: it waits for none


class Requester(NamedTuple):
    """Who asks for a change, and the digest of what was sent."""

    team: str
    user: str
    digest: str = ""

    def note(self, what: str, target: str, detail: str = "") -> ChangeNote:
        return ChangeNote(what=what, target=target, team=self.team, user=self.user, detail=detail, digest=self.digest)


class OutboxRelay:
    """Tells the ledger of notes that were left behind, in one process: it knows the teams whose entries may have some."""

    def __init__(self, settle: Callable[[str], Awaitable[bool]]) -> None:
        """`settle` tells and removes the overdue notes of a team, and says whether some are left."""
        self._settle = settle
        self._teams: set[str] = set()
        self._some = asyncio.Event()

    def add(self, team: str) -> None:
        self._teams.add(team)
        self._some.set()

    @contextmanager
    def again_on_error(self, team: str) -> Iterator[None]:
        """The team is looked at again if the block ends by an error: its change may have been stored all the same."""
        try:
            yield
        except BaseException:
            self.add(team)
            raise

    async def turn(self) -> None:
        """Waits for a team, and settles all that there are. Raises what `settle` does; that team stays."""
        await self._some.wait()
        await asyncio.sleep(OVERDUE_S)
        for team in sorted(self._teams):
            self._teams.discard(team)  # first: it may be added again meanwhile
            with self.again_on_error(team):
                if await self._settle(team):
                    self.add(team)
        if not self._teams:
            self._some.clear()
