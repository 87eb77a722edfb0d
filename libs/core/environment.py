"""Which environment variables a job may not set, as data.

A job's environment is built from empty; what a job adds passes this list first. Three kinds are refused: what makes a
loader or interpreter run other code before the job's own (also in helpers that run with more rights), what Baton sets
itself, and what chooses devices: a job that could choose its own would compute on somebody else's.
Sources: CVE-2025-23266 (a privileged helper that inherited a job's LD_PRELOAD), CVE-2021-31215.
"""

from collections.abc import Iterable

REFUSED_PREFIXES: tuple[str, ...] = ("LD_", "DYLD_", "NVIDIA_", "BATON_", "CUDA_MPS_")

_CODE_BEFORE_THE_JOBS_OWN = (
    "BASH_ENV", "ENV", "GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "PYTHONHOME", "PYTHONINSPECT", "PYTHONSTARTUP",
)  # fmt: skip
_DEVICES = (
    "ASCEND_RT_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    "HABANA_VISIBLE_MODULES", "HIP_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "ROCR_VISIBLE_DEVICES",
    "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
)  # fmt: skip
_RENDEZVOUS = (
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "RANK",
    "WORLD_SIZE",
)  # fmt: skip

REFUSED: frozenset[str] = frozenset(_CODE_BEFORE_THE_JOBS_OWN + _DEVICES + _RENDEZVOUS)


def refused_names(names: Iterable[str]) -> list[str]:
    """Those of `names` (a job's environment, or just its names) that a job may not set, sorted; empty when all may."""
    return sorted(name for name in names if name in REFUSED or name.startswith(REFUSED_PREFIXES))
