"""The core and the language are pure: what they decide depends on their arguments alone.

That is why one and the same code serves the live services, the simulator, the fault tests and `explain`.
import-linter keeps the imports out; this test also sees calls (`datetime.now`, `uuid4`, `hash`) and teaches the fix.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = ("libs/core", "schemas")
SHELLS = {"schemas/generate.py"}  # writes the generated schemas: the only part that may touch files

_TIME = "take the time as an argument (microseconds since the epoch); the shell reads the broker's clock"
_CHANCE = "take the value or a seed as an argument; derive ids from their cause with uuid.uuid5"
_WORLD = "move it to libs/adapters, libs/bus or a service, and pass its result in"
_WORDS = "return what happened; the shell that called reports it"
_ORDER = "the hash of a str differs between processes; use hashlib or zlib.crc32"

# What is forbidden, each with everything below it, and what to do instead.
FIXES = {
    _TIME: "time sched datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today datetime.date.today",
    _CHANCE: "random secrets uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 numpy.random",
    _WORDS: "logging structlog prometheus_client warnings print",
    _WORLD: "os io open input socket subprocess threading multiprocessing asyncio concurrent signal tempfile shutil "
    "urllib.request http nats faststream redis valkey motor pymongo pynvml psutil uvicorn uvloop typer rich requests "
    "httpx aiohttp",
    _ORDER: "hash",
}
FORBIDDEN = {name: fix for fix, names in FIXES.items() for name in names.split()}
BUILTINS = {"print", "open", "input", "hash"}


def violations(source: str, path: str) -> list[str]:
    tree = ast.parse(source, path)
    local = dict(_imported(tree))
    allowed = {id(node) for node in _inside(tree, "__hash__")}
    found: dict[tuple[int, str], str] = {}
    for node in ast.walk(tree):
        for name in _mentioned(node, local):
            if name == "hash" and id(node) in allowed:
                continue
            rule = next((rule for rule in FORBIDDEN if name == rule or name.startswith(rule + ".")), None)
            if rule:
                found.setdefault((node.lineno, rule), f"{path}:{node.lineno}: uses {name}. Fix: {FORBIDDEN[rule]}.")
    return [found[key] for key in sorted(found)]


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Local name -> what it stands for, so that `from datetime import datetime as dt; dt.now()` is seen through."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _mentioned(node: ast.AST, local: dict[str, str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Attribute):
        dotted = _dotted(node, local)
        return [dotted] if dotted else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTINS - local.keys():
        return [node.func.id]
    return []


def _dotted(node: ast.expr, local: dict[str, str]) -> str | None:
    """`np.random.default_rng` -> `numpy.random.default_rng`; None when it doesn't start at an import."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, local)
        return f"{owner}.{node.attr}" if owner else None
    return local.get(node.id) if isinstance(node, ast.Name) else None


def _inside(tree: ast.AST, function: str) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            yield from ast.walk(node)


def pure_files() -> list[Path]:
    files = [path for folder in PURE for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if path.relative_to(ROOT).as_posix() not in SHELLS]


def test_the_core_and_the_language_are_pure() -> None:
    found = [
        line
        for path in pure_files()
        for line in violations(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]
    assert not found, "\n" + "\n".join(found)


def test_both_pure_packages_are_looked_at() -> None:
    seen = {path.relative_to(ROOT).as_posix().rsplit("/", 1)[0] for path in pure_files()}
    assert set(PURE) <= seen


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time", "time"),
        ("from time import monotonic", "time.monotonic"),
        ("import asyncio", "asyncio"),
        ("import os.path", "os.path"),
        ("import logging as log", "logging"),
        ("import random", "random"),
        ("from nats.aio.client import Client", "nats.aio.client.Client"),
        ("import redis.asyncio", "redis.asyncio"),
        ("from motor import motor_asyncio", "motor.motor_asyncio"),
        ("from uuid import uuid4", "uuid.uuid4"),
        ("import uuid\nx = uuid.uuid1()", "uuid.uuid1"),
        ("import datetime\nx = datetime.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime as dt\nx = dt.utcnow()", "datetime.datetime.utcnow"),
        ("from datetime import date\nx = date.today()", "datetime.date.today"),
        ("from datetime import datetime\nmake = datetime.now", "datetime.datetime.now"),
        ("import numpy as np\nx = np.random.default_rng()", "numpy.random.default_rng"),
        ("from numpy import random as chance", "numpy.random"),
        ("def f():\n    import time", "time"),
        ("x = open('file')", "open"),
        ("print('granted')", "print"),
        ("key = hash('a')", "hash"),
    ],
)
def test_a_planted_violation_is_found(source: str, name: str) -> None:
    found = violations(source, "libs/core/planted.py")
    line = len(source.splitlines())
    assert len(found) == 1, found
    assert found[0].startswith(f"libs/core/planted.py:{line}: uses {name}. Fix: ")


@pytest.mark.parametrize(
    "source",
    [
        "from uuid import UUID, uuid5",
        "import uuid\nx = uuid.uuid5(uuid.NAMESPACE_URL, 'a')",
        "from datetime import UTC, datetime\nx = datetime.fromtimestamp(0, UTC)",
        "import numpy as np\nx = np.zeros(3)",
        "from .clock import time\nx = time(1)",
        "def f(time, random):\n    return time.now() + random.choice()",
        "class A:\n    def __hash__(self) -> int:\n        return hash(('a', 1))",
        "import timeit_of_ours",
    ],
)
def test_what_is_pure_is_left_alone(source: str) -> None:
    assert violations(source, "libs/core/planted.py") == []
