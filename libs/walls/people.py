"""Who is behind a pseudonym: the one place where Baton keeps a person's name, and the only one that has to be erased.

A ledger only grows, and archives, backups of it and bills are made of it. So a name that must be erasable never gets there: the
person's credential carries a pseudonym (`vision.u-7f3a9c01d2e4`), drawn at random, and with it every subject, record, document,
event and bill. Only `people.json`, beside the keys, says whose it is:

    {"version": 1, "by_default": true, "teams": {"vision": {"u-7f3a9c01d2e4": "ana"}}}

Erasing deletes the line. What the pseudonym did stays and adds up; nobody can say any more who that was. A person who comes
back gets another one.
"""

import re
import secrets
from pathlib import Path

from pydantic import BaseModel

from libs.walls.changing import changing

PEOPLE_FILE = "people.json"
_PREFIX, _RANDOM_BYTES = "u-", 6
MOST_PEOPLE, MOST_NAME = 10_000, 256
"""Of one team, and characters of a name."""


def is_pseudonym(user: str) -> bool:
    """Whether a user's token has the form of a pseudonym."""
    return re.fullmatch(rf"{_PREFIX}[0-9a-f]{{{2 * _RANDOM_BYTES}}}", user) is not None


class NoSuchPerson(LookupError):
    """Nobody of that name has a pseudonym; the text says which team was looked at."""


class _Mapping(BaseModel, extra="allow"):
    """The file. What a newer version has added is kept."""

    version: int = 1
    by_default: bool = False
    """New people get a pseudonym unless a plain name is asked for: so in every instance that was begun with this version."""
    teams: dict[str, dict[str, str]] = {}


class People:
    """The mapping in `folder`. Every change is made under a lock and written before the method returns."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / PEOPLE_FILE

    def begin(self) -> None:
        """Of an instance that has nobody yet: from here on new people get pseudonyms."""
        with changing(self._file, self._read) as mapping:
            mapping.by_default = True

    def wanted(self, asked: bool | None) -> bool:
        """Whether a new person gets a pseudonym; `asked`: what was said of it, None: nothing."""
        return self._read().by_default if asked is None else asked

    def pseudonym(self, team: str, name: str) -> str:
        """Of a person of `team`; drawn when there is none yet. Raises ValueError for a name that is empty or too long, or when
        the team has too many."""
        if not name or len(name) > MOST_NAME:
            raise ValueError(f"a person's name has 1 to {MOST_NAME} characters, this one {len(name)}")
        with changing(self._file, self._read) as mapping:
            people = mapping.teams.setdefault(team, {})
            for pseudonym, known in people.items():
                if known == name:
                    return pseudonym
            if len(people) >= MOST_PEOPLE:
                raise ValueError(f"team {team} has {len(people)} people, and no more fit: erase those who left")
            drawn = _PREFIX + secrets.token_hex(_RANDOM_BYTES)
            people[drawn] = name
            return drawn

    def known(self, team: str, name: str) -> str:
        """The pseudonym of that person, or `name` itself when it stands for nobody: it may be a pseudonym, or a plain user."""
        return next((one for one, known in self.of(team).items() if known == name), name)

    def of(self, team: str) -> dict[str, str]:
        """Pseudonym -> name."""
        return self._read().teams.get(team, {})

    def all(self) -> dict[str, dict[str, str]]:
        """Team -> pseudonym -> name."""
        return self._read().teams

    def check(self, team: str, name: str) -> None:
        """Raises NoSuchPerson when that is neither a person of the team nor a pseudonym of one."""
        people = self.of(team)
        if name not in people and name not in people.values():
            raise _nobody(team, name)

    def called(self, team: str, name: str = "") -> list[str]:
        """The pseudonyms that stand for that person, or, without a name, for all of the team. Raises NoSuchPerson for a name
        that is not there."""
        return _called(self._read(), team, name)

    def erase(self, team: str, name: str = "") -> list[str]:
        """Forgets whose they are. Returns them and raises as `called`."""
        with changing(self._file, self._read) as mapping:
            gone = _called(mapping, team, name)
            people = mapping.teams.get(team, {})
            for one in gone:
                del people[one]
            if not people:
                mapping.teams.pop(team, None)
        return gone

    def _read(self) -> _Mapping:
        try:
            return _Mapping.model_validate_json(self._file.read_text())
        except FileNotFoundError:
            return _Mapping()


def _called(mapping: _Mapping, team: str, name: str) -> list[str]:
    found = [one for one, known in mapping.teams.get(team, {}).items() if not name or name in (known, one)]
    if name and not found:
        raise _nobody(team, name)
    return found


def _nobody(team: str, name: str) -> NoSuchPerson:
    return NoSuchPerson(f"nobody of team {team} is called {name!r} here: `baton team list` shows who is")
