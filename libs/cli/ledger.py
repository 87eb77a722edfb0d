"""`baton ledger verify`: checks every record of a pool's ledger against the invariants, and against the bill; `baton
ledger export`: the ledger as a file, for independent verification."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from libs.cli import ledger_credits, ledger_segments, ledger_used
from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.files import check_target
from libs.cli.operator_action import MayReason, operator_action
from libs.cli.options import NAME_THE_ARCHIVE, ArchiveFolder, Output, Url
from libs.cli.output import Column, Format, document, done, hint, show
from libs.cli.session import run
from libs.client import Baton
from libs.core.billing.accounts import Account
from schemas.billing import BillQuery, BillReply
from schemas.subjects import FINANCE, OPERATOR

app = typer.Typer(help="Audit and keep the ledger (operators).", no_args_is_help=True, rich_markup_mode=None)
app.command("credits")(ledger_credits.credits_of)
app.command("used")(ledger_used.used_by)
app.command("segments")(ledger_segments.list_segments)
app.command("roll")(ledger_segments.roll)
app.command("archive")(ledger_segments.archive)
app.command("restore")(ledger_segments.restore)

_COUNTS = [Column("COUNT", lambda row: row[1], right=True), Column("OF", lambda row: row[0])]
_READERS = [
    Column("READER", lambda one: one.name),
    Column("PROCESS", lambda one: one.process),
    Column("RELEASE", lambda one: one.release),
    Column("FORMAT", lambda one: str(one.format), right=True),
    Column("READ TO", lambda one: str(one.position), right=True),
    Column("RESUMES AT", lambda one: str(one.resume), right=True),
    Column("STATE", lambda one: "leaving" if one.leaving else "reads"),
]
_BILL_CATCHES_UP_S = 10.0
_TOLD_EVERY_S = 2.0


@app.callback()
def _group() -> None:
    pass


@app.command("verify")
def verify(
    bill: Annotated[bool, typer.Option("--bill", help="Compare with the bill of quota_billing as well.")] = False,
    *,
    state: Annotated[
        bool, typer.Option("--state", help="Compare with the states that placement has saved as well.")
    ] = False,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", help="Check a file of `baton ledger export`; no server is asked. Several: in order."),
    ] = None,
    archive: ArchiveFolder = None,
    pool: Annotated[str | None, typer.Option("--pool", help="Whose ledger (BATON_POOL).")] = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Read the whole ledger through a checker with books of its own. Exits with 1 if anything is violated."""
    if file and (bill or state):
        asks = "--bill asks the service for its bill" if bill else "--state reads what placement has saved"
        raise UsageFault(f"{asks}, and --file asks nobody: give one of them")
    if file:
        from libs.ledger.verify import verify_files

        report: Any = verify_files(file, _telling("checked"))
        billed = None
    else:
        report, billed = run(
            lambda baton: _read(baton, baton.place.pool, bill, archive, state), OPERATOR, url, pool=pool
        )
    differences = _differences(report, billed) if billed is not None else []
    if output in (Format.JSON, Format.YAML):
        document(asdict(report) | {"bill_differences": differences, "ok": report.ok and not differences}, output)
    else:
        show(list(_counts(report)), _COUNTS)
        for line in [*report.violations, *differences]:
            hint(f"violated: {line}")
        if report.violations_total > len(report.violations):
            hint(f"and {report.violations_total - len(report.violations)} more")
        if report.unfinished:
            hint(
                f"the decision that record {report.unfinished} begins goes on behind the last record: its end is not judged"
            )
        if report.ok and not differences:
            hint(
                "every invariant holds" + (", and the bill equals the ledger's integral" if billed is not None else "")
            )
    if not report.ok or differences:
        raise Ended(Exit.FAILED)


@app.command("export")
def export(
    file: Annotated[
        Path, typer.Argument(help="Where to write; a name that ends in .gz is compressed.", metavar="FILE")
    ],
    archive: ArchiveFolder = None,
    pool: Annotated[str | None, typer.Option("--pool", help="Whose ledger (BATON_POOL).")] = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Write the whole ledger to FILE, JSON lines as stored, for anyone to verify offline (docs/ledger-file.md).

    With --archive what lies in that folder and not on the broker any more is left out; it is said which file there
    FILE follows."""
    from libs.cli.ledger_by_parts import archived_by_parts, export_by_parts
    from libs.ledger.archive import archived
    from libs.ledger.export import FileEnd, FileStart
    from libs.ledger.segments import RecordsArchived
    from libs.ledger.verify import export as write

    check_target(file)

    async def work(baton: Baton) -> tuple[FileEnd, list[Path]]:
        if baton.team == FINANCE:
            there = await archived_by_parts(baton, archive)
            start = FileStart(baton.place.pool, there.last_seq + 1, there.head)
            return await export_by_parts(baton, file, start, _telling("written")), there.paths
        js, name = baton.nats.jetstream(), baton.place.pool
        there = await archived(js, name, archive)
        start = FileStart(name, there.last_seq + 1, there.head)
        return await write(js, name, file, _telling("written"), start=start), there.paths

    try:
        end, there = run(work, OPERATOR, url, pool=pool)
    except RecordsArchived as e:
        raise UsageFault(f"{e}; {NAME_THE_ARCHIVE}") from None
    if there:
        hint(f"{file} follows {there[-1]}: give it behind that and all before")
    document = {"file": str(file), "follows": str(there[-1]) if there else None, "messages": end.messages}
    line = f"{end.messages} messages; the chain ends with record {end.head.seq} {end.head.hash}"
    done({**document, "ledger_seq": end.head.seq, "hash": end.head.hash}, [line], output, names=[str(file)])


@app.command("readers")
def readers(
    forget: Annotated[
        str | None, typer.Option("--forget", help="Remove what this process declared, as PROCESS shows it.")
    ] = None,
    reason: MayReason = "",
    pool: Annotated[str | None, typer.Option("--pool", help="Whose ledger (BATON_POOL).")] = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Who reads the ledger, how far, and which format each understands; and the format that is written."""
    from libs.ledger.readers import Readers

    async def work(baton: Baton) -> tuple[list[Any], list[str], int]:
        known, name = Readers(baton.nats.jetstream()), baton.place.pool
        found = await known.declared(name)
        for one in found:
            if one.process == forget:
                await known.forget(one)
        kept = [one for one in found if one.process != forget]
        if forget and len(kept) == len(found):
            raise UsageFault(f"no reader of process {forget!r}: `baton ledger readers` shows them")
        return kept, await known.unmarked(name), await known.format(name)

    if forget:
        with operator_action("ledger.forget-reader", forget, reason, url=url, pool=pool, needs_reason=True):
            found, unmarked, written = run(work, OPERATOR, url, pool=pool)
    else:
        found, unmarked, written = run(work, OPERATOR, url, pool=pool)
    if output in (Format.JSON, Format.YAML):
        rows = [one.model_dump() for one in found]
        document({"readers": rows, "undeclared_consumers": unmarked, "format": written}, output)
        return
    show(found, _READERS)
    for name in unmarked:
        hint(f"consumer {name} does not say what it understands: most likely a reader of release 0.1.0")
    hint(f"the ledger is written in format {written}")


@app.command("upgrade")
def upgrade(
    force: Annotated[bool, typer.Option("--force", help="Also while older readers live: they will stop.")] = False,
    reason: MayReason = "",
    pool: Annotated[str | None, typer.Option("--pool", help="Whose ledger (BATON_POOL).")] = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Let the ledger be written in the newest format now, and for good. By itself that happens ten minutes after the last
    older reader was seen."""
    from libs.core.state.formats import NEWEST
    from libs.ledger.readers import Readers, process_name

    async def work(baton: Baton) -> dict[str, Any]:
        known, name = Readers(baton.nats.jetstream()), baton.place.pool
        old = [f"{one.name} of process {one.process}" for one in await known.declared(name)
               if one.format < NEWEST and not one.leaving]  # fmt: skip
        old += [f"consumer {consumer}" for consumer in await known.unmarked(name)]
        if old and not force:
            raise UsageFault(f"these read an older format and would stop: {', '.join(old)}; upgrade them, or --force")
        newest = max(NEWEST, await known.format(name))  # never lower it: a newer `baton` may have set it
        await known.raise_format(name, newest, f"baton ledger upgrade by {process_name()}")
        return {"pool": name, "format": newest, "done": "upgraded"}

    what = f"{pool or ''} to format {NEWEST}{' --force' if force else ''}".strip()
    with operator_action("ledger.upgrade", what, reason, url=url, pool=pool, needs_reason=force):
        document = run(work, OPERATOR, url, pool=pool)
    done(document, [f"the ledger is written in format {document['format']} from now on"], output)


def _telling(what: str) -> Callable[[int, int], None]:
    """Reports progress every two seconds, on a terminal."""
    printed = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal printed
        if sys.stderr.isatty() and time.monotonic() - printed >= _TOLD_EVERY_S:
            printed = time.monotonic()
            hint(f"{done:,} {f'of {of:,} ' if of else ''}messages {what}")

    return tell


async def _read(
    baton: Baton, pool: str, with_bill: bool, archive: Path | None, states: bool
) -> tuple[Any, BillReply | None]:
    from libs.ledger.chain import LedgerGap
    from libs.ledger.verify import verify as audit

    try:
        report = await audit(baton.nats.jetstream(), pool, archive, states=states)
    except LedgerGap as e:
        raise UsageFault(f"{e}; {NAME_THE_ARCHIVE}") from None
    if not with_bill:
        return report, None
    # The ledger may have grown since: the audit is repeated at the bill's position, so that both cover the same
    # records.
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _BILL_CATCHES_UP_S
    while True:
        billed = await baton.bill(BillQuery(group_by="team"))
        if billed.ledger_seq == report.last_seq or loop.time() > deadline:
            return report, billed
        if billed.ledger_seq > report.last_seq:
            report = await audit(baton.nats.jetstream(), pool, archive, states=states)
        else:
            await asyncio.sleep(0.2)


def _differences(report: Any, billed: BillReply) -> list[str]:
    if billed.ledger_seq != report.last_seq:
        return [
            f"the bill is at ledger sequence {billed.ledger_seq}, the audit at {report.last_seq}: try again when idle"
        ]
    out = []
    if billed.total_milli_us != report.milli_us:
        out.append(f"billed {billed.total_milli_us} milli-us, the ledger's integral is {report.milli_us}")
    by_team: dict[str, int] = {}
    for row in billed.rows:
        by_team[row.team] = by_team.get(row.team, 0) + row.milli_us
    for team in sorted(by_team.keys() | report.by_team.keys()):
        mine, theirs = report.by_team.get(team, 0), by_team.get(team, 0)
        if mine != theirs:
            out.append(f"team {team}: billed {theirs} milli-us, the ledger's integral is {mine}")
    return out


def _counts(report: Any) -> Iterable[tuple[str, object]]:
    yield "records", report.records
    yield "void records", report.void
    yield "events", report.events
    yield "jobs", report.jobs
    yield "attempts", report.attempts
    yield "open attempts", report.open_attempts
    yield "preemptions", report.preemptions
    for state, count in sorted(report.terminal.items()):
        yield f"jobs {state}", count
    yield "rejected inputs", report.rejected_inputs
    yield "declined plans", report.declined_plans
    yield "operator actions", report.operator_actions
    yield "refused commands", report.refused_commands
    yield "sums of teams' lines", report.sums
    yield "closed periods", report.closed_periods
    yield "saved states compared", report.states
    yield "device-seconds", f"{report.milli_us / 1e9:.6f}"
    for team, amount in sorted(report.by_team.items()):
        yield f"device-seconds of {team}", f"{amount / 1e9:.6f}"
    yield "unit-us of capacity that existed (7,000 a device)", report.capacity_unit_us
    for account, amount in report.accounts.items():
        yield f"unit-us {account}", amount
        if account == Account.IDLE:
            yield "unit-us of these fragmented", report.fragmented_unit_us
    if report.accounts:
        yield "unit-us of all accounts together", sum(report.accounts.values())
    yield "violations", report.violations_total
    yield f"is the last valid record ({report.head_hash[:16]})", report.head_seq
