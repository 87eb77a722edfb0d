"""What a machine's CDI specs say of a device (Container Device Interface): the files in /dev and the variables that a process
needs for it. Vendors' tools write them where containers are used, e.g. `nvidia-ctk cdi generate`.

Read are `*.json` and `*.yaml` in /etc/cdi and /var/run/cdi; of one device that both describe, the latter counts. Edits for the
whole kind come with each of its devices. Taken are files in /dev that have the same path inside, and variables. What a spec
mounts (libraries, tools) jobs see where it lies below /usr, /opt or what the operator shows; hooks are the affair of container
runtimes.
"""

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

log = logging.getLogger("baton.devices")

FOLDERS = ("etc/cdi", "var/run/cdi")
"""The later counts."""
NVIDIA = "nvidia.com/gpu"
_BOARD = re.compile(r"/dev/nvidia\d+")
_LARGEST = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CdiEdits:
    """For processes that hold the devices."""

    files: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: "CdiEdits") -> "CdiEdits":
        return CdiEdits(
            tuple(dict.fromkeys(self.files + other.files)),
            tuple((dict(self.environment) | dict(other.environment)).items()),
        )


class CdiSpecs:
    """Those of the machine below `root`, read again when a file changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[Path, tuple[tuple[int, int], dict[tuple[str, str], CdiEdits]]] = {}

    def any(self) -> bool:
        """Whether the machine has specs at all."""
        return next(self._files(), None) is not None

    def edits(self, kind: str, names: Collection[str]) -> CdiEdits:
        """What is said of the devices of `kind` (`nvidia.com/gpu`) with these names; nothing where there are no specs."""
        known: dict[tuple[str, str], CdiEdits] = {}
        for path in self._files():
            known |= self._of(path)
        found = CdiEdits()
        for name in names:
            found += known.get((kind, name), CdiEdits())
        return found

    def of_gpu(self, names: Sequence[str], file: str) -> CdiEdits:
        """What the first of these names that has any edits is said to need. A spec that was written before cards were put in or
        out names another GPU's file than `file`, and is left out: it would open a stranger's GPU."""
        said = next(
            (found for name in names if name and (found := self.edits(NVIDIA, [name])) != CdiEdits()), CdiEdits()
        )
        boards = {one for one in said.files if _BOARD.fullmatch(one)}
        if boards <= {file}:
            return said
        log.warning(
            "a CDI spec gives %s the files %s, and it is %s: write the spec anew", names[0], sorted(boards), file
        )
        return CdiEdits()

    def _files(self) -> Iterator[Path]:
        for folder in FOLDERS:
            yield from sorted(p for p in (self._root / folder).glob("*") if p.suffix in (".json", ".yaml"))

    def _of(self, path: Path) -> dict[tuple[str, str], CdiEdits]:
        try:
            seen = path.stat()
            stamp = (seen.st_mtime_ns, seen.st_size)
            if path not in self._read or self._read[path][0] != stamp:
                self._read[path] = (stamp, _parsed(path) if seen.st_size <= _LARGEST else {})
        except OSError:
            return {}
        return self._read[path][1]


def _parsed(path: Path) -> dict[tuple[str, str], CdiEdits]:
    """By kind and name. A file that is no spec says nothing: it is the machine's, and no job may wait for its mending."""
    try:
        text = path.read_text()
        spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        shared = _edits(spec.get("containerEdits"))
        return {
            (str(spec["kind"]), str(one["name"])): shared + _edits(one.get("containerEdits")) for one in spec["devices"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as e:
        log.warning(
            "%s is no CDI spec (%s), and is left out", path, str(e).splitlines()[0] if str(e) else type(e).__name__
        )
        return {}


def _edits(said: Any) -> CdiEdits:
    said = said or {}
    nodes = [node for node in said.get("deviceNodes") or () if node.get("hostPath", node["path"]) == node["path"]]
    files = tuple(os.path.normpath(node["path"]) for node in nodes)
    pairs = [str(pair).partition("=") for pair in said.get("env") or ()]
    return CdiEdits(
        tuple(file for file in files if file.startswith("/dev/")), tuple((name, value) for name, _, value in pairs)
    )
