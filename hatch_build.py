"""Compiles what of Baton is in C, for the wheel and for a checkout: the program that starts the processes of jobs
(services/agent/keeper/native) and the placer's inner loops (libs/core/placement/native).

The compiler is zig's, from the package `ziglang`: it needs nothing else of the machine, and makes the same files everywhere,
also for another processor (`BATON_WHEEL_MACHINE=aarch64`). On a system that is not Linux, or with a processor that is neither
of the two, there is no such program, and the loops are compiled for that machine: all of Baton but the agent works there.
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PROGRAM = ROOT / "services" / "agent" / "keeper" / "native" / "baton-shim"
KERNELS = ROOT / "libs" / "core" / "placement" / "native" / "kernels.so"
HEADERS = {"x86_64": "x86-linux-any", "aarch64": "aarch64-linux-any"}
"""Machines that the program is written for, and the folder of the kernel's headers that zig has for each."""
_FLAGS = ("-std=c11", "-g0", "-Wall", "-Wextra", "-Werror", "-Wl,-s")
_OF_PROGRAM = (
    # No C library, no start-up, fixed addresses: as few pages as can be, since each shim copies what it writes to.
    *("-O2", "-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-fno-pie", "-no-pie"),
    # What the language does not define ends the process.
    *("-fsanitize=undefined", "-fsanitize-trap=undefined", "-fno-stack-protector"),
)
_OF_KERNELS = ("-O3", "-shared", "-fPIC", "-ffp-contract=off")  # the same numbers on every processor


def wanted() -> str:
    """The machine that is built for, "" where it is none of `HEADERS`."""
    machine = os.environ.get("BATON_WHEEL_MACHINE") or platform.machine()
    return machine if machine in HEADERS and sys.platform == "linux" else ""


def compile_program(machine: str, program: Path) -> None:
    """Raises RuntimeError with the compiler's words."""
    import ziglang

    headers = Path(ziglang.__file__).parent / "lib" / "libc" / "include"
    kernel = ("-isystem", str(headers / HEADERS[machine]), "-isystem", str(headers / "any-linux-any"))
    _compile(PROGRAM.parent, program, "-target", f"{machine}-linux-musl", *_OF_PROGRAM, *kernel)


def compile_kernels(machine: str, library: Path) -> None:
    """`machine` is "" for the one at hand. Raises RuntimeError with the compiler's words."""
    target = ("-target", f"{machine}-linux-gnu.2.17") if machine else ()
    _compile(KERNELS.parent, library, *target, *_OF_KERNELS, libraries=("-lm",))


def _compile(sources: Path, made: Path, *flags: str, libraries: tuple[str, ...] = ()) -> None:
    fresh = made.with_suffix(".new")
    files = map(str, sorted(sources.glob("*.c")))
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "ziglang", "cc", *_FLAGS, *flags, "-o", str(fresh), *files, *libraries],
            env=os.environ | {"ZIG_LOCAL_CACHE_DIR": cache, "ZIG_GLOBAL_CACHE_DIR": cache},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"{sources} cannot be compiled:\n{done.stderr}")
    fresh.replace(made)


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = wanted()
        self.folder = tempfile.TemporaryDirectory()
        program, kernels = PROGRAM, KERNELS
        if version != "editable":
            program, kernels = (Path(self.folder.name) / made.name for made in (PROGRAM, KERNELS))
        compile_kernels(machine, kernels)
        if machine:
            compile_program(machine, program)
        if version != "editable":
            made = {program: PROGRAM, kernels: KERNELS} if machine else {kernels: KERNELS}
            build_data["force_include"] |= {str(file): str(place.relative_to(ROOT)) for file, place in made.items()}
        build_data["pure_python"] = False
        if machine:
            build_data["tag"] = f"py3-none-manylinux_2_17_{machine}"
        else:
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.folder.cleanup()
