"""MIG boards repartitioned: by a simulated layer, through a recorded NVML, and by a whole agent that reports it."""

# ruff: noqa: N802, N815 - the recorded API has NVIDIA's names

import asyncio
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from libs.adapters.devices import RepartitionFailed
from libs.adapters.devices.fleet import FleetError, parse_fleet, read_fleet
from libs.adapters.devices.nvml import NvmlLayer
from libs.adapters.devices.simulated import SimulatedLayer
from libs.bus.cancel import cancel
from libs.bus.connect import close, connect
from libs.core.accelerators.mig_boards import GEOMETRIES
from schemas.inbox import Started
from schemas.resources import MigPlace, Recut
from services.agent.app import build, prepare
from services.agent.node import NodeCounts
from services.agent.nodes import Hosted
from services.agent.repartitions import carry_out, refusal
from services.agent.settings import AgentSettings
from tests.agent.build import part, rank
from tests.agent.conftest import until
from tests.agent.test_devices import MIB, Nvml, NVMLError, h100
from tests.agent.world import World

FLEET = Path(__file__).parents[2] / "deploy" / "fleets" / "mig-dynamic.yaml"
(NODE,) = read_fleet(FLEET)
BOARD = NODE.boards[0].id
LARGE = MigPlace(profile="3g.40gb", start=4)


def at(devices, start: int, board: str = BOARD) -> str:
    return next(d.id for d in devices if d.parent == board and d.mig_start == start)


UPPER = tuple(at(NODE.devices, start) for start in (4, 5, 6))


def repartition(number: int = 1, destroy: tuple[str, ...] = UPPER, *create: MigPlace) -> Recut:
    return Recut(board=BOARD, number=number, destroy=destroy, create=create or (LARGE,))


def cut_of(devices, board: str = BOARD) -> list[tuple[str, int]]:
    return [(d.mig_profile, d.mig_start) for d in devices if d.parent == board]


ONES = [("1g.10gb", start) for start in range(7)]
AFTER = [*ONES[:4], ("3g.40gb", 4)]

# --------------------------------------------------------------------------------------------------- fleets, simulated


def test_a_fleet_says_which_boards_may_be_cut_anew():
    assert [(board.dynamic, cut_of(NODE.devices, board.id)) for board in NODE.boards] == [(True, ONES)] * 2
    text = "groups: [{name: 'n{i}', count: 1, devices: {model: H100, count: 4, dynamic: true}}]"
    with pytest.raises(FleetError, match="only boards partitioned by mig can be dynamic"):
        parse_fleet(text, "f")


def test_a_simulated_board_is_cut_and_no_id_ever_comes_back():
    layer = SimulatedLayer(NODE.devices, NODE.boards)
    seen = {d.id for d in layer.discover()}
    layer.repartition(BOARD, UPPER, (LARGE,))
    first = layer.discover()
    assert cut_of(first) == AFTER
    assert [d.index for d in first] == list(range(12))
    large = at(first, 4)
    assert large not in seen
    assert layer.environment((rank(large),))["BATON_DEVICES"] == large
    layer.repartition(BOARD, (large,), tuple(MigPlace(profile="1g.10gb", start=s) for s in (4, 5, 6)))
    second = layer.discover()
    assert cut_of(second) == ONES
    again = SimulatedLayer(NODE.devices, NODE.boards)
    again.repartition(BOARD, UPPER, (LARGE,))
    assert not {at(second, s) for s in (4, 5, 6)} & {*seen, large, *(d.id for d in again.discover())}
    assert {d.id for d in second if d.parent != BOARD} == {d.id for d in NODE.devices if d.parent != BOARD}


@pytest.mark.parametrize(
    ("board", "destroy", "message"),
    [
        ("b9", (), "b9 is no MIG board of this node"),
        (BOARD, ("x",), "has no instance x"),
        (BOARD, UPPER[:1], "cannot be partitioned into .*3g.40gb at 4"),
    ],
)
def test_what_a_simulated_board_cannot_be_cut_into_changes_nothing(board, destroy, message):
    layer = SimulatedLayer(NODE.devices, NODE.boards)
    with pytest.raises(RepartitionFailed, match=message):
        layer.repartition(board, destroy, (LARGE,))
    assert layer.discover() == NODE.devices


def test_what_an_agent_refuses_before_it_asks_the_layer():
    still = NODE.model_copy(update={"boards": tuple(b.model_copy(update={"dynamic": False}) for b in NODE.boards)})
    assert refusal(repartition(), NODE, {at(NODE.devices, 0): 1000}) == ""
    assert "is still in use here: 500 milli" in refusal(repartition(), NODE, {UPPER[2]: 500})
    assert "its operator does not let Baton" in refusal(repartition(), still, {})
    assert "has no instance" in refusal(repartition(1, ("x",)), NODE, {})


def test_a_driver_that_does_not_say_which_boards_there_are_is_told_of_and_ends_nothing() -> None:
    """Nobody would have answered for the board before the node's next life."""

    class Silent(SimulatedLayer):
        def boards(self):
            raise OSError("the driver is gone")

    reason, after = carry_out(Silent(NODE.devices, NODE.boards), repartition(), NODE)
    assert reason == "repartitioned; what is there now cannot be read (OSError: the driver is gone)"
    assert not {device.id for device in after.devices} & set(UPPER)
    assert after.boards == NODE.boards


# -------------------------------------------------------------------------------------------------------- a whole agent


class Slow(SimulatedLayer):
    """Counts its cuts; `broken` makes them fail, `hangs` keeps the next ones from ending until it is set."""

    cuts, broken, hangs = 0, "", None

    def repartition(self, board, destroy, create):
        self.cuts += 1
        if self.hangs is not None:
            assert self.hangs.wait(30)
        if self.broken:
            raise RepartitionFailed(self.broken)
        super().repartition(board, destroy, create)


@pytest.fixture
async def world(nats, pool):
    return await World(nats, pool).open()


@pytest.fixture
def start(world, nats_url, tmp_path):
    @asynccontextmanager
    async def running(broken: str = ""):
        settings = AgentSettings(
            nats_url=nats_url, pool=world.pool, state_dir=tmp_path, lease_s=10.0, ask_s=0.2, repeat_s=0.3, sample_s=0.2
        )
        layer = Slow(NODE.devices, NODE.boards)
        layer.broken = broken
        found = [Hosted(NODE, layer)]
        own = await connect(nats_url, name="agent")
        agent = await build(settings, own, prepare(settings, found), NodeCounts())
        await agent.subscribe()
        loops = ("heartbeats", "watch_leases", "ask", "samples")
        tasks = [asyncio.create_task(getattr(agent, f"run_{loop}")()) for loop in loops]
        tasks.append(asyncio.create_task(agent.reports.run()))
        try:
            await world.joined(NODE.node)
            await until(lambda: all(n.known and n.lease.valid(n.now()) for n in agent.nodes.values()))
            yield agent, layer
        finally:
            await cancel(*tasks)
            await agent.close()
            await close(own)

    return running


async def test_a_repartition_is_carried_out_once_and_reported_until_it_was_heard(world, start):
    async with start() as (agent, layer):
        await world.ask_repartitions(NODE.node, repartition())
        await until(lambda: len(world.cuts) >= 3)
        first = world.cuts[0]
        assert (first.ok, first.reason, first.board, first.number) == (True, "", BOARD, 1)
        assert first.incarnation == agent.nodes[NODE.node].incarnation
        assert cut_of(first.inventory.devices) == AFTER
        assert first.inventory.boards == NODE.boards
        assert world.cuts[1] == first
        assert layer.cuts == 1
        await world.ask_repartitions(NODE.node)
        wanted = part(None, rank(at(first.inventory.devices, 4)), nodes=(NODE.node,))
        await world.want(NODE.node, wanted)
        await world.sees(wanted, Started)
        told = len(world.cuts)
        await asyncio.sleep(0.6)
        assert len(world.cuts) == told
        assert layer.cuts == 1


async def test_an_instance_in_use_is_not_destroyed(world, start):
    async with start() as (_, layer):
        wanted = part(None, rank(UPPER[1]), nodes=(NODE.node,))
        await world.want(NODE.node, wanted)
        await world.sees(wanted, Started)
        await world.ask_repartitions(NODE.node, repartition())
        await until(lambda: world.cuts)
        assert not world.cuts[0].ok
        assert f"{UPPER[1]} is still in use here" in world.cuts[0].reason
        assert world.cuts[0].inventory == NODE
        assert layer.cuts == 0


async def test_a_cut_that_fails_is_reported_with_its_reason_and_not_tried_again(world, start):
    async with start("the driver says no; the board is as it was") as (_, layer):
        await world.ask_repartitions(NODE.node, repartition())
        await until(lambda: len(world.cuts) >= 2)
        assert (world.cuts[0].ok, world.cuts[0].reason) == (False, "the driver says no; the board is as it was")
        assert world.cuts[0].inventory == NODE
        assert layer.cuts == 1
        layer.broken = ""
        await world.ask_repartitions(NODE.node, repartition(2))
        await until(lambda: any(cut.ok for cut in world.cuts))
        assert world.cuts[-1].number == 2


async def test_a_withdrawn_repartition_that_was_never_heard_of_is_answered_with_what_the_board_is(world, start):
    async with start() as (_, layer):
        await world.withdraw_repartitions(NODE.node, repartition())
        await until(lambda: len(world.cuts) >= 2)
        assert (world.cuts[0].ok, world.cuts[0].number) == (False, 1)
        assert world.cuts[0].reason == "withdrawn before it was begun"
        assert world.cuts[0].inventory == NODE
        assert layer.cuts == 0


async def test_of_withdrawn_repartitions_one_is_under_way_and_answered_at_its_end_the_next_is_dropped(world, start):
    async with start() as (agent, layer):
        layer.hangs = threading.Event()
        other = NODE.boards[1].id
        lower = tuple(at(NODE.devices, s, other) for s in (4, 5, 6))
        second = Recut(board=other, number=1, destroy=lower, create=(LARGE,))
        await world.ask_repartitions(NODE.node, repartition(), second)
        await until(lambda: layer.cuts == 1)
        await world.withdraw_repartitions(NODE.node, repartition(), second)
        await until(lambda: world.cuts)
        assert {(c.board, c.ok, c.reason) for c in world.cuts} == {(other, False, "withdrawn before it was begun")}
        assert not set(UPPER) & agent.nodes[NODE.node].view.devices, "no part starts on what is being destroyed"
        layer.hangs.set()
        await until(lambda: any(c.board == BOARD for c in world.cuts))
        late = next(c for c in world.cuts if c.board == BOARD)
        assert (late.ok, late.number) == (True, 1)
        assert cut_of(late.inventory.devices) == AFTER
        assert cut_of(late.inventory.devices, other) == ONES
        await asyncio.sleep(0.5)
        assert layer.cuts == 1, "what was dropped is not begun when its turn would come"


async def test_the_next_life_registers_what_the_last_one_cut(world, start):
    async with start() as (agent, _):
        await world.ask_repartitions(NODE.node, repartition())
        await until(lambda: world.cuts)
        world.recuts.clear()
        await agent.new_lives(list(agent.nodes.values()), "a test")
        await world.joined(NODE.node, lives=2)
        assert cut_of(world.inventories[NODE.node].inventory.devices) == AFTER


# ----------------------------------------------------------------------------------------------------------------- NVML


class MigNvml(Nvml):
    """A driver whose boards can be cut: `calls` records what changes a board, `fails` the calls that fail, each once."""

    c_nvmlGpuInstancePlacement_t = pynvml.c_nvmlGpuInstancePlacement_t
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED = 0
    NVML_ERROR_NOT_FOUND = 6
    PROFILES = tuple(p for p in GEOMETRIES["H100-80GB-SXM"].profiles if not p.name.endswith("+me"))
    KINDS = (0, 9, 1, 2, 3, 4)
    """NVML's kind of each profile; its id is the kind + 10."""

    def __init__(self, *boards: dict) -> None:
        super().__init__(*boards)
        self.calls: list[tuple] = []
        self.fails: list[tuple] = []
        self.made = 0

    def _do(self, *call) -> None:
        self.calls.append(call)
        if call in self.fails:
            self.fails.remove(call)
            raise NVMLError(19)

    def instance(self, profile: str, start: int) -> dict:
        """A GPU instance with one compute instance over all of it, which is the MIG device."""
        p = next(p for p in self.PROFILES if p.name == profile)
        self.made += 1
        gpu = {"id": self.made, "profile": p, "start": start, "compute": True}
        return {
            "uuid": f"MIG-{profile}-{start}-{self.made}",
            "name": f"NVIDIA H100 80GB HBM3 MIG {profile}",
            "total": p.memory_mib,
            "slices": p.compute_slices,
            "gpu": gpu,
        }

    def _number(self, profile: str) -> int:
        return 10 + self.KINDS[[p.name for p in self.PROFILES].index(profile)]

    def _profile(self, number: int):
        return self.PROFILES[self.KINDS.index(number - 10)]

    def nvmlDeviceGetGpuInstanceProfileInfo(self, h, profile, version=2):
        if profile not in self.KINDS:
            raise NVMLError(3)
        p = self._profile(profile + 10)
        return SimpleNamespace(
            id=profile + 10,
            sliceCount=p.compute_slices,
            instanceCount=p.limit,
            memorySizeMB=p.memory_mib,
            name=f"MIG {p.name}".encode(),
        )

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, h, number, places, count):
        p = self._profile(number)
        count._obj.value = len(p.starts)
        for i, start in enumerate(p.starts if places is not None else ()):
            places[i].start, places[i].size = start, p.memory_slices

    def nvmlDeviceGetGpuInstanceId(self, h):
        return h["gpu"]["id"]

    def nvmlDeviceGetComputeInstanceId(self, h):
        return 0

    def nvmlDeviceGetGpuInstanceById(self, h, number):
        return next(one["gpu"] for one in h["mig"] if one and one["gpu"]["id"] == number)

    def nvmlGpuInstanceGetInfo(self, gpu):
        p = gpu["profile"]
        place = SimpleNamespace(start=gpu["start"], size=p.memory_slices)
        return SimpleNamespace(profileId=self._number(p.name), placement=place)

    def nvmlGpuInstanceGetComputeInstanceById(self, gpu, number):
        return ("compute", gpu)

    def nvmlComputeInstanceGetInfo(self, compute):
        return SimpleNamespace(profileId=compute[1]["profile"].compute_slices)

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, gpu, kind, engine, version=2):
        slices = (1, 2, 3, 4, 7)
        if kind >= len(slices) or version == 2:
            raise NVMLError(3)
        return SimpleNamespace(id=slices[kind], sliceCount=slices[kind])

    def nvmlComputeInstanceDestroy(self, compute):
        gpu = compute[1]
        self._do("destroy compute", gpu["profile"].name, gpu["start"])
        gpu["compute"] = False

    def nvmlGpuInstanceDestroy(self, gpu):
        self._do("destroy", gpu["profile"].name, gpu["start"])
        assert not gpu["compute"], "its compute instance goes first"
        board = self.boards[0]
        board["mig"] = [one for one in board["mig"] if one["gpu"] is not gpu]

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, h, number, place):
        name, start = self._profile(number).name, place._obj.start
        assert place._obj.size == self._profile(number).memory_slices
        self._do("create", name, start)
        made = self.instance(name, start)
        made["gpu"]["compute"] = False
        h["mig"].append(made)
        return made["gpu"]

    def nvmlGpuInstanceCreateComputeInstance(self, gpu, number):
        assert number == gpu["profile"].compute_slices
        self._do("create compute", gpu["profile"].name, gpu["start"])
        gpu["compute"] = True
        return ("compute", gpu)


def driver() -> MigNvml:
    api = MigNvml(h100(0))
    api.boards[0]["mig"] = [api.instance("1g.10gb", start) for start in range(7)]
    return api


def ids(layer: NvmlLayer, *starts: int) -> tuple[str, ...]:
    return tuple(at(layer.discover(), start, "GPU-0") for start in starts)


GONE = [call for start in (4, 5, 6) for call in (("destroy compute", "1g.10gb", start), ("destroy", "1g.10gb", start))]
MADE = [("create", "3g.40gb", 4), ("create compute", "3g.40gb", 4)]
BACK = [call for start in (6, 5, 4) for call in (("create", "1g.10gb", start), ("create compute", "1g.10gb", start))]


def test_the_calls_that_cut_boards_exist_in_the_real_api():
    names = [name for name in vars(MigNvml) if name.lower().startswith(("nvml", "c_nvml"))]
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_a_driver_tells_boards_with_their_geometry_and_places():
    layer = NvmlLayer(driver(), dynamic=True)
    assert cut_of(layer.discover(), "GPU-0") == ONES
    (board,) = layer.boards()
    assert (board.id, board.dynamic, board.slices) == ("GPU-0", True, 8)
    assert set(board.profiles) == set(MigNvml.PROFILES)
    still = NvmlLayer(driver())
    still.discover()
    assert [board.dynamic for board in still.boards()] == [False]


def test_a_driver_that_does_not_tell_its_geometry_offers_instances_without_boards():
    layer = NvmlLayer(Nvml(h100(0, mig=[driver().instance("1g.10gb", 0)])), dynamic=True)
    assert len(layer.discover()) == 1
    assert layer.boards() == ()
    with pytest.raises(RepartitionFailed, match="whose geometry is known"):
        layer.repartition("GPU-0", (), (LARGE,))


def test_compute_instances_go_before_gpu_instances_and_all_that_goes_before_what_comes():
    api = driver()
    layer = NvmlLayer(api, dynamic=True)
    layer.repartition("GPU-0", ids(layer, 4, 5, 6), (LARGE,))
    assert api.calls == GONE + MADE
    assert cut_of(layer.discover(), "GPU-0") == AFTER


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        (GONE[3], [*GONE[:4], ("create compute", "1g.10gb", 5), *BACK[4:]]),
        (MADE[0], [*GONE, *MADE[:1], *BACK]),
        (MADE[1], [*GONE, *MADE, ("destroy", "3g.40gb", 4), *BACK]),
    ],
)
def test_a_step_that_fails_undoes_those_before_it(failing, expected):
    api = driver()
    layer = NvmlLayer(api, dynamic=True)
    gone = ids(layer, 4, 5, 6)
    api.fails = [failing]
    with pytest.raises(RepartitionFailed, match=r"(destroying|creating) .*: 19; the board is as it was"):
        layer.repartition("GPU-0", gone, (LARGE,))
    assert api.calls == expected
    assert sorted(cut_of(layer.discover(), "GPU-0"), key=lambda one: one[1]) == ONES


def test_what_cannot_be_put_back_is_told_and_no_longer_offered():
    api = driver()
    layer = NvmlLayer(api, dynamic=True)
    devices = layer.discover()
    inventory = NODE.model_copy(update={"devices": devices, "boards": layer.boards()})
    api.fails = [MADE[0], BACK[0]]
    asked = Recut(board="GPU-0", number=1, destroy=ids(layer, 4, 5, 6), create=(LARGE,))
    reason, left = carry_out(layer, asked, inventory)
    assert "creating 3g.40gb at 4: 19; not all of it could be put back: 19" in reason
    assert sorted(start for _, start in cut_of(left.devices, "GPU-0")) == [0, 1, 2, 3, 4, 5]


def test_an_instance_with_a_process_is_not_touched():
    api = driver()
    layer = NvmlLayer(api, dynamic=True)
    gone = ids(layer, 4, 5, 6)
    api.boards[0]["mig"][5]["pids"] = [4711]
    with pytest.raises(RepartitionFailed, match="is in use by process 4711"):
        layer.repartition("GPU-0", gone, (LARGE,))
    assert api.calls == []


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (MigPlace(profile="9g.90gb", start=0), "no profile 9g.90gb; it has 1g.10gb"),
        (MigPlace(profile="3g.40gb", start=3), "3g.40gb cannot start at 3; only at 0, 4"),
    ],
)
def test_what_the_driver_does_not_offer_is_not_begun(place, message):
    api = driver()
    layer = NvmlLayer(api, dynamic=True)
    with pytest.raises(RepartitionFailed, match=message):
        layer.repartition("GPU-0", ids(layer, 4), (place,))
    assert api.calls == []


def test_free_memory_that_cannot_be_measured_beside_a_job_stays_as_it_was():
    api = driver()
    layer = NvmlLayer(api, is_job=lambda pid: True, dynamic=True)
    inventory = NODE.model_copy(update={"devices": layer.discover(), "boards": layer.boards()})
    api.boards[0]["mig"][0]["pids"] = [4711]
    asked = Recut(board="GPU-0", number=1, destroy=ids(layer, 4, 5, 6), create=(LARGE,))
    reason, left = carry_out(layer, asked, inventory)
    assert reason == ""
    assert left.devices[0].memory_free_mib == inventory.devices[0].memory_free_mib
    assert left.devices[0].memory_free_mib * MIB > 0
