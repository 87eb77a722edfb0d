"""Which nodes this agent hosts: those of a simulated fleet, and this machine."""

import logging
from dataclasses import dataclass

import psutil

from libs.adapters.devices import DeviceLayer, NoDevices
from libs.adapters.devices.cpu import CpuLayer
from libs.adapters.devices.fleet import read_fleet
from libs.adapters.devices.nvml import NvmlLayer
from libs.adapters.devices.scan import ScannedLayer
from libs.adapters.devices.simulated import SimulatedLayer
from libs.adapters.devices.together import WithProcessors
from libs.bus.creds import speaker
from schemas.resources import NO_SHARING, SHARING, Inventory, Position
from services.agent.settings import AgentSettings, DeviceSource

log = logging.getLogger("baton.agent")

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Hosted:
    """A node's inventory and its device layer."""

    inventory: Inventory
    layer: DeviceLayer


def hosted(settings: AgentSettings) -> list[Hosted]:
    """All nodes of this agent. Raises FleetError, NoDevices, or ValueError when there is none, a name occurs twice, or
    the credential is another node's."""
    out = []
    if settings.fleet is not None:
        out = [
            Hosted(inventory, SimulatedLayer(inventory.devices, inventory.boards))
            for inventory in read_fleet(settings.fleet, settings.pool)
        ]
    layer = _layer(settings)
    if layer is not None:
        out.append(Hosted(_this_machine(settings, layer), layer))
    names = [node.inventory.node for node in out]
    if not names:
        raise ValueError(
            "this agent has no node: set BATON_AGENT_FLEET, or BATON_AGENT_DEVICES to auto, nvml, scan or cpu"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"BATON_AGENT_NODE is {settings.node!r}, which the fleet file names too; choose another")
    _check_credential(settings, names)
    return out


def _check_credential(settings: AgentSettings, names: list[str]) -> None:
    """Checks the credential's node, since the broker drops messages about any other node, and reports that in its log
    only. Raises ValueError."""
    if settings.nats_creds is None:
        return
    who, pool = speaker(settings.nats_creds), settings.pool
    if who == pool or names == [who.removeprefix(f"{pool}.")]:
        return
    make = f"node add {names[0]} --pool {pool}" if len(names) == 1 else f"credentials --pools {pool}"
    raise ValueError(
        f"the credential {settings.nats_creds} is that of {who!r}, and this agent is node {', '.join(names[:3])} of"
        f" pool {pool}: set BATON_POOL and BATON_AGENT_NODE (by default the host's name) to what it says, or make one that says"
        f" this: `baton {make}`"
    )


def _layer(settings: AgentSettings) -> DeviceLayer | None:
    match settings.devices:
        case DeviceSource.NVML:
            return _with_processors(settings, NvmlLayer(dynamic=settings.mig_dynamic))
        case DeviceSource.SCAN:
            return _with_processors(settings, ScannedLayer(settings.node))
        case DeviceSource.CPU:
            return CpuLayer(settings.node)
        case DeviceSource.AUTO if settings.fleet is None:
            for kind in (lambda: NvmlLayer(dynamic=settings.mig_dynamic), lambda: ScannedLayer(settings.node)):
                try:
                    layer: DeviceLayer = kind()
                    layer.discover()
                    return _with_processors(settings, layer)
                except NoDevices as e:
                    log.info("accelerators found: %s", e)
            return CpuLayer(settings.node)
    return None


def _with_processors(settings: AgentSettings, layer: DeviceLayer) -> DeviceLayer:
    return WithProcessors(layer, CpuLayer(settings.node)) if settings.processors else layer


def _this_machine(settings: AgentSettings, layer: DeviceLayer) -> Inventory:
    leaf, spine, zone = settings.position.split("/")
    return Inventory(
        node=settings.node,
        position=Position(leaf=leaf, spine=spine, zone=zone),
        devices=layer.discover(),
        boards=layer.boards(),
        cpus=psutil.cpu_count() or 1,
        memory_mib=psutil.virtual_memory().total // _MIB,
        labels=settings.labels | ({SHARING: NO_SHARING} if settings.sharing == "none" else {}),
        contents=settings.contents,
        fetch_mib_s=settings.fetch_mib_s,
        rack_power_w=settings.rack_power_w,
    )
