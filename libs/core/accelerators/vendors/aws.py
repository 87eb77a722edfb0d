"""AWS Trainium and Inferentia: whole chips; a process counts the cores of its chips.

Chip i of a node has the cores [i*n, (i+1)*n), n as the catalogue's `visible_cores` says for the default logical core
setting (Trainium2 shows 4 of its 8). Sources: aws-neuron-sdk, Ray's neuron.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from libs.core.accelerators.catalog import Accelerator, find_model
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Device, Resources, Runtime


@dataclass(frozen=True, slots=True)
class Aws:
    name: str = "aws"
    runtimes: frozenset[Runtime] = frozenset({Runtime.NEURON})
    pci_vendors: tuple[str, ...] = ()
    refused: frozenset[str] = frozenset({"NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"})
    refused_prefixes: tuple[str, ...] = ()
    sharable: bool = False

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        """Cores in ascending runs, e.g. "0-3,8-11": the runtime takes them as a set."""
        cores = sorted(core for g in granted for core in _cores(g.device))
        runs = [[c for _, c in run] for _, run in groupby(enumerate(cores), lambda pair: pair[1] - pair[0])]
        return {"NEURON_RT_VISIBLE_CORES": ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)}

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.is_whole(wanted, model, "its cores should go to one process")
        yield from base.has_no_mig(wanted, model)
        yield from base.has_no_torus(wanted, model)

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        """0: the facts give NeuronLink's rate per chip, not per pair."""
        return base.link_or_host(model, linked)


def _cores(device: Device) -> range:
    """A model whose cores the catalogue doesn't know counts as one core: fewer visible than granted, never more."""
    known = find_model(device.model)
    count = (known.visible_cores if known else None) or 1
    return range(device.index * count, (device.index + 1) * count)
