"""Nodes beside the cluster's own: an agent and its keeper, simulated devices, real processes on them."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from libs.cli.launch import ROOT, LocalStack
from libs.embedded import ProcessSpec
from services.agent.keeper import find, proc

FLEET = "groups: [{{name: '{name}-{{i}}', count: 1, devices: {{model: A100, count: 4, memory_gib: 40}}}}]\n"
"""Another model than the cluster's 64: its jobs count on no more of those."""


@dataclass(slots=True)
class Node:
    """`name` is its agent's process; its files lie where those of the cluster's processes do."""

    cluster: LocalStack
    name: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.cluster.state_dir / "services" / self.name

    async def start(self) -> None:
        """Returns when the agent runs; it joins the pool by itself."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "fleet.yaml").write_text(FLEET.format(name=self.name))
        await self.cluster.supervisor.start(
            ProcessSpec(
                name=self.name,
                argv=[sys.executable, "-m", "services.agent"],
                log_path=self.cluster.state_dir / "logs" / f"{self.name}.log",
                env={
                    "PYTHONPATH": str(ROOT),
                    **self.cluster.nodes_address(self.cluster.options.pool).environ(),
                    "BATON_POOL": self.cluster.options.pool,
                    "BATON_STATE_DIR": str(self.home),
                    "BATON_AGENT_FLEET": str(self.home / "fleet.yaml"),
                    "BATON_LOG_LEVEL": "WARNING",
                    **self.env,
                },
                stop_timeout_s=20.0,
                depends_on=self.cluster.servers.options.nats.names,
            )
        )

    def agent(self) -> int:
        """The agent's process id. Raises ProcessLookupError while it is down."""
        return self.cluster.supervisor.pid(self.name)

    def keeper(self) -> int | None:
        return find.running(self.home / "agent")

    def everything(self) -> Sequence[int]:
        """Agent, keeper, shims and all that runs below them."""
        keeper = self.keeper()
        below = sorted(proc.descendants([keeper])) if keeper else []
        return [self.agent(), *([keeper] if keeper else []), *below]


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """The signal to each that still is."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
