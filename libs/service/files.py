"""Files that people write for services: what is wrong in one is said at start, with its name, the place and the fix.

One variable names a file for every service that reads it. In earlier releases each had its own for the same file: that is read
where the one for all is not set, or a service would go on with what is shipped.
"""

from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from libs.core.admission.priority_class import PriorityClass
from libs.core.billing.pricing import Prices
from libs.core.placement.throughput import ThroughputBook, Throughputs
from schemas.base import Strict
from schemas.billing import PriceBook
from schemas.jobs import Reason
from schemas.reasons import reasons_of
from schemas.yamlfile import Broken, plain, text_of

PRICES_FILE = "BATON_PRICES_FILE"
CLASSES_FILE = "BATON_CLASSES_FILE"
TEAMS_FILE = "BATON_TEAMS_FILE"
THROUGHPUTS_FILE = "BATON_THROUGHPUTS_FILE"

_SHOWN = 60
"""Characters: a longer value is a part of the file that has been found by its name."""

M = TypeVar("M", bound=BaseModel)


class BadFile(ValueError):
    """A configuration file cannot be used; the text names file, place, problem and fix."""


class ClassesFile(Strict):
    """`deploy/classes.yaml`."""

    classes: tuple[PriorityClass, ...] = Field(min_length=1)


def read(path: Path, model: type[M], setting: str) -> M:
    """The file at `path` as a `model`. Raises BadFile; `setting` is the variable, or the option, that names another file."""
    try:
        with path.open(encoding="utf-8") as file:
            content = plain(text_of(file))
    except OSError as error:
        raise BadFile(f"{path} cannot be read ({error.strerror}): name another with {setting}") from None
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not UTF-8 text: {error}") from None
    except Broken as error:
        raise BadFile(f"{path}: {error}") from None
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise BadFile(f"{path}: {'; '.join(map(_line, reasons_of(error, model=model)))}") from None


def _line(reason: Reason) -> str:
    said = (
        "file" if reason.field == "(payload)" else reason.field,
        reason.value if len(reason.value) <= _SHOWN else "",
        reason.problem,
        reason.fix.replace("send ", "write "),
    )
    return ": ".join(filter(None, said))


def read_prices(path: Path, setting: str = PRICES_FILE) -> Prices:
    """A price book. Raises BadFile."""
    try:
        return Prices(read(path, PriceBook, setting))
    except BadFile:
        raise
    except ValueError as error:
        raise BadFile(f"{path}: {error}") from None


def read_throughputs(path: Path) -> Throughputs:
    """Measured rates. Raises BadFile."""
    return Throughputs(read(path, ThroughputBook, THROUGHPUTS_FILE).rows())


def read_classes(path: Path) -> dict[str, PriorityClass]:
    """Priority classes by name. Raises BadFile."""
    entries = read(path, ClassesFile, CLASSES_FILE).classes
    if len({entry.name for entry in entries}) < len(entries):
        raise BadFile(f"{path}: a class is named twice: {', '.join(entry.name for entry in entries)}")
    return {entry.name: entry for entry in entries}


def policy_version(*paths: Path | None) -> str:
    """Of the files that decide: the first 16 hex digits of the SHA-256 over all, one after the other; "" without any."""
    given = [path for path in paths if path is not None]
    return sha256(b"".join(path.read_bytes() for path in given)).hexdigest()[:16] if given else ""
