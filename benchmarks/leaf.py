"""`python -m benchmarks.leaf`: what a federation over NATS leaf nodes costs for each hop.

Real nats-servers in a chain: one, the hub, with JetStream that fsyncs each write; two, a leaf of it; three, a leaf of the leaf.
The asker is at the chain's end; the hub answers, or stores. Chains take turns, so that other work meets all of them alike.

- *question*: a request of 200 bytes and its answer, one after the other, us.
- *stored*: a message of 512 bytes stored at the hub and acknowledged, one after the other, us.
- *cpu*: processor time of all servers of the chain for each of them, us.

Writes `benchmarks/results/leaf.json`; `python -m benchmarks.growth --plot` draws it.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import psutil
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks import machine
from libs.embedded.binaries import nats_server

CHAINS = (1, 2, 3)
_START_S = 30.0
_STREAM, _STORED, _ASKED = "HOPS", "hops.stored", "hops.asked"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=500, help="of each kind, turn and chain")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    hops = asyncio.run(_measure(options.messages, options.rounds))
    for row in hops:
        print(row)
    print(f"written to {machine.write('leaf', {'machine': machine.describe(), 'hops': hops})}")


async def _measure(messages: int, rounds: int) -> list[dict[str, Any]]:
    async with AsyncExitStack() as stack:
        chains = [await _chain(stack, length) for length in CHAINS]
        took: dict[int, dict[str, list[float]]] = {n: {"question": [], "stored": [], "cpu": []} for n in CHAINS}
        for number in range(rounds + 1):
            for chain in chains:
                found = await chain.turn(messages)
                for what, values in found.items() if number else ():
                    took[chain.length][what] += values
    return [_row(length, found) for length, found in took.items()]


def _row(length: int, took: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"servers": length, "cpu_us": round(machine.quantile(took["cpu"], 0.5), 1)}
    for what in ("question", "stored"):
        row[what] = {f"p{q}_us": round(machine.quantile(took[what], q / 100), 1) for q in (50, 99)}
    return row


class _Chain:
    """A chain of servers, somebody at its end who asks, and somebody at the hub who answers."""

    def __init__(self, servers: list[psutil.Process], asker: Client) -> None:
        self.length = len(servers)
        self._servers, self._asker = servers, asker

    async def turn(self, messages: int) -> dict[str, list[float]]:
        """Times of each message, us; and what the servers took for one of them."""
        before = self._cpu_s()
        question = await _each(messages, lambda: self._asker.request(_ASKED, b"?" * 200, timeout=30))
        js = self._asker.jetstream(timeout=30)
        stored = await _each(messages, lambda: js.publish(_STORED, b"m" * 512))
        return {"question": question, "stored": stored, "cpu": [1e6 * (self._cpu_s() - before) / (2 * messages)]}

    def _cpu_s(self) -> float:
        return sum(times.user + times.system for times in (server.cpu_times() for server in self._servers))


async def _each(count: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        took.append(1e6 * (time.perf_counter() - began))
    return took


async def _chain(stack: AsyncExitStack, length: int) -> _Chain:
    servers, ports, above = [], [], 0
    for _ in range(length):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-leaf-")))
        port, leaves = _free_port(), _free_port()
        servers.append(stack.enter_context(_server(folder, _config(folder, port, leaves, above), port)))
        ports.append(port)
        above = leaves
    hub = await nats.connect(f"nats://127.0.0.1:{ports[0]}")
    stack.push_async_callback(hub.close)

    async def answer(message: Msg) -> None:
        await message.respond(b"!" * 200)

    await hub.subscribe(_ASKED, cb=answer)
    await hub.jetstream().add_stream(name=_STREAM, subjects=[_STORED])
    asker = await nats.connect(f"nats://127.0.0.1:{ports[-1]}")
    stack.push_async_callback(asker.close)
    deadline = time.monotonic() + _START_S
    while True:  # until the links are up, nobody answers
        with suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError):
            await asker.request(_ASKED, b"?", timeout=1)
            await asker.jetstream().publish(_STORED, b"m")
            return _Chain(servers, asker)
        if time.monotonic() > deadline:
            raise SystemExit(f"the chain of {length} is not up after {_START_S:g} s")
        await asyncio.sleep(0.05)


def _config(folder: Path, port: int, leaves: int, above: int) -> dict[str, Any]:
    """`above`: the port for leaves of the server that this one is a leaf of; 0: it is the hub."""
    config: dict[str, Any] = {
        "server_name": f"server-{port}",
        "listen": f"127.0.0.1:{port}",
        "leafnodes": {"listen": f"127.0.0.1:{leaves}"},
    }
    if above:
        config["leafnodes"]["remotes"] = [{"url": f"nats://127.0.0.1:{above}"}]
    else:
        config["jetstream"] = {"store_dir": str(folder / "store"), "sync_interval": "always"}
    return config


@contextmanager
def _server(folder: Path, config: dict[str, Any], port: int) -> Iterator[psutil.Process]:
    path = folder / "nats.json"
    path.write_text(json.dumps(config))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(nats_server()), "-c", str(path)], stdout=log, stderr=log)
    try:
        _until_open(port, process, folder / "log")
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def _until_open(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.02)
    raise SystemExit(log.read_text()[-2000:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
