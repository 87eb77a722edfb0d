"""CDI specs, as nvidia-ctk writes them: what a granted device needs, and nothing of another one."""

import json
import os

import yaml

from libs.adapters.devices.cdi import CdiEdits, CdiSpecs
from libs.adapters.devices.nvml import NvmlLayer
from tests.agent.build import rank
from tests.agent.test_devices import Nvml, h100

KIND = "nvidia.com/gpu"


def spec(*names, beside=("/dev/nvidiactl",), env=("NVIDIA_VISIBLE_DEVICES=void",)):
    """Each device has the file of its number."""
    return {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "devices": [
            {
                "name": name,
                "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{n}"}, {"path": f"/dev/dri/card{n}"}]},
            }
            for n, name in enumerate(names)
        ],
        "containerEdits": {
            "env": list(env),
            "deviceNodes": [{"path": path} for path in beside],
            "mounts": [{"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1"}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk"}],
        },
    }


def write(root, text, where="etc/cdi/nvidia.yaml"):
    path = root / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_device_has_its_own_files_and_those_of_its_kind(tmp_path):
    write(tmp_path, yaml.safe_dump(spec("GPU-0", "GPU-1")))
    specs = CdiSpecs(tmp_path)
    assert specs.edits(KIND, ["GPU-1"]) == CdiEdits(
        ("/dev/nvidiactl", "/dev/nvidia1", "/dev/dri/card1"), (("NVIDIA_VISIBLE_DEVICES", "void"),)
    )
    assert specs.edits(KIND, ["GPU-7"]) == specs.edits("other.com/gpu", ["GPU-0"]) == CdiEdits()
    assert CdiSpecs(tmp_path / "nothing").edits(KIND, ["GPU-0"]) == CdiEdits()


def test_what_is_in_var_run_counts_and_a_change_is_seen(tmp_path):
    specs = CdiSpecs(tmp_path)
    write(tmp_path, yaml.safe_dump(spec("GPU-0", beside=("/dev/old",))))
    assert "/dev/old" in specs.edits(KIND, ["GPU-0"]).files
    newer = write(tmp_path, json.dumps(spec("GPU-0", beside=("/dev/new",))), "var/run/cdi/nvidia.json")
    assert specs.edits(KIND, ["GPU-0"]).files[0] == "/dev/new"
    newer.write_text(json.dumps(spec("GPU-0", beside=("/dev/newest",))))
    os.utime(newer, (1, 1))
    assert specs.edits(KIND, ["GPU-0"]).files[0] == "/dev/newest"
    newer.unlink()
    assert specs.edits(KIND, ["GPU-0"]).files[0] == "/dev/old"


def test_what_is_no_spec_or_no_device_is_left_out(tmp_path):
    for number, text in enumerate(("{", "[]", "kind: 7", "kind: nvidia.com/gpu\ndevices: [{}]", "a: b: c", "\x00")):
        write(tmp_path, text, f"etc/cdi/{number}.yaml")
    strange = spec("GPU-0", beside=("/dev/../etc/shadow", "/etc/passwd", "/dev/ok"))
    strange["devices"][0]["containerEdits"]["deviceNodes"].append({"path": "/dev/inside", "hostPath": "/dev/sda"})
    write(tmp_path, json.dumps(strange), "etc/cdi/z.json")
    assert CdiSpecs(tmp_path).edits(KIND, ["GPU-0"]).files == ("/dev/ok", "/dev/nvidia0", "/dev/dri/card0")


def test_gpus_are_found_by_uuid_or_number_and_batons_variables_count(tmp_path):
    layer = NvmlLayer(Nvml(h100(0), h100(1)), root=tmp_path)
    one, other = layer.discover()
    before = layer.files([other.id])
    write(tmp_path, yaml.safe_dump(spec("0", "1", env=("VENDOR=1", "CUDA_VISIBLE_DEVICES=all"))))
    assert set(layer.files([other.id])) == {*before, "/dev/nvidiactl", "/dev/nvidia1", "/dev/dri/card1"}
    assert not {"/dev/nvidia0", "/dev/dri/card0"} & set(layer.files([other.id])), "nothing of the other one"
    shown = layer.environment([rank(device=one.id)])
    assert (shown["VENDOR"], shown["CUDA_VISIBLE_DEVICES"]) == ("1", one.id)
    write(tmp_path, yaml.safe_dump(spec(one.id, other.id, "1")))
    assert "/dev/dri/card1" in layer.files([other.id]), "by its UUID first"


def test_a_spec_that_is_out_of_date_opens_no_other_gpu(tmp_path):
    layer = NvmlLayer(Nvml(h100(0), h100(1)), root=tmp_path)
    one, other = layer.discover()
    write(tmp_path, yaml.safe_dump(spec("1", "0")))
    assert layer.files([one.id]) == ("/dev/nvidia0", *layer.files([one.id])[1:])
    assert not {"/dev/nvidia1", "/dev/dri/card0", "/dev/dri/card1"} & set(layer.files([one.id]))
    assert "/dev/nvidia0" not in layer.files([other.id])
