"""`baton bill page`: a team's period as one page: its bill, its actual use, and its credits."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from libs.cli.bill_files import From, LedgerFiles, To, Zone, ledger_of, rows_in
from libs.cli.bill_period import period_of, zone_of
from libs.cli.broker_keys import ring_of
from libs.cli.options import ArchiveFolder, Output, Pool, Url
from libs.cli.output import Format, done, hint
from libs.cli.session import run
from libs.client import Baton, ClientError, Invalid
from libs.core.billing.charges import charges
from libs.core.billing.credits import EVERYTHING, Credits
from libs.core.state.moments import text_of
from libs.walls.people import People
from schemas.subjects import OPERATOR
from schemas.use import UseQuery, UseRow

if TYPE_CHECKING:
    from libs.core.billing.used import DeviceUseSums, UsedBy


def page(
    file: Annotated[Path, typer.Argument(help="Where to write the page, HTML.", metavar="FILE")],
    *,
    of: Annotated[str, typer.Option("--of", help="Whose bill.")],
    start: From = None,
    end: To = None,
    time_zone: Zone = "UTC",
    policy: Annotated[
        Path | None, typer.Option("--policy", help="What is credited, as for `baton ledger credits`.")
    ] = None,
    names: Annotated[
        bool,
        typer.Option(
            "--names", help="Say who is behind pseudonyms (where the keys are): erasing must reach the page, too."
        ),
    ] = False,
    ledger: LedgerFiles = None,
    archive: ArchiveFolder = None,
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """A team's bill of a period as a page to read and print: on what, how it ended, each day, used or not, credits."""
    from libs.cli.ledger_credits import read_policy
    from libs.report.chargeback import PageOf, chargeback_page
    from libs.report.team_story import team_story

    zone = zone_of(time_zone)
    credits = Credits(read_policy(policy) if policy is not None else EVERYTHING)
    with ledger_of(ledger, pool, url, archive) as source:
        period = period_of(start, end, zone, source.wall_us)
        sealed = next((p for p in source.closed if (p.from_us, p.to_us) == period), None)
        upto = source.head.seq if sealed is None else sealed.upto_seq
        kept = Kept({}, ())
        if not ledger:
            kept = run(lambda baton: kept_of(baton, of, period, time_zone), OPERATOR, url, pool=source.pool)
        story = team_story(takewhile(lambda one: one[0] <= upto, source()), of, period, kept.seen, credits, kept.days)
        about = PageOf(
            of, source.pool, source.currency, text_of(period[0]), text_of(period[1]), zone, sealed is not None, upto,
            source.at(upto)[0].hash, story, _people(of) if names else {},
        )  # fmt: skip
        text = chargeback_page(about, rows_in(charges(source, source.closed, upto_seq=upto), period, of))
    file.write_text(text, "utf-8")
    document = {"file": str(file), "team": of, "pool": source.pool, "from_us": period[0], "to_us": period[1]}
    done({**document, "closed": sealed is not None, "ledger_seq": upto, "done": "written"}, [str(file)], output)


def _people(team: str) -> dict[str, str]:
    """The team's users: pseudonym -> name. Raises UsageFault without keys."""
    return {user: f"{name} ({user})" for user, name in People(ring_of(None).folder).of(team).items()}


class Kept(NamedTuple):
    """Stored use of a team in a period."""

    seen: "Mapping[UsedBy, DeviceUseSums]"
    days: Sequence[UseRow]


async def kept_of(baton: Baton, of: str, period: tuple[int, int], zone: str) -> Kept:
    """Quota_billing's stored use of a team; nothing, meaning unknown, if it is unavailable."""
    from libs.report.team_story import seen_by

    def query(by: str) -> UseQuery:
        return UseQuery(group_by=by, from_us=period[0], to_us=period[1], time_zone=zone, team=of)

    try:
        days = (await baton.use(query("day"))).rows
        try:
            return Kept(seen_by((await baton.use(query("job"))).rows, "job"), days)
        except Invalid:  # too many jobs for one answer
            return Kept(seen_by((await baton.use(query("user"))).rows, "user"), days)
    except ClientError as error:
        hint(f"what is kept of use cannot be read ({error}): what was used is told as unknown")
        return Kept({}, ())
