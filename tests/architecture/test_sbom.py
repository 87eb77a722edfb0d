"""The SBOM of a release names everything that is installed, by version and hash, and is the same on every machine."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SBOM = runpy.run_path(str(ROOT / "deploy/sbom.py"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return dict(SBOM["document"]())


def test_every_pin_is_in_it_with_every_hash(document: dict[str, Any]) -> None:
    pinned = (ROOT / "requirements/base.txt").read_text()
    packages = [one for one in document["components"] if one["type"] == "library"]
    assert len(packages) == len(re.findall(r"^\S+==", pinned, re.MULTILINE))
    hashes = [r["hashes"][0]["content"] for one in packages for r in one["externalReferences"]]
    assert sorted(hashes) == sorted(re.findall(r"sha256:([0-9a-f]{64})", pinned))
    images = {service["image"] for service in yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()}
    containers = {f"{one['name']}:{one['version']}" for one in document["components"] if one["type"] == "container"}
    below = {
        line.split()[1] for line in (ROOT / "deploy/Dockerfile").read_text().splitlines() if line.startswith("FROM ")
    }
    assert below
    assert containers == images - {"baton:local"} | below


def test_what_is_asked_for_leads_to_everything(document: dict[str, Any]) -> None:
    """Each package is there because another needs it, down from Baton; else a pin is left over, or a name is wrong."""
    needs = {one["ref"]: one["dependsOn"] for one in document["dependencies"]}
    refs = {one["bom-ref"] for one in document["components"]}
    me = document["metadata"]["component"]["bom-ref"]
    assert {ref for some in needs.values() for ref in some} <= refs
    reached, todo = set[str](), [me]
    while todo:
        found = set(needs.get(todo.pop(), ())) - reached
        reached |= found
        todo += found
    here = {one["bom-ref"] for one in document["components"] if one["type"] == "library" and "properties" not in one}
    assert here <= reached


def test_it_is_the_same_each_time_and_valid_in_form(document: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "baton.cdx.json"
    subprocess.run([sys.executable, str(ROOT / "deploy/sbom.py"), str(out)], check=True, cwd=tmp_path)
    assert json.loads(out.read_text()) == document
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", document["serialNumber"])
    refs = [one["bom-ref"] for one in document["components"]]
    assert len(refs) == len(set(refs))
    assert str(ROOT) not in out.read_text()


def test_what_is_no_pin_is_refused() -> None:
    for text in ("numpy>=2\n", "numpy==2.0\n", "-r other.txt\n"):
        with pytest.raises(SBOM["BadPins"], match=r"run `\./dev lock`"):
            SBOM["pins"](text)


def test_nothing_is_installed_without_its_hash() -> None:
    """What pins is pinned as well: who replaced it could pin what it liked."""
    texts = [(ROOT / name).read_text() for name in ("dev", "justfile", "deploy/Dockerfile")]
    installs = re.findall(r"pip (?:install|wheel|download)\b.*", "\n".join(texts))
    assert len(installs) >= 7
    assert [line for line in installs if "--require-hashes" not in line and "--no-deps" not in line] == []


def test_there_are_recipes_for_a_release_and_an_audit() -> None:
    recipes = (ROOT / "justfile").read_text()
    assert "deploy/sbom.py" in recipes
    assert "--require-hashes -r requirements/audit.txt" in recipes
    assert "pip-audit --strict --require-hashes" in recipes, "what the database does not know must not pass for sound"
