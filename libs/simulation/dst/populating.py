"""The world of a scenario: its machines, and the services with the settings that it draws."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from libs.adapters.devices.fleet import parse_fleet
from libs.core.admission.priority_class import DEFAULT_CLASSES, PriorityClass
from libs.simulation.dst.agents import AgentService
from libs.simulation.dst.archives import Archivist, SimArchive
from libs.simulation.dst.machine import KILL_BOUND_S, Machine
from libs.simulation.dst.older import OlderReader
from libs.simulation.dst.process import Process
from libs.simulation.dst.scenario import DEVICES, KEPT, LEASES, POOL, LeaseLengths, Scenario
from libs.simulation.dst.secrecy import key_file
from libs.simulation.dst.world import World
from schemas.resources import Device, Inventory, MigBoard, Position
from services.admission.app import make_app as make_admission
from services.admission.settings import AdmissionSettings
from services.agent.settings import AgentSettings
from services.history.app import make_app as make_history
from services.history.settings import HistorySettings
from services.leases.app import make_app as make_leases
from services.leases.settings import LeaseSettings
from services.placement.app import make_app as make_placement
from services.placement.settings import PlacementSettings
from services.preemption.app import make_app as make_preemption
from services.preemption.settings import PreemptionSettings
from services.queries.app import make_app as make_queries
from services.queries.settings import QueriesSettings
from services.quota_billing.app import make_app as make_quota_billing
from services.quota_billing.settings import QuotaBillingSettings
from services.telemetry.app import make_app as make_telemetry
from services.telemetry.settings import TelemetrySettings
from services.vault.app import make_app as make_vault
from services.vault.settings import VaultSettings

_MIB = 1024


@lru_cache(maxsize=64)
def inventory(number: int, board: bool = False) -> Inventory:
    name = f"n{number}"
    devices = tuple(Device(id=f"{name}-gpu{i}", index=i, model="V100", memory_mib=32 * _MIB) for i in range(DEVICES))
    position = Position(leaf=f"leaf-{number // 2}", spine="spine-0", zone="zone-0")
    boards: tuple[MigBoard, ...] = ()
    if board:
        (made,) = parse_fleet(_BOARD.replace("NAME", name), "the board of a node")
        devices, boards = devices + made.devices, made.boards
    return Inventory(
        node=name, position=position, devices=devices, boards=boards, cpus=96, memory_mib=512 * _MIB, simulated=True
    )


_BOARD = """
groups:
  - name: NAME-mig
    count: 1
    devices: {model: H100, count: 1, mig: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb], dynamic: true}
"""


class _Admission(AdmissionSettings):
    """Classes whose work survives seconds of silence, not minutes."""

    serving_s: float
    other_s: float
    of_two_minds: bool = False
    """It knows one class only: its file is an older one."""

    def priority_classes(self) -> dict[str, PriorityClass]:
        serving, other = f"{self.serving_s:g}s", f"{self.other_s:g}s"
        classes = {
            c.name: c.model_copy(update={"lease": serving if c.name == "serving" else other}) for c in DEFAULT_CLASSES
        }
        if self.of_two_minds:
            return {"serving": classes["serving"]}
        return classes | {KEPT: classes["experiment"].model_copy(update={"name": KEPT, "lease": "keep"})}


_OLDER_FIRST_S = 1.0
"""An older reader is there before the ledger has anything: one that comes later stops at what it does not know."""
READERS_HOLD_S = 12.0
"""After an older reader: more than its declarations are apart (libs.ledger.readers)."""


LIMIT_GRACE_S = 3.0
"""So long after its time limit a node ends what nobody has stopped: sooner than placement is back from many faults."""


def settings_for(lengths: LeaseLengths, saves: int) -> dict[str, Any]:
    """`saves` may be less than anybody should choose."""
    saving = {"snapshot_records": saves}
    read = settings_of(lengths).items()
    return {name: one if name == "agent" else one.model_copy(update=saving) for name, one in read}


@lru_cache(maxsize=8)
def settings_of(lengths: LeaseLengths) -> dict[str, Any]:
    """Each service's. They cost milliseconds to read."""
    common: dict[str, Any] = {
        "nats_url": "sim://broker",
        "redis_url": "sim://redis",
        "mongo_url": "sim://mongo",
        "insecure": True,
        "pool": POOL,
    }

    return {
        "admission": _Admission(**common, serving_s=lengths.serving_s, other_s=lengths.other_s),
        "placement": PlacementSettings(
            **common,
            readers_hold_s=READERS_HOLD_S,
            repartition_after_s=0.5,
            repartition_rest_s=1,
            repartition_answer_s=8,
        ),
        "preemption": PreemptionSettings(**common),
        "quota_billing": QuotaBillingSettings(**common, keep_use_days=0),
        "telemetry": TelemetrySettings(**common),
        "leases": LeaseSettings(
            **common,
            max_lease_s=lengths.node_s,
            kill_bound_s=KILL_BOUND_S,
            margin_s=0.3,
            term_s=lengths.term_s,
            broker_s=0.5,
            silent_s=2,
            standby_s=2,
            stall_s=2,
        ),
        "history": HistorySettings(**common),
        "queries": QueriesSettings(**common),
        "agent": AgentSettings(
            **common,
            lease_s=lengths.node_s,
            heartbeat_s=1,
            repeat_s=3,
            node="n0",
            secrets_wait_s=6,
            limit_grace_s=LIMIT_GRACE_S,
        ),
        "vault": VaultSettings(**common),
    }


def populate(world: World, scenario: Scenario, *, doubled: bool = False) -> None:
    """The broker's streams, the machines and the services; `doubled`: two of each of them, named by number."""
    settings = settings_for(LEASES[scenario.leases], scenario.saves)
    world.provision([POOL])
    for number in range(scenario.nodes):
        name = f"n{number}"
        kernel = Process(world, f"kernel-{name}", name)
        world.machines[name] = Machine(world, name, kernel)
        world.rates[name] = 1 + world.random.uniform(-0.0009, 0.0009)
        agent = AgentService(settings["agent"], world.machines[name], inventory(number, number < scenario.boards))
        world.add(f"agent-{name}", name, partial(the_same, agent))
    for number in range(scenario.placements):
        name = f"placement-{number}"
        slot_name = name

        def make(slot_name: str = slot_name) -> object:
            life = world.services[slot_name].lives
            return make_placement(settings["placement"], writer_id=f"{slot_name}.{life}")

        world.add(name, name, make, after_s=_OLDER_FIRST_S if scenario.older_until else 0.0)
    for number in range(scenario.admissions):
        judge = settings["admission"].model_copy(update={"of_two_minds": scenario.two_minds and number > 0})
        world.add(f"admission-{number}", f"admission-{number}", partial(make_admission, judge))
    for number in range(2):
        world.add(f"leases-{number}", f"leases-{number}", lambda: make_leases(settings["leases"]))
    for name, makes in _MAKES.items():
        first = f"{name}-0" if doubled else name
        world.add(first, first, partial(makes, settings[name]))
        if doubled or name == scenario.doubled:
            world.add(f"{name}-1", f"{name}-1", partial(makes, settings[name]))
    if scenario.vaults:
        vault = settings["vault"].model_copy(update={"keys": key_file(world.folder)})
        for number in range(scenario.vaults):
            world.add(f"vault-{number}", f"vault-{number}", partial(make_vault, vault))
    if scenario.archivists:
        world.archive = SimArchive(world, POOL)
        for number in range(scenario.archivists):
            world.add(f"archivist-{number}", f"archivist-{number}", partial(Archivist, world, world.archive, number))
    if scenario.older_until:
        world.add("older", "older", partial(the_same, OlderReader(world, POOL, scenario.older_until)))


_MAKES: dict[str, Callable[[Any], Any]] = {
    "preemption": make_preemption,
    "quota_billing": make_quota_billing,
    "telemetry": make_telemetry,
    "queries": make_queries,
    "history": make_history,
}
MAKES: dict[str, Callable[[Any], Any]] = {
    "placement": partial(make_placement, writer_id="placement.1"),
    "admission": make_admission,
    "leases": make_leases,
    **_MAKES,
}
"""Of one of each service."""


def the_same(service: Any) -> Any:
    return service
