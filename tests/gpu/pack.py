"""Packs what the tests of a real GPU need where nothing can be installed: this interpreter, its libraries, nats-server.

python -m tests.gpu.pack FILE.tar.xz       here
tar -xf FILE.tar.xz -C /                   there, as root: everything lies where it lies here
PYTHON -m pytest -m gpu -n 0 -s tests/gpu  there, in a checkout; PYTHON is printed by the first command
"""

import os
import sys
import sysconfig
import tarfile
from pathlib import Path

LEFT_OUT = {
    "__pycache__", "ensurepip", "grimp", "idlelib", "lib2to3", "llvmlite", "mypy", "mypyc", "neosqlite", "numba", "pip",
    "pyarrow", "pymongo", "ruff", "setuptools", "test", "tests", "tkinter", "turtledemo",
}  # fmt: skip
"""Large, and not imported by these tests."""
SUFFIXES = (".pyc", ".a", "__mypyc.cpython-311-x86_64-linux-gnu.so")


def main() -> None:
    base, own = Path(sys.base_prefix), Path(sysconfig.get_path("purelib"))
    stdlib = Path(sysconfig.get_path("stdlib"))
    python = (base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}").resolve()
    packages = stdlib / "site-packages"
    with tarfile.open(sys.argv[1], "w:xz", preset=3) as out:
        out.add(python, arcname=_at(python))
        for library in sorted((base / "lib").glob("libpython*.so*")):
            out.add(library, arcname=_at(library), recursive=False)
        for entry in sorted(stdlib.iterdir()):
            if entry.name != "site-packages" and not entry.name.startswith("config-"):
                out.add(entry, arcname=_at(entry), filter=_needed)
        for entry in sorted(own.iterdir()):
            if not entry.name.endswith((".pth", "-nspkg.pth")) and not entry.name.startswith("__editable__"):
                out.add(entry, arcname=_at(packages / entry.name), filter=_needed)
        for program in ("nats-server",):
            found = Path(sys.prefix) / "bin" / program
            out.add(found.resolve(), arcname=_at(python.parent / program))
    print(f"{os.path.getsize(sys.argv[1]) / 2**20:.1f} MiB; PYTHON is {python}")


def _at(path: Path) -> str:
    return str(path).lstrip("/")


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name.rpartition("/")[2]
    return None if name in LEFT_OUT or name.endswith(SUFFIXES) else entry


if __name__ == "__main__":
    main()
