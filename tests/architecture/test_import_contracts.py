"""The arrows between the packages, kept by import-linter, and proof that its contracts would refuse a reversed one."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
SERVICES = [
    module.removeprefix("services.")
    for contract in CONTRACTS
    if contract["type"] == "independence"
    for module in contract["modules"]
]
PACKAGES = [
    package.strip()
    for contract in CONTRACTS
    if contract["name"].startswith("Nine packages")
    for layer in contract["layers"]
    for package in layer.split("|")
]
LIBS = sorted(path.parent.name for path in (ROOT / "libs").glob("*/__init__.py"))


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def skeleton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Baton's packages, empty, under Baton's contracts."""
    root = tmp_path_factory.mktemp("skeleton")
    shutil.copy(ROOT / "pyproject.toml", root)
    names = [
        "services",
        "libs",
        "schemas",
        *(f"services/{name}" for name in SERVICES),
        *(f"libs/{name}" for name in LIBS),
        *(f"libs/core/{name.removeprefix('libs.core.')}" for name in PACKAGES),
    ]
    for name in names:
        (root / name).mkdir()
        (root / name / "__init__.py").touch()
    return root


def test_every_arrow_points_inwards() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, f"\n{result.stdout}{result.stderr}"


def test_the_contracts_know_every_service() -> None:
    found = {path.parent.name for path in (ROOT / "services").glob("*/__init__.py")}
    assert found == set(SERVICES), "name a new service in the independence contract of pyproject.toml"


def test_the_contracts_know_every_package_of_the_core() -> None:
    found = {path.parent.name for path in (ROOT / "libs/core").glob("*/__init__.py")}
    assert found == {package.removeprefix("libs.core.") for package in PACKAGES}
    assert {path.name for path in (ROOT / "libs/core").glob("*.py")} == {"__init__.py"}, "put it into a package"


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("libs.core.state", "libs.core.placement"),
        ("libs.core.accelerators", "libs.core.state"),
        ("libs.core.placement", "libs.core.scheduling"),
        ("libs.core.placement", "libs.core.billing"),
        ("libs.core.admission", "libs.core.scheduling"),
        ("libs.core.scheduling", "libs.core.admission"),
        ("libs.core.scheduling", "libs.core.explain"),
        ("schemas", "libs.core"),
        ("schemas", "time"),
        ("libs.core", "asyncio"),
        ("libs.core", "nats"),
        ("libs.core", "libs.bus"),
        ("libs.core", "hypothesis"),
        ("libs.bus", "libs.ledger"),
        ("libs.bus", "libs.adapters"),
        ("libs.adapters", "libs.bus"),
        ("libs.ledger", "libs.service"),
        ("libs.service", "services.agent"),
        ("libs.service", "libs.cli"),
        ("services.agent", "services.history"),
        ("services.agent", "libs.client"),
        ("libs.client", "libs.core"),
        ("libs.cli", "services.agent"),
        ("libs.cli", "libs.adapters"),
        ("libs.embedded", "libs.bus"),
    ],
)
def test_a_planted_arrow_is_refused(skeleton: Path, module: str, target: str) -> None:
    planted = skeleton / module.replace(".", "/") / "planted.py"
    planted.write_text(f"import {target}\n")
    try:
        result = lint_imports(skeleton)
    finally:
        planted.unlink()
    assert result.returncode != 0
    assert f"{module}.planted -> {target}" in result.stdout


def test_the_arrows_that_are_wanted_are_allowed(skeleton: Path) -> None:
    wanted = {
        "libs/core": ("schemas", "numpy"),
        "libs/bus": ("libs.core", "nats"),
        "libs/ledger": ("libs.bus", "libs.adapters"),
        "libs/client": ("libs.bus", "schemas"),
        "libs/cli": ("libs.client", "libs.embedded", "libs.core", "libs.ledger", "libs.bus", "schemas"),
        "libs/embedded": ("schemas", "subprocess"),
        "services/agent": ("libs.service", "libs.ledger", "libs.adapters"),
    }
    for folder, targets in wanted.items():
        (skeleton / folder / "wanted.py").write_text("".join(f"import {target}\n" for target in targets))
    result = lint_imports(skeleton)
    assert result.returncode == 0, result.stdout
