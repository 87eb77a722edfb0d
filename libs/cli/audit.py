"""`baton audit`: who did what, with outcome and reason; `verify`: that nothing of it was changed; `push`: sends actions
to the ledger that it does not have yet."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from libs.cli import units
from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.grammar import parse_duration
from libs.cli.moments import read
from libs.cli.operator_action import book_folder, tell
from libs.cli.options import NoHeader, Output, Pool, Url
from libs.cli.output import Column, Format, document, done, fields, hint, show
from libs.cli.session import run
from libs.client import Baton
from libs.core.accelerators.spelling import meant
from schemas.subjects import OPERATOR

if TYPE_CHECKING:
    from libs.core.projections.audit import AuditLine
    from libs.ledger.audit import Audit

app = typer.Typer(
    help="Who did what: commands and operators' actions, as the ledger's chain has them (operators).",
    rich_markup_mode=None,
    invoke_without_command=True,
)

Files = Annotated[
    list[Path] | None,
    typer.Option("--file", help="Read files of `baton ledger export` or `archive`, in order; no server is asked."),
]
Folder = Annotated[
    Path | None, typer.Option("--state-dir", help="Where the operator's book is (BATON_STATE_DIR).")
]  # fmt: skip

_COLUMNS = [
    Column("SEQ", lambda line: line.seq, right=True),
    Column("TIME", lambda line: units.moment(line.wall_us or line.t_us)),
    Column("ACTOR", lambda line: line.actor),
    Column("KIND", lambda line: line.kind),
    Column("TARGET", lambda line: line.target),
    Column("OUTCOME", lambda line: line.outcome),
    Column("COUNT", lambda line: line.count, wide=True, right=True),
    Column("SOURCE", lambda line: line.source, wide=True),
    Column("POLICY", lambda line: line.policy, wide=True),
    Column("DIGEST", lambda line: line.digest[:16], wide=True),
    Column("HOST", lambda line: line.claimed.get("host", ""), wide=True),
    Column("REASON", lambda line: line.reason),
]


@app.callback()
def listing(
    context: typer.Context,
    *,
    since: Annotated[str, typer.Option("--since", help="From then on: so long ago (2h, 7d), or a time in UTC.")] = "",
    until: Annotated[str, typer.Option("--until", help="Up to then, likewise.")] = "",
    actor: Annotated[str, typer.Option("--actor", help="Only of TEAM.USER, or of all of TEAM.")] = "",
    kind: Annotated[str, typer.Option("--kind", help="Only of this kind: submit, cancel, team.revoke, ...")] = "",
    team: Annotated[str, typer.Option("--team", "-t", help="Only what is about this team.")] = "",
    file: Files = None,
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Every command, accepted or refused, and every operator's action: who, what, outcome, reason, by which policy."""
    if context.invoked_subcommand is not None:
        return
    wanted = _filter(_moment(since, "--since"), _moment(until, "--until"), actor, kind, team)
    lines: list[AuditLine] = []
    kinds: set[str] = set()

    def take(line: "AuditLine") -> None:
        kinds.add(line.kind)
        if wanted(line):
            lines.append(line)

    audit = _read(file, pool, url, take)
    if kind and kind not in kinds:
        hint(f"no line is of the kind {kind}: {meant(kind, kinds)}there are {', '.join(sorted(kinds)) or 'no lines'}")
    plain = [asdict(line) for line in lines]
    show(lines, _COLUMNS, output, name=lambda line: str(line.seq), header=not no_header, whole=plain)
    if audit.broken:
        hint(f"the chain is broken: {audit.broken}")
        raise Ended(Exit.FAILED)


@app.command("verify")
def verify(
    *,
    file: Files = None,
    folder: Folder = None,
    team: Annotated[
        str | None, typer.Option("--team", "-t", help="Check this team's own part and bill, with its own credential.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", help="With --team: the price book that the bill should be by.")
    ] = None,
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Check the chain, and that ledger and operators' books tell the same. Exits with 1 at the first break, by its position.

    With --team a team checks its own part, and its bill by it, with what it may read; a note of it is kept for the next time.
    The book of this host is compared with the ledger; of books on other hosts it is checked that what the ledger tells follows.
    Last lines of this host's book that the ledger was not told yet are no break: it is said how many.
    `baton ledger verify` checks what was decided."""
    from libs.core.projections.audit import compare, untold
    from libs.walls.book import Book

    if team is not None or prices is not None:
        from libs.cli.audit_own import verify_own

        if file or folder:
            raise UsageFault("--file and --state-dir are an operator's; leave them out with --team")
        verify_own(team, pool, url, prices, output)
        return

    audit = _read(file, pool, url, lambda line: None)
    home = book_folder(folder)
    mine = Book(home).lines()
    lying_here, whole = {mine[0].book: mine} if mine else {}, not audit.skipped
    problems = [str(one) for one in compare(audit.told, lying_here, whole=whole)]
    waiting = {} if audit.broken else untold(audit.told, lying_here, whole=whole)  # nothing beyond a break is read
    ok = not audit.broken and not problems
    books = {action.book for _, action in audit.told}
    if output in (Format.JSON, Format.YAML):
        found = {"records": audit.records, "void": audit.voids, "archived_before": audit.skipped, "lines": audit.lines,
                 "books": len(books), "head_seq": audit.head.seq, "head_hash": audit.head.hash,
                 "broken": audit.broken, "problems": problems, "untold": sum(waiting.values()), "ok": ok}  # fmt: skip
        document(found, output)
    else:
        end = f"{audit.head.seq} {audit.head.hash}"
        fields([("records", audit.records), ("void messages", audit.voids), ("audit lines", audit.lines),
                ("operators' books", len(books)), ("chain ends with record", end)])  # fmt: skip
        if audit.skipped:
            hint(f"records 1 to {audit.skipped} were archived: give the files with --file, in order")
        for book, count in waiting.items():
            hint(_untold(book, count, pool, offline=bool(file)))
        for problem in [*([audit.broken] if audit.broken else []), *problems]:
            hint(f"broken: {problem}")
        if ok:
            here = "" if mine else f"; no book lies in {home}, so with none of this host they were compared"
            hint(f"the chain holds, and every line of a book is where it belongs{here}")
    if not ok:
        raise Ended(Exit.FAILED)


def _untold(book: str, count: int, pool: str | None, *, offline: bool) -> str:
    lines = f"{units.counted(count, 'line')} of book {book}"
    are, were, them = ("is", "was", "it") if count == 1 else ("are", "were", "them")
    if offline:
        return f"{lines} {are} later than this file, or {were} not told yet"
    return f"{lines} {were} not told yet: `baton audit push{f' --pool {pool}' if pool else ''}` tells {them}"


@app.command("push")
def push(
    again: Annotated[
        bool, typer.Option("--all", help="Also what was told before: a ledger that was begun anew.")
    ] = False,
    folder: Folder = None,
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Tell the pool's ledger the lines of this host's book that it was not told yet. Telling one twice does no harm."""
    count = tell(book_folder(folder), url, pool=pool, again=again, aloud=True)
    done({"done": "told", "actions_told": count}, [f"{count} told"], output)


def _read(files: list[Path] | None, pool: str | None, url: str | None, take: Callable[["AuditLine"], Any]) -> "Audit":
    from libs.ledger import audit as ledger

    done = ledger.Audit()
    if files:
        for reader, stored in ledger.from_files(files):
            done = reader.audit
            for line in reader.read(stored):
                take(line)
        return done

    async def work(baton: Baton) -> "Audit":
        done = ledger.Audit()
        async for reader, stored in ledger.from_broker(baton.nats.jetstream(), baton.place.pool):
            done = reader.audit
            for line in reader.read(stored):
                take(line)
        return done

    return run(work, OPERATOR, url, pool=pool)


def _filter(
    since_us: int | None, until_us: int | None, actor: str, kind: str, team: str
) -> Callable[["AuditLine"], bool]:  # fmt: skip
    def wanted(line: "AuditLine") -> bool:
        at_us = line.wall_us or line.t_us
        return (
            (since_us is None or at_us >= since_us)
            and (until_us is None or at_us < until_us)
            and (not actor or actor in _names(line.actor))
            and (not kind or line.kind == kind)
            and (not team or team in line.teams)
        )

    return wanted


def _names(actor: str) -> Iterator[str]:
    """`team.user`, and the team."""
    yield actor
    yield actor.partition(".")[0]


def _moment(text: str, option: str) -> int | None:
    """Microseconds since 1970 of a UTC time or an age; None for "". Raises UsageFault."""
    if not text:
        return None
    try:
        return int((time.time() - parse_duration(text)) * 1e6)
    except ValueError:
        pass
    try:
        return int(read(text)[0].timestamp() * 1e6)
    except ValueError:
        raise UsageFault(
            f"{option} {text}: not understood; write e.g. 2h, 7d, 2026-11-22 or 2026-11-22T21:00:00"
        ) from None
