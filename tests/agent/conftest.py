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
from services.agent.processes import AttemptLaunch, ProcessCommand, ProcessPart
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

    def __init__(self, root: Path, group: Path | None) -> None:
        self.root, self.group = root, group
        self.layer = SimulatedLayer(inventory().devices)
        self.may_run = True
        self.seen: list[Observation] = []
        self.parts: list[ProcessPart] = []

    def start(self, wanted: DesiredPart) -> ProcessPart:
        folder = self.root / f"{wanted.job_id}.{wanted.attempt}"
        folder.mkdir(exist_ok=True)
        pattern = str(folder / "ack-{rank}.json")
        paths = Paths(str(folder), str(folder), str(folder), pattern)
        marker = f"test@{self.root.name}/1/{wanted.job_id}.{wanted.attempt}"
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
                    marker=marker,
                ),
                folder / f"rank-{slot.rank}.log",
                Path(pattern.format(rank=slot.rank)),
            )
            for slot in slots(wanted)
        ]
        cgroup = tree.PartCgroup(marker, self.group and self.group / f"{wanted.job_id}.{wanted.attempt}")
        workdir = Path(wanted.spec.workdir) if wanted.spec.workdir else folder
        made = ProcessPart(
            wanted, AttemptLaunch(cgroup, workdir, commands, 10_000, lambda: self.may_run), self.seen.append
        )
        self.parts.append(made)
        made.start()
        return made

    def log(self, wanted: DesiredPart, rank: int = 0) -> str:
        path = self.root / f"{wanted.job_id}.{wanted.attempt}" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    async def says(self, wanted: DesiredPart, text: str, rank: int = 0) -> None:
        await until(lambda: text in self.log(wanted, rank))

    async def released(self) -> Released:
        await until(lambda: any(isinstance(s, Released) for s in self.seen))
        return next(s for s in self.seen if isinstance(s, Released))


@pytest.fixture(params=["cgroup", "marker"])
async def place(request, tmp_path):
    group = None
    if request.param == "cgroup":
        base = tree.cgroup_base()
        if base is None:
            pytest.skip("no cgroup v2 may be made here")
        group = base / f"baton-{tmp_path.name}"
    here = Place(tmp_path, group)
    yield here
    await asyncio.gather(*(made.kill() for made in here.parts))
    if group is not None:
        tree.remove_group(group)
