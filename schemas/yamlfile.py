"""YAML as plain data with the line of every value, for files that strangers write.

The usual loader would expand aliases (a few lines become gigabytes), keep the last of two equal keys, turn `12:30` into
750 and call constructors for tags. Here nothing is expanded or constructed: anchors, aliases, tags and repeated keys
are errors, sizes and depth are bounded before a tree is built, and a plain number keeps the text that it was.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

import yaml

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_VALUES = 20_000
OWN = 64
"""Files that a service is started with may be so many times larger: they are its operator's, and may list all teams."""

_GROUPED = re.compile(r"(?<=[0-9])_(?=[0-9]{3}(?![0-9]))")
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class YamlProblem:
    """One thing that is wrong, where, and what to do. Lines and columns count from 1."""

    line: int
    column: int
    field: str
    problem: str
    fix: str


class Broken(Exception):
    """The text is not YAML that we read: there is no document to look further into."""

    def __init__(self, problem: YamlProblem) -> None:
        where = f"line {problem.line}: {problem.field}: " if problem.field else f"line {problem.line}: "
        super().__init__(f"{where}{problem.problem}; {problem.fix}")
        self.problem = problem


@dataclass(slots=True)
class Document:
    """One document: `data` of dicts, lists and scalars; `marks` are the (line, column) of each path, `texts` the
    source of each plain scalar that YAML reads as something else than text."""

    data: Any
    marks: dict[Path, tuple[int, int]]
    texts: dict[Path, str] = field(default_factory=dict)
    problems: list[YamlProblem] = field(default_factory=list)

    def at(self, path: Path) -> tuple[int, int]:
        """Where `path` stands, or the nearest thing around it that stands in the file."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, (1, 1))


def text_of(file: TextIO) -> str:
    """The text of an open file, or so much of it that it is found to be too large: a device has no end."""
    return file.read(MAX_BYTES * OWN + 1)


def read(text: str, *, times: int = 1) -> list[Document]:
    """The documents of a YAML text; empty ones are left out. It may be so many `times` as large as one of strangers.

    Raises Broken: too large, not YAML, or with something that is refused wherever it stands.
    """
    if (size := len(text.encode(errors="replace"))) > (most := MAX_BYTES * times):
        raise Broken(YamlProblem(1, 1, "", f"the file has {size} bytes, at most {most} are read", "split it"))
    try:
        _check(yaml.parse(text, Loader=yaml.SafeLoader), MAX_VALUES * times)
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = f"not YAML: {e.problem or e.context}"
        raise Broken(
            YamlProblem(line, column, "", problem, "correct the syntax; indent with spaces, quote odd text")
        ) from None
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        problem = (
            f"the character {chr(e.character)!r} is not allowed" if isinstance(e.character, int) else str(e.reason)
        )
        raise Broken(YamlProblem(line, 1, "", problem, "remove it; the file must be UTF-8 text")) from None
    except (yaml.YAMLError, ValueError) as e:
        raise Broken(YamlProblem(1, 1, "", f"not YAML: {e}", "correct the syntax")) from None
    return [document for node in nodes if (document := _document(node)).data is not None or document.problems]


def plain(text: str) -> Any:
    """The data of an operator's own text that is one document, for who looks at no marks; None of an empty one.

    Raises Broken: as `read`, and for the first value that is wrong.
    """
    documents = read(text, times=OWN)
    if len(documents) > 1:
        line, column = documents[1].at(())
        raise Broken(YamlProblem(line, column, "", "a second document begins", "write a file for each"))
    for document in documents:
        if document.problems:
            raise Broken(min(document.problems))
        return document.data
    return None


def _check(events: Iterator[Any], most_values: int) -> None:
    """Refuses what may not stand anywhere, before a tree is built from it."""
    depth = values = 0
    for event in events:
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _refused(mark, "anchors and aliases (& and *) are not read", "write the value out where it is needed")
        if getattr(event, "tag", None) is not None and event.tag != "!":
            raise _refused(mark, f"the tag {event.tag[:60]!r} is not read", "remove it")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
        if depth > MAX_DEPTH:
            raise _refused(mark, f"nested deeper than {MAX_DEPTH} levels", "flatten it")
        if values > most_values:
            raise _refused(mark, f"more than {most_values} values", "split the file")


def _refused(mark: Any, problem: str, fix: str) -> Broken:
    return Broken(YamlProblem(mark.line + 1, mark.column + 1, "", problem, fix))


def _document(root: Any) -> Document:
    document = Document(None, {})
    if root is not None:
        document.data = _value(root, (), document)
    return document


def _value(node: Any, path: Path, document: Document) -> Any:
    document.marks.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), document) for i, item in enumerate(node.value)]
    return _scalar(node, path, document)


def _mapping(node: Any, path: Path, document: Document) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
        if not isinstance(key_node, yaml.ScalarNode):
            document.problems.append(YamlProblem(line, column, dotted(path), "a key is not text", "use a plain name"))
            continue
        name = key_node.value
        here = (*path, name)
        if name in out:
            first = document.marks[here][0]
            text = f"the key stands twice, first in line {first}"
            document.problems.append(YamlProblem(line, column, dotted(here), text, "keep one"))
            continue
        document.marks[here] = (line, column)
        out[name] = _value(value_node, here, document)
    return out


def _scalar(node: Any, path: Path, document: Document) -> Any:
    kind, text = node.tag.rpartition(":")[2], node.value
    line, column = document.marks[path]
    if any(0xD800 <= ord(c) <= 0xDFFF or c == "\0" for c in text):
        document.problems.append(
            YamlProblem(line, column, dotted(path), "holds a NUL or half of a surrogate pair", "remove the character")
        )
        return ""
    if kind == "null":
        return None
    if kind in ("bool", "int", "float"):
        document.texts[path] = text
        value = _number(kind, text)
        if value is None:
            document.problems.append(
                YamlProblem(
                    line,
                    column,
                    dotted(path),
                    f"{text[:40]!r} is not a number that is read",
                    "write it in decimal, or quote it",
                )
            )
        return value
    return text  # timestamps and whatever else YAML knows stay text


def _number(kind: str, text: str) -> bool | int | float | None:
    """The value of a plain bool, int or float; None for forms that surprise people: 0777, 12:30, 0b1, 1_0, .inf."""
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    said = ungrouped(text)
    digits = said.lstrip("+-")
    if len(digits) > 40 or ":" in digits or "_" in digits:
        return None
    try:
        if kind == "int":
            return None if len(digits) > 1 and digits[0] == "0" else int(said)
        value = float(said)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def ungrouped(text: str) -> str:
    """A number without the underscores that stand before three digits: 3_590_000 is 3590000. No other is read."""
    return _GROUPED.sub("", text)


def dotted(path: Path) -> str:
    """`resources.types.0`."""
    return ".".join(str(part) for part in path)
