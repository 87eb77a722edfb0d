"""What is known of accelerators: names, what each vendor shares, hides and refuses, and what it can never serve."""

import re

import pytest

from libs.core.accelerators import mig_boards
from libs.core.accelerators.catalog import catalog, find_model, find_pci, models
from libs.core.accelerators.vendors import VENDORS, Granted, problems, sharable, vendor_named, vendor_of, visibility
from libs.core.admission.environment import refused_names
from schemas.resources import Device, DeviceKind, Precision, Resources, Runtime

NO_PLACEMENTS_KNOWN = "RTXPRO6000-96GB"
"""Its MIG profiles are in the facts, where they may start is not."""


def granted(model, *indices, kind=DeviceKind.GPU, prefix="n0-", **fields):
    made = (Device(id=f"{prefix}{i}", index=i, kind=kind, model=model, memory_mib=1024) for i in indices)
    return [Granted(device, **fields) for device in made]


# ------------------------------------------------------------------------------------------------------- the catalogue


def test_every_row_is_whole_and_its_vendor_and_mig_board_exist():
    for name, a in catalog().items():
        assert find_model(name) is a
        assert vendor_named(name).name == a.vendor
        assert a.runtime in vendor_named(name).runtimes
        assert not a.mig or a.mig in (*mig_boards.GEOMETRIES, NO_PLACEMENTS_KNOWN), name
        assert all(value > 0 for value in a.tflops.values()), name
        assert a.price is None or 0 < (a.price.low or a.price.high) <= (a.price.high or a.price.low)
        assert bool(a.link.type) == bool(a.link.gb_s), name
        assert name == "CPU" or a.sources, name
    assert len(catalog()) == 48
    assert {a.vendor for a in catalog().values()} == {v.name for v in VENDORS}


def test_facts_that_decisions_hang_on():
    h100, mi300x, v5p = find_model("H100"), find_model("MI300X"), find_model("v5p")
    assert (h100.memory_gib, h100.bandwidth_gb_s, h100.tflops[Precision.BF16], h100.tdp_w) == (80, 3350, 989, 700)
    assert (h100.link.gb_s, h100.link.pair_gb_s, h100.host_gb_s) == (900, 450, 63)
    assert (mi300x.memory_gib, mi300x.link.pair_gb_s) == (192, 64)
    assert (v5p.memory_gib, v5p.link.pair_gb_s, v5p.kind) == (95, 100, DeviceKind.TPU)
    assert Precision.FP8 not in find_model("A100").tflops


@pytest.mark.parametrize(
    ("name", "form", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe", "A100"),
        ("NVIDIA GH200 480GB", "GH200", "GH200"),
        ("NVIDIA B300 SXM6 AC", "B300", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000", "RTX-PRO-6000"),
        ("h100", "H100", "H100"),
        ("AMD_Instinct_MI300X_OAM", "MI300X", "MI300X"),
        ("TPU v5 lite", "v5e", "v5e"),
        ("TPU-v5p", "v5p", "v5p"),
        ("trn2", "Trainium2", "Trainium2"),
        ("Gaudi 3", "Gaudi3", "Gaudi3"),
    ],
)
def test_one_model_has_many_names(name, form, model):
    found = find_model(name)
    assert (found.name, found.model) == (form, model)


def test_unknown_models_are_unknown_and_never_guessed():
    assert find_model("H1000") is None
    assert find_model("") is None
    assert vendor_named("Abacus") is None
    assert find_pci("amd", "0x74A1").name == "MI300X"
    assert find_pci("nvidia", "74a1") is None
    assert {"H100", "v5p", "Gaudi3", "CPU"} <= models()


# --------------------------------------------------------------------------------------------------------- visibility


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        (granted("H100", 3, 0), {"CUDA_VISIBLE_DEVICES": "3,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (granted("H100", 1, prefix="MIG-"), {"CUDA_VISIBLE_DEVICES": "MIG-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (granted("MI300X", 2, 5), {"HIP_VISIBLE_DEVICES": "2,5"}),
        (
            granted("v5p", 1, kind=DeviceKind.TPU),
            {"TPU_VISIBLE_CHIPS": "1", "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1", "TPU_HOST_BOUNDS": "1,1,1"},
        ),
        (
            granted("v5e", 4, 5, kind=DeviceKind.TPU),
            {"TPU_VISIBLE_CHIPS": "4,5", "TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1", "TPU_HOST_BOUNDS": "1,1,1"},
        ),
        (granted("v5p", 0, 1, 2, 3, kind=DeviceKind.TPU), {"TPU_VISIBLE_CHIPS": "0,1,2,3"}),
        (granted("Gaudi3", 6, 7, kind=DeviceKind.NPU), {"HABANA_VISIBLE_MODULES": "6,7"}),
        (granted("Trainium2", 0, 2, kind=DeviceKind.NPU), {"NEURON_RT_VISIBLE_CORES": "0-3,8-11"}),
        (granted("Trainium1", 2, 1, kind=DeviceKind.NPU), {"NEURON_RT_VISIBLE_CORES": "2-5"}),
        (granted("U280", 0, kind=DeviceKind.FPGA), {}),
        (granted("Hailo-8", 0, kind=DeviceKind.NPU), {}),
        (granted("CPU", 0, kind=DeviceKind.CPU), {"CUDA_VISIBLE_DEVICES": ""}),
    ],
)
def test_a_process_sees_exactly_its_devices(devices, wanted):
    assert visibility(devices) == wanted
    assert refused_names(wanted) == sorted(wanted), "and a job may not choose others"


def test_a_share_of_an_nvidia_gpu_is_told_to_mps():
    got = visibility(granted("H100", 0, milli=250, memory_mib=2048))
    assert got["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert got["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"


@pytest.mark.parametrize(
    "name",
    ["ROCR_VISIBLE_DEVICES", "TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "NEURON_RT_NUM_CORES", "ZE_AFFINITY_MASK",
     "HABANA_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR", "ASCEND_RT_VISIBLE_DEVICES", "CUDA_MPS_LOG_DIRECTORY"],
)  # fmt: skip
def test_every_other_way_to_choose_devices_is_refused(name):
    assert refused_names([name]) == [name]


def test_a_device_of_an_unknown_model_belongs_to_its_kind_or_runtime():
    def of(**fields):
        return vendor_of(Device(id="d", index=0, model="Abacus", memory_mib=1, **fields)).name

    assert of(kind=DeviceKind.TPU, runtime=Runtime.TPU) == "google"
    assert of(kind=DeviceKind.FPGA, runtime=Runtime.XRT) == "fpga"
    assert of(runtime=Runtime.ROCM) == "amd"
    assert of() == "nvidia"


# ------------------------------------------------------------------------------------------ what can never be served


@pytest.mark.parametrize(
    ("wanted", "field", "text"),
    [
        ({"types": ["U280"], "share_milli": 500}, "share_milli", "U280 is granted whole: a card has one bitstream"),
        ({"types": ["H100", "MI300X"], "share_milli": 500}, "share_milli", "MI300X is granted whole"),
        ({"types": ["Coral"], "share_milli": 100}, "share_milli", "one process at a time"),
        ({"types": ["v5e"], "share_milli": 100}, "share_milli", "one process owns a TPU chip"),
        ({"types": ["MI300X"], "mig_profile": "1g.10gb"}, "mig_profile", "MI300X has no MIG"),
        ({"types": ["L40S"], "mig_profile": "1g.10gb"}, "mig_profile", "L40S has no MIG"),
        ({"types": ["H100"], "torus": [2, 2, 4]}, "torus", "only TPU slices"),
        ({"types": ["v5p"], "torus": [3, 2, 1]}, "torus", r"no slice of this box.*set torus to \[2, 2, 1\]"),
        ({"types": ["v5p"], "torus": [4, 2, 2]}, "torus", r"ascending order.*set torus to \[2, 2, 4\]"),
        ({"types": ["v5e"], "torus": [2, 2, 1]}, "torus", r"set torus to \[2, 2\]"),
        ({"types": ["v5p"], "devices": 16}, "torus", r"16 chips.*set torus to \[2, 2, 4\]"),
        ({"types": ["v4"], "devices": 8, "min_devices": 4}, "min_devices", "atomic"),
        ({"torus": [3, 3]}, "torus", r"no TPU generation.*use \[2, 4\]"),
        ({"torus": [7]}, "torus", "2 sides"),
    ],
)
def test_what_no_device_of_a_type_can_serve_is_named_with_its_fix(wanted, field, text):
    found = {p.field: f"{p.problem}: {p.fix}" for p in problems(Resources.model_validate(wanted))}
    assert re.search(text, found[field]), found


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"types": ["H100"], "share_milli": 250},
        {"types": ["H100"], "mig_profile": "3g.40gb"},
        {"types": ["v5p"], "torus": [4, 4, 8]},
        {"types": ["v5p"]},
        {"types": ["CPU"], "share_milli": 10},
        {"types": ["Abacus"], "share_milli": 10},
        {"torus": [2, 2, 1]},
        {"types": ["MI300X", "Gaudi3", "Trainium2"], "devices": 8},
    ],
)
def test_what_could_be_served_is_not_refused(wanted):
    assert list(problems(Resources.model_validate(wanted))) == []


def test_who_shares():
    assert [m for m in ("H100", "CPU", "MI300X", "v5p", "U280", "Coral", "Gaudi3", "Abacus") if sharable(m)] == [
        "H100", "CPU", "Abacus",
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- links


def test_links_within_a_node():
    def rate(name, linked=True):
        model = find_model(name)
        return vendor_named(name).link_gb_s(model, linked)

    assert [rate(m) for m in ("H100", "MI300X", "Gaudi3", "Gaudi2", "v5p", "L40S", "Trainium2", "CPU")] == [
        450, 64, 75, 37.5, 100, 31, 0, 0,
    ]  # fmt: skip
    assert (rate("H100", linked=False), rate("GH200")) == (63, 450), "GH200's link goes to its own Grace"
