"""`baton ledger segments|roll|archive|restore`: the streams of a pool's ledger, and their archive files."""

import asyncio
import hashlib
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from libs.cli.exits import UsageFault
from libs.cli.operator_action import MayReason, ReasonOption, operator_action
from libs.cli.options import NoHeader, Output, Url
from libs.cli.output import Column, Format, done, hint, say, show
from libs.cli.session import run
from libs.client import Baton, Failed
from schemas.subjects import OPERATOR

Pool = Annotated[str | None, typer.Option("--pool", help="Whose ledger (BATON_POOL).")]
Folder = Annotated[Path, typer.Argument(help="The folder of the archive.", metavar="FOLDER")]

_ROLLED_S = 30.0
_COLUMNS = [
    Column("STREAM", lambda one: one.name),
    Column("FIRST", lambda one: str(one.first), right=True),
    Column("LAST", lambda one: str(one.last), right=True),
    Column("MIB", lambda one: f"{one.bytes / (1 << 20):.1f}", right=True),
    Column("FULL", lambda one: f"{one.bytes / one.max_bytes:.0%}" if one.max_bytes else "", right=True),
    Column("STATE", lambda one: one.state.name.lower()),
]


def list_segments(
    pool: Pool = None, url: Url = None, output: Output = Format.TABLE, no_header: NoHeader = False
) -> None:
    """The streams that the ledger lies in, in order."""
    from libs.ledger.segments import segments

    found = run(lambda baton: segments(baton.nats.jetstream(), baton.place.pool), OPERATOR, url, pool=pool)
    whole = [asdict(one) | {"state": one.state.name.lower()} for one in found]
    show(found, _COLUMNS, output, name=lambda one: one.name, header=not no_header, whole=whole)


def roll(reason: MayReason = "", pool: Pool = None, url: Url = None, output: Output = Format.TABLE) -> None:
    """Ask for a new segment now: the one that is open is sealed, and can be archived. By itself that happens at 80 %."""
    with operator_action("ledger.roll", pool or "", reason, url=url, pool=pool) as act:
        rolled = run(lambda baton: _roll(baton, baton.place.pool), OPERATOR, url, pool=pool)
        act["detail"] = line = f"{rolled['sealed']} is sealed at {rolled['last']}; {rolled['open']} is open"
    done(rolled, [line], output, names=[rolled["sealed"]])


def archive(
    folder: Folder,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete segments that verify and that every reader has passed.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="With --delete: this pool has no such reader (`baton ledger readers`), so none is waited for; repeatable.",
            metavar="READER",
        ),
    ] = None,
    *,
    reason: MayReason = "",
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Write every sealed segment to FOLDER, and verify what is there; may be run any time."""
    from libs.ledger.readers import KNOWN

    absent = sorted(set(without or ()))
    if unknown := [name for name in absent if name not in KNOWN]:
        raise UsageFault(f"no pool waits for a reader {unknown[0]!r}; those are: {', '.join(sorted(KNOWN))}")

    async def work(baton: Baton) -> list[Any]:
        from libs.ledger.archive import archive as write
        from libs.ledger.readers import Readers

        js, name = baton.nats.jetstream(), baton.place.pool
        return await write(
            js, name, folder, resumes=partial(Readers(js).resumes, name, without=absent) if delete else None
        )

    if not delete:
        found = run(work, OPERATOR, url, pool=pool)
    else:
        what = " ".join([pool or "", "--delete", str(folder), *(f"--without {name}" for name in absent)]).strip()
        with operator_action("ledger.archive", what, reason, url=url, pool=pool, needs_reason=True) as act:
            found = run(work, OPERATOR, url, pool=pool)
            act["detail"] = ", ".join(one.segment.name for one in found if not one.kept)[:1024]
    lines = [f"{one.segment.name}\t{one.path}\t{f'kept: {one.kept}' if one.kept else 'deleted'}" for one in found]
    documents = [
        {
            "name": one.segment.name,
            "first": one.segment.first,
            "last": one.last,
            "file": str(one.path),
            "kept": one.kept,
        }
        for one in found
    ]
    done(documents, lines, output, names=[str(one.path) for one in found])
    if any("is not declared" in one.kept for one in found):
        hint(
            "a reader that is not declared has not begun yet, or is away for more than an hour: start it, or, where this pool "
            "is to have none, say --without READER"
        )
    if not found:
        hint("no segment is sealed: `baton ledger roll` seals the one that is open")


def restore(
    files: Annotated[list[Path], typer.Argument(help="Files of `baton ledger archive`.", metavar="FILE", exists=True)],
    reason: ReasonOption,
    pool: Pool = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Put archived segments back, for a reader that needs them. What is there already is passed over."""

    back: list[Any] = []

    async def work(baton: Baton) -> None:
        from libs.ledger.archive import restored

        js, name = baton.nats.jetstream(), baton.place.pool
        try:
            async for segment in restored(js, name, files, passed_over=hint):
                back.append(segment)
                if output.of_lines:
                    say(f"{segment.name}\t{segment.first} to {segment.last}")
        finally:
            documents = [{"name": one.name, "first": one.first, "last": one.last} for one in back]
            done(documents, [], output, names=[one.name for one in back])

    for path in files:
        if not path.is_file():
            raise UsageFault(f"{path} is no file of `baton ledger archive`: name those, one by one")
    with operator_action(
        "ledger.restore", " ".join(map(str, files)), reason, url=url, pool=pool, needs_reason=True
    ) as act:
        act["digest"] = _digest(files)
        run(work, OPERATOR, url, pool=pool)


def _digest(files: list[Path]) -> str:
    """SHA-256 over the files in order of their names."""
    whole = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


async def _roll(baton: Baton, pool: str) -> dict[str, Any]:
    from libs.ledger.rolling import ask_to_roll
    from libs.ledger.segments import readable

    js = baton.nats.jetstream()
    before = await ask_to_roll(js, pool)
    deadline = asyncio.get_running_loop().time() + _ROLLED_S
    while asyncio.get_running_loop().time() < deadline:
        now = (await readable(js, pool))[-1]
        if now.first > before.first:
            return {"pool": pool, "sealed": before.name, "last": now.first - 1, "open": now.name, "done": "rolled"}
        await asyncio.sleep(0.1)
    raise Failed(
        f"{before.name} is still open after {_ROLLED_S:g} s",
        "it is empty, placement does not run, or a reader is too old for segments (`baton ledger readers`)",
        "it will be sealed when that is mended: the request stands",
    )
