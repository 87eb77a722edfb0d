"""The list of teams that have left. Their jobs, logs, events and bills are kept under their names, so a credential for such a
name gives access to them. The list is a file beside the keys, and no credential is issued for a team in it until an operator
says that the same team is back:

    {"version": 1, "left_s": {"vision": 1764320000}}
"""

import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from libs.walls.changing import changing

DEPARTED_FILE = "left.json"


class TeamIsGone(ValueError):
    """A team of that name has left; the text says when, what is kept of it, and what to do."""


class _Left(BaseModel, extra="allow"):
    version: Literal[1] = 1
    left_s: dict[str, int] = {}
    """Team -> when it left, seconds since 1970."""


class DepartedTeams:
    """The list in `folder`. Every change is made under a lock and written before the method returns."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / DEPARTED_FILE

    def note(self, team: str, at_s: float) -> None:
        """The team leaves. One that has left already did so at the first of these times."""
        with changing(self._file, self._read) as left:
            left.left_s.setdefault(team, int(at_s))

    def forget(self, team: str) -> bool:
        """The same team is back; whether it had left."""
        with changing(self._file, self._read) as left:
            return left.left_s.pop(team, None) is not None

    def left(self) -> frozenset[str]:
        """Teams that have left. Raises TeamIsGone where that cannot be read."""
        return frozenset(self._read().left_s)

    def check(self, team: str) -> None:
        """Raises TeamIsGone for a team that has left."""
        if (at_s := self._read().left_s.get(team)) is not None:
            raise TeamIsGone(
                f"team {team} left on {time.strftime('%Y-%m-%d at %H:%M UTC', time.gmtime(at_s))}; its jobs, logs, events and "
                "bills are kept under this name, and whoever is given a credential of it sees them: take another name, or, if "
                f"it is the same team, `baton team add {team} --returns`"
            )

    def _read(self) -> _Left:
        try:
            return _Left.model_validate_json(self._file.read_text())
        except FileNotFoundError:
            return _Left()
        except ValidationError:
            raise TeamIsGone(
                f"{self._file} cannot be read, so nobody knows which teams have left: put it back from a backup, or remove it"
            ) from None
