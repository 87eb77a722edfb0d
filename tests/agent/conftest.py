"""A place where parts run as real processes, with and without cgroups."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.adapters.devices.simulated import SimulatedLayer
from schemas.inbox import Observation, Released
from schemas.nodes import DesiredPart
from services.agent import tree
from services.agent.attempt_launch import AttemptLaunch, ProcessCommand
from services.agent.keeper import contain, proc
from services.agent.keeper.client import KeeperClient
from services.agent.processes import ProcessPart
from services.agent.variables import Paths, slots, variables
from tests.agent.build import inventory

FAR_S = 30.0
"""No test waits so long unless something is broken."""


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(FAR_S):
        while not what():
            await asyncio.sleep(0.01)


def until_now(what: Callable[[], object]) -> None:
    """As `until`, in tests without an event loop."""
    end = time.monotonic() + FAR_S
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


class Place:
    """Starts parts directly, without an agent around them, and keeps what they report."""

    def __init__(self, root: Path, group: Path | None, keeper: KeeperClient) -> None:
        self.root, self.group, self.keeper = root, group, keeper
        self.layer = SimulatedLayer(inventory().devices)
        self.may_run = True
        self.seen: list[Observation] = []
        self.parts: list[ProcessPart] = []

    def start(self, wanted: DesiredPart) -> ProcessPart:
        folder = self.root / f"{wanted.job_id}.{wanted.attempt}"
        folder.mkdir(exist_ok=True)
        pattern = str(folder / "ack-{rank}.json")
        paths = Paths(str(folder), str(folder), str(folder), pattern)
        commands = [
            ProcessCommand(
                slot.rank,
                variables(
                    wanted,
                    slot,
                    device=self.layer.environment(slot.devices),
                    paths=paths,
                    search_path="/usr/bin:/bin",
                    addresses=dict.fromkeys(wanted.nodes, "127.0.0.1"),
                    marker=self.marker(wanted),
                ),
                str(folder / f"rank-{slot.rank}.log"),
                Path(pattern.format(rank=slot.rank)),
            )
            for slot in slots(wanted)
        ]
        workdir = Path(wanted.spec.workdir) if wanted.spec.workdir else folder
        launch = AttemptLaunch(
            kept=self.keeper.attempt(f"n0/{wanted.job_id}.{wanted.attempt}"),
            node="n0",
            incarnation=1,
            workdir=workdir,
            commands=commands,
            log_limit=10_000,
            early_s=0.0,
            may_run=lambda: self.may_run,
            group=self.group and self.group / f"{wanted.job_id}.{wanted.attempt}",
        )
        made = ProcessPart(wanted, launch, self.seen.append)
        self.parts.append(made)
        made.start()
        return made

    def processes(self, wanted: DesiredPart) -> set[int]:
        """All live processes of the part, as the machine numbers them."""
        return tree.marked(f"{self.marker(wanted)}\0")

    def marker(self, wanted: DesiredPart) -> str:
        return f"test@{self.root.name}/1/{wanted.job_id}.{wanted.attempt}"

    def log(self, wanted: DesiredPart, rank: int = 0) -> str:
        path = self.root / f"{wanted.job_id}.{wanted.attempt}" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    async def says(self, wanted: DesiredPart, text: str, rank: int = 0) -> None:
        await until(lambda: text in self.log(wanted, rank))

    async def released(self) -> Released:
        await until(lambda: any(isinstance(s, Released) for s in self.seen))
        return next(s for s in self.seen if isinstance(s, Released))


async def keeper_in(folder: Path, containment: str, group: Path | None = None) -> KeeperClient:
    """A keeper of its own, with one life of one node that no lease ends."""
    folder.mkdir(parents=True)

    async def clear() -> None:
        """Nothing is left by a keeper that contains what it starts."""

    client = KeeperClient(folder, containment, str(group or ""), clear)
    client.life("n0", 1, None)
    await client.ensure()
    return client


def group_for(containment: str, name: str) -> Path | None:
    """A cgroup for tests of it; skips where none may be made, or no namespace."""
    if containment == contain.NAMESPACE and not contain.works(containment):
        pytest.skip("no pid namespace may be made here")
    if containment != contain.CGROUP:
        return None
    base = tree.cgroup_base()
    if base is None:
        pytest.skip("no cgroup may be made here")
    return base / f"baton-{name}"


@pytest.fixture(params=[contain.NAMESPACE, contain.CGROUP, contain.SUBREAPER])
async def place(request, tmp_path):
    group = group_for(request.param, tmp_path.name)
    keeper = await keeper_in(tmp_path / "keeper", request.param, group)
    here = Place(tmp_path, group, keeper)
    yield here
    await asyncio.gather(*(made.kill() for made in here.parts))
    await keeper.close()
    if group is not None:
        proc.remove_group(str(group))
