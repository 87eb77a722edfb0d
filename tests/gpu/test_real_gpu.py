"""On a machine with an NVIDIA GPU that nobody else uses: what the layer says of it is so, and walls hold around it.

They run where NVML finds a device, and are skipped elsewhere. `python -m tests.gpu.pack` makes what a machine without network
needs for them. Nothing of the GPU is changed: `READING` are the only functions of NVML that may be called.
"""

import asyncio
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest

from libs.adapters.devices.nvml import NvmlLayer, short_model
from schemas.inbox import Released
from schemas.jobs import JobSpec
from schemas.resources import DeviceKind
from services.agent.keeper import walls
from services.agent.quarantine import Since, still_busy, strangers
from tests.agent.build import part, rank
from tests.agent.conftest import until, until_now
from tests.jail.conftest import start, world  # noqa: F401 - fixtures

LOAD = Path(__file__).parent / "load.py"
MIB, GIB_MIB = 1024 * 1024, 1024
READING = ("nvmlInit", "nvmlDeviceGet", "nvmlSystemGet", "nvmlGpuInstanceGet", "nvmlComputeInstanceGet")


def there() -> bool:
    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return False


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not there(), reason="NVML finds no device")]


class Reads:
    """`pynvml`, of which nothing can be called that changes a device."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(pynvml, name)
        if name.startswith("nvml") and callable(found) and not isinstance(found, type):
            assert name.startswith(READING), f"{name} is no reading"
        return found


def smi(*fields: str) -> list[list[str]]:
    """A row for each board, as the driver's own program says it."""
    asked = f"--query-gpu={','.join(fields)}"
    program = shutil.which("nvidia-smi") or "/usr/local/nvidia/bin/nvidia-smi"
    lines = subprocess.run(
        [program, asked, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def settings_of_boards() -> list[list[str]]:
    return smi("uuid", "mig.mode.current", "mig.mode.pending", "persistence_mode", "power.limit", "compute_mode",
               "clocks.max.sm", "ecc.mode.current")  # fmt: skip


@pytest.fixture
def layer() -> Iterator[NvmlLayer]:
    """That changes nothing, by what is called and by how the boards are set afterwards."""
    before = settings_of_boards()
    made = NvmlLayer(Reads())
    made.discover()
    yield made
    assert settings_of_boards() == before


class Load:
    """A process that works on the first GPU, as `load.py` does. It is no child of this one, which is the agent of some
    tests: what an agent has started is no stranger to it."""

    def __init__(self, seconds: float, mib: int = GIB_MIB, **env: str) -> None:
        command = ["sh", "-c", '"$@" & echo $!', "sh", sys.executable, str(LOAD), str(seconds), str(mib)]
        self._shell = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | env)
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())
        self._handle = os.pidfd_open(self.pid)
        self._shell.wait()

    def __enter__(self) -> "Load":
        assert self._shell.stdout is not None
        said = [json.loads(self._shell.stdout.readline()) for _ in range(2)]
        assert said[1].get("works"), said
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        select.select([self._handle], [], [])
        os.close(self._handle)


def test_devices_are_what_the_drivers_own_program_says(layer: NvmlLayer) -> None:
    devices = layer.discover()
    rows = smi("uuid", "name", "memory.total", "mig.mode.current", "power.limit", "index")
    whole = [device for device in devices if device.kind is DeviceKind.GPU]
    expected = [row for row in rows if row[3] != "Enabled"]
    assert [(d.id, d.model) for d in whole] == [(row[0], short_model(row[1])) for row in expected]
    for device, row in zip(whole, expected, strict=True):
        total = int(row[2])
        assert total - 2048 <= device.memory_mib <= total, "less what the driver keeps for itself"
        assert device.memory_free_mib is None or device.memory_mib - 1024 <= device.memory_free_mib
        assert abs(device.power_limit_w - float(row[4])) <= 1
    assert layer.boards() == () or all(row[3] == "Enabled" for row in rows)
    if len(rows) == 1:
        assert not whole or (whole[0].nvlink_domain in ("", "nvl0") and not whole[0].fabric)
    print("\nfound:", [device.model_dump() for device in devices], "islands, fabric and MIG as above")


def test_who_works_on_a_device_is_seen_and_what_it_holds(layer: NvmlLayer) -> None:
    """Memory, utilisation, power and energy of a second of work, and who does it."""
    (device, *_) = layer.discover()
    (idle, *_) = layer.sample({})
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.id)
    with Load(60, 4 * GIB_MIB) as load:
        assert load.pid in layer.users([device.id])[device.id]
        until_now(lambda: layer.sample({})[0].utilization_pct >= 90)
        energy_mj, began, joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), time.monotonic(), 0.0
        seen = began
        for _ in range(50):
            time.sleep(0.1)
            (busy, *_), now = layer.sample({}), time.monotonic()
            joules, seen = joules + busy.power_w * (now - seen), now
        measured = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - energy_mj) / 1000
        assert busy.memory_used_mib - idle.memory_used_mib >= 4 * GIB_MIB
        assert busy.power_w > idle.power_w
        assert busy.temperature_c > 0
        assert busy.ecc_errors == 0
        assert 0.8 * measured <= joules <= 1.2 * measured, "samples of power add up to the energy that the board counts"
        free = NvmlLayer(Reads(), is_job=lambda pid: False).discover()[0].memory_free_mib
        assert free is not None
        assert free <= device.memory_mib - 4 * GIB_MIB, "what strangers hold is not free"
        assert NvmlLayer(Reads(), is_job=lambda pid: True).discover()[0].memory_free_mib is None, "a job gives it back"
        print(
            f"\nidle: {idle}\nbusy: {busy}\n{seen - began:.2f} s: {joules:.0f} J by samples, {measured:.0f} J counted"
        )
    until_now(lambda: load.pid not in layer.users([device.id])[device.id])


async def test_a_device_that_a_stranger_uses_is_kept_from_others(layer: NvmlLayer) -> None:
    (device, *_) = layer.discover()
    since = Since.now()
    assert strangers(layer, [device.id], since, ()) == {}
    await asyncio.sleep(0.1)
    with Load(60) as load:
        busy = await still_busy(layer, [device.id], since, (), 0.2)
        (named,) = [user for user in busy[device.id].users if f"(pid {load.pid})" in user]
        assert named, busy
        assert strangers(layer, [device.id], since, (load.pid,)) == {}, "an attempt's own process is none"
    assert await still_busy(layer, [device.id], since, (), 10.0) == {}, "free again"


def job(*arguments: str, device: str, number: int = 0, **fields: Any):
    command = (sys.executable, str(LOAD), *arguments)
    return part(JobSpec(command=command), rank(device, number=number), **fields)


@pytest.mark.skipif(os.geteuid() != 0, reason="the tier full needs root")
async def test_a_job_reaches_the_device_that_it_was_granted_and_no_other(
    start: Any,  # noqa: F811 - the fixture
    layer: NvmlLayer,
) -> None:
    (device, *_) = layer.discover()
    own = {file for file in layer.files([device.id]) if Path(file).exists()}
    assert f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByUUID(device.id))}" in own
    async with start(layer=layer, readable=(LOAD.parent,)) as node:
        granted = job("3", "512", device=device.id)
        (released,) = await node.ends(granted)
        assert node.agent.launcher.keeper.tier == walls.FULL, node.agent.launcher.keeper.why
        found, works, done = map(json.loads, node.says(granted).splitlines())
        assert (found["devices"], found["error"]) == ([device.id], 0)
        assert set(found["files"]) == {file for file in own if re.fullmatch(r"/dev/nvidia\d+", file)}
        assert (works, done, released.exit_code) == ({"works": 512}, {"done": True}, 0)
        print("\na job with a grant:", found)


@pytest.mark.skipif(os.geteuid() != 0, reason="the tier full needs root")
async def test_a_job_without_a_grant_sees_no_device(start: Any) -> None:  # noqa: F811 - the fixture
    """Its devices are simulated, so that no file of a real one is its own; the library is there, the device is not."""
    async with start(readable=(LOAD.parent,)) as node:
        without = job("3", "512", device="n0-gpu0")
        await node.ends(without)
        found, done = map(json.loads, node.says(without).splitlines())
        assert (found["files"], found["devices"], done) == ([], [], {"done": True})
        assert found["error"], "and CUDA says so"
        print("\na job without one:", found)


@pytest.mark.skipif(os.geteuid() != 0, reason="the tier full needs root")
async def test_a_device_is_free_for_the_next_job_only_without_strangers(
    start: Any,  # noqa: F811 - the fixture
    layer: NvmlLayer,
) -> None:
    """A process that is no job's takes the device while an attempt has it: the device goes into quarantine with the
    process's name, and out of it when that has ended."""
    (device, *_) = layer.discover()
    async with start(layer=layer, readable=(LOAD.parent,), quarantine_s=0.5) as node:
        granted = job("600", "256", device=device.id)
        await node.up(granted, word="works")
        with Load(120) as load:
            await node.world.want("n0")
            await node.world.sees(granted, Released)
            await until(lambda: _busy(node, load.pid, device.id))
        await until(lambda: not node.world.quarantines[-1].devices)


def _busy(node: Any, pid: int, device: str) -> bool:
    told = [one for said in node.world.quarantines for one in said.devices if one.device == device]
    return any(f"(pid {pid})" in one.users for one in told)
