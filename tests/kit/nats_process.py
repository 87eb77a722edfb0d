"""A nats-server of its own for one test, with a configuration of the test's."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from libs.embedded.binaries import nats_server

_START_S = 60


@contextlib.contextmanager
def nats_process(config: str, folder: Path) -> Iterator[str]:
    """Runs a configuration file's text on free ports, with `{folder}` in it as its store; gives the URL."""
    port, monitor = _free_port(), _free_port()
    file = folder / "nats.conf"
    file.write_text(config.replace("{folder}", str(folder / "jetstream")))
    argv = [nats_server(), "-c", file, "-a", "127.0.0.1", "-p", port, "-m", monitor]
    with (folder / "nats.log").open("wb") as log, subprocess.Popen(list(map(str, argv)), stdout=log, stderr=log) as own:
        try:
            _wait_for(port, own, folder / "nats.log")
            yield f"nats://127.0.0.1:{port}"
        finally:
            own.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, own: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while own.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.02)
    raise RuntimeError(log.read_text()[-2000:])
