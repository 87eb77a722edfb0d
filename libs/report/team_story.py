"""What a team's bill does not tell of its period: what its devices did of what was paid for, and what is credited. From the
ledger, and from the hours of use that quota_billing keeps; a time of which nothing is kept is unknown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from libs.core.billing.accounts import Accounts, Posting
from libs.core.billing.credits import Credit, Credits
from libs.core.billing.used import PARTS, DeviceUseSums, UsedBy, used
from schemas.ledger import AttemptClosed, JobQueued, LedgerRecord
from schemas.use import UseRow


class JobLabel(NamedTuple):
    """How people know a job."""

    name: str
    user: str


class TeamStory(NamedTuple):
    """`outcomes`: (job id, attempt) -> how it ended, of all teams. `credits`: of postings that begin in the period. `days`:
    what is kept of each. `jobs`: the team's, by id."""

    used: Mapping[UsedBy, DeviceUseSums]
    credits: Sequence[Credit]
    outcomes: Mapping[tuple[str, int], str]
    days: Sequence[UseRow] = ()
    jobs: Mapping[str, JobLabel] = {}


def seen_by(rows: Iterable[UseRow], by: str) -> dict[UsedBy, DeviceUseSums]:
    """What is kept of use, by job or by user; what was allocated the ledger says. The rest of a user's has no job."""
    out: dict[UsedBy, DeviceUseSums] = {}
    for row in rows:
        whose = UsedBy(row.team, row.user, row.key if by == "job" else "")
        parts = row.used_unit_us * PARTS
        out[whose] = DeviceUseSums(0, row.known_unit_us, parts, row.energy_nj, row.energy_known_us)
    return out


def team_story(
    records: Iterable[tuple[int, LedgerRecord]],
    team: str,
    period: tuple[int, int],
    seen: Mapping[UsedBy, DeviceUseSums],
    credits: Credits,
    days: Sequence[UseRow] = (),
) -> TeamStory:
    """One pass over a ledger from its first record on. `period`: [from, to) of the wall's clock; `seen`: what of what they held
    is known and was used."""
    given: list[Credit] = []
    outcomes: dict[tuple[str, int], str] = {}
    jobs: dict[str, JobLabel] = {}

    def own() -> Iterator[Posting]:
        accounts = Accounts()
        for seq, record in records:
            postings = accounts.apply(record, seq)
            given.extend(
                credit
                for credit in credits.apply(record, seq, postings)
                if credit.posting.team == team and period[0] <= credit.posting.wall_start_us < period[1]
            )
            for event in record.events:
                if isinstance(event, AttemptClosed):
                    outcomes[event.job_id, event.attempt] = event.outcome.value
                elif isinstance(event, JobQueued) and event.team == team:
                    jobs[event.job_id] = JobLabel(event.spec.name, event.user)
            yield from (posting for posting in postings if posting.team == team)
        yield from (posting for posting in accounts.open(accounts.t_us) if posting.team == team)

    sums = used(own(), {}, *period)
    for whose, one in seen.items():
        sums.setdefault(whose, DeviceUseSums()).add(one)
    return TeamStory(sums, given, outcomes, days, jobs)
