"""Writes tests/schemas/released.json: what every message accepts, as of a release. Later versions must accept it too.

    python -m tests.schemas.release

Run it when a release is made, or to record what was added since. It refuses to record something narrower: before the
first release, delete the file to start again; after it, make a new type (`...v2`) in a new file.
"""

import json
import sys
from pathlib import Path
from typing import Any

from schemas.json_schema import documents
from tests.schemas.compat import narrowed

FILE = Path(__file__).parent / "released.json"
WORDS = ("title", "description", "default", "examples", "$schema", "$id")


def released() -> dict[str, Any]:
    """Type -> the schema as it was released, without words."""
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def wordless(node: Any, table: bool = False) -> Any:
    """A schema without what does not decide whether a value is accepted. A `table` maps names of fields to schemas."""
    if isinstance(node, list):
        return [wordless(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: wordless(value, table=not table and key in ("properties", "$defs", "patternProperties"))
        for key, value in node.items()
        if table or key not in WORDS
    }


def problems() -> list[str]:
    """Where today's schemas refuse what a released one accepted."""
    now = documents()
    old = released()
    gone = [f"{type_} is gone" for type_ in old if type_ not in now]
    return gone + [f"{t}: {text}" for t in old if t in now for text in narrowed(old[t], now[t])]


def main() -> int:
    for problem in problems():
        print(problem, file=sys.stderr)
    if problems():
        return 1
    lines = [f"{json.dumps(type_)}: {json.dumps(wordless(made))}" for type_, made in sorted(documents().items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
