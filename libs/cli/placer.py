"""`baton placer`: the placement engine behind a pipe, one JSON line in, one out, so that anyone can score it.

    {"type": "cluster", "nodes": [{"node", "cpu_milli", "memory_mib", "gpu", "model"}, ...], "workload": [...]}
    {"pod", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "prev"}   ->  {"node", "gpus"}
    {"type": "release", "pod", "node", "gpus"}

`workload` (optional: requests and their shares) is where the engine's learned mix starts. `prev` says what became of the
answer before: "rejected" gives its resources back. It is the engine of the live service and nothing else: requests become
shapes, nodes an inventory, and `find` decides; prices and values are brought up to date after each answer.
"""

import json
import sys
from collections.abc import Iterable
from typing import IO, Any

from libs.core.fleet import Fleet
from libs.core.model import Shape
from libs.core.placement import Context, Placed, View, find
from libs.core.placement.mix import Mix, kind_of
from libs.core.placement.score import Scorer
from schemas.resources import WHOLE_MILLI, Device, Inventory, Objective

_DEVICE_MIB = 1_000_000  # this protocol does not count device memory: a share takes its part of it


class Malformed(ValueError):
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
                raise Malformed(f"nodes: {name!r} comes twice; node names are unique")
            fleet.join(Inventory.model_construct(**_EMPTY | {"node": name, "devices": devices}), 1)
            code = fleet.node_names.find(name)
            fleet.cpu_milli[code] = fleet.free_cpu[code] = _count(node, "cpu_milli")
            fleet.host_mib[code] = fleet.free_host[code] = _count(node, "memory_mib")
        self.scorer = Scorer(Mix.expecting((kind_of(_shape(entry)), float(entry["share"])) for entry in workload))
        fleet.scorer = self.scorer
        self.view = View.of(fleet)
        self.context = Context(fast=fast)
        self._placed: dict[str, tuple[Shape, Placed]] = {}
        self._last = ""
        self.scorer.upkeep(self.view)

    def place(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        if request.get("prev") == "rejected":
            self.release(self._last)
        shape, pod = _shape(request), str(_given(request, "pod"))
        self.scorer.observe(shape)
        found = find(self.view, shape, context=self.context)
        self._last = pod
        if not isinstance(found, Placed):
            self._last = ""
            return {"node": None, "reason": found.reason.value}
        self._placed[pod] = (shape, found)
        fleet = self.view.fleet
        if not shape.devices:
            self.view.take_processors(found.node, shape.cpu_milli, shape.host_mib)
            return {"node": fleet.node_names.names[found.node], "gpus": []}
        self.view.take(found.rows, shape)
        node = fleet.node_names.names[int(fleet.node[found.rows[0]])]
        return {"node": node, "gpus": fleet.index[found.rows].tolist()}

    def release(self, pod: str) -> None:
        """Gives back what `pod` holds; nothing when it holds nothing."""
        shape, found = self._placed.pop(pod, (None, None))
        if shape is None or found is None:
            return
        if shape.devices:
            self.view.give_back(found.rows, shape)
        else:
            self.view.take_processors(found.node, -shape.cpu_milli, -shape.host_mib)

    def upkeep(self) -> None:
        self.scorer.upkeep(self.view)


def serve(lines: Iterable[bytes], out: IO[bytes], err: IO[str], fast: bool = False) -> None:
    """Answers `lines` until they end. A line that cannot be read is answered with node null and the error."""
    placer: Placer | None = None
    for line in lines:
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            if not isinstance(told, dict):
                raise Malformed(f"a line must be a JSON object, not {type(told).__name__}")
            if told.get("type") == "cluster":
                placer = Placer(_given(told, "nodes"), told.get("workload") or (), fast)
                continue
            if placer is None:
                raise Malformed('the first line must be {"type": "cluster", "nodes": [...]}')
            if told.get("type") == "release":
                placer.release(str(_given(told, "pod")))
                placer.scorer.departed()
                continue
            answer = placer.place(told)
        except ValueError as e:
            print(f"baton placer: {e}", file=err)
            answer = {"node": None, "error": str(e)}
        out.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        out.flush()
        if placer is not None:
            placer.upkeep()


def command(fast: bool = False) -> None:
    """Reads a cluster and requests from stdin, answers on stdout. --fast: the first good fit, as for serving classes."""
    serve(sys.stdin.buffer, sys.stdout.buffer, sys.stderr, fast)


_EMPTY = {name: f.get_default(call_default_factory=True) for name, f in Inventory.model_fields.items()}


def _shape(request: dict[str, Any]) -> Shape:
    """A request of this protocol as the engine's: totals become amounts per device, rounded up."""
    devices, cpu, host = _count(request, "num_gpu"), _count(request, "cpu_milli"), _count(request, "memory_mib", 0)
    milli = _count(request, "gpu_milli", 0) if devices else 0
    if devices and not 1 <= milli <= WHOLE_MILLI:
        raise Malformed(f"gpu_milli: {milli} is not within 1 and {WHOLE_MILLI}; ask for a share, or for whole GPUs")
    if devices > 1 and milli < WHOLE_MILLI:
        raise Malformed(f"gpu_milli: {milli} of each of {devices} GPUs; a share is of one GPU: set num_gpu to 1")
    per = max(devices, 1)
    return Shape(
        devices=devices,
        types=tuple(sorted(t for t in str(request.get("gpu_spec") or "").split("|") if t)) if devices else (),
        milli=milli,
        level="node",
        required=True,
        cpu_milli=-(-cpu // per),
        host_mib=-(-host // per),
        objective=Objective.ANY.value,
    )


def _given(told: dict[str, Any], name: str) -> Any:
    if name not in told:
        raise Malformed(f"{name}: missing; add it")
    return told[name]


def _count(told: dict[str, Any], name: str, default: int | None = None) -> int:
    value = told.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Malformed(f"{name}: {value!r} is not a whole number of at least 0")
    return value
