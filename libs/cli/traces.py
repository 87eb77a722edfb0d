"""Job traces as CSV: which columns mean what, and a row as a job. Pure; reading the file is the caller's.

Three families of columns are known, by their names alone:

- `submit_s, duration_s, num_gpus, tenant` (the `*.jobs.csv` of many published traces)
- `submission_time, duration, num_gpu` (Microsoft ITP / Philly exports), seconds
- `creation_time, deletion_time, scheduled_time, num_gpu, gpu_milli, gpu_spec, qos` (Alibaba's openb pod list), seconds

A row is one line: a cell in quotes may hold commas, not a line break. So a quote that is never closed costs its own row
and no other. A row that cannot be read is a `BadRow` with its line and the reason; the rest goes on.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO

from schemas.resources import MOST_DEVICES

_SUBMIT = ("submit_s", "submission_time", "submit_time", "creation_time")
_DURATION = ("duration_s", "duration")
_DEVICES = ("num_gpus", "num_gpu", "gpu_num")
_TENANT = ("tenant", "team", "user", "vc", "qos")
_NAME = ("job_id", "name", "job")
_PATTERN = ("job_name", "name", "job_type", "model")
"""Columns that show which jobs are alike, in this order; ids do not."""
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
MAX_DEVICES = MOST_DEVICES
MAX_KEY = 240
"""Characters of a job's name. A client key may have 256, and a repeated name gets its line number appended."""
MAX_LINE = 64 * 1024
"""Characters of a line. Below the csv module's own limit of a cell (131072), which therefore never applies."""
ENDLESS = 256 * MAX_LINE
"""A line of this many characters is taken for endless."""
_SHOWN = 40
ENCODING, ERRORS = "utf-8-sig", "surrogateescape"
"""How to open a file for `physical_lines`: without its byte order mark, and keeping invalid bytes so that they can be
reported."""
DEFAULT_TEAM = "replay"


class UnknownColumns(ValueError):
    """The header is unreadable, or lacks a column that every job needs. The text says which."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One row. Times are seconds of the trace; `share_milli` is below 1000 for a shared device."""

    line: int
    key: str
    submit_s: float
    duration_s: float
    devices: int
    share_milli: int = 1000
    team: str = DEFAULT_TEAM
    types: tuple[str, ...] = ()
    name: str = ""
    user: str = ""
    """A user of the team, if the trace has both."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """An omitted row: `line` counts from 1, the header's line."""

    line: int
    reason: str


def physical_lines(file: TextIO) -> Iterator[str]:
    """The lines of a file, each cut after MAX_LINE + 1 characters: `read` rejects such a line, and memory never holds
    it.

    Raises UnknownColumns for a line that does not end: a device, or a hole in a file.
    """
    while line := file.readline(MAX_LINE + 1):
        rest, passed = line, len(line)
        while rest and not rest.endswith("\n"):
            rest = file.readline(MAX_LINE)
            passed += len(rest)
            if passed > ENDLESS:
                raise UnknownColumns(f"a line goes on for more than {ENDLESS} characters: name a CSV")
        yield line.removesuffix("\n")


def read(lines: Iterable[str]) -> Iterator[TraceJob | BadRow]:
    """Each row of a CSV with a header, in file order; skips blank lines. Raises UnknownColumns."""
    names: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if names is None:
            names = _header(number, line)
            continue
        try:
            yield _job(number, _row(names, line))
        except _Unreadable as e:
            yield BadRow(number, str(e))
    if names is None:
        raise UnknownColumns("the file is empty: a header and one line per job are needed")


def _header(number: int, line: str) -> list[str]:
    try:
        names = [name.strip() for name in _cells(line)]
    except _Unreadable as e:
        raise UnknownColumns(f"line {number}, the header, cannot be read: {e}") from None
    _require(names)
    return names


def _row(names: list[str], line: str) -> dict[str, str]:
    cells = _cells(line)
    if len(cells) != len(names):
        raise _Unreadable(f"expected {len(names)} cells, got {len(cells)}")
    return {name: cell.strip() for name, cell in zip(names, cells, strict=True)}


def _cells(line: str) -> list[str]:
    """One line's cells. Raises _Unreadable."""
    if len(line) > MAX_LINE:
        raise _Unreadable(f"the line is longer than {MAX_LINE} characters; it begins {line[:_SHOWN]!r}")
    if byte := _NOT_UTF8.search(line):
        raise _Unreadable(f"byte 0x{ord(byte[0]) - 0xDC00:02x} at column {byte.start() + 1} is not UTF-8")
    if "\0" in line:
        raise _Unreadable(f"a NUL character at column {line.index(chr(0)) + 1}")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as e:
        reason = "a quote is not closed on its line" if "end of data" in str(e) else f"it is no CSV: {e}"
        raise _Unreadable(f"{reason}; it begins {line[:_SHOWN]!r}") from None


class _Unreadable(ValueError):
    pass


def _require(names: list[str]) -> None:
    wanted = {"the submit time": _SUBMIT, "the number of devices": _DEVICES}
    for what, known in wanted.items():
        if not set(known) & set(names):
            raise UnknownColumns(
                f"no column for {what}: name one of {', '.join(known)} (found: {', '.join(names)[:200]!r})"
            )
    if not set(_DURATION) & set(names) and "deletion_time" not in names:
        raise UnknownColumns(f"no column for the duration: name one of {', '.join(_DURATION)}, or deletion_time")


def _job(line: int, row: dict[str, str]) -> TraceJob:
    submit_s = _number(row, _first(row, _SUBMIT))
    devices = _number(row, _first(row, _DEVICES))
    if devices != int(devices) or devices < 0 or devices > MAX_DEVICES:
        raise _Unreadable(f"{_first(row, _DEVICES)} is {devices:g}: a whole number from 1 to {MAX_DEVICES} is needed")
    if devices == 0:
        raise _Unreadable("it asks for no accelerator (0): a pool of accelerators has nothing to place")
    share = _number(row, "gpu_milli") if row.get("gpu_milli") and devices == 1 else 1000.0
    if not 1 <= share <= 1000:
        raise _Unreadable(f"gpu_milli is {share:g}: from 1 to 1000 is needed")
    key = row.get(_first(row, _NAME)) or f"line-{line}"
    if len(key) > MAX_KEY:
        raise _Unreadable(f"{_first(row, _NAME)} is longer than {MAX_KEY} characters; it begins {key[:_SHOWN]!r}")
    return TraceJob(
        line=line,
        key=key,
        submit_s=submit_s,
        duration_s=_duration(row),
        devices=int(devices),
        share_milli=int(share),
        team=team_name(row.get(_first(row, _TENANT), "")),
        types=tuple(t for t in row.get("gpu_spec", "").split("|") if t),
        name=_plain(row.get(_first(row, _PATTERN), ""), r"[^A-Za-z0-9 ._/-]+", 128),
        user=_plain(row.get("user", ""), r"[^A-Za-z0-9_-]+", 63),
    )


def _plain(text: str, others: str, most: int) -> str:
    """The text as a valid name: other characters become hyphens."""
    return re.sub(others, "-", text).lstrip("-._/ ")[:most]


def _duration(row: dict[str, str]) -> float:
    name = _first(row, _DURATION)
    if name:
        duration = _number(row, name)
    else:
        begin = "scheduled_time" if row.get("scheduled_time") else "creation_time"
        duration = _number(row, "deletion_time") - _number(row, begin)
    if duration < 0:
        raise _Unreadable(f"it ends {-duration:g} s before it begins")
    return duration


def team_name(tenant: str) -> str:
    """A tenant as a team's name: lower case, other characters become hyphens; "replay" if there is none."""
    return re.sub(r"[^a-z0-9]+", "-", tenant.lower()).strip("-")[:63].strip("-") or DEFAULT_TEAM


def _first(row: dict[str, str], names: tuple[str, ...]) -> str:
    return next((name for name in names if name in row), "")


def _number(row: dict[str, str], name: str) -> float:
    text = row.get(name, "")
    try:
        value = float(text)
    except ValueError:
        raise _Unreadable(f"{name} is {text[:_SHOWN]!r}: a number is needed") from None
    if not math.isfinite(value) or (value < 0 and name not in _SUBMIT):
        raise _Unreadable(f"{name} is {text[:_SHOWN]!r}: a finite number that is not negative is needed")
    return value
