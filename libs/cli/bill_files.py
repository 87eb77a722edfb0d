"""`baton bill export|verify|statement`: bills that anyone with the ledger can reproduce byte for byte.

They read the ledger: the pool's, which is written to a file first, or files of `baton ledger export`.
"""

import gc
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from libs.cli.bill_period import period_of, zone_of
from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.files import check_target, read_text, scratch_folder
from libs.cli.options import NAME_THE_ARCHIVE, ArchiveFolder, Output, Pool, Url
from libs.cli.output import Format, done, hint
from libs.cli.session import run
from libs.client import Baton
from libs.core.billing.charges import Charge, charges
from libs.core.billing.focus import VERSIONS, columns_of, facts_of
from libs.core.billing.sealing import Sealing
from libs.core.billing.wall import month_us
from libs.core.state.moments import text_of
from libs.ledger.export import BadLedgerFile, FileStart
from libs.ledger.readers import release
from libs.ledger.records import FiledLedger
from libs.ledger.segments import RecordsArchived
from libs.report.focus_files import FORMATS, ExportBusy, NoParquet, described, digest_of, metadata_of, write
from schemas import subjects
from schemas.prices import NO_CURRENCY

From = Annotated[
    str | None,
    typer.Option("--from", help="Its first month, day or full hour: 2026-11, 2026-11-01. This month without it."),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to", help="Its last month or day, included; or a full hour, which is not. One month or day without it."
    ),
]
Zone = Annotated[str, typer.Option("--time-zone", help="Whose days and months, e.g. Europe/Berlin.")]
LedgerFiles = Annotated[
    list[Path] | None,
    typer.Option("--ledger", help="A file of `baton ledger export`; no server is asked. Several: in order."),
]
_LOOK_AFTER = 200_000
_MOST_TEAMS = 20
"""The most teams listed for someone who asks for an unknown one."""
_LATEST_US = month_us(2100, 1)[1]
"""Later than the end of any period, in any zone."""
OfTeam = Annotated[str | None, typer.Option("--of", help="Only this team's rows.")]


def export(
    file: Annotated[Path, typer.Argument(help="Where to write; its metadata comes beside it.", metavar="FILE")],
    *,
    format: Annotated[
        str | None, typer.Option("--format", help="One of csv, json, parquet; without it as FILE ends, else csv.")
    ] = None,
    focus_version: Annotated[str, typer.Option("--focus-version", help="Of FOCUS: 1.2, 1.3 or 1.4.")] = "1.3",
    start: From = None,
    end: To = None,
    time_zone: Zone = "UTC",
    of: OfTeam = None,
    ledger: LedgerFiles = None,
    archive: ArchiveFolder = None,
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """A period's bill in FOCUS, a row for each device, attempt and hour. The same again gives the same bytes, and one that was
    cut off goes on."""
    format = _format(file, format)
    if focus_version not in VERSIONS:
        raise UsageFault(f"--focus-version {focus_version}: not known; use {', '.join(VERSIONS)}")
    check_target(file)
    zone = zone_of(time_zone)
    with ledger_of(ledger, pool, url, archive) as source:
        period = period_of(start, end, zone, source.wall_us)
        rows, about = _export(source, file, format, focus_version, period, of=of)
    for line in _unpriced(about):
        hint(line)
    document = {"file": str(file), "metadata": about, "row_count": rows, "sha256": about["x_Sha256"], "done": "written"}
    done(document, [f"{rows} rows, {about['x_Sha256']}"], output, names=[str(file)])


def _format(file: Path, said: str | None) -> str:
    """The given format, or the one of the file name's ending; else CSV. Raises UsageFault."""
    if said is None:
        ending = file.suffix[1:].lower()
        if ending not in FORMATS:
            hint(f"{file.name} is written as CSV; --format says otherwise ({', '.join(FORMATS)})")
        return ending if ending in FORMATS else "csv"
    if said not in FORMATS:
        raise UsageFault(f"--format {said}: not known; use {', '.join(FORMATS)}")
    return said


def verify(
    file: Annotated[Path, typer.Argument(help="An export, with its metadata beside it.", metavar="FILE")],
    *,
    ledger: LedgerFiles = None,
    archive: ArchiveFolder = None,
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Make an export again from the ledger, and compare all bytes. Exits with 1 if anything differs."""
    beside = metadata_of(file)
    try:
        about = json.loads(read_text(beside))
        period = (int(about["x_FromUs"]), int(about["x_ToUs"]))
        told = (str(about["x_Format"]), str(about["FocusVersion"]), about["x_OfTeam"], int(about["x_UptoSeq"]))
        claimed = str(about["x_Sha256"])
        if not 0 <= period[0] < period[1] <= _LATEST_US:
            raise ValueError(f"a period from {period[0]} to {period[1]}")
        digest = digest_of(file)
    except FileNotFoundError as error:
        raise UsageFault(f"{error.filename} is not there: verify needs an export and the metadata beside it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageFault(f"{beside} is no metadata of an export ({error!r}); keep it beside its file") from None
    if told[0] not in FORMATS or told[1] not in VERSIONS:
        raise UsageFault(f"{beside} tells of format {told[0]!r} and version {told[1]!r}, which there are not")
    problems: list[str] = []
    if digest != claimed:
        problems.append(f"{file} has another SHA-256 than its metadata says: one of them was changed")
    with ledger_of(ledger, pool, url, archive) as source, scratch_folder() as folder:
        problems += _missing_records(source, period, about, told[3])
        if told[3] <= source.head.seq:
            again = folder / file.name
            _, made = _export(source, again, told[0], told[1], period, of=told[2], upto_seq=told[3])
            problems += _metadata_differences(json.loads(metadata_of(again).read_text("utf-8")), about)
            if not problems and digest_of(again) != digest:
                problems.append(f"{file} is not what the ledger comes to, or another version of the writer wrote it")
            problems += _against_seal(source, period, made, told[2])
        closed, newest = any(p.from_us <= period[0] and period[1] <= p.to_us for p in source.closed), source.head.seq
    for problem in problems:
        hint(f"differs: {problem}")
    whose = f" of team {told[2]}" if told[2] is not None else ""
    when = f"from {text_of(period[0])} to {text_of(period[1])}{whose}"
    line = f"{about['x_RowCount']} rows {when} are what the ledger comes to, up to record {told[3]}"
    value = {"file": str(file), "ok": not problems, "row_count": about.get("x_RowCount"), "ledger_seq": told[3]}
    done({**value, "differs": problems}, [] if problems else [line], output, names=[str(file)])
    if problems:
        raise Ended(Exit.FAILED)
    if told[3] < newest and not closed:
        hint(
            f"the ledger goes on to record {newest}: what was billed in that period since is not in {file.name}; export again"
        )


def statement(
    *,
    by: Annotated[
        str, typer.Option("--by", help="What is summed: team, user, job, device, class, day or cost-centre.")
    ] = "team",
    start: From = None,
    end: To = None,
    time_zone: Zone = "UTC",
    of: OfTeam = None,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="What runs now goes on to the end of the period.")
    ] = False,
    cost_centres: Annotated[
        Path | None, typer.Option("--cost-centres", help="YAML: team: cost centre. Teams without one are told.")
    ] = None,
    ledger: LedgerFiles = None,
    archive: ArchiveFolder = None,
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """A period's bill by team, user, job, device, class, day or cost centre: sums of an export's rows."""
    from libs.cli.bill_centres import centres_of
    from libs.cli.bill_statement import add_forecast, grouped, grouping_of, shown

    zone = zone_of(time_zone)
    grouping = grouping_of(by, zone, centres_of(cost_centres) if cost_centres is not None else {})
    with ledger_of(ledger, pool, url, archive) as source:
        period = period_of(start, end, zone, source.wall_us)
        lines = grouped(rows_in(charges(source, source.closed), period, of), grouping)
        if forecast:
            add_forecast(lines, source, period, of, grouping)
        shown(lines, by, output, source.currency)


def _export(
    source: FiledLedger,
    file: Path,
    format: str,
    version: str,
    period: tuple[int, int],
    *,
    of: str | None,
    upto_seq: int | None = None,
) -> tuple[int, dict[str, Any]]:
    """Writes the file and its metadata; returns (rows, the metadata)."""
    sealing, currency, columns = Sealing(), source.currency or NO_CURRENCY, columns_of(version)
    sealed = next((p for p in source.closed if (p.from_us, p.to_us) == period), None)
    upto = upto_seq if upto_seq is not None else sealed.upto_seq if sealed is not None else source.head.seq
    try:
        head, wall_us = source.at(upto)
    except KeyError:
        raise UsageFault(
            f"the ledger has no record {upto}: it is another one, or an older copy; give the one it is of"
        ) from None
    about: dict[str, Any] = {
        "x_Pool": source.pool, "x_FromUs": period[0], "x_ToUs": period[1], "x_From": text_of(period[0]),
        "x_To": text_of(period[1]), "x_OfTeam": of, "x_UptoSeq": upto, "x_Head": head.hash, "x_Format": format,
        "x_Currency": currency, "x_Closed": sealed is not None,
        "x_Rounding": "each row once, half to even, to a millionth of the currency unit; totals are sums of rows",
    }  # fmt: skip

    def beside(rows: int, digest: str) -> dict[str, Any]:
        about.update(
            {
                "x_LedgerTime": text_of(wall_us),
                "x_RowCount": rows,
                "x_Rows": sealing.digest,
                "x_Sha256": digest,
                "x_Totals": [total.model_dump() for total in sealing.totals],
                "x_Unpriced": [
                    {"team": t, "device": d, "units": n} for (t, d), n in sorted(sealing.unpriced.items()) if n
                ],
            }
        )
        return described(columns, version, about)

    taken = (c for c in rows_in(charges(source, source.closed, upto_seq=upto), period, of) if sealing.take(c))
    facts = (facts_of(charge, source.pool, currency) for charge in taken)
    try:
        with _progress() as told:
            write(facts, columns, format, file, about | {"version": version, "writer": release()}, beside, told=told)
    except (NoParquet, ExportBusy) as error:
        raise UsageFault(str(error)) from None
    return about["x_RowCount"], about


def rows_in(found: Iterable[Charge], period: tuple[int, int], of: str | None) -> Iterator[Charge]:
    """Rows of a period, and of one team if named. A team without rows at any time is reported: its name may be
    misspelt, and an empty bill would look like no use."""
    teams: set[str] = set()
    for charge in found:
        if of is not None:
            teams.add(charge.use.team)
            if charge.use.team != of:
                continue
        if period[0] <= charge.billed_us < period[1]:
            yield charge
    if of is not None and of not in teams:
        some = ", ".join(sorted(teams)[:_MOST_TEAMS]) or "nobody"
        hint(f"--of {of}: no team of that name was ever billed for anything here; there was use of {some}")


def _missing_records(source: FiledLedger, period: tuple[int, int], about: dict[str, Any], upto: int) -> Iterator[str]:
    """What the export contains and this ledger does not, e.g. after a restore from a backup older than the export."""
    if upto > source.head.seq:
        yield (
            f"the ledger ends with record {source.head.seq}, and the export is of record {upto}: the ledger was restored from "
            f"a backup of before, or is another one, or an older copy; what was billed since is not in it"
        )
    else:
        with suppress(KeyError):  # a void message: then the head differs
            known, stated = source.at(upto)[0].hash, str(about.get("x_Head"))
            if known != stated:
                yield (
                    f"record {upto} of this ledger is {known[:16]}, and the export is of {stated[:16]}: the ledger went on "
                    f"otherwise after it was restored from a backup, or is another one"
                )
    if about.get("x_Closed") is True and not any((one.from_us, one.to_us) == period for one in source.closed):
        yield "the period was closed when it was exported, and this ledger has no seal of it: close it anew, and compare"


def _metadata_differences(made: dict[str, Any], stated: dict[str, Any]) -> list[str]:
    """Differences between the metadata and the ledger. The period may have been closed since the export."""
    return [
        f"{name} is {_short(stated.get(name))}, by the ledger it is {_short(made.get(name))}"
        for name in sorted(made.keys() | stated.keys())
        if stated.get(name) != made.get(name) and not (name == "x_Closed" and stated.get(name) is False)
    ]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _against_seal(source: FiledLedger, period: tuple[int, int], made: dict[str, Any], of: str | None) -> list[str]:
    sealed = next((p for p in source.closed if (p.from_us, p.to_us) == period), None)
    if sealed is None or of is not None:
        return []
    totals = [total.model_dump() for total in sealed.totals]
    if (sealed.rows, sealed.upto_seq, totals) == (made["x_Rows"], made["x_UptoSeq"], made["x_Totals"]):
        return []
    return [
        f"the seal of the period says {sealed.rows[:16]} up to record {sealed.upto_seq}; these rows are {made['x_Rows'][:16]}"
    ]


def _unpriced(about: dict[str, Any]) -> list[str]:
    from libs.cli.bill_statement import unpriced_text

    return [unpriced_text(one["units"], f" of {one['device']} of team {one['team']}") for one in about["x_Unpriced"]]


@contextmanager
def ledger_of(
    files: list[Path] | None, pool: str | None, url: str | None, archive: Path | None = None
) -> Iterator[FiledLedger]:
    """The ledger, read once: from these files, or from the pool, with archived parts from the folder `archive`. Raises
    UsageFault for files that are no complete ledger, OSError for unreadable ones."""
    if files and archive is not None:
        raise UsageFault(
            "--archive is for a pool's ledger: name its files with --ledger, before those that follow them"
        )
    with scratch_folder() as folder, _rare_collections():
        try:
            source = FiledLedger(files) if files else run(
                lambda baton: of_pool(baton, pool or baton.place.pool, archive, folder / "ledger.jsonl"),
                subjects.OPERATOR, url, pool=pool,
            )  # fmt: skip
        except RecordsArchived as error:
            raise UsageFault(f"{error}; {NAME_THE_ARCHIVE}") from None
        except BadLedgerFile as error:
            raise UsageFault(str(error)) from None
        yield source


async def of_pool(baton: Baton, pool: str, archive: Path | None, rest: Path) -> FiledLedger:
    """A pool's ledger; the broker's part is written to the file `rest`. Raises as `ledger_of`, and RecordsArchived."""
    from libs.cli.ledger_by_parts import ledger_by_parts
    from libs.ledger.archive import archived
    from libs.ledger.verify import export as write_ledger

    if baton.team == subjects.FINANCE:
        return await ledger_by_parts(baton, archive, rest)
    js = baton.nats.jetstream()
    source = await archived(js, pool, archive)
    await write_ledger(js, pool, rest, start=FileStart(pool, source.last_seq + 1, source.head))
    source.add(rest)
    return source


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Reduces garbage collection. Bills create millions of small objects without cycles, and the default threshold of
    700 cost a third of an export's time."""
    usual = gc.get_threshold()
    gc.set_threshold(_LOOK_AFTER, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def _progress() -> Iterator[Any]:
    """A counter of rows on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("rows", total=None)
        yield lambda rows: bars.update(task, completed=rows)
