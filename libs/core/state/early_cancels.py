"""Cancels that cannot act yet: two admissions may put a cancel into the inbox ahead of its submit; and a job whose attempt is
being stopped for another reason may be queued again.

A cancel is remembered until its submit comes, for as long as REQUESTS keeps one; the submit is then answered as cancelled. What
decides is the broker's order: a submit that was stored after the cancel is a new request. That of a job that is being stopped
is remembered until that has stopped: it is queued and cancelled in one record. Bounded by age, per team and in all:
whoever sends many cancels of jobs that never were loses its own oldest ones first.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

KEPT_US = 3 * 86_400_000_000
PER_TEAM = 1_000
IN_ALL = 50_000


class EarlyCancel(NamedTuple):
    team: str
    user: str
    reason: str
    requested_us: int
    """When the broker stored it, by its clock."""


class EarlyCancels:
    """Cancels by job id and team, oldest first: who guesses another team's client key cancels nothing of it, nor its cancel."""

    def __init__(self) -> None:
        self._cancels: dict[tuple[str, str], EarlyCancel] = {}
        self._of_team: dict[str, dict[str, None]] = {}

    def note(self, job_id: str, cancel: EarlyCancel) -> None:
        self.forget(job_id, cancel.team)
        own = self._of_team.setdefault(cancel.team, {})
        if len(own) >= PER_TEAM:
            self.forget(next(iter(own)), cancel.team)
        self._cancels[job_id, cancel.team] = cancel
        self._of_team.setdefault(cancel.team, {})[job_id] = None
        while len(self) > IN_ALL or self._oldest().requested_us < cancel.requested_us - KEPT_US:
            self.forget(*next(iter(self._cancels)))

    def forget(self, job_id: str, team: str) -> None:
        """The job of that team has come, or has ended."""
        gone = self._cancels.pop((job_id, team), None)
        if gone is not None:
            own = self._of_team[gone.team]
            del own[job_id]
            if not own:
                del self._of_team[gone.team]

    def of(self, job_id: str, team: str) -> EarlyCancel | None:
        """The cancel of a job of `team` that has not come, or is being stopped. Who asks looks whether it came after the
        submit."""
        return self._cancels.get((job_id, team))

    def __len__(self) -> int:
        return len(self._cancels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EarlyCancels) and self.rows() == other.rows()

    def rows(self) -> list[list[object]]:
        return [[job_id, *cancel] for (job_id, _), cancel in self._cancels.items()]

    @classmethod
    def of_rows(cls, rows: Iterable[list[Any]]) -> "EarlyCancels":
        """The inverse of `rows`."""
        made = cls()
        for job_id, *cancel in rows:
            made._cancels[job_id, cancel[0]] = EarlyCancel(*cancel)
            made._of_team.setdefault(cancel[0], {})[job_id] = None
        return made

    def _oldest(self) -> EarlyCancel:
        return next(iter(self._cancels.values()))
