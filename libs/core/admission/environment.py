"""Which environment variables a job may not set, as data.

A job's environment is built from empty; what a job adds passes this list first. Three kinds are refused: what makes a
loader or interpreter run other code before the job's own (also in helpers that run with more rights), what Baton sets
itself, and what chooses devices (each vendor's plugin names those, libs.core.accelerators.vendors): a job that could
choose its own would compute on somebody else's.
Sources: CVE-2025-23266 (a privileged helper that inherited a job's LD_PRELOAD), CVE-2021-31215.
"""

from collections.abc import Iterable

from libs.core.accelerators import vendors

REFUSED_PREFIXES: tuple[str, ...] = ("LD_", "DYLD_", "BATON_", *vendors.REFUSED_PREFIXES)

_CODE_BEFORE_THE_JOBS_OWN = (
    "BASH_ENV", "ENV", "GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "PYTHONHOME", "PYTHONINSPECT", "PYTHONSTARTUP",
)  # fmt: skip
_OF_VENDORS_WITHOUT_A_PLUGIN = ("ASCEND_RT_VISIBLE_DEVICES",)
_RENDEZVOUS = (
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "RANK",
    "WORLD_SIZE",
)  # fmt: skip

REFUSED: frozenset[str] = vendors.REFUSED.union(_CODE_BEFORE_THE_JOBS_OWN, _OF_VENDORS_WITHOUT_A_PLUGIN, _RENDEZVOUS)


def variable_part(role: str) -> str:
    """A role's name within the name of a variable: capitals, and `_` for what a name of a variable cannot have."""
    return "".join(c if c.isalnum() else "_" for c in role.upper())


def refused_names(names: Iterable[str]) -> list[str]:
    """Those of `names` (a job's environment, or just its names) that a job may not set, sorted; empty when all may."""
    return sorted(name for name in names if name in REFUSED or name.startswith(REFUSED_PREFIXES))
