"""The repository: one command that works from nothing, versions that are pinned, one image with every service in it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXECUTABLE = ("dev", ".ci/run")
REQUIREMENTS = ("base", "build", "dev", "audit")


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_dev_is_posix_shell(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    assert subprocess.run([shell, "-n", "dev"], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", EXECUTABLE)
def test_scripts_are_executable(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK), f"chmod +x {name}"
    mode = subprocess.run(["git", "ls-files", "-s", name], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not mode or mode.startswith("100755"), f"git update-index --chmod=+x {name}"


def test_dev_says_what_is_missing(tmp_path: Path) -> None:
    shutil.copy(ROOT / "dev", tmp_path)
    environment = {"PATH": os.environ["PATH"], "PYTHON": "false"}
    result = subprocess.run(["./dev"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "no Python >= 3.11 among: false" in result.stderr
    assert "PYTHON=" in result.stderr


def test_dev_takes_the_quickest_build_of_a_python(tmp_path: Path) -> None:
    """The first that it finds can make no .venv, the second takes long for what a processor does in some ms, and so does the
    third at first, as on a busy machine."""
    shutil.copy(ROOT / "dev", tmp_path)
    busy_at_first = '[ -e "$0.met" ] || { : >"$0.met"; echo 1000000; exit; }'
    for name, when_measured in (("unfit", "exit 1"), ("slow", "echo 1000000; exit"), ("quick", busy_at_first)):
        build = tmp_path / name / "python3.11"
        build.parent.mkdir()
        measured = f'if [ "$*" = - ]; then {when_measured}; fi\n'
        making = f'case "$*" in *venv*) echo {name} >&2; exit 1;; esac\n'
        build.write_text(f"#!/bin/sh\n{measured}{making}exec '{sys.executable}' \"$@\"\n")
        build.chmod(0o755)
    for tool in ("dirname", "cat", "rm"):
        (tmp_path / "quick" / tool).symlink_to(str(shutil.which(tool)))
    environment = {"PATH": os.pathsep.join(str(tmp_path / name) for name in ("unfit", "slow", "quick"))}
    result = subprocess.run(["./dev"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[-1] == "quick"


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_version_is_pinned_with_hashes(name: str) -> None:
    text = (ROOT / f"requirements/{name}.txt").read_text()
    entries = [entry for entry in re.sub(r"\\\n", " ", text).splitlines() if entry.strip()]
    shape = re.compile(r"[a-z0-9-]+==[^\s;]+(\s*;.*?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*")
    loose = [entry[:60] for entry in entries if not shape.fullmatch(entry)]
    assert entries
    assert not loose, f"{loose}: run `./dev lock`"


def test_pin_files_agree() -> None:
    seen: dict[str, set[str]] = {}
    for name in REQUIREMENTS:
        text = (ROOT / f"requirements/{name}.txt").read_text()
        for package, version in re.findall(r"^([a-z0-9-]+)==(\S+) *\\$", text, re.MULTILINE):
            seen.setdefault(package, set()).add(version)
    assert {package: versions for package, versions in seen.items() if len(versions) > 1} == {}


def test_pyproject_asks_for_what_is_pinned() -> None:
    lines = (line.split(" #")[0].strip() for line in (ROOT / "requirements/base.in").read_text().splitlines())
    pinned = {line for line in lines if line and not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["dependencies"]) == pinned, "requirements/base.in and pyproject.toml name the same ranges"


def test_continuous_integration_runs_what_developers_run() -> None:
    assert './dev test "$@"' in (ROOT / ".ci/run").read_text()


def test_compose_runs_every_service() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    commands = {" ".join(service.get("command") or []) for service in services.values()}
    names = sorted(path.parent.name for path in (ROOT / "services").glob("*/__main__.py"))
    assert [name for name in names if f"-m services.{name}" not in commands] == []
    waits = {target for service in services.values() for target in service.get("depends_on", {})}
    assert waits <= services.keys()
    every = [mount for service in services.values() for mount in service.get("volumes", [])]
    mounts = [mount.split(":")[0] for mount in every if isinstance(mount, str)]
    assert [mount for mount in mounts if mount.startswith("./") and not (ROOT / mount).exists()] == []
