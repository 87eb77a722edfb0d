"""`baton team export FOLDER`: all that is a team's own, as files: its jobs, what happened to them, its bills and quotas.

    jobs.jsonl      a document a line, newest first: spec, attempts, outcome
    events.jsonl    an event a line, job by job in the order of the ledger, then refused requests of the last seven days
    bills.jsonl     an answer of quota_billing a line: for each pool all days, then each day by attempt
    quotas.jsonl    what it may hold in each pool
    about.json      whose it is, how much of each, and the SHA-256 of each file; `without`: pools of which neither bills nor
                    quotas are there, and `why`; `from_ledger`: those of which they are made from the ledger

Asked with the team's own credential, so nothing foreign can be in it. Of a pool for which nobody answers (a closed one, or one
whose quota_billing is down) a team gets jobs and events alone; an operator, who asks as the team (`--of`), has bills and quotas
made from the ledger. What it is for, and what else is to be done when a team leaves, is in docs/security.md.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from nats.js.errors import NotFoundError

from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.files import scratch_folder
from libs.cli.options import NAME_THE_ARCHIVE, ArchiveFolder, Output, Pool, Team, Url
from libs.cli.output import Format, done, hint
from libs.cli.pools import pools_of
from libs.cli.session import run
from libs.cli.team_bills import answered, of_ledger
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import Unreachable
from libs.core.billing.unbillable import Unbillable
from libs.ledger.export import BadLedgerFile
from libs.ledger.segments import RecordsArchived
from schemas.base import Fact
from schemas.billing import BillReply, QuotaSnapshot
from schemas.jobs import JobEvent
from schemas.queries import EventList, EventListQuery
from schemas.subjects import OPERATOR

_AT_ONCE = 8
_EVENTS = 10_000


def command(
    folder: Annotated[Path, typer.Argument(help="A new folder, which is made here.", metavar="FOLDER")],
    *,
    of: Annotated[str | None, typer.Option("--of", metavar="TEAM", help="Operators: whose.")] = None,
    archive: ArchiveFolder = None,
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Write all that is a team's own into a folder: jobs, events, bills, quotas.

    Exits with 6 when bills and quotas of a pool are not in it, since nobody answers for that: all else is."""
    if folder.is_symlink() or folder.exists():
        raise UsageFault(f"{folder} is there already: name a new folder")
    if of is not None and team is not None:
        raise UsageFault("--of is an operator's: leave out --team")
    if archive is not None and of is None:
        raise UsageFault("--archive is for operators, who read ledgers: name the team with --of")

    async def work(baton: Baton) -> dict[str, Any]:
        if baton.team == OPERATOR and of is None:
            raise UsageFault("the operator has no jobs of its own: name the team with --of")
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return await write(baton, folder, of, archive)

    about = run(work, OPERATOR if of is not None else team, url, pool=pool, operator=False)
    hint(", ".join(f"{count} {what}" for what, count in about["counts"].items()))
    for line in lacking(about):
        hint(line)
    done({"folder": str(folder), **about}, [str(folder)], output)
    if about["without"]:
        if of is None:
            hint(f"an operator's `baton team export FOLDER --of {about['team']}` makes them from the pool's ledger")
        raise Ended(Exit.UNREACHABLE)


def lacking(about: Mapping[str, Any]) -> list[str]:
    """A line for each pool with something missing from the export."""
    return [f"pool {pool}: neither bills nor quotas are there: {why}" for pool, why in about["why"].items()]


def as_team(baton: Baton, team: str) -> Baton:
    """The operator's connection in the team's name: gets what the team itself would get."""
    return Baton(baton.nats, replace(baton.place, team=team))


@dataclass(slots=True)
class _Written:
    """A growing file with its count of lines and hash."""

    path: Path
    lines: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def __post_init__(self) -> None:
        self.path.touch()  # the file exists even if empty

    def add(self, facts: Iterable[Fact]) -> None:
        text = "".join(f"{fact.model_dump_json()}\n" for fact in facts).encode()
        with self.path.open("ab") as file:
            file.write(text)
        self.digest.update(text)
        self.lines += text.count(b"\n")


async def write(baton: Baton, folder: Path, of: str | None = None, archive: Path | None = None) -> dict[str, Any]:
    """Creates `folder`, which appears when complete; returns the content of about.json. `of`: the team for which an
    operator asks. Raises ClientError."""
    half = folder.with_name(f"{folder.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(mode=0o700)
    try:
        about = await _write(as_team(baton, of) if of else baton, half, baton if of else None, archive)
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    return about


async def _write(baton: Baton, folder: Path, operator: Baton | None, archive: Path | None) -> dict[str, Any]:
    files = {name: _Written(folder / f"{name}.jsonl") for name in ("jobs", "events", "bills", "quotas")}
    pools = {baton.place.pool}
    if operator is not None:  # a team sees only the pools of its jobs
        known = await pools_of(operator)
        pools |= {*known.in_use, *known.closed}
    async for page in baton.pages():
        files["jobs"].add(page)
        pools |= {document.pool for document in page if document.pool}
        for start in range(0, len(page), _AT_ONCE):
            some = [_events(baton, document.job_id) for document in page[start : start + _AT_ONCE]]
            for events in await asyncio.gather(*some):
                files["events"].add(events)
    files["events"].add(await _refusals(baton))
    why, from_ledger = dict[str, str](), list[str]()
    for pool in sorted(pools):
        try:
            bills, quotas = await answered(baton, pool)
        except Unreachable as e:
            try:
                bills, quotas = await _of_ledger(operator, pool, baton.team, archive)
                from_ledger.append(pool)
            except _NoLedgerToRead as no_ledger:
                why[pool] = f"{e.why.partition(': is')[0]}{no_ledger}"
                continue
        files["bills"].add(bills)
        files["quotas"].add([quotas])
    about = {
        "team": baton.team,
        "pools": sorted(pools),
        "without": list(why),
        "why": why,
        "from_ledger": from_ledger,
        "counts": {name: file.lines for name, file in files.items()},
        "sha256": {file.path.name: file.digest.hexdigest() for file in files.values()},
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return about


class _NoLedgerToRead(Exception):
    """A pool for which nobody answers. The text gives the reason and the remedy."""


async def _of_ledger(
    operator: Baton | None, pool: str, team: str, archive: Path | None
) -> tuple[list[BillReply], QuotaSnapshot]:
    if operator is None:
        raise _NoLedgerToRead
    try:
        with scratch_folder() as folder:
            return await of_ledger(operator, pool, team, archive, folder)
    except RecordsArchived as e:
        raise _NoLedgerToRead(f"; {e}; {NAME_THE_ARCHIVE}") from e
    except (NotFoundError, BadLedgerFile, Unbillable) as e:
        raise _NoLedgerToRead(f"; its ledger cannot be read: {e}") from e


async def _events(baton: Baton, job_id: str) -> list[JobEvent]:
    found: dict[str, JobEvent] = {}
    after = 0
    while True:
        reply = await _after(baton, after, job_id)
        known = len(found)
        found |= {event.model_dump_json(): event for event in reply.events}
        if not reply.more:
            return list(found.values())
        # An answer may end between two events of one microsecond. One that fills an answer does not come behind another.
        after = reply.events[-1].at_us - (len(found) > known)


async def _refusals(baton: Baton) -> list[JobEvent]:
    """Requests that became no job, for as long as the stream of events keeps them."""
    found: dict[str, JobEvent] = {}
    after = 0
    while events := (await _after(baton, after)).events:
        found |= {event.job_id: event for event in events if event.what == "rejected"}
        after = max(after + 1, events[-1].at_us - 1)  # an answer may end between two events of one microsecond
    return list(found.values())


async def _after(baton: Baton, after_us: int, job_id: str | None = None) -> EventList:
    query = EventListQuery(job_id=job_id, after_us=after_us, limit=_EVENTS)
    reply: EventList = await ask(baton.nats, "event.list", baton.place, query)
    return reply
