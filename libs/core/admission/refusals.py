"""Which refused commands get a line of their own in the ledger. Pure; time is the broker's.

    Refusals().note(command, at_us) -> the line to be written now, or None: it is counted, and the next line says how many were

A team that is refused again and again must not fill the ledger: of each team so many lines may come at once, and then one
every `EVERY_S`. What has no line of its own is counted into the next one, with a digest over the bodies: who kept the
requests can prove which they were. What is counted here and not written yet is known to one process, and lost with it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from libs.core.admission.intake import Bucket
from schemas.audit import RefusedCommand
from schemas.ids import content_hash

AT_ONCE: Final = 20
EVERY_S: Final = 60.0
"""So a team's refusals are at most 1,460 lines a day, of at most some 1.5 KB: 2.2 MB."""
_TEAMS = 10_000


@dataclass(slots=True)
class _OfTeam:
    bucket: Bucket
    last: RefusedCommand | None = None
    """The last that has no line yet."""
    more: int = 0
    """Those before it."""
    digest: str = ""


class Refusals:
    """What was refused lately, by team: the last 10,000 teams."""

    def __init__(self, at_once: int = AT_ONCE, every_s: float = EVERY_S) -> None:
        self._at_once, self._every_s = at_once, every_s
        self._teams: OrderedDict[str, _OfTeam] = OrderedDict()

    def note(self, command: RefusedCommand, at_us: int) -> RefusedCommand | None:
        """`command` was refused at `at_us`: the line that is to be written now, with what was counted before it."""
        known = self._teams.get(command.team)
        if known is None:
            known = self._teams[command.team] = _OfTeam(Bucket(self._at_once, at_us))
            if len(self._teams) > _TEAMS:
                self._teams.popitem(last=False)
        self._teams.move_to_end(command.team)
        if known.last is not None:
            known.more += 1
            known.digest = content_hash((known.digest + known.last.digest).encode())
        known.last = command
        return self._line(known, at_us)

    def due(self, at_us: int) -> list[RefusedCommand]:
        """Lines that may be written now: of teams that have gone quiet since."""
        lines = [self._line(known, at_us) for known in self._teams.values() if known.last is not None]
        return [line for line in lines if line is not None]

    def _line(self, known: _OfTeam, at_us: int) -> RefusedCommand | None:
        if known.last is None or known.bucket.take(self._at_once, 1 / self._every_s, at_us) > 0:
            return None
        line = known.last.model_copy(update={"more": known.more, "more_digest": known.digest})
        known.last, known.more, known.digest = None, 0, ""
        return line
