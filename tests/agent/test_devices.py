"""Device layers: a recorded NVML, simulated fleets with their error messages, this machine's processors."""

# ruff: noqa: N802, N815 - the recorded API has NVIDIA's names

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from libs.adapters.devices import NoDevices
from libs.adapters.devices.cpu import CpuLayer
from libs.adapters.devices.fleet import FleetError, parse_fleet, read_fleet
from libs.adapters.devices.nvml import NvmlLayer, runs_a_job, short_model
from libs.adapters.devices.simulated import SimulatedLayer
from libs.adapters.devices.together import WithProcessors
from libs.walls.keyring import Keyring
from schemas.resources import NO_SHARING, SHARING, DeviceKind
from services.agent.nodes import hosted
from services.agent.settings import AgentSettings
from tests.agent.build import inventory, rank

FLEETS = Path(__file__).parents[2] / "deploy" / "fleets"
MIB = 1024 * 1024


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({3: "Not Supported", 9: "Driver Not Loaded", 15: "GPU is lost"}.get(value, str(value)))
        self.value = value


class Nvml:
    """The part of pynvml that is used, answering as boards of a fleet did: a dict per board, `mig` its instances."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED = 36, 1
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0
    NVML_TEMPERATURE_GPU, NVML_VOLATILE_ECC, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 0, 1
    NVML_ERROR_GPU_IS_LOST, nvmlMemory_v2 = 15, 0x02000028
    NVML_SUCCESS, NVML_GPU_FABRIC_STATE_COMPLETED = 0, 3
    c_nvmlGpuFabricInfo_v2_t = pynvml.c_nvmlGpuFabricInfo_v2_t

    def __init__(self, *boards: dict, driver: bool = True) -> None:
        self.boards, self.driver = boards, driver

    def nvmlInit(self):
        if not self.driver:
            raise NVMLError(9)

    def nvmlDeviceGetCount(self):
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._ok(self.boards[index])

    def nvmlDeviceGetIndex(self, handle):
        return self.boards.index(handle)

    def nvmlDeviceGetMinorNumber(self, handle):
        return self.boards.index(handle)

    def nvmlDeviceGetUUID(self, h):
        return h["uuid"]

    def nvmlDeviceGetName(self, h):
        return h["name"]

    def nvmlDeviceGetMigMode(self, h):
        if "mig" not in h:
            raise NVMLError(3)
        return [int(bool(h["mig"])), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, h):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, h, index):
        if index >= len(h["mig"]) or h["mig"][index] is None:
            raise NVMLError(6)
        return h["mig"][index]

    def nvmlDeviceGetGpuInstanceProfileInfo(self, h, profile, version=2):
        raise NVMLError(3)  # as a driver that is too old; tests/agent/test_recut.py has one that answers

    def nvmlDeviceGetGpuInstanceId(self, h):
        raise NVMLError(3)

    def nvmlDeviceGetAttributes(self, h):
        return SimpleNamespace(gpuInstanceSliceCount=h["slices"])

    def nvmlDeviceGetMemoryInfo(self, h, version=None):
        self._ok(h)
        if version and h.get("old_driver"):
            raise NVMLError(13)
        return SimpleNamespace(total=h["total"] * MIB, used=h.get("used", 0) * MIB, reserved=h.get("kept", 0) * MIB)

    def nvmlDeviceGetEnforcedPowerLimit(self, h):
        return 700_000

    def nvmlDeviceGetComputeRunningProcesses(self, h):
        return [SimpleNamespace(pid=pid) for pid in h.get("pids", ())]

    def nvmlDeviceGetGpuFabricInfoV(self, h, info):
        if "fabric" not in h:
            raise NVMLError(3)
        cluster, clique, info._obj.state = h["fabric"]
        info._obj.cliqueId = clique
        info._obj.clusterUuid[:] = cluster

    def nvmlDeviceGetNvLinkState(self, h, link):
        if link >= h.get("links", 0):
            raise NVMLError(3)
        return 1

    def nvmlDeviceGetP2PStatus(self, a, b, cap):
        return 0 if a.get("island") == b.get("island") else 5

    def nvmlDeviceGetUtilizationRates(self, h):
        if "slices" in h:
            raise NVMLError(3)  # as real MIG instances do
        return SimpleNamespace(gpu=73, memory=40)

    def nvmlDeviceGetPowerUsage(self, h):
        return 412_000

    def nvmlDeviceGetTemperature(self, h, sensor):
        return 61

    def nvmlDeviceGetTotalEccErrors(self, h, kind, counter):
        return h.get("ecc", 0)

    def nvmlDeviceGetCurrentClocksEventReasons(self, h):
        return h.get("reasons", 0x4)

    def _ok(self, h):
        if h.get("lost"):
            raise NVMLError(15)
        return h


def test_every_call_that_is_recorded_exists_in_the_real_api():
    names = [name for name in vars(Nvml) if name.lower().startswith("nvml")]
    assert [name for name in names if not hasattr(pynvml, name)] == []


def h100(number: int, **fields) -> dict:
    return {"uuid": f"GPU-{number}", "name": "NVIDIA H100 80GB HBM3", "total": 81_559, "kept": 525} | fields


def test_whole_gpus_with_what_a_job_can_use_of_their_memory():
    first, second = NvmlLayer(Nvml(h100(0), h100(1, old_driver=True))).discover()
    assert (first.id, first.index, first.kind, first.model) == ("GPU-0", 0, DeviceKind.GPU, "H100")
    assert (first.memory_mib, first.power_limit_w) == (81_034, 700)
    assert second.memory_mib == 81_559, "an older driver does not tell what it keeps"


def test_measured_free_memory_counts_only_what_no_job_takes():
    own, foreign = h100(0, used=30_000, pids=[7]), h100(1, used=30_000, pids=[8])
    devices = NvmlLayer(Nvml(own, foreign, h100(2)), is_job=lambda pid: pid == 7).discover()
    assert [device.memory_free_mib for device in devices] == [None, 81_559 - 525 - 30_000, 81_559 - 525]


def test_a_process_that_cannot_be_read_might_be_a_job():
    assert runs_a_job(2**22 + 1)
    assert not runs_a_job(os.getpid())


def test_a_fabric_that_spans_nodes_is_named_by_cluster_and_clique():
    cluster = bytes(range(16))
    boards = [
        h100(0, fabric=(cluster, 5, 3)),
        h100(1, fabric=(cluster, 5, 2)),
        h100(2, fabric=(bytes(16), 0, 3)),
        h100(3),
    ]
    assert [d.fabric for d in NvmlLayer(Nvml(*boards)).discover()] == [f"{cluster.hex()}-5", "", "", ""]


def test_nvlink_islands_come_from_links_and_peers_not_from_index_order():
    boards = [h100(i, links=18, island=i % 2) for i in range(4)] + [h100(4)]
    found = NvmlLayer(Nvml(*boards)).discover()
    assert [d.nvlink_domain for d in found] == ["nvl0", "nvl1", "nvl0", "nvl1", ""]


def test_a_board_in_mig_mode_is_offered_as_its_instances():
    named = {"uuid": "MIG-a", "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "total": 40_448, "slices": 3}
    plain = {"uuid": "MIG-b", "name": "NVIDIA H100 80GB HBM3", "total": 9_856, "slices": 1}
    layer = NvmlLayer(Nvml(h100(0, mig=[named, None, plain]), h100(1, mig=[])))
    found = layer.discover()
    assert [(d.id, d.index, d.kind, d.mig_profile, d.parent) for d in found] == [
        ("MIG-a", 0, "mig", "3g.40gb", "GPU-0"),
        ("MIG-b", 1, "mig", "1g.10gb", "GPU-0"),
        ("GPU-1", 2, "gpu", "", ""),
    ]
    reading = layer.sample({})[0]
    assert (reading.device, reading.power_w, reading.utilization_pct) == ("MIG-a", 412.0, 0.0)


def test_samples_have_units_and_lost_boards_are_silent():
    boards = h100(0, used=1000, ecc=2, reasons=0x4 | 0x40), h100(1)
    layer = NvmlLayer(Nvml(*boards))
    layer.discover()
    boards[1]["lost"] = True
    (reading,) = layer.sample({})
    assert (reading.utilization_pct, reading.memory_used_mib, reading.power_w) == (73.0, 1000, 412.0)
    assert (reading.temperature_c, reading.ecc_errors, reading.throttled) == (61.0, 2, True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("nvmlDeviceGetTotalEccErrors", 2**64 - 1),
        ("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=2**32 - 1)),
        ("nvmlDeviceGetEnforcedPowerLimit", 2**32 - 1),
    ],
)
def test_a_number_that_cannot_be_is_none_that_was_told(monkeypatch, call, said):
    """Drivers say -1, unsigned, of what they do not know; the agent ended for it, with each sample."""
    monkeypatch.setattr(Nvml, call, lambda *_: said)
    layer = NvmlLayer(Nvml(h100(0)))
    (device,) = layer.discover()
    (reading,) = layer.sample({})
    got = {"Ecc": reading.ecc_errors, "Util": reading.utilization_pct, "Power": device.power_limit_w}
    assert [value for name, value in got.items() if name in call] == [0]


def test_a_board_without_a_memory_that_can_be_is_not_offered_and_the_others_are():
    assert [d.id for d in NvmlLayer(Nvml(h100(0, total=2**44), h100(1))).discover()] == ["GPU-1"]


def test_a_board_that_fell_off_the_bus_is_not_offered():
    assert [d.id for d in NvmlLayer(Nvml(h100(0, lost=True), h100(1))).discover()] == ["GPU-1"]


def test_devices_are_made_visible_by_uuid():
    layer = NvmlLayer(Nvml(h100(0), h100(1)))
    layer.discover()
    assert layer.environment((rank("GPU-1"), rank("GPU-0")))["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"
    with pytest.raises(NoDevices, match="GPU-7 is not on this node"):
        layer.environment((rank("GPU-7"),))


def test_without_a_driver_the_message_says_how_to_go_on():
    with pytest.raises(NoDevices, match=r"no NVIDIA driver answers \(Driver Not Loaded\).*BATON_AGENT_DEVICES=cpu"):
        NvmlLayer(Nvml(driver=False))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        (b"NVIDIA H200", "H200"),
    ],
)
def test_models_are_named_as_jobs_ask_for_them(name, model):
    assert short_model(name) == model


@pytest.mark.parametrize("path", sorted(FLEETS.glob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_fleet_can_be_used(path):
    nodes = read_fleet(path)
    assert all(node.simulated and node.devices for node in nodes)
    assert len({d.id for node in nodes for d in node.devices}) == sum(len(node.devices) for node in nodes)


def test_the_demo_fleet_is_what_its_name_says():
    nodes = read_fleet(FLEETS / "demo-16x8-h100.yaml")
    assert len(nodes) == 16
    assert {node.position.leaf for node in nodes} == {"leaf-0", "leaf-1"}
    assert {(d.model, d.memory_mib) for node in nodes for d in node.devices} == {("H100", 81_920)}


def test_the_zoo_has_every_kind_and_knows_what_each_is():
    nodes = {node.node: node for node in read_fleet(FLEETS / "zoo.yaml")}
    found = {(d.model, d.kind.value, d.runtime.value) for node in nodes.values() for d in node.devices}
    assert found == {
        ("H100", "gpu", "cuda"), ("H100", "mig", "cuda"), ("MI300X", "gpu", "rocm"), ("v5p", "tpu", "tpu"),
        ("v5e", "tpu", "tpu"), ("Gaudi3", "npu", "synapse"), ("Trainium2", "npu", "neuron"), ("U280", "fpga", "xrt"),
        ("Hailo-8", "npu", "hailo"), ("Coral", "npu", "edgetpu"), ("CPU", "cpu", "cpu"),
    }  # fmt: skip
    assert {kind for _, kind, _ in found} == set(DeviceKind)
    assert [d.nvlink_domain for n in ("mi300x-0", "fpga-0", "v5e-0") for d in nodes[n].devices][7:11] == [
        "nvl0", "", "", "",
    ]  # fmt: skip


def test_simulated_boards_are_cut_as_their_geometry_allows():
    node = next(node for node in read_fleet(FLEETS / "zoo.yaml") if node.node == "mig-0")
    assert len(node.boards) == 4
    first = [(d.mig_profile, d.mig_start) for d in node.devices if d.parent == node.boards[0].id]
    assert sorted(profile for profile, _ in first) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    starts = {profile.name: profile.starts for profile in node.boards[0].profiles}
    assert all(start in starts[profile] for profile, start in first)


def test_every_chip_of_a_simulated_torus_has_its_place_and_hosts_are_boxes():
    chips = [d for node in read_fleet(FLEETS / "zoo.yaml") for d in node.devices if d.model == "v5p"]
    assert {d.torus for d in chips} == {"v5p-00"}
    assert len({d.torus_at for d in chips}) == 4 * 4 * 4
    assert [d.torus_at for d in chips[:5]] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1)]


def test_a_second_torus_begins_after_the_last_host_of_the_first():
    text = "groups: [{name: 'n{i}', count: 4, devices: {model: v5e, count: 4, torus: {shape: [2, 4], host: [2, 2]}}}]"
    assert [node.devices[0].torus for node in parse_fleet(text, "f")] == ["n0", "n0", "n2", "n2"]


GROUP = "groups: [{name: 'n{i}', count: 2, devices: {model: H100, count: 4, memory_gib: 80%s}%s}]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GROUP % ("", ", count: many"), "f.yaml:1: groups.0.count: the key stands twice, first in line 1; keep one"),
        (GROUP % ("", ", cpus: many"), "f.yaml:1: groups.0.cpus: many: not a whole number; write an integer"),
        (GROUP % ("", ", cpus: yes"), "groups.0.cpus: yes is not a number; write a number"),
        (GROUP % ("", ", cpus: 2000000"), "groups.0.cpus: 2000000: too large; use at most 1000000"),
        (
            GROUP % (", mig: [4g.40gb, 4g.40gb]", ""),
            "no board can be partitioned into 4g.40gb, 4g.40gb at once; its profiles are",
        ),
        (GROUP.replace("H100", "L4") % (", mig: [1g.5gb]", ""), "L4 has no MIG"),
        (GROUP.replace("80%s", "0%s").replace("H100", "H1") % ("", ""), "H1 is not in the catalogue.*memory_gib"),
        (GROUP % (", torus: {shape: [4, 4], host: [2, 4]}", ""), r"count is 4, and a host of \[2, 4\] has 8 chips"),
        (GROUP % (", torus: {shape: [4, 3], host: [2, 2]}", ""), r"hosts of \[2, 2\] chips do not fill"),
        (GROUP % (", nvlink_domains: 3", ""), "4 devices cannot be split into 3 equal NVLink domains"),
        (GROUP % ("", ", colour: red"), "groups.0.colour: red: unknown field; remove it; known here: contents, "),
        (GROUP % ("", ", count_: 3"), "groups.0.count_: 3: unknown field; did you mean 'count'?"),
        ("groups: []", "groups: too few; write at least 1"),
        ("pool: main", "groups: the field is missing; add it"),
        ("", "file: is not one mapping of fields; write `groups: "),
        ("pool: west\n" + GROUP % ("", ""), "pool: west: the pool is main; correct it, or leave it out"),
        (GROUP.replace("n{i}", "node") % ("", ""), "'node' names two nodes; put {i} into the pattern"),
        (
            "groups: [{name: 'n{i}', count: 1, devices: {model: H100, count: 1}}, "
            "{name: 'n{i}', count: 1, devices: {model: L4, count: 1}}]",
            "groups.1.name: n{i}: 'n0' names two nodes; give each group names of its own",
        ),
        (
            GROUP.replace("n{i}", "n{rack}") % ("", ""),
            "groups.0.name: n{rack}: not a pattern that is read; use {i} and {leaf} only",
        ),
        (GROUP.replace("n{i}", "n{i.x}") % ("", ""), "groups.0.name: n{i.x}: not a pattern that is read"),
        (
            GROUP.replace("n{i}", "n.{i}") % ("", ""),
            r"groups.0.name: n.{i}: gives 'n.0', which has characters .*; use letters",
        ),
        ("{", "not YAML"),
        (
            GROUP % ("", ", cpus: 1_0"),
            "f.yaml:1: groups.0.cpus: '1_0' is not a number that is read; write it in decimal",
        ),
    ],
)
def test_fleet_errors_name_field_value_and_fix(text, message):
    """Seen: words of pydantic's, a line for the list of groups in which nothing was wrong, and 1 for `yes`."""
    with pytest.raises(FleetError) as told:
        parse_fleet(text, "f.yaml", "main")
    (line,) = str(told.value).splitlines()
    assert re.search(message, line), line
    assert not re.search("Input|Value error|is not permitted", line)


def test_all_that_is_wrong_with_a_fleet_is_told_at_once_each_in_its_line():
    text = """groups:
  - {name: "a{i}", count: 2, devices: {model: H100, count: none}}
  - {name: "b{i}", count: 0, devices: {model: H100, count: 8}}
  - {name: "c{i}", count: 2}
"""
    with pytest.raises(FleetError) as told:
        parse_fleet(text, "f.yaml")
    assert str(told.value).splitlines() == [
        "f.yaml:2: groups.0.devices.count: none: not a whole number; write an integer",
        "f.yaml:3: groups.1.count: 0: too small; use at least 1",
        "f.yaml:4: groups.2.devices: the field is missing; add it",
    ]


def test_a_simulated_node_may_tell_its_disk_and_its_racks_power_cap():
    text = """
groups:
  - name: "n{i}"
    count: 1
    devices: {model: H100, count: 2, power_limit_w: 700, memory_free_gib: 70}
    rack_power_w: 900
    contents: [image]
    fetch_mib_s: 250
"""
    (node,) = parse_fleet(text, "f.yaml")
    assert (node.rack_power_w, node.contents, node.fetch_mib_s) == (900, ("image",), 250)
    assert [device.memory_free_mib for device in node.devices] == [70 * 1024] * 2


def test_a_fleet_file_that_cannot_be_read_is_told_with_its_name(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff")
    for path, why in (
        (Path("/nowhere.yaml"), "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "bytes.yaml", "UTF-8"),
    ):
        with pytest.raises(FleetError, match=f"^{path}:1: file: .*{why}"):
            read_fleet(path)


def test_simulated_readings_follow_what_is_granted_and_repeat():
    def readings():
        return SimulatedLayer(inventory().devices).sample({"n0-gpu0": 1000, "n0-gpu1": 250})

    busy, shared, idle = readings()[:3]
    assert 90 <= busy.utilization_pct <= 98
    assert 22 <= shared.utilization_pct <= 25
    assert (idle.utilization_pct, idle.memory_used_mib) == (0, 0)
    assert readings() == readings()


def test_this_machines_processors_are_one_device():
    layer = CpuLayer("here")
    (device,) = layer.discover()
    assert (device.id, device.kind, device.model) == ("here-cpu0", "cpu", "CPU")
    assert device.memory_mib > 0
    (reading,) = layer.sample({})
    assert 0 <= reading.utilization_pct <= 100
    assert layer.environment((rank("here-cpu0", milli=500),))["CUDA_VISIBLE_DEVICES"] == ""


def test_an_operator_tells_an_agent_what_it_cannot_find_by_itself(monkeypatch, tmp_path):
    for name, value in {"RACK_POWER_W": "42000", "CONTENTS": '["image", "data"]', "FETCH_MIB_S": "250"}.items():
        monkeypatch.setenv(f"BATON_AGENT_{name}", value)
    (one,) = hosted(AgentSettings(devices="cpu", state_dir=tmp_path))
    assert (one.inventory.rack_power_w, one.inventory.contents) == (42_000, ("image", "data"))
    assert one.inventory.fetch_mib_s == 250


@pytest.mark.parametrize(("sharing", "labels"), [("any", {}), ("none", {SHARING: NO_SHARING})])
def test_a_machine_says_when_its_accelerators_are_not_shared(
    tmp_path: Path, sharing: str, labels: dict[str, str]
) -> None:
    (one,) = hosted(AgentSettings(devices="cpu", sharing=sharing, labels={"site": "west"}, state_dir=tmp_path))
    assert one.inventory.labels == {"site": "west", **labels}


def test_a_credential_of_another_node_is_told_at_the_start(tmp_path):
    """Seen: a host whose name is not that in its credential said for ever that its leases were not renewed: timeout."""
    ring = Keyring(tmp_path)
    own = {"devices": "cpu", "state_dir": tmp_path, "node": "gpu-1"}
    for creds in (ring.node("main", "gpu-1"), ring.nodes("main")):
        (one,) = hosted(AgentSettings(nats_creds=creds, **own))
        assert one.inventory.node == "gpu-1"
    for creds in (ring.node("main", "gpu-2"), ring.node("west", "gpu-1"), ring.nodes("west"), ring.service("leases")):
        with pytest.raises(
            ValueError, match=r"set BATON_POOL and BATON_AGENT_NODE .* `baton node add gpu-1 --pool main`"
        ):
            hosted(AgentSettings(nats_creds=creds, **own))


def test_a_gpu_nodes_processors_are_offered_beside_its_gpus():
    layer = WithProcessors(SimulatedLayer(inventory(devices=2).devices), CpuLayer("n0"))
    found = layer.discover()
    assert [(d.id, d.index, d.kind) for d in found] == [
        ("n0-gpu0", 0, "gpu"), ("n0-gpu1", 1, "gpu"), ("n0-cpu0", 2, "cpu"),
    ]  # fmt: skip
    assert [sample.device for sample in layer.sample({})] == [d.id for d in found]
    gpu, cpu = rank("n0-gpu1"), rank("n0-cpu0", milli=500)
    assert layer.environment((gpu,))["CUDA_VISIBLE_DEVICES"] == "1"
    alone = layer.environment((cpu,))
    assert (alone["CUDA_VISIBLE_DEVICES"], "OMP_NUM_THREADS" in alone) == ("", True)
    both = layer.environment((gpu, cpu))
    assert (both["CUDA_VISIBLE_DEVICES"], both["BATON_DEVICES"]) == ("1", "n0-gpu1,n0-cpu0")


def test_an_operator_may_keep_a_gpu_nodes_processors_to_itself(monkeypatch, tmp_path):
    monkeypatch.setattr("services.agent.nodes.NvmlLayer", lambda dynamic: SimulatedLayer(inventory(devices=1).devices))
    offered = [
        [
            d.kind
            for d in hosted(AgentSettings(devices="nvml", node="n0", processors=p, state_dir=tmp_path))[
                0
            ].layer.discover()
        ]
        for p in (True, False)
    ]
    assert offered == [["gpu", "cpu"], ["gpu"]]
