"""Packs what the tests of a real GPU need where nothing can be installed: this interpreter, its libraries, the servers.

python -m tests.gpu.pack FILE.tar.xz       here
tar -xf FILE.tar.xz -C / --skip-old-files  there, as root: everything lies where it lies here
PYTHON -m pytest -m gpu -n 0 -s tests/gpu  there, in a checkout; PYTHON is printed by the first command

The checkout needs what ./dev has compiled here: services/agent/keeper/native/baton-shim, libs/core/placement/native/kernels.so.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

LEFT_OUT = {
    "__pycache__", "ensurepip", "grimp", "idlelib", "lib2to3", "mypy", "mypyc", "pip", "pyarrow", "ruff",
    "setuptools", "test", "tests", "tkinter", "turtledemo", "ziglang",
}  # fmt: skip
"""Large, and not imported by these tests."""
SUFFIXES = (".pyc", ".a", "__mypyc.cpython-311-x86_64-linux-gnu.so")


def main() -> None:
    base, own = Path(sys.base_prefix), Path(sysconfig.get_path("purelib"))
    stdlib = Path(sysconfig.get_path("stdlib"))
    python = (base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}").resolve()
    asked = [python, "-c", "import site; print(site.getsitepackages()[0])"]  # Debian's own has another place
    packages = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    with tarfile.open(sys.argv[1], "w:xz", preset=3) as out:
        out.add(python, arcname=_at(python))
        for library in sorted((base / "lib").glob("libpython*.so*")):
            out.add(library, arcname=_at(library), recursive=False)
        for library in sorted(_linked(python, *stdlib.glob("lib-dynload/*.so"))):
            out.add(library.resolve(), arcname=_at(library))
        for entry in sorted(stdlib.iterdir()):
            if entry.name not in ("site-packages", "dist-packages") and not entry.name.startswith("config-"):
                out.add(entry, arcname=_at(entry), filter=_needed)
        for entry in sorted(own.iterdir()):
            if not entry.name.endswith((".pth", "-nspkg.pth")) and not entry.name.startswith("__editable__"):
                out.add(entry, arcname=_at(packages / entry.name), filter=_needed)
        for program in ("nats-server",):
            found = Path(sys.prefix) / "bin" / program
            out.add(found.resolve(), arcname=_at(python.parent / program))
    print(f"{os.path.getsize(sys.argv[1]) / 2**20:.1f} MiB; PYTHON is {python}")


def _linked(*programs: Path) -> set[Path]:
    """The libraries that they need, but for those of the C library, which is the machine's own."""
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    found = {Path(path) for path in re.findall(r"=> (/\S+)", told)}
    return {
        path
        for path in found
        if not path.name.startswith(("libc.", "libm.", "libdl.", "libpthread.", "libresolv.", "librt."))
    }


def _at(path: Path) -> str:
    return str(path).lstrip("/")


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name.rpartition("/")[2]
    return None if name in LEFT_OUT or name.endswith(SUFFIXES) else entry


if __name__ == "__main__":
    main()
