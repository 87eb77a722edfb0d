"""A job file: the fields of `schemas.jobs.JobSpec`, plus short forms, with every problem found at once and located.

    key: nightly-42            # your own name for the job: submitting the same file again is the same job
    team: research             # instead of --team
    secret: hf-token           # short for secrets: [{secret: hf-token}]; in env: HF_TOKEN: {secret: hf-token}
    gpus: H100:4@40GiB         # short for resources.types, devices and memory_mib; also inside resources
    resources: {memory: 40GiB} # short for memory_mib

Several documents in one file are several jobs. Nothing is submitted unless all of them are right.
"""

import difflib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from libs.cli.grammar import parse_duration, parse_gpus, parse_memory
from schemas.jobs import JobSpec
from schemas.reasons import details_of, reasons_of
from schemas.yamlfile import Broken, Document, Path, YamlProblem, dotted, read
from schemas.yamlmodel import in_yaml, model_in, no_flags_for_numbers, told

SHORT_FORMS = {"key": "", "team": "", "gpus": "", "memory": "resources", "secret": ""}
_USUAL_NAMES = {
    "args": "command", "class": "priority_class", "cmd": "command", "cpu": "cpu_milli", "cpus": "cpu_milli",
    "cpus_per_task": "cpu_milli", "cwd": "workdir", "entrypoint": "command", "environment": "env", "gpu": "gpus",
    "host_memory": "host_memory_mib", "mem": "memory", "nodeselector": "labels", "node_selector": "labels",
    "priority": "priority_class", "queue": "priority_class",
    "run": "command", "share": "share_milli", "time": "time_limit_s", "timeout": "time_limit_s", "type": "types",
    "workdir_path": "workdir", "working_dir": "workdir",
}  # fmt: skip
_MANIFEST = (
    "this is a Kubernetes manifest, and a job file has the job's own fields at its top, e.g. `command:` and `gpus: 1`"
)
_MESSAGE = (
    "this is a message (docs/submit-from-anywhere.md): put the fields of `job` at the top, and call client_key `key`"
)
_OTHER_FILES = {
    "apiVersion": _MANIFEST, "kind": _MANIFEST, "metadata": _MANIFEST, "spec": _MANIFEST,
    "client_key": _MESSAGE, "job": _MESSAGE,
    "jobs": "write each job as a document of its own, with a line `---` between two",
}  # fmt: skip
"""Top-level fields of files for other commands."""

_MAX_KEY = 256
_SHOWN = 50


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job of a file. `key` and `team` are empty if the file has none."""

    spec: JobSpec
    key: str = ""
    team: str = ""


class JobFileError(Exception):
    """The file is wrong. `problems` has all of them in file order; the text has a line for each."""

    def __init__(self, name: str, problems: Sequence[YamlProblem]) -> None:
        self.name = name
        self.problems = sorted(problems)
        lines = [_line(name, problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"{name}: and more problems; correct these first")
        super().__init__("\n".join(lines))


def read_jobs(text: str, name: str = "job file") -> list[JobRequest]:
    """The jobs of a YAML (or JSON) text.

    Raises JobFileError.
    """
    try:
        documents = read(text)
    except Broken as e:
        raise JobFileError(name, [e.problem]) from None
    if not documents:
        raise JobFileError(name, [YamlProblem(1, 1, "", "there is no job in it", "write at least `command: [...]`")])
    problems: list[YamlProblem] = []
    jobs = []
    for document in documents:
        job = _job(document)
        problems += document.problems
        if job is not None:
            jobs.append(job)
    if problems:
        raise JobFileError(name, problems)
    return jobs


def _job(document: Document) -> JobRequest | None:
    """The job of a document; problems are added to `document.problems`."""
    if not isinstance(document.data, dict):
        fix = "write e.g. `command: [python, train.py]`; several jobs are several documents with a line `---` between them"
        _tell(document, (), "a job is a mapping of fields", fix)
        return None
    data = document.data
    _as_text(document)
    key = _word(document, data, "key", _MAX_KEY)
    team = _word(document, data, "team", 63)
    _short_forms(document, data)
    no_flags_for_numbers(document, data, JobSpec, ())
    try:
        spec = JobSpec.model_validate(data)
    except ValidationError as e:
        known = {problem.field for problem in document.problems}
        for reason, detail in zip(reasons_of(e, model=JobSpec), details_of(e), strict=False):
            path, unknown = tuple(detail["loc"]), detail["type"] == "extra_forbidden"
            if dotted(path) in known:
                continue
            fix = _nearest(path) if unknown else _in_its_unit(path, detail.get("input")) or reason.fix
            problem = reason.problem if unknown else told(reason, detail)
            _tell(document, path, in_yaml(problem), in_yaml(fix.replace("JSON object", _mapping_at(path))))
        return None
    return JobRequest(spec, key, team)


def _in_its_unit(path: Path, value: Any) -> str:
    """The fix for an amount in another unit than the field's name says; empty for anything else."""
    name = str(path[-1]) if path else ""
    with suppress(ValueError):
        if isinstance(value, str) and name.endswith("_s"):
            return f"write it in seconds: {parse_duration(value):g}"
        if isinstance(value, str) and name.endswith("_mib"):
            return f"write it in MiB: {parse_memory(value)}"
        if isinstance(value, float) and name.endswith("_milli") and (milli := round(1000 * value)):
            return f"write it in thousandths: {milli}"
    return ""


def _mapping_at(path: Path) -> str:
    names = _names_at(path)
    return f"mapping of {', '.join(names)}" if names else "mapping"


def _as_text(document: Document) -> None:
    """Arguments, environment and labels are text whatever they look like: `--lr 0.10` stays 0.10, `on` stays on."""
    kept = set()
    for path, source in document.texts.items():
        texts = path[:-1] in (("command",), ("env",), ("resources", "labels"))
        if texts or path in _WORDS:
            _put(document.data, path, source)
            kept.add(dotted(path))
    document.problems = [problem for problem in document.problems if problem.field not in kept]


_WORDS = {("key",), ("team",), ("name",), ("pool",), ("gpus",), ("resources", "gpus"), ("resources", "memory")}


def _word(document: Document, data: dict[str, Any], name: str, limit: int) -> str:
    if name not in data:
        return ""
    value = data.pop(name)
    if not isinstance(value, str) or not 1 <= len(value) <= limit:
        _tell(document, (name,), f"not text of 1 to {limit} characters", "write a short name")
        return ""
    return value


def _secrets(data: dict[str, Any]) -> None:
    """Expands `secret: NAME`, a bare name in `secrets`, and `VARIABLE: {secret: NAME}` in `env`. The schema reports any
    other form."""
    uses = data.get("secrets", [])
    if not isinstance(uses, list):
        return
    found = [{"secret": use} if isinstance(use, str) else use for use in uses]
    if isinstance(data.get("secret"), str):
        found.append({"secret": data.pop("secret")})
    if isinstance(env := data.get("env"), dict):
        for name in [name for name, value in env.items() if isinstance(value, dict) and set(value) == {"secret"}]:
            found.append({"secret": env.pop(name)["secret"], "env": name})
    if found:
        data["secrets"] = found


def _short_forms(document: Document, data: dict[str, Any]) -> None:
    """Replaces `gpus`, `memory` and the short forms of `secrets` by the full fields."""
    _secrets(data)
    resources = data.get("resources", {})
    if not isinstance(resources, dict):
        data.pop("gpus", None)
        return
    sources = [(("gpus",), data), (("resources", "gpus"), resources)]
    given = [(path, holder.pop("gpus")) for path, holder in sources if "gpus" in holder]
    if len(given) > 1:
        _tell(document, ("gpus",), "gpus stands twice, here and in resources", "keep one")
    for path, value in given:
        gpus = _parsed(document, path, value, parse_gpus)
        if gpus is not None:
            _expand(document, path, resources, {"devices": gpus.devices})
            if gpus.types:
                _expand(document, path, resources, {"types": list(gpus.types)})
            if gpus.memory_mib:
                _expand(document, path, resources, {"memory_mib": gpus.memory_mib})
    if "memory" in resources:
        path = ("resources", "memory")
        memory = _parsed(document, path, resources.pop("memory"), parse_memory)
        if memory is not None:
            _expand(document, path, resources, {"memory_mib": memory})
    if resources:
        data["resources"] = resources


def _parsed(document: Document, path: Path, value: Any, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(value if isinstance(value, str) else repr(value))
    except ValueError as e:
        problem, _, fix = str(e).rpartition(": ")
        _tell(document, path, problem, fix)
        return None


def _expand(document: Document, path: Path, resources: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if name in resources:
            _tell(document, path, f"it says {name}, and resources.{name} is given as well", "keep one of the two")
        else:
            resources[name] = value
            document.marks.setdefault(("resources", name), document.at(path))


def _nearest(path: Path) -> str:
    """The fix for an unknown field: its likely name."""
    name, known = str(path[-1]), _names_at(path[:-1])
    if len(path) == 1 and name in _OTHER_FILES:
        return _OTHER_FILES[name]
    usual = _USUAL_NAMES.get(name.lower(), "")
    near = [usual] if usual in known else difflib.get_close_matches(name.lower(), known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    elsewhere = next((f"{place}.{usual or name}" for place in ("resources", "model", "checkpoint", "retry")
                      if (usual or name) in _names_at((place,))), "")  # fmt: skip
    if elsewhere:
        return f"did you mean {elsewhere!r}?"
    return f"remove it; known here: {', '.join(sorted(known))}"


def _names_at(path: Path) -> list[str]:
    model: type[BaseModel] | None = JobSpec
    for part in path:
        if isinstance(part, int):  # an item of a list has the names of all
            continue
        info = model.model_fields.get(part) if model else None
        model = model_in(info.annotation) if info else None
    if model is None:
        return []
    where = dotted(path)
    return [
        *model.model_fields,
        *(n for n, place in SHORT_FORMS.items() if place == where or (n == "gpus" and where == "resources")),
    ]


def _put(data: Any, path: Path, value: str) -> None:
    for part in path[:-1]:
        data = data[part]
    data[path[-1]] = value


def _tell(document: Document, path: Path, problem: str, fix: str) -> None:
    line, column = document.at(path)
    document.problems.append(YamlProblem(line, column, dotted(path), problem, fix))


def _line(name: str, problem: YamlProblem) -> str:
    field = f"{problem.field}: " if problem.field else ""
    return f"{name}:{problem.line}:{problem.column}: {field}{problem.problem}; {problem.fix}"
