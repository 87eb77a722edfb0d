"""Devices that something still uses when their attempt is gone: looked at, kept from other jobs, given back when free."""

import os
import subprocess
from types import SimpleNamespace

import pytest

from libs.adapters.devices.cpu import CpuLayer
from libs.adapters.devices.handles import holders
from libs.adapters.devices.nvml import NvmlLayer
from libs.adapters.devices.scan import ScannedLayer
from libs.adapters.devices.simulated import SimulatedLayer
from libs.adapters.devices.together import WithProcessors
from schemas.attempts import Category
from schemas.inbox import Refused, Released, Started
from schemas.nodes import LiftedQuarantine
from services.agent import quarantine
from services.agent.keeper.proc import read_stat
from services.agent.quarantine import DeviceInUse, QuarantineFile, Since, still_busy, strangers
from tests.agent.build import inventory, part, rank, spec
from tests.agent.conftest import until, until_now
from tests.agent.test_agent import start, world  # noqa: F401 - fixtures
from tests.agent.test_devices import Nvml, NVMLError


@pytest.fixture
def process():
    """A process that has nothing to do with any job."""
    one = subprocess.Popen(["sleep", "600"])
    until_now(
        lambda: (stat := read_stat(one.pid)) and stat.name == "sleep"
    )  # it has its name a moment after it is begun
    yield one
    one.kill()
    one.wait()


def opened(root, pid: int, *files: str) -> None:
    folder = root / "proc" / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        (folder / str(number)).symlink_to(file)


# -------------------------------------------------------------------------------------------------------- the layers


def test_holders_are_found_by_their_descriptors(tmp_path):
    opened(tmp_path, 7, "/dev/null", "/dev/nvidia0")
    opened(tmp_path, 8, "/dev/nvidia0", "/dev/nvidia1")
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / "9").mkdir()  # it ended, or is another user's
    found = holders(["/dev/nvidia0", "/dev/nvidia2"], tmp_path)
    assert found == {"/dev/nvidia0": {7, 8}, "/dev/nvidia2": frozenset()}


class Recorded(Nvml):
    """As boards with running processes answer; the oldest driver does not know of MPS."""

    def nvmlDeviceGetGraphicsRunningProcesses(self, h):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in h.get("graphics", ())]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, h):  # noqa: N802
        raise NVMLError(13)

    def nvmlDeviceGetMinorNumber(self, h):  # noqa: N802
        return h["minor"]

    def nvmlDeviceGetComputeRunningProcesses(self, h):  # noqa: N802
        if h.get("dumb"):
            raise NVMLError(3)
        return super().nvmlDeviceGetComputeRunningProcesses(h)


def board(uuid: str, **more) -> dict:
    return {"uuid": uuid, "name": "NVIDIA H100 80GB HBM3", "total": 81_920, "minor": 0} | more


def test_nvml_tells_contexts_and_whoever_has_the_file_of_a_whole_gpu_open(tmp_path):
    opened(tmp_path, 31, "/dev/nvidia4")
    api = Recorded(
        board("GPU-a", pids=(11,), graphics=(12,), minor=4),
        board("GPU-b", minor=5),
        board("GPU-c", dumb=True, minor=6),
    )
    layer = NvmlLayer(api, root=tmp_path)
    layer.discover()
    users = layer.users(["GPU-a", "GPU-b", "GPU-c", "GPU-z"])
    assert users == {"GPU-a": {11, 12, 31}, "GPU-b": frozenset()}, "what cannot be told is left out"


def test_an_instance_of_a_board_has_the_users_of_its_own_alone(tmp_path):
    opened(tmp_path, 31, "/dev/nvidia4")
    instance = {"uuid": "MIG-1", "name": "NVIDIA H100 MIG 1g.10gb", "total": 9_984, "slices": 1, "pids": (13,)}
    layer = NvmlLayer(Recorded(board("GPU-a", mig=[instance], minor=4)), root=tmp_path)
    layer.discover()
    assert layer.users(["MIG-1"]) == {"MIG-1": {13}}


def test_scanned_devices_are_in_use_while_their_file_is_open(tmp_path):
    (tmp_path / "dev").mkdir()
    for name in ("hailo0", "hailo1"):
        (tmp_path / "dev" / name).touch()
    opened(tmp_path, 21, "/dev/hailo1")
    layer = ScannedLayer("n0", tmp_path, neuron=lambda: "")
    layer.discover()
    assert layer.users(["n0-hailo0", "n0-hailo1"]) == {"n0-hailo0": frozenset(), "n0-hailo1": {21}}


def test_processors_are_never_busy_in_this_sense():
    accelerators = SimulatedLayer(inventory().devices)
    accelerators.used_by = {"n0-gpu1": frozenset({5})}
    layer = WithProcessors(accelerators, CpuLayer("n0"))
    assert layer.users(["n0-cpu0", "n0-gpu1"]) == {"n0-gpu1": {5}}


# ------------------------------------------------------------------------------------------------------ who counts


def test_who_was_there_before_who_is_ours_and_who_only_watches_does_not_count(process, monkeypatch):
    layer = SimulatedLayer(inventory().devices)
    layer.used_by = {"n0-gpu0": frozenset({process.pid})}
    devices, earlier, later = ["n0-gpu0", "n0-gpu1"], Since(0), Since(1 << 60)
    assert strangers(layer, devices, earlier, []) == {"n0-gpu0": [f"sleep (pid {process.pid})"]}
    assert strangers(layer, devices, later, []) == {}
    assert strangers(layer, devices, earlier, [process.pid]) == {}
    assert strangers(layer, devices, earlier, [os.getpid()]) == {}, "it is below one of ours"
    monkeypatch.setattr(quarantine, "WATCHERS", frozenset({"sleep"}))
    assert strangers(layer, devices, earlier, []) == {}


def test_a_process_that_the_driver_names_and_nobody_sees_counts():
    layer = SimulatedLayer(inventory().devices)
    layer.used_by = {"n0-gpu0": frozenset({1 << 22})}  # above the largest process id
    assert strangers(layer, ["n0-gpu0"], Since.now(), []) == {"n0-gpu0": [f"a process (pid {1 << 22})"]}


async def test_a_driver_has_some_time_to_let_go():
    class LetsGo(SimulatedLayer):
        looks = 0

        def users(self, devices):
            self.looks += 1
            return {"n0-gpu0": frozenset({1 << 22})} if self.looks < 4 else {}

    assert await still_busy(LetsGo(inventory().devices), ["n0-gpu0"], Since.now(), [], 60.0) == {}


def test_what_is_answered_from_memory_is_asked_without_a_thread():
    layer = SimulatedLayer(inventory().devices)
    with pytest.raises(StopIteration) as at_once:  # nothing is awaited
        still_busy(layer, ["n0-gpu0"], Since.now(), [], 60.0).send(None)
    assert at_once.value.value == {}


# -------------------------------------------------------------------------------------------------------- the agent


async def test_a_device_that_stays_busy_is_kept_from_jobs_until_it_is_free(world, start, monkeypatch):  # noqa: F811
    monkeypatch.setattr("services.agent.processes.GRACE_S", 0.05)
    async with start() as agent:
        node = agent.nodes["n0"]
        first = part(spec("pass"), rank("n0-gpu0"), rank("n0-gpu1", number=1))
        node.layer.used_by = {"n0-gpu1": frozenset({1 << 22})}
        await world.want("n0", first)
        assert (await world.sees(first, Released)).exit_code == 0, "what it reports is not delayed for ever"
        ((told,),) = [said.devices for said in world.quarantines]
        assert (told.device, told.users) == ("n0-gpu1", f"a process (pid {1 << 22})"), (
            "the pool knows before it is released"
        )
        await world.want("n0")
        other, busy = part(spec("pass"), rank("n0-gpu0", epoch=2)), part(spec("pass"), rank("n0-gpu1", epoch=2))
        await world.want("n0", other, busy)
        await world.sees(other, Started)
        refused = await world.sees(busy, Refused)
        assert refused.reason == f"device n0-gpu1 is in quarantine: a process (pid {1 << 22}) still uses it"
        assert refused.category is Category.HARDWARE
        await agent.launcher.look_at_busy(node)
        assert "n0-gpu1" in node.quarantine.devices
        node.layer.used_by = {}
        await agent.launcher.look_at_busy(node)
        await until(lambda: world.quarantines[-1].devices == ())
        again = part(spec("pass"), rank("n0-gpu1", epoch=3))
        await world.want("n0", again)
        await world.sees(again, Started)


async def test_a_quarantine_outlives_the_life_of_the_node(world, start):  # noqa: F811
    async with start() as agent:
        node = agent.nodes["n0"]
        wanted = part(spec("import time; time.sleep(600)"), rank("n0-gpu1"))
        await world.want("n0", wanted)
        await world.sees(wanted, Started)
        node.layer.used_by = {"n0-gpu1": frozenset({1 << 22})}
        world.disowned.add("n0")
        await world.joined("n0", lives=2)
        await until(lambda: node.known)
        assert [one.device for one in world.inventories["n0"].quarantine] == ["n0-gpu1"]
        busy = part(spec("pass"), rank("n0-gpu1", epoch=2))
        await world.want("n0", busy)
        await world.sees(busy, Refused)


async def test_an_operator_may_let_a_busy_device_be_used(world, start):  # noqa: F811
    async with start() as agent:
        node = agent.nodes["n0"]
        await world.joined("n0")
        await until(lambda: node.known)
        node.quarantine.add({"n0-gpu1": DeviceInUse(Since.now(), ("a monitor (pid 9)",))})
        await until(lambda: world.quarantines)
        (told,) = world.quarantines[-1].devices
        world.lifted["n0"] = (LiftedQuarantine(device="n0-gpu1", since_us=told.since_us - 1),)
        await world.want("n0", part(spec("pass"), rank("n0-gpu0")))
        await until(lambda: world.seen)
        assert "n0-gpu1" in node.quarantine.devices, "an earlier quarantine of it was lifted"
        world.lifted["n0"] = (LiftedQuarantine(device="n0-gpu1", since_us=told.since_us),)
        wanted = part(spec("pass"), rank("n0-gpu1"))
        await world.want("n0", wanted)
        await world.sees(wanted, Started)
        assert world.quarantines[-1].devices == ()


async def test_what_stays_in_quarantine_is_told_again(world, start, monkeypatch):  # noqa: F811
    """Placement that was told while older readers had a part in the ledger has not written it down. One that was reached by an
    old copy (seed 11588) keeps a device that is free."""
    monkeypatch.setattr("services.agent.quarantine.AGAIN_S", 0.0)
    async with start() as agent:
        node = agent.nodes["n0"]
        await world.joined("n0")
        await until(lambda: node.known)
        await agent.launcher.look_at_busy(node)
        node.layer.used_by = {"n0-gpu1": frozenset({1 << 22})}
        node.quarantine.add({"n0-gpu1": DeviceInUse(Since.now(), ("a monitor (pid 9)",))})
        await until(lambda: world.quarantines)
        assert world.quarantines[0].devices, "a node that never had anything in quarantine says nothing"
        before = len(world.quarantines)
        await agent.launcher.look_at_busy(node)
        await until(lambda: len(world.quarantines) > before)
        assert world.quarantines[-1] == world.quarantines[0]
        node.layer.used_by = {}
        await agent.launcher.look_at_busy(node)
        await until(lambda: world.quarantines[-1].devices == ())
        told = len(world.quarantines)
        await agent.launcher.look_at_busy(node)
        await until(lambda: len(world.quarantines) > told)
        assert world.quarantines[-1].devices == ()


async def test_the_same_broken_device_is_refused_again_and_again_in_its_time_alone(world, start, monkeypatch):  # noqa: F811
    """Placement may not know of the quarantine: then it grants what was refused at once, a hundred times a second."""
    monkeypatch.setattr("services.agent.node.REFUSED_AT_ONCE", 2)
    monkeypatch.setattr("services.agent.node.REFUSED_EVERY_S", 0.4)
    async with start() as agent:
        node = agent.nodes["n0"]
        await world.joined("n0")
        await until(lambda: node.known)
        node.quarantine.add({"n0-gpu1": DeviceInUse(Since.now(), ("a monitor (pid 9)",))})
        wanted = [part(spec("pass"), rank("n0-gpu1", epoch=epoch)) for epoch in (2, 3, 4)]
        began = node.now()
        await world.want("n0", *wanted)
        for one in wanted[:2]:
            await world.sees(one, Refused)
        await world.sees(wanted[2], Refused)
        assert node.now() - began >= 0.4


async def test_the_next_agent_knows_what_is_in_quarantine(world, start):  # noqa: F811
    async with start() as agent:
        agent.nodes["n0"].quarantine.add({"n0-gpu1": DeviceInUse(Since(5), ("a monitor (pid 9)",), since_us=7)})
    async with start() as agent:
        known = agent.nodes["n0"].quarantine.devices
        assert known == {"n0-gpu1": DeviceInUse(Since(5), ("a monitor (pid 9)",), since_us=7)}
        await until(lambda: world.inventories["n0"].incarnation == agent.nodes["n0"].incarnation)
        assert [one.device for one in world.inventories["n0"].quarantine] == ["n0-gpu1"]
        await agent.launcher.look_at_busy(agent.nodes["n0"])
        assert agent.nodes["n0"].quarantine.devices == {}, "it is free by now"
    async with start() as agent:
        assert agent.nodes["n0"].quarantine.devices == {}


def test_after_a_boot_nothing_is_in_quarantine_and_a_broken_file_ends_nothing(tmp_path):
    path, busy = tmp_path / "quarantine.json", {"d": DeviceInUse(Since(5), ("x",), since_us=7)}
    QuarantineFile(path, "boot-1").keep("n0", busy)
    assert QuarantineFile(path, "boot-1").of("n0").devices == busy
    assert QuarantineFile(path, "boot-2").of("n0").devices == {}
    QuarantineFile(path, "boot-1").keep("n0", {})
    assert QuarantineFile(path, "boot-1").of("n0").had, "the next agent says again that it is free"
    assert not QuarantineFile(path, "boot-2").of("n0").had
    for broken in ("", "[]", '{"boot": "boot-1"}', '{"boot": "boot-1", "nodes": {"n0": {"d": 1}}}'):
        path.write_text(broken)
        assert QuarantineFile(path, "boot-1").of("n0").devices == {}
    QuarantineFile(tmp_path / "gone" / "q.json", "boot-1").keep("n0", busy)
