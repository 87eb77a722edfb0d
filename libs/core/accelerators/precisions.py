"""Which number formats a device model computes in by hardware. From shared/reference/accelerators.json (2026).

A format that hardware only emulates is not listed: the job would run, many times slower than asked for.
"""

from types import MappingProxyType

_FP = frozenset({"fp32", "bf16", "fp16"})
_AMPERE = _FP | {"tf32", "int8", "int4"}
_ADA = _AMPERE | {"fp8"}
_HOPPER = _FP | {"tf32", "fp8", "int8"}
_BLACKWELL = _HOPPER | {"fp4"}

PRECISIONS = MappingProxyType(
    {
        "V100": frozenset({"fp32", "fp16"}),
        "T4": frozenset({"fp32", "fp16", "int8", "int4"}),
        **dict.fromkeys(("A10", "A10G", "A30", "A40", "A100", "A800", "RTX-A6000"), _AMPERE),
        **dict.fromkeys(("L4", "L40", "L40S", "RTX-4090"), _ADA),
        **dict.fromkeys(("H100", "H200", "H20", "H800", "GH200", "Gaudi2", "Gaudi3"), _HOPPER),
        **dict.fromkeys(("B200", "GB200", "B300", "GB300", "RTX-5090", "RTX-PRO-6000"), _BLACKWELL),
        "MI250X": _FP | {"int8"},
        **dict.fromkeys(("MI300X", "MI325X"), _HOPPER),
        "MI355X": _FP | {"fp8", "fp4", "int8"},
        **dict.fromkeys(("v4", "v5e", "v5p"), frozenset({"bf16", "int8"})),
        "v6e": frozenset({"bf16", "int8", "fp8"}),
        "tpu7x": frozenset({"bf16", "fp16", "int8", "fp8"}),
        **dict.fromkeys(("Inferentia2", "Trainium1"), _HOPPER),
        "Trainium2": _FP | {"tf32", "fp8"},
        "Trainium3": _FP | {"tf32", "fp8", "fp4"},
        **dict.fromkeys(("Hailo-8", "Coral"), frozenset({"int8"})),
    }
)
"""Short model name, as jobs ask for it, to its formats."""


def computes(model: str, precision: str) -> bool:
    """Whether `model` computes in `precision` (names of `schemas.resources.Precision`). An unknown model is allowed.

    `H100-NVL` is an H100 and `TPU-v5e` a v5e: a name that is not listed counts as the one it begins with, at a dash.
    """
    name = model.removeprefix("TPU-")
    while name not in PRECISIONS and "-" in name:
        name = name.rpartition("-")[0]
    formats = PRECISIONS.get(name)
    return formats is None or precision in formats
