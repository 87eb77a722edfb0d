"""Accelerators found in trees of /sys and /dev as their drivers lay them out."""

import json
from pathlib import Path

import pytest

from libs.adapters.devices import NoDevices
from libs.adapters.devices.scan import ScannedLayer
from tests.agent.build import rank

GIB = 1024**3


def tree(root: Path, files: dict[str, object]) -> Path:
    """Files with their text below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def kfd(number: int, device_id: int, simds: int = 1216, gib: int = 192) -> dict[str, object]:
    node = f"sys/class/kfd/kfd/topology/nodes/{number}"
    minor = 127 + number
    return {
        f"{node}/properties": f"cpu_cores_count 0\nsimd_count {simds}\nvendor_id 4098\ndevice_id {device_id}\n"
        f"drm_render_minor {minor}",
        f"{node}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {gib * GIB}\nwidth 8192",
        f"sys/class/drm/renderD{minor}/device/gpu_busy_percent": 87,
        f"sys/class/drm/renderD{minor}/device/mem_info_vram_used": 3 * GIB,
    }


def pci(address: str, vendor: str, device: str) -> dict[str, object]:
    at = f"sys/bus/pci/devices/{address}"
    return {f"{at}/vendor": f"0x{vendor}", f"{at}/device": f"0x{device}"}


def layer(root: Path, listed: str = "") -> ScannedLayer:
    return ScannedLayer("here", root, lambda: listed)


def summary(found):
    return [(d.id, d.index, d.model, d.kind.value, d.runtime.value, d.memory_mib) for d in found]


def test_amd_gpus_are_kfd_nodes_with_compute_units_and_tell_how_busy_they_are(tmp_path):
    files = kfd(0, 0, simds=0, gib=512) | kfd(1, 0x74A1) | kfd(2, 0x74A1) | kfd(10, 0x74A5, gib=256)
    found = layer(tree(tmp_path, files))
    assert summary(found.discover()) == [
        ("here-gpu0", 0, "MI300X", "gpu", "rocm", 192 * 1024),
        ("here-gpu1", 1, "MI300X", "gpu", "rocm", 192 * 1024),
        ("here-gpu2", 2, "MI325X", "gpu", "rocm", 256 * 1024),
    ]
    assert [(s.utilization_pct, s.memory_used_mib) for s in found.sample({})] == [(87.0, 3 * 1024)] * 3
    assert found.environment((rank("here-gpu2"), rank("here-gpu0")))["HIP_VISIBLE_DEVICES"] == "2,0"


def test_a_partition_has_the_memory_that_its_driver_tells(tmp_path):
    files = kfd(1, 0x74A1, simds=152, gib=24) | kfd(2, 0x74A1, simds=152, gib=24)
    for number in (1, 2):
        files[f"sys/class/kfd/kfd/topology/nodes/{number}/properties"] += "\nunique_id 3735928559"
    found = layer(tree(tmp_path, files)).discover()
    assert [(d.id, d.memory_mib) for d in found] == [
        ("here-gpu-deadbeef-0", 24 * 1024), ("here-gpu-deadbeef-1", 24 * 1024),
    ]  # fmt: skip


def test_tpu_chips_by_pci_id_and_not_googles_network_card(tmp_path):
    files = (
        pci("0000:00:05.0", "1ae0", "0062") | pci("0000:00:04.0", "1ae0", "0062") | pci("0000:00:06.0", "1ae0", "0042")
    )
    found = layer(tree(tmp_path, files))
    assert summary(found.discover()) == [
        ("here-tpu-0000:00:04.0", 0, "v5p", "tpu", "tpu", 95 * 1024),
        ("here-tpu-0000:00:05.0", 1, "v5p", "tpu", "tpu", 95 * 1024),
    ]
    assert found.environment((rank("here-tpu-0000:00:05.0"),))["TPU_CHIPS_PER_HOST_BOUNDS"] == "1,1,1"


def test_the_chips_of_a_tpu_host_are_a_small_torus(tmp_path):
    files = [pci(f"0000:00:{n:02d}.0", "1ae0", "0063") for n in range(4, 12)]
    found = layer(tree(tmp_path, {k: v for f in files for k, v in f.items()})).discover()
    assert {(d.torus, d.torus_shape) for d in found} == {("here", (2, 4))}
    assert [d.torus_at for d in found][:5] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]


def test_gaudi_is_counted_by_module_and_an_intel_npu_is_none(tmp_path):
    def accel(number, vendor, device, module=None):
        at = f"sys/class/accel/accel{number}/device"
        files = {f"{at}/vendor": f"0x{vendor}", f"{at}/device": f"0x{device}"}
        return files | ({} if module is None else {f"{at}/module_id": module})

    files = accel(0, "1da3", "1060", 5) | accel(1, "1da3", "1060", 2) | accel(2, "8086", "7d1d")
    found = layer(tree(tmp_path, files))
    assert [(d.id, d.index, d.model) for d in found.discover()] == [
        ("here-hpu2", 2, "Gaudi3"),
        ("here-hpu5", 5, "Gaudi3"),
    ]
    assert found.environment((rank("here-hpu5"),))["HABANA_VISIBLE_MODULES"] == "5"


def test_neuron_chips_as_neuron_ls_lists_them(tmp_path):
    root = tree(tmp_path, {"sys/devices/virtual/dmi/id/product_name": "trn2.48xlarge"})
    listed = json.dumps([{"neuron_device": n, "nc_count": 8, "memory_size": 96 * GIB} for n in (1, 0)])
    found = layer(root, listed)
    assert summary(found.discover()) == [
        ("here-nd0", 0, "Trainium2", "npu", "neuron", 96 * 1024),
        ("here-nd1", 1, "Trainium2", "npu", "neuron", 96 * 1024),
    ]
    assert found.environment((rank("here-nd1"),))["NEURON_RT_VISIBLE_CORES"] == "4-7"


def test_an_fpga_card_is_one_device_whatever_functions_it_has(tmp_path):
    files = (
        pci("0000:3b:00.0", "10ee", "500c") | pci("0000:3b:00.1", "10ee", "500d") | pci("0000:5e:00.0", "10ee", "9999")
    )
    assert summary(layer(tree(tmp_path, files)).discover()) == [
        ("here-fpga-0000:3b:00", 0, "U280", "fpga", "xrt", 8192)
    ]


def test_small_chips_are_their_device_nodes_and_one_that_goes_is_seen(tmp_path):
    found = layer(tree(tmp_path, {"dev/hailo0": "", "dev/apex_0": "", "dev/apex_1": "", "dev/hailo_notes": ""}))
    assert [d.id for d in found.discover()] == ["here-hailo0", "here-apex_0", "here-apex_1"]
    (tmp_path / "dev/apex_0").unlink()
    assert [s.device for s in found.sample({})] == ["here-hailo0", "here-apex_1"]


@pytest.mark.parametrize("listed", ["", "[]", "not json", '{"a": 1}'])
def test_a_machine_without_any_says_what_was_looked_for(tmp_path, listed):
    root = tree(tmp_path, {"sys/devices/virtual/dmi/id/product_name": "trn2.48xlarge"})
    with pytest.raises(NoDevices, match=r"AMD, TPU, Gaudi.*BATON_AGENT_DEVICES=cpu"):
        layer(root, listed).discover()
