"""A YAML file that is one mapping, read as a model: every problem at once, with its line, its field and what to do."""

from collections.abc import Collection, Iterable
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from schemas.jobs import Reason
from schemas.reasons import clip, details_of, reasons_of
from schemas.yamlfile import Broken, Document, Path, YamlProblem, dotted, read

M = TypeVar("M", bound=BaseModel)
_VALUE = 64
"""Characters of a value are told."""


class WrongFile(Exception):
    """The file is wrong; `problems` are all that is, in its order. The text is one line for each."""

    def __init__(self, name: str, problems: Iterable[YamlProblem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(_line(name, problem) for problem in self.problems))


def _line(name: str, problem: YamlProblem) -> str:
    field = f"{problem.field}: " if problem.field else ""
    return f"{name}:{problem.line}: {field}{problem.problem}; {problem.fix}"


def read_model(
    text: str,
    name: str,
    model: type[M],
    wrong: type[WrongFile],
    fix: str,
    exact: Collection[str] = (),
    *,
    times: int = 1,
) -> tuple[Document, M]:
    """The file's only document, and what it says. The document's own problems are left to the caller, who finds more.

    Raises `wrong`.

    Args:
        fix: what to write, when it is no mapping.
        exact: fields whose numbers are read as the text that they are: 12.1 is no binary float.
        times: as of `yamlfile.read`.
    """
    try:
        documents = read(text, times=times)
    except Broken as e:
        raise wrong(name, [e.problem]) from None
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        raise wrong(name, [YamlProblem(1, 1, "file", "is not one mapping of fields", fix)])
    document = documents[0]
    no_flags_for_numbers(document, document.data, model, ())
    try:
        return document, model.model_validate(_as_written(document, exact))
    except ValidationError as e:
        found = [
            problem_at(document, tuple(detail["loc"]), in_yaml(told(reason, detail)), in_yaml(reason.fix))
            for reason, detail in zip(reasons_of(e, model=model), details_of(e), strict=False)
        ]
        known = {(p.line, p.field) for p in document.problems}
        more = [p for p in found if (p.line, p.field) not in known]
        raise wrong(name, [*document.problems, *more]) from None


def problem_at(document: Document, path: Path, problem: str, fix: str) -> YamlProblem:
    """What is wrong at `path`, or at the nearest thing around it that stands in the file."""
    line, column = document.at(path)
    return YamlProblem(line, column, dotted(path), problem, fix)


def in_yaml(text: str) -> str:
    """What is said of a message, said of a file."""
    return text.replace("JSON array", "list: [a, b]").replace("JSON object", "mapping").replace("send ", "write ")


def told(reason: Reason, detail: ErrorDetails) -> str:
    """The value and what is wrong with it; of a whole map or list its place says enough."""
    scalar = not isinstance(detail["input"], dict | list | tuple)
    return f"{clip(reason.value, _VALUE)}: {reason.problem}" if scalar and reason.value else reason.problem


def no_flags_for_numbers(document: Document, data: Any, model: type[BaseModel], path: Path) -> None:
    """`devices: yes` would become 1 device."""
    if isinstance(data, list):
        for number, item in enumerate(data):
            no_flags_for_numbers(document, item, model, (*path, number))
    if not isinstance(data, dict):
        return
    for name, info in model.model_fields.items():
        value, here = data.get(name), (*path, name)
        if (inner := model_in(info.annotation)) is not None:
            no_flags_for_numbers(document, value, inner, here)
        elif isinstance(value, bool) and info.annotation in (int, float):
            said = document.texts.get(here, value)
            document.problems.append(problem_at(document, here, f"{said} is not a number", "write a number"))
            del data[name]


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, or holds a list of."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _as_written(document: Document, exact: Collection[str]) -> Any:
    def walk(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, number)) for number, item in enumerate(value)]
        return document.texts.get(path, value) if path and path[-1] in exact else value

    return walk(document.data, ()) if exact else document.data
