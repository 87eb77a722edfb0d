"""Style, types and generated schemas as tests: `./dev test` is one command with one closing line."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns("__pycache__", ".*")


def python_m(*command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)  # mypy without its cache, on a busy machine
@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_the_code_is_in_shape(command: str) -> None:
    result = python_m(*command.split())
    assert result.returncode == 0, f"{command} (try `./dev fmt`)\n{result.stdout}{result.stderr}"


def test_generated_schemas_are_current(tmp_path: Path) -> None:
    for package in ("schemas", "libs"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=IGNORED)
    shutil.rmtree(tmp_path / "schemas/generated", ignore_errors=True)
    result = python_m("schemas.generate", folder=tmp_path)
    assert result.returncode == 0, result.stderr

    def files(root: Path) -> dict[str, bytes]:
        found = (path for path in (root / "schemas/generated").rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}

    fresh, committed = files(tmp_path), files(ROOT)
    assert fresh, "schemas.generate wrote nothing into schemas/generated"
    stale = sorted(name for name in fresh | committed if fresh.get(name) != committed.get(name))
    assert not stale, f"run `./dev schemas` and commit the result: {', '.join(stale)}"
