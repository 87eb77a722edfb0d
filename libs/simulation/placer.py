"""`baton placer`: the placement engine behind a pipe, one JSON line in, one out, so that anyone can score it.

    {"type": "cluster", "nodes": [{"node", "cpu_milli", "memory_mib", "gpu", "model"}, ...], "workload": [...]}
    {"pod", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "prev"}   ->  {"node", "gpus"}
    {"type": "release", "pod", "node", "gpus"}

`workload` (optional: requests and their shares) is where the engine's learned mix starts. `prev` says what became of the
answer before: "rejected" gives its resources back. It is the engine of the live service and nothing else: requests become
shapes, nodes an inventory, and `find` decides; prices and values are brought up to date after each answer.
"""

import json
from collections.abc import Iterable
from typing import IO, Any

from libs.core.placement.answer import Placed
from libs.core.placement.find import find
from libs.core.placement.score.mix import Mix, kind_of
from libs.core.placement.score.scorer import Scorer
from libs.core.placement.view import Context, View
from libs.core.state.fleet import Fleet
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI, Device, Inventory, Level, Objective

_DEVICE_MIB = 1_000_000  # this protocol does not count device memory: a share takes its part of it
_FINE = 720_720
"""Parts that a unit of processors and memory is counted in, so that a request's total divides by up to 16 devices."""
_MOST = 10**12


class BadLine(ValueError):
    """A line that cannot be answered; the text names the field, the value and the fix."""


class Placer:
    """One cluster and what is placed on it."""

    def __init__(self, nodes: Iterable[dict[str, Any]], workload: Iterable[dict[str, Any]] = (), fast: bool = False):
        fleet = Fleet()
        for node in nodes:
            name, gpus = str(_given(node, "node")), _count(node, "gpu")
            model = str(node.get("model") or "GPU")
            devices = tuple(
                Device(id=f"gpu-{len(fleet.nodes)}-{i}", index=i, model=model, memory_mib=_DEVICE_MIB)
                for i in range(gpus)
            )
            if name in fleet.nodes:
                raise BadLine(f"nodes: {name!r} comes twice; node names are unique")
            fleet.join(Inventory.model_construct(**_EMPTY | {"node": name, "devices": devices}), 1)
            code = fleet.node_names.find(name)
            fleet.cpu_milli[code] = fleet.free_cpu[code] = _FINE * _count(node, "cpu_milli")
            fleet.host_mib[code] = fleet.free_host[code] = _FINE * _count(node, "memory_mib")
        self.scorer = Scorer(Mix.expecting((kind_of(_shape(entry)), _share(entry)) for entry in workload))
        fleet.scorer = self.scorer
        self.view = View.of(fleet)
        self.context = Context(fast=fast)
        self._placed: dict[str, list[tuple[Shape, Placed]]] = {}
        self._last = ""
        self.scorer.upkeep(self.view)

    def place(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        if request.get("prev") == "rejected" and self._last:
            self._give_back(self._last, -1)
        self._last = ""
        shape, pod = _shape(request), str(_given(request, "pod"))
        self.scorer.observe(shape)
        found = find(self.view, shape, context=self.context)
        if not isinstance(found, Placed):
            return {"node": None, "reason": found.reason.value}
        self._last = pod
        self._placed.setdefault(pod, []).append((shape, found))
        if shape.devices:
            self.view.take(found.rows, shape)
        else:
            self.view.take_processors(found.node, shape.cpu_milli, shape.host_mib)
        return self._answer(found)

    def release(self, told: dict[str, Any]) -> None:
        """Gives back what a pod holds, where it holds it; nothing when it holds nothing there. Of two pods of one name
        `node` and `gpus` tell which."""
        pod = str(_given(told, "pod"))
        held = [self._answer(found) for _, found in self._placed.get(pod, ())]
        where = {"node": str(told.get("node", "")), "gpus": told.get("gpus")}
        if where in held or (held and "node" not in told):
            self._give_back(pod, held.index(where) if where in held else -1)

    def _give_back(self, pod: str, which: int) -> None:
        shape, found = self._placed[pod].pop(which)
        if not self._placed[pod]:
            del self._placed[pod]
        if shape.devices:
            self.view.give_back(found.rows, shape)
        else:
            self.view.take_processors(found.node, -shape.cpu_milli, -shape.host_mib)

    def _answer(self, found: Placed) -> dict[str, Any]:
        fleet = self.view.fleet
        node = found.node if len(found.rows) == 0 else int(fleet.node[found.rows[0]])
        return {"node": fleet.node_names.names[node], "gpus": fleet.index[found.rows].tolist()}

    def upkeep(self) -> None:
        self.scorer.upkeep(self.view)


def serve(lines: Iterable[bytes], out: IO[bytes], err: IO[str], fast: bool = False) -> None:
    """Answers `lines` until they end. A request that cannot be read is answered with node null and the error; what asks
    for no answer (a cluster, a release) gets none."""
    placer: Placer | None = None
    for line in lines:
        if not line.strip():
            continue
        kind = ""
        try:
            told = json.loads(line)
            if not isinstance(told, dict):
                raise BadLine(f"a line must be a JSON object, not {type(told).__name__}")
            kind = str(told.get("type", ""))
            if kind == "cluster":
                placer = Placer(_listed(told, "nodes"), _listed(told, "workload") if told.get("workload") else (), fast)
                continue
            if placer is None:
                raise BadLine('the first line must be {"type": "cluster", "nodes": [...]}')
            if kind == "release":
                placer.release(told)
                placer.scorer.departed()
                continue
            answer = placer.place(told)
        except (ValueError, RecursionError) as e:
            print(f"baton placer: {e}", file=err)
            if kind in ("cluster", "release"):
                continue
            answer = {"node": None, "error": str(e)}
        out.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        out.flush()
        if placer is not None:
            placer.upkeep()


_EMPTY = {name: f.get_default(call_default_factory=True) for name, f in Inventory.model_fields.items()}


def _shape(request: dict[str, Any]) -> Shape:
    """A request of this protocol as the engine's: totals become amounts per device, rounded up."""
    devices = _count(request, "num_gpu")
    cpu, host = _FINE * _count(request, "cpu_milli"), _FINE * _count(request, "memory_mib", 0)
    milli = _count(request, "gpu_milli", 0) if devices else 0
    if devices and not 1 <= milli <= WHOLE_MILLI:
        raise BadLine(f"gpu_milli: {milli} is not within 1 and {WHOLE_MILLI}; ask for a share, or for whole GPUs")
    if devices > 1 and milli < WHOLE_MILLI:
        raise BadLine(f"gpu_milli: {milli} of each of {devices} GPUs; a share is of one GPU: set num_gpu to 1")
    per = max(devices, 1)
    return Shape(
        devices=devices,
        types=tuple(sorted(t for t in str(request.get("gpu_spec") or "").split("|") if t)) if devices else (),
        milli=milli,
        level=Level.NODE,
        required=True,
        cpu_milli=-(-cpu // per),
        host_mib=-(-host // per),
        objective=Objective.ANY.value,
    )


def _given(told: dict[str, Any], name: str) -> Any:
    if name not in told:
        raise BadLine(f"{name}: missing; add it")
    return told[name]


def _listed(told: dict[str, Any], name: str) -> list[dict[str, Any]]:
    entries = _given(told, name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadLine(f"{name}: must be a list of JSON objects")
    return entries


def _share(entry: dict[str, Any]) -> float:
    share = _given(entry, "share")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= _MOST:
        raise BadLine(f"share: {share!r} is not a number of at least 0")
    return float(share)


def _count(told: dict[str, Any], name: str, default: int | None = None) -> int:
    value = told.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise BadLine(f"{name}: {value!r} is not a whole number within 0 and {_MOST}")
    return value
