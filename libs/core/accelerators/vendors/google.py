"""Google Cloud TPU: whole chips, granted as boxes of a torus.

A slice is atomic: all its hosts run the program. Within a host 1, 2, 4 or 8 chips are one process's (Ray's TPU accelerator,
xpk, docs.cloud.google.com/tpu); `libs.core.accelerators.vendors.tpu_boxes` says which boxes are legal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator, tpu_generations
from libs.core.accelerators.vendors import base, tpu_boxes
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Resources, Runtime

_BOUNDS = {1: "1,1,1", 2: "1,2,1"}
"""Chips of a process that has not its whole host."""


@dataclass(frozen=True, slots=True)
class Google:
    name: str = "google"
    runtimes: frozenset[Runtime] = frozenset({Runtime.TPU})
    pci_vendors: tuple[str, ...] = ("1ae0",)
    refused: frozenset[str] = frozenset(
        {"TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS"}
    )
    refused_prefixes: tuple[str, ...] = ()
    sharable: bool = False

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        """One or two chips of a host are told their bounds; a whole host learns its own from the machine."""
        out = {"TPU_VISIBLE_CHIPS": base.indices(granted)}
        if bounds := _BOUNDS.get(len(granted)):
            out |= {"TPU_CHIPS_PER_HOST_BOUNDS": bounds, "TPU_HOST_BOUNDS": "1,1,1"}
        return out

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.is_whole(wanted, model, "one process owns a TPU chip")
        yield from base.has_no_mig(wanted, model)
        generation = tpu_generations()[model.model]
        near = " or ".join(tpu_boxes.text(box) for box in tpu_boxes.nearest(generation, wanted.devices))
        if wanted.torus and not tpu_boxes.legal(generation, wanted.torus):
            order = generation.dims == len(wanted.torus) and tpu_boxes.legal(generation, tuple(sorted(wanted.torus)))
            why = "names its sides in ascending order" if order else "has no slice of this box"
            fix = tpu_boxes.text(tuple(sorted(wanted.torus))) if order else near
            yield RequestProblem(
                "torus", tpu_boxes.text(wanted.torus), f"TPU {model.model} {why}", f"set torus to {fix}"
            )
        if not wanted.torus and not wanted.roles and wanted.devices > 1:
            yield RequestProblem(
                "torus", "[]", f"{wanted.devices} chips of TPU {model.model} are a box of its torus, and none is named",
                f"set torus to {near} instead of devices",
            )  # fmt: skip
        if wanted.min_devices is not None:
            yield RequestProblem(
                "min_devices", str(wanted.min_devices), "a TPU slice is atomic: all its hosts run the program",
                "leave min_devices out",
            )  # fmt: skip

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        """One link of the torus; the rate of a chip is that of all its four or six links together."""
        return base.link_or_host(model, linked)
