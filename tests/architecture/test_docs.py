"""What the pages name exists: files, modules, commands and their options, recipes, settings, metrics."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from pydantic_settings import BaseSettings

from libs.cli import main
from libs.cli.main import COMMANDS
from libs.service.settings import ServiceSettings

ROOT = Path(__file__).parents[2]
_DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "libs").rglob("*.md"))
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in _DOCUMENTS)
TOPS = ("services", "libs", "schemas", "deploy", "tests", "docs", "benchmarks", "examples", "requirements")
_PATH = re.compile(rf"(?<![\w./-])(?:\.\./)*((?:{'|'.join(TOPS)})/[\w./*{{}},-]*[\w*}}])")
_MODULE = re.compile(r"(?<![\w./-])((?:services|libs|schemas|benchmarks)(?:\.\w+)+)")
_LINK = re.compile(r"\]\(([^)#:\[\s]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.S)
_SETTING = re.compile(r"\bBATON_[A-Z0-9_]*[A-Z0-9]\b")
_METRIC = re.compile(
    r"\bbaton_[a-z0-9_]+\b"
    r"|\b(?:gpu|scheduling|queue_wait|preemption|ledger)(?:_[a-z]+)*_(?:pct|ms|mib|w|c|records|bucket)\b"
)
load = cache(main.load)
_SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created", "")


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def code_of(page: str) -> Iterator[str]:
    """Every line of code that a page shows, in blocks and in sentences."""
    for block, words in _CODE.findall(text_of(page)):
        yield from (block or words).replace("\\\n", " ").splitlines()


@cache
def constants() -> frozenset[str]:
    """Every string in the code: names of metrics and of variables are among them."""
    found: set[str] = set()
    for top in ("libs", "services", "schemas", "examples"):
        for path in (ROOT / top).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            found.update(n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return frozenset(found)


@cache
def settings() -> frozenset[str]:
    """Every environment variable that a service reads."""
    for path in (ROOT / "services").glob("*/settings.py"):
        import_module(f"services.{path.parent.name}.settings")
    found: set[str] = set()
    kinds: list[type[BaseSettings]] = [ServiceSettings]
    for kind in kinds:
        kinds += kind.__subclasses__()
        prefix = kind.model_config.get("env_prefix", "")
        found.update(f"{prefix}{name}".upper() for name in kind.model_fields)
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_links_lead_somewhere(page: str) -> None:
    gone = [path for path in _PATH.findall(text_of(page)) if not list(ROOT.glob(path.rstrip("/")))]
    gone += [link for link in _LINK.findall(text_of(page)) if not (ROOT / page).parent.joinpath(link).exists()]
    assert gone == []


@pytest.mark.parametrize("page", PAGES)
def test_modules_and_what_they_define_exist(page: str) -> None:
    assert [name for name in _MODULE.findall(text_of(page)) if not name.endswith(".py") and not defined(name)] == []


def defined(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module has."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:n])
        if path.is_dir() or path.with_suffix(".py").is_file():
            break
    else:
        return False
    if n == len(parts):
        return True
    owner: object = import_module(".".join(parts[:n]))
    for part in parts[n:]:
        if not hasattr(owner, part) and part not in getattr(owner, "__annotations__", {}):
            return False
        owner = getattr(owner, part, None)
    return True


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(page: str) -> None:
    assert [f"{line}: {wrong}" for line in code_of(page) if (wrong := unknown_in(line))] == []


def unknown_in(line: str) -> str:
    """The first word of a `baton` or `./dev` command line that does not exist; "" when all do."""
    line = line.split(" #")[0].split("|")[0].split(";")[0].split("&&")[0].strip().removeprefix("$ ")
    try:
        words = shlex.split(line)
    except ValueError:
        return ""
    if words[:1] == ["./dev"] and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]):
        return "" if re.search(rf"^{re.escape(words[1])}\b.*:", (ROOT / "justfile").read_text(), re.M) else words[1]
    if "-m" in words and words[0] in ("python", "python3") and "." in words[words.index("-m") + 1]:
        module = words[words.index("-m") + 1]
        return "" if defined(module) else module
    if words[:1] != ["baton"] or len(words) == 1:
        return ""
    name, words = words[1].rstrip(",.:"), words[2:]
    if not re.fullmatch(r"[a-z][a-z-]*", name):
        return ""
    if name not in COMMANDS:
        return name
    here = load(COMMANDS[name].module)
    while (inner := getattr(here, "commands", {})) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        if words[0] not in inner:
            return words[0]
        here, words = inner[words[0]], words[1:]
    known = {option for param in here.params for option in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    for word in words:
        if word == "--":
            break
        option = word.split("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            return option
    return ""


def test_commands_that_messages_advise_exist() -> None:
    advised = {words for text in constants() for words in re.findall(r"`(baton [^`{]+)`", text)}
    assert {line: wrong for line in advised if (wrong := unknown_in(line))} == {}


@pytest.mark.parametrize("page", PAGES)
def test_settings_exist(page: str) -> None:
    known = settings() | constants()
    text = " ".join(constants())
    wrong = {name for name in _SETTING.findall(text_of(page)) if name not in known and name not in text}
    assert wrong == set()


@pytest.mark.parametrize("page", PAGES)
def test_metrics_exist(page: str) -> None:
    metrics = {name for line in code_of(page) for name in _METRIC.findall(line) if line.strip() == name}
    assert {name for name in metrics if not metric(name)} == set()


def test_the_board_and_the_alerts_ask_for_metrics_that_exist() -> None:
    board = json.loads((ROOT / "deploy/grafana/dashboards/baton.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    names = {name for expression in asked for name in _METRIC.findall(expression)}
    assert {name for name in names if not metric(name)} == set()
    headline = {
        "gpu_utilization_pct",
        "queue_wait_time_ms_bucket",
        "scheduling_latency_ms_bucket",
        "preemption_rate_pct",
    }
    on_board = {name for panel in board["panels"] for t in panel["targets"] for name in _METRIC.findall(t["expr"])}
    assert headline <= on_board, "the four headline metrics are on the board"
    money = {"baton_cost_total", "container_gpu_allocation", "baton_budget_spent", "baton_budget_available"}
    assert {name for name in money if not any(name in expression for expression in asked)} == set(), (
        "money is on the board, and what is left of budgets"
    )


def metric(name: str) -> bool:
    """Whether the code exports a metric of this name, or a series of it."""
    bases = [name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)]
    if any(base in constants() for base in bases):
        return True
    return any(base.startswith("baton_agent_") and base.removeprefix("baton_agent_") in constants() for base in bases)


def test_the_checks_see_what_is_wrong() -> None:
    assert unknown_in("baton nodes") == "nodes"
    assert unknown_in("baton get jobs --colour") == "--colour"
    assert unknown_in("baton get jobs -o wide") == ""
    assert unknown_in("./dev nonsense") == "nonsense"
    assert not defined("libs.core.cycle")
    assert not metric("baton_made_up_total")
