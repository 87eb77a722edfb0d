"""Writes what a release consists of as a CycloneDX 1.6 document: Baton, every pinned package with the hashes of its files, and
the images of compose.yaml, and the one that ours stands on.

    python deploy/sbom.py dist/baton.cdx.json

It is made of the pins alone (`requirements/base.txt`), which are what is installed, so the same tree gives the same document on
every machine. Who needs whom, and licences, are told by the packages that are installed here, if they are.
"""

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>[^ ;\\]+)\s*(?:;\s*(?P<marker>[^\\]*?))?\s*\\?$"
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_IMAGE = re.compile(r"^\s+image:\s*(\S+)", re.MULTILINE)
_FROM = re.compile(r"^FROM (\S+)", re.MULTILINE)
_OURS = "baton:local"


class BadPins(ValueError):
    """A line of the requirements is no pin, or one has no hash."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One line of the requirements. `marker`: where it is installed; empty: everywhere."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def pins(text: str) -> list[Pin]:
    """Of a file as `./dev lock` writes it. Raises BadPins."""
    found: list[Pin] = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        head, hashes = _PIN.match(block.splitlines()[0]), tuple(_HASH.findall(block))
        if head is None or not hashes:
            raise BadPins(f"{block.splitlines()[0]!r} is no pin with hashes: run `./dev lock`")
        found.append(Pin(canonical(head["name"]), head["version"], (head["marker"] or "").strip(), hashes))
    return found


def canonical(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def direct(text: str) -> set[str]:
    """The names that requirements/base.in asks for."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return {canonical(found[0]) for line in lines if line and (found := _NAME.match(line))}


def document(root: Path = ROOT) -> dict[str, Any]:
    """The whole document. Raises BadPins."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    known = pins((root / "requirements/base.txt").read_text())
    by_name: dict[str, list[Pin]] = {}
    for pin in known:
        by_name.setdefault(pin.name, []).append(pin)
    asked = direct((root / "requirements/base.in").read_text())
    me = f"pkg:pypi/{project['name']}@{project['version']}"
    below = _FROM.findall((root / "deploy/Dockerfile").read_text())  # what our own image stands on
    images = sorted({*_IMAGE.findall((root / "compose.yaml").read_text()), *below} - {_OURS})
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": me,
                "name": project["name"],
                "version": project["version"],
                "purl": me,
            }
        },
        "components": [*map(_package, known), *map(_image, images)],
        "dependencies": [
            {"ref": me, "dependsOn": sorted(pin.purl for name in asked for pin in by_name[name])},
            *(_needs(pin, by_name) for pin in known),
        ],
    }
    name = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return {**body, "serialNumber": f"urn:uuid:{name}"}


def _package(pin: Pin) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "purl": pin.purl,
        # One for each file that may be installed: a wheel for each platform, and the source.
        "externalReferences": [
            {"type": "distribution", "url": pin.purl, "hashes": [{"alg": "SHA-256", "content": one}]}
            for one in pin.hashes
        ],
    }
    if pin.marker:
        made["properties"] = [{"name": "python:marker", "value": pin.marker}]
    if (about := _installed(pin)) is not None and (licence := about.get("License-Expression")):
        made["licenses"] = [{"expression": licence}]
    return made


def _image(image: str) -> dict[str, Any]:
    name, _, tag = image.rpartition(":")
    purl = f"pkg:docker/{name}@{tag}"
    return {"type": "container", "bom-ref": purl, "name": name, "version": tag, "purl": purl}


def _needs(pin: Pin, by_name: Mapping[str, list[Pin]]) -> dict[str, Any]:
    about = _installed(pin)
    asked = set(_names(about.get_all("Requires-Dist") or ())) if about is not None else set()
    return {
        "ref": pin.purl,
        "dependsOn": sorted(one.purl for name in asked if name in by_name for one in by_name[name]),
    }


def _names(lines: Any) -> Iterator[str]:
    """What is needed in any case, not with an extra."""
    for line in lines:
        if "extra ==" not in line and (found := _NAME.match(line)):
            yield canonical(found[0])


def _installed(pin: Pin) -> Any:
    """What the package says about itself; None where it is not installed in this version."""
    try:
        about = metadata.metadata(pin.name)
    except metadata.PackageNotFoundError:
        return None
    return about if about["Version"] == pin.version else None


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document(), indent=1) + "\n")
