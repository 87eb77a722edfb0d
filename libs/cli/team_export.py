"""`baton team export FOLDER`: all that is a team's own, as files: its jobs, what happened to them, its bills and quotas.

    jobs.jsonl      a document a line, newest first: spec, attempts, outcome
    events.jsonl    an event a line, job by job in the order of the ledger, then refused requests of the last seven days
    bills.jsonl     an answer of quota_billing a line: for each pool all days, then each day by attempt
    quotas.jsonl    what it may hold in each pool
    about.json      whose it is, how much of each, and the SHA-256 of each file; `without`: closed pools, of which
                    neither bills nor quotas are there

Asked with the team's own credential, so nothing foreign can be in it. What it is for, and what else is to be done when a team
leaves, is in docs/security.md.
"""

import asyncio
import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from libs.cli.exits import UsageFault
from libs.cli.options import Output, Pool, Team, Url
from libs.cli.output import Format, done, hint
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import Failed, Invalid
from schemas.base import Fact
from schemas.billing import BillQuery, BillReply
from schemas.jobs import JobEvent
from schemas.queries import EventList, EventListQuery, PoolStatusQuery
from schemas.subjects import OPERATOR

_AT_ONCE = 8
_EVENTS = 10_000


def command(
    folder: Annotated[Path, typer.Argument(help="A new folder, which is made here.")],
    *,
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Write all that is a team's own into a folder: jobs, events, bills, quotas."""
    if folder.exists():
        raise UsageFault(f"{folder} is there already: name a new folder")

    async def work(baton: Baton) -> dict[str, Any]:
        if baton.team == OPERATOR:
            raise UsageFault("the operator has no jobs of its own: name the team with --team")
        folder.mkdir(mode=0o700, parents=True)
        return await write(baton, folder)

    about = run(work, team, url, pool=pool, operator=False)
    hint(", ".join(f"{count} {what}" for what, count in about["counts"].items()))
    done({"folder": str(folder), **about}, [str(folder)], output)


@dataclass(slots=True)
class _Written:
    """A file as it grows: how many lines, and their hash."""

    path: Path
    lines: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def add(self, facts: Iterable[Fact]) -> None:
        text = "".join(f"{fact.model_dump_json()}\n" for fact in facts).encode()
        with self.path.open("ab") as file:
            file.write(text)
        self.digest.update(text)
        self.lines += text.count(b"\n")


async def write(baton: Baton, folder: Path, closed: Collection[str] = ()) -> dict[str, Any]:
    """Fills `folder`; what about.json says. Of pools that are `closed` nobody tells bills and quotas, and about.json says so.
    Raises ClientError."""
    files = {name: _Written(folder / f"{name}.jsonl") for name in ("jobs", "events", "bills", "quotas")}
    pools = {baton.place.pool}
    async for page in baton.pages():
        files["jobs"].add(page)
        pools |= {document.pool for document in page if document.pool}
        for start in range(0, len(page), _AT_ONCE):
            some = [_events(baton, document.job_id) for document in page[start : start + _AT_ONCE]]
            for events in await asyncio.gather(*some):
                files["events"].add(events)
    files["events"].add(await _refusals(baton))
    for pool in sorted(pools.difference(closed)):
        files["bills"].add(await bills(baton, pool))
        files["quotas"].add([await ask(baton.nats, "quota.list", baton.place, PoolStatusQuery(), pool=pool)])
    about = {
        "team": baton.team,
        "pools": sorted(pools),
        "without": sorted(pools.intersection(closed)),
        "counts": {name: file.lines for name, file in files.items()},
        "sha256": {file.path.name: file.digest.hexdigest() for file in files.values()},
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return about


async def _events(baton: Baton, job_id: str) -> list[JobEvent]:
    found: dict[str, JobEvent] = {}
    after = 0
    while True:
        reply = await _after(baton, after, job_id)
        known = len(found)
        found |= {event.model_dump_json(): event for event in reply.events}
        if not reply.more or len(found) == known:
            return list(found.values())
        after = reply.events[-1].at_us - 1  # an answer may end between two events of one microsecond


async def _refusals(baton: Baton) -> list[JobEvent]:
    """Of requests that became no job: the stream of events has them, for as long as it keeps anything."""
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


async def bills(baton: Baton, pool: str) -> list[BillReply]:
    """Of all days, then each day's by attempt, or by job where there are too many attempts; of what was given back. Raises
    Failed when they do not add up: something ended meanwhile."""
    days = await _bill(baton, pool, group_by="day")
    out = [days]
    for row in days.rows:
        try:
            out.append(await _bill(baton, pool, group_by="attempt", from_day=row.key, to_day=row.key))
        except Invalid:
            out.append(await _bill(baton, pool, group_by="job", from_day=row.key, to_day=row.key))
    if sum(reply.total_milli_us for reply in out[1:]) != days.total_milli_us:
        raise Failed("the bill changed while it was read", "a job ended meanwhile", "run it again, into a new folder")
    return out


async def _bill(baton: Baton, pool: str, **asked: Any) -> BillReply:
    reply: BillReply = await ask(baton.nats, "bill.get", baton.place, BillQuery(**asked), pool=pool, timeout_s=30.0)
    return reply
