"""Compiles the program that starts the processes of jobs (services/agent/keeper/native), for the wheel and for a checkout.

The compiler is zig's, from the package `ziglang`: it needs nothing else of the machine, and makes the same program everywhere,
also for another processor (`BATON_WHEEL_MACHINE=aarch64`). On a system that is not Linux, or with a processor that is neither
of the two, there is no such program: all of Baton but the agent works there.
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path(__file__).parent / "services" / "agent" / "keeper" / "native"
PROGRAM = NATIVE / "baton-shim"
HEADERS = {"x86_64": "x86-linux-any", "aarch64": "aarch64-linux-any"}
"""Machines that the program is written for, and the folder of the kernel's headers that zig has for each."""
FLAGS = (
    # No C library, no start-up, fixed addresses: as few pages as can be, since each shim copies what it writes to.
    *("-std=c11", "-O2", "-g0", "-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-fno-pie", "-no-pie", "-Wl,-s"),
    # What the language does not define ends the process.
    *("-fsanitize=undefined", "-fsanitize-trap=undefined", "-fno-stack-protector"),
    *("-Wall", "-Wextra", "-Werror"),
)


def wanted() -> str:
    """The machine that is built for; "" where there is no program."""
    machine = os.environ.get("BATON_WHEEL_MACHINE") or platform.machine()
    return machine if machine in HEADERS and sys.platform == "linux" else ""


def compile_for(machine: str, program: Path) -> None:
    """Raises RuntimeError with the compiler's words."""
    import ziglang

    headers = Path(ziglang.__file__).parent / "lib" / "libc" / "include"
    fresh = program.with_suffix(".new")
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl", *FLAGS),
                *("-isystem", str(headers / HEADERS[machine]), "-isystem", str(headers / "any-linux-any")),
                *("-o", str(fresh), *map(str, sorted(NATIVE.glob("*.c")))),
            ],
            env=os.environ | {"ZIG_LOCAL_CACHE_DIR": cache, "ZIG_GLOBAL_CACHE_DIR": cache},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"{NATIVE} cannot be compiled for {machine}:\n{done.stderr}")
    fresh.replace(program)


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not (machine := wanted()):
            return
        if version == "editable":
            compile_for(machine, PROGRAM)
        else:
            self.folder = tempfile.TemporaryDirectory()
            program = Path(self.folder.name) / PROGRAM.name
            compile_for(machine, program)
            build_data["force_include"][str(program)] = str(PROGRAM.relative_to(Path(__file__).parent))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable" and wanted():
            self.folder.cleanup()
