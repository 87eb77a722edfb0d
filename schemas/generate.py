"""Writes what is derived from the catalogue: JSON Schema, AsyncAPI and docs/messages.md.

    python -m schemas.generate            write them
    python -m schemas.generate --check    write nothing; exit 1 naming each file that is not what would be written

The output depends on schemas/*.py (and pydantic's pinned version) alone, so a difference in git is a change of the
contract and is reviewed as one.
"""

import argparse
import json
import sys
from pathlib import Path

from schemas import asyncapi, json_schema, messages_page

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "schemas/generated"


def wanted() -> dict[str, str]:
    """Path from the repository's root -> text, of everything that is generated."""
    files = {f"{GENERATED}/{type_}.json": _json(made) for type_, made in json_schema.documents().items()}
    files[f"{GENERATED}/asyncapi.json"] = _json(asyncapi.document())
    files["docs/messages.md"] = messages_page.page()
    return files


def stale(root: Path, files: dict[str, str]) -> list[str]:
    """What under `root` differs from `files`: missing, changed, or left over in schemas/generated."""
    present = {path.relative_to(root).as_posix() for path in (root / GENERATED).glob("*")}
    changed = {
        name
        for name, text in files.items()
        if not (root / name).is_file() or (root / name).read_bytes() != text.encode()
    }
    return sorted(changed | (present - files.keys()))


def write(root: Path, files: dict[str, str]) -> list[str]:
    """Brings `root` to `files` and returns what was changed."""
    names = stale(root, files)
    for name in names:
        path = root / name
        if name in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name].encode())
        else:
            path.unlink()
    return names


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m schemas.generate", description="Write the generated schemas.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail when something is not current")
    if parser.parse_args(arguments).check:
        names = stale(ROOT, wanted())
        for name in names:
            print(f"{name} is not current: run `./dev schemas` and commit the result", file=sys.stderr)
        return 1 if names else 0
    for name in write(ROOT, wanted()):
        print(f"wrote {name}")
    return 0


def _json(made: json_schema.Json) -> str:
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
