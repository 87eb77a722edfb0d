"""A FOCUS export as files: rows in parts, then one file and its metadata beside it, each there only once it is whole.

    november.csv                  the rows
    november.csv.metadata.json    the schema, where the rows come from, totals, what has no price, and the file's SHA-256
    november.csv.parts/           while it is being made: parts of 50,000 rows, so that an export that was cut off goes on

The same ledger, period and version give the same bytes. Memory is that of one part. Parquet needs pyarrow (`baton[parquet]`).
"""

import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from libs.core.billing.focus import KEY_OF, ColumnKind, FocusColumn, Grain, RowFacts, decimal_text
from libs.ports.private_files import sync_file, sync_folder

PART_ROWS: Final = 50_000
FORMATS: Final = ("csv", "json", "parquet")


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""With one of these a cell begins that a spreadsheet computes."""


class NoParquet(RuntimeError):
    """pyarrow is not installed."""


class Cells(NamedTuple):
    """One column of some rows: the values that it has there, and which of them each row has."""

    values: list[Any]
    codes: "array[int]"


class ExportBusy(RuntimeError):
    """Another process makes the same file now."""


class _Rendering(Protocol):
    def part(self, columns: Sequence[Cells], path: Path) -> None: ...
    def whole(self, parts: Sequence[Path], path: Path) -> None: ...


def write(
    facts: Iterable[RowFacts],
    columns: Sequence[FocusColumn],
    format: str,
    path: Path,
    about: Mapping[str, Any],
    beside: Callable[[int, str], Mapping[str, Any]],
    *,
    told: Callable[[int], None] = lambda rows: None,
) -> None:
    """Writes the file at `path` and its metadata. While they are made, nobody else makes them.

    Args:
        about: what the export is of, and who makes it: parts of another are thrown away.
        beside: the metadata (`described`) of so many rows in a file with this SHA-256.
        told: how many rows are made.

    Raises NoParquet, ExportBusy, and OSError of the files.
    """
    rendering = _RENDERINGS[format](columns)
    folder = path.with_name(path.name + ".parts")
    with _alone(folder):
        _begin(folder, {**about, "columns": [c.name for c in columns], "format": format, "part_rows": PART_ROWS})
        parts, rows = list[Path](), 0
        source = iter(facts)
        while some := list(islice(source, PART_ROWS)):
            part = folder / f"{len(parts):06d}"
            if not part.exists():
                made = folder / "making"
                rendering.part(cells_of(some, columns), made)
                _place(made, part)
            parts.append(part)
            rows += len(some)
            told(rows)
        whole = folder / "whole"
        rendering.whole(parts, whole)
        digest = digest_of(whole)
        _place(whole, path)
        made = folder / "making"
        made.write_text(json.dumps(beside(rows, digest), indent=1) + "\n", "utf-8")
        _place(made, metadata_of(path))
        sync_folder(path.parent)
        shutil.rmtree(folder)


def cells_of(some: Sequence[RowFacts], columns: Sequence[FocusColumn]) -> list[Cells]:
    """The columns of these rows, each value made once for all rows that are alike in its grain."""
    alike = {grain: _alike(some, KEY_OF[grain]) for grain in {column.grain for column in columns} - {Grain.EXPORT}}
    alike[Grain.EXPORT] = [some[0]], array("i", bytes(4 * len(some)))
    return [
        Cells([column.value(facts) for facts in alike[column.grain][0]], alike[column.grain][1]) for column in columns
    ]


def _alike(some: Sequence[RowFacts], key_of: Callable[[RowFacts], Hashable]) -> tuple[list[RowFacts], "array[int]"]:
    """One row of each kind, and of which kind each row is."""
    known: dict[Hashable, int] = {}
    firsts: list[RowFacts] = []
    codes = array("i")
    last, code = object(), 0  # rows of one use follow each other
    for facts in some:
        key = key_of(facts)
        if key != last:
            last = key
            code = known.setdefault(key, len(firsts))
            if code == len(firsts):
                firsts.append(facts)
        codes.append(code)
    return firsts, codes


def described(columns: Sequence[FocusColumn], version: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an export. `about`: what is told besides, each key custom."""
    definitions = [
        {"ColumnName": c.name, "DataType": c.kind.value, "AllowsNulls": c.nulls, "FeatureLevel": c.level}
        | ({"NumericPrecision": 38, "NumericScale": 12} if c.kind is ColumnKind.DECIMAL else {})
        for c in columns
    ]
    schema = hashlib.sha256(json.dumps([version, definitions]).encode()).hexdigest()
    told = {
        "SchemaId": schema[:32],
        "FocusVersion": version,
        "CreationDate": about["x_LedgerTime"],
        "ColumnDefinition": definitions,
    }
    return told | dict(about)


def metadata_of(path: Path) -> Path:
    """Where the metadata of an export lies. Raises IsADirectoryError for a path without a name (`.`, `/`)."""
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(path.name + ".metadata.json")


def digest_of(path: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Makes the folder, and holds it: who dies lets go of it. Raises ExportBusy while somebody else does."""
    while True:
        folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # who had it has just finished
            handle = os.open(folder, os.O_RDONLY)
            try:
                if _locked(handle, folder):
                    yield
                    return
            finally:
                os.close(handle)


def _locked(handle: int, folder: Path) -> bool:
    """Whether the folder is held now; False: it was removed, and must be made again."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        whose = folder.with_name(folder.name.removesuffix(".parts"))
        raise ExportBusy(f"{whose}: another process is making it; wait until it has, or write another file") from None
    return os.fstat(handle).st_ino == folder.stat().st_ino


def _begin(folder: Path, about: Mapping[str, Any]) -> None:
    """Keeps parts that are of the same export, and no others."""
    text = json.dumps(about, sort_keys=True)
    note = folder / "about.json"
    if note.exists() and note.read_text("utf-8") == text:
        return
    note.unlink(missing_ok=True)
    for left in folder.iterdir():
        left.unlink()
    made = folder / "making"
    made.write_text(text, "utf-8")
    _place(made, note)


def _place(made: Path, target: Path) -> None:
    """Gives a file its name once it is on the disk."""
    sync_file(made)
    made.replace(target)


class _Text:
    """Rows as lines of text: `head` before them, `tail` after."""

    head = tail = between = ""

    def __init__(self, columns: Sequence[FocusColumn]) -> None:
        self._names = [c.name for c in columns]
        self._kinds = [c.kind for c in columns]

    def lines(self, columns: list[list[str]]) -> str:
        """`columns`: the texts of each row's cells, a column after the other."""
        raise NotImplementedError

    def cell(self, number: int, value: Any) -> str:
        """A value of a column as text."""
        raise NotImplementedError

    def part(self, columns: Sequence[Cells], path: Path) -> None:
        texts: list[list[str]] = []
        for number, (values, codes) in enumerate(columns):
            told = [self.cell(number, value) for value in values]
            texts.append([told[code] for code in codes])
        path.write_bytes(self.lines(texts).encode())

    def whole(self, parts: Sequence[Path], path: Path) -> None:
        with path.open("wb") as out:
            out.write(self.head.encode())
            for number, part in enumerate(parts):
                out.write(self.between.encode() if number else b"")
                with part.open("rb") as source:
                    shutil.copyfileobj(source, out)
            out.write(self.tail.encode())


class _Csv(_Text):
    """RFC 4180, UTF-8; null is an empty field, and no text is empty. A text that a spreadsheet would take for a formula has `'`
    before it, as OWASP (CSV Injection) advises: a device's model and a user's name are chosen by others."""

    def __init__(self, columns: Sequence[FocusColumn]) -> None:
        super().__init__(columns)
        self.head = ",".join(self._names) + "\r\n"

    def lines(self, columns: list[list[str]]) -> str:
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator="\r\n").writerows(zip(*columns, strict=True))
        return out.getvalue()

    def cell(self, number: int, value: Any) -> str:
        if value is None:
            return ""
        if self._kinds[number] is ColumnKind.DECIMAL:
            return decimal_text(value)
        if self._kinds[number] is ColumnKind.TEXT:
            return f"'{value}" if value.startswith(_FORMULA) else str(value)
        return _object(value) if self._kinds[number] is ColumnKind.OBJECT else str(value)


class _Json(_Text):
    """An array, a row a line. Decimals are texts: a JSON number is read as a binary float by most."""

    head, between, tail = "[\n", ",\n", "\n]\n"

    def lines(self, columns: list[list[str]]) -> str:
        return ",\n".join("{" + ",".join(row) + "}" for row in zip(*columns, strict=True))

    def cell(self, number: int, value: Any) -> str:
        decimal = self._kinds[number] is ColumnKind.DECIMAL and value is not None
        told = json.dumps(decimal_text(value) if decimal else value, separators=(",", ":"))
        return f"{json.dumps(self._names[number])}:{told}"


class _Parquet:
    """decimal128(38, 12); a part is a table of Arrow with each text once, and a row group of the whole."""

    def __init__(self, columns: Sequence[FocusColumn]) -> None:
        try:
            import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]
            import pyarrow.parquet as pq  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise NoParquet("Parquet needs pyarrow: install `baton[parquet]`, or export csv or json") from None
        self._pa, self._pq = pa, pq
        types = {
            ColumnKind.TEXT: pa.dictionary(pa.int32(), pa.string()),
            ColumnKind.TIME: pa.timestamp("us", "UTC"),
            ColumnKind.DECIMAL: pa.decimal128(38, 12),
            ColumnKind.INTEGER: pa.int64(),
            ColumnKind.OBJECT: pa.dictionary(pa.int32(), pa.string()),
        }
        self._kinds = [c.kind for c in columns]
        self._schema = pa.schema([pa.field(c.name, types[c.kind], c.nulls) for c in columns])

    def part(self, columns: Sequence[Cells], path: Path) -> None:
        pa = self._pa
        codes = {id(cells.codes): pa.array(np.frombuffer(cells.codes, np.int32)) for cells in columns}
        arrays = [
            self._array(kind, cells.values, codes[id(cells.codes)])
            for kind, cells in zip(self._kinds, columns, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        with pa.ipc.new_file(path, self._schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as out:
            out.write_table(table)

    def whole(self, parts: Sequence[Path], path: Path) -> None:
        """The file says nothing of Arrow, so that readers see plain texts."""
        with self._pq.ParquetWriter(path, self._schema, compression="zstd", store_schema=False) as out:
            for part in parts:
                with self._pa.ipc.open_file(str(part)) as source:
                    out.write_table(source.read_all(), row_group_size=PART_ROWS)

    def _array(self, kind: ColumnKind, values: Sequence[Any], codes: Any) -> Any:
        pa = self._pa
        if kind in (ColumnKind.TEXT, ColumnKind.OBJECT):
            texts = [v if v is None or kind is ColumnKind.TEXT else _object(v) for v in values]
            known = pa.array(texts, pa.string()).dictionary_encode()
            return pa.DictionaryArray.from_arrays(known.indices.take(codes), known.dictionary)
        if kind is ColumnKind.INTEGER:
            return pa.array(values, pa.int64()).take(codes)
        if kind is ColumnKind.TIME:
            texts = pa.array([v.removesuffix("Z") for v in values], pa.string())
            return texts.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).take(codes)
        return self._decimals(values).take(codes)

    def _decimals(self, values: Sequence[int | None]) -> Any:
        """From integers of 12 places, by their bytes."""
        raw = b"".join((v or 0).to_bytes(16, "little", signed=True) for v in values)
        there = None
        if any(v is None for v in values):
            there = self._pa.array([v is not None for v in values]).buffers()[1]
        return self._pa.Array.from_buffers(self._pa.decimal128(38, 12), len(values), [there, self._pa.py_buffer(raw)])


_object = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


_RENDERINGS: Final[Mapping[str, Callable[[Sequence[FocusColumn]], _Rendering]]] = {
    "csv": _Csv,
    "json": _Json,
    "parquet": _Parquet,
}
