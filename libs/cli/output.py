"""Output of commands: a table for people, tab-separated lines for pipes, JSON or YAML for programs, names for xargs.

Everything shown may come from strangers (a job's name, a log), so control characters never reach a terminal.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from libs.core.state.ranges import in_ranges

_KEPT = {"\n", "\t"}
_WIDEST = 4000
_LISTED = 3
_GAP = 2
_NOTHING = "-"


class Format(StrEnum):
    """How a command's result is written (`-o`)."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def of_lines(self) -> bool:
        """Whether each line may be written at once; otherwise everything is written at the end."""
        return self in (Format.TABLE, Format.WIDE)


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and cell function; `wide` ones are shown with `-o wide` only, `right` aligns numbers."""

    title: str
    cell: Callable[[Any], object]
    wide: bool = False
    right: bool = False


def show(
    items: Sequence[Any],
    columns: Sequence[Column],
    format: Format = Format.TABLE,
    *,
    name: Callable[[Any], str] = str,
    header: bool = True,
    whole: Any = None,
) -> None:
    """Prints `items`. `whole`: the object for JSON and YAML in place of the list."""
    if format in (Format.JSON, Format.YAML):
        document(items if whole is None else whole, format)
    elif format is Format.NAME:
        _lines(clean(name(item)) for item in items)
    else:
        _table(items, [c for c in columns if format is Format.WIDE or not c.wide], header)


def done(value: Any, lines: Iterable[str], format: Format, *, names: Iterable[str] | None = None) -> None:
    """Prints what a command did: `value` for programs, `lines` for people and pipes, `names` (else the lines) for
    xargs."""
    if format in (Format.JSON, Format.YAML):
        document(value, format)
    else:
        _lines(
            clean(line, keep_newlines=True)
            for line in (names if format is Format.NAME and names is not None else lines)
        )


def document(value: Any, format: Format) -> None:
    """Prints an object (pydantic models, lists and dicts of them) as JSON or YAML."""
    plain = _plain(value)
    if format is Format.YAML:
        import yaml

        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        text = text if _harmless(text) else yaml.safe_dump(plain, sort_keys=False)
    else:
        text = json.dumps(plain, indent=2, ensure_ascii=not sys.stdout.isatty())
        text = text if _harmless(text) else json.dumps(plain, indent=2)
    _lines([text.rstrip()])


def _harmless(text: str) -> bool:
    """Whether nothing in it controls a terminal; otherwise everything but ASCII is escaped, as JSON and YAML do anyway."""
    return text.isascii() or clean(text, keep_newlines=True) == text


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints `name: value` lines, aligned, without empty values."""
    rows = [(name, _cell(value)) for name, value in pairs if value not in (None, "", (), [])]
    width = max((len(name) for name, _ in rows), default=0)
    _lines(f"{name + ':':<{width + 1}} {value}" for name, value in rows)


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """`text` without control characters that affect a terminal."""
    kept = _KEPT if keep_newlines else set()
    return "".join(c if c.isprintable() or c in kept else "" if keep_newlines else " " for c in text)


def open_stdout() -> None:
    """Replaces a closed stdout (`>&-`) by a pipe without reader, so that commands end as with any such pipe."""
    if sys.stdout is None:
        reader, writer = os.pipe()
        os.close(reader)
        sys.stdout = os.fdopen(writer, "w", encoding="utf-8")


def say(text: str) -> None:
    """A line for people, on stdout."""
    _lines([clean(text, keep_newlines=True)])


def hint(text: str) -> None:
    """A line for people, on stderr, so that pipes get only results. A closed terminal ends nothing here: the command
    may be in the midst of stopping."""
    try:
        print(clean(text, keep_newlines=True), file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _table(items: Sequence[Any], columns: Sequence[Column], header: bool) -> None:
    rows = [[_cell(column.cell(item)) for column in columns] for item in items]
    if not sys.stdout.isatty():
        lines = [[column.title for column in columns], *rows] if header else rows
        _lines("\t".join(line) for line in lines)
        return
    if not rows:
        hint("nothing to show")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = _that_say_something(columns, rows)
    table = Table(box=None, pad_edge=False, show_header=header, header_style="bold", padding=(0, _GAP, 0, 0))
    for number in shown:
        table.add_column(columns[number].title, justify="right" if columns[number].right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[number], style=_STYLES.get(row[number], "")) for number in shown))
    # As wide as needed: a wrapped line can be read and copied, a truncated cell cannot.
    Console(highlight=False, markup=False, width=_WIDEST).print(table)


def _that_say_something(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """The numbers of all columns; on a terminal that is too narrow for them, of those that have more than `-` in them."""
    widths = [max(len(column.title), *(len(row[n]) for row in rows)) for n, column in enumerate(columns)]
    if sum(widths) + _GAP * (len(widths) - 1) <= shutil.get_terminal_size().columns:
        return list(range(len(columns)))
    return [n for n in range(len(columns)) if any(row[n] != _NOTHING for row in rows)]


_STYLES = {
    "running": "green",
    "succeeded": "green",
    "failed": "red",
    "rejected": "red",
    "lost": "red",
    "preempting": "yellow",
}


def _cell(value: object) -> str:
    if value is None or value == "":
        return _NOTHING
    if isinstance(value, (list, tuple)):
        return _listed([clean(str(part)) for part in value]) or _NOTHING
    return clean(str(value))


def _listed(parts: list[str]) -> str:
    """A long list in ranges (`gpu-[00-15]`); if it stays long, people see the first few and the count."""
    if len(parts) > _LISTED:
        parts = in_ranges(parts)
    if sys.stdout.isatty() and len(parts) > _LISTED + 1:
        return f"{','.join(parts[:_LISTED])} and {len(parts) - _LISTED} more"
    return ",".join(parts)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Enum):  # JSON takes one that is text for text, YAML refuses it
        return value.value
    if isinstance(value, dict):
        return {_plain(key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _lines(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line.encode(errors="replace").decode() + "\n")
    sys.stdout.flush()
