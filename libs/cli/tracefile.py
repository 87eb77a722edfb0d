"""A trace file read whole, for commands that run it: `baton replay` and `baton simulate`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from libs.cli.traces import ENCODING, ERRORS, BadRow, TraceJob, physical_lines, read

MAX_BAD_ROWS_SHOWN = 20


def read_file(trace: Path, limit: int) -> tuple[list[TraceJob], list[BadRow]]:
    """The first `limit` readable jobs (0: all) in order of submission, and the bad rows up to there. Raises
    UnknownColumns."""
    jobs: list[TraceJob] = []
    bad: list[BadRow] = []
    with trace.open(encoding=ENCODING, errors=ERRORS) as file:
        for item in read(physical_lines(file)):
            if isinstance(item, BadRow):
                bad.append(item)
                continue
            jobs.append(item)
            if limit and len(jobs) == limit:
                break
    keys: dict[str, int] = {}
    for job in jobs:
        keys[job.key] = keys.get(job.key, 0) + 1
    unique = [job if keys[job.key] == 1 else _renamed(job) for job in jobs]
    return sorted(unique, key=lambda j: (j.submit_s, j.line)), bad


def _renamed(job: TraceJob) -> TraceJob:
    """Two rows with one name are two jobs: the line number makes the client key unique."""
    return replace(job, key=f"{job.key}#{job.line}")


def show_bad_rows(console: Console, trace: Path, bad: Sequence[BadRow]) -> None:
    """Prints each omitted row with file, line and reason."""
    for row in bad[:MAX_BAD_ROWS_SHOWN]:
        console.print(f"{trace.name}:{row.line}: left out: {row.reason}", highlight=False, markup=False)
    if len(bad) > MAX_BAD_ROWS_SHOWN:
        console.print(f"... and {len(bad) - MAX_BAD_ROWS_SHOWN} more rows are left out")
