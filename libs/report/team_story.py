"""What a team's bill does not tell of its period: what its devices did of what was paid for, and what is credited. From the
ledger, and from samples where they are there; a time without any is unknown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from libs.core.billing.accounts import Accounts, Posting
from libs.core.billing.credits import Credit, Credits
from libs.core.billing.used import DeviceUseSums, Reading, UsedBy, used
from schemas.ledger import AttemptClosed, LedgerRecord


class TeamStory(NamedTuple):
    """`outcomes`: (job id, attempt) -> how it ended, of all teams. `credits`: of postings that begin in the period."""

    used: Mapping[UsedBy, DeviceUseSums]
    credits: Sequence[Credit]
    outcomes: Mapping[tuple[str, int], str]


def team_story(
    records: Iterable[tuple[int, LedgerRecord]],
    team: str,
    period: tuple[int, int],
    readings: Mapping[str, Sequence[Reading]],
    credits: Credits,
) -> TeamStory:
    """One pass over a ledger from its first record on. `period`: [from, to) of the wall's clock; `readings`: by device id."""
    given: list[Credit] = []
    outcomes: dict[tuple[str, int], str] = {}

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
            yield from (posting for posting in postings if posting.team == team)
        yield from (posting for posting in accounts.open(accounts.t_us) if posting.team == team)

    sums = used(own(), readings, *period)
    return TeamStory(sums, given, outcomes)
