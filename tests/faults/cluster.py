"""A whole Baton for fault tests: real servers, every service a process, 64 simulated V100 and this machine's processors."""

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from libs.cli.launch import REAL, SERVICES, SIMULATED, LaunchOptions, LocalStack
from libs.client import Baton, connect
from libs.embedded.events import EventKind, ProcessEvent
from libs.embedded.servers import MONGO, NATS, VALKEY
from schemas.subjects import OPERATOR

ROOT = Path(__file__).resolve().parents[2]
FLEET = ROOT / "deploy" / "fleets" / "replay-8x8.yaml"
QUOTAS = ROOT / "tests" / "faults" / "quotas.yaml"
DEVICES = 64
TEAMS = ("a", "b")
PROCESSES = (NATS, VALKEY, MONGO, *SERVICES, SIMULATED, REAL)
"""Everything that can be killed."""

READY_S = 120.0


@asynccontextmanager
async def running(
    state_dir: Path,
    copies: Mapping[str, int] | None = None,
    fleet: Path = FLEET,
    placement: Mapping[str, str] | None = None,
    replicas: int = 1,
    brokers: int = 1,
) -> AsyncIterator[LocalStack]:
    """The cluster, ready; `copies` runs a service several times, `replicas` every one; `brokers` is how many
    NATS servers there are. `placement` is more of that service's environment."""
    options = LaunchOptions(
        state_dir=state_dir,
        teams=TEAMS,
        fleet=fleet,
        real_node="cpu",
        quotas=QUOTAS,
        copies=copies or {},
        replicas=replicas,
        brokers=brokers,
        scale=0.1,
        env={
            # 64 jobs of a share each on two cores: numerical libraries must not start a thread per core in every service.
            "*": {"OPENBLAS_NUM_THREADS": "1"},
            # Small, so that restarts resume from snapshots and do not only fold from the beginning.
            "placement": {"BATON_PLACEMENT_SNAPSHOT_RECORDS": "100", **(placement or {})},
            "preemption": {"BATON_PREEMPTION_SNAPSHOT_RECORDS": "100"},
            "admission": {"BATON_ADMISSION_SNAPSHOT_RECORDS": "100"},
            "history": {"BATON_HISTORY_SNAPSHOT_RECORDS": "100"},
            "quota_billing": {"BATON_QUOTA_BILLING_SNAPSHOT_RECORDS": "100"},
        },
        log_level="WARNING",
    )
    async with LocalStack(options) as cluster:
        yield cluster


@asynccontextmanager
async def clients(cluster: LocalStack) -> AsyncIterator[dict[str, Baton]]:
    """A client per team, and the operator's."""
    async with AsyncExitStack() as stack:
        found = {}
        for team in cluster.options.teams:
            found[team] = await stack.enter_async_context(await connect(cluster.address(team), team))
        found[OPERATOR] = await stack.enter_async_context(await connect(cluster.address("operator"), OPERATOR))
        yield found


def kill9(cluster: LocalStack, name: str) -> int:
    """SIGKILL to the process called `name`; returns the pid that it had."""
    pid = cluster.supervisor.pid(name)
    os.kill(pid, signal.SIGKILL)
    return pid


async def back(cluster: LocalStack, name: str, killed: int) -> int:
    """Waits until the supervisor has replaced the process `killed`, and it is ready; returns the new pid."""
    pid = await cluster.supervisor.wait_ready(name, replaced_pid=killed, timeout_s=READY_S)
    if name in cluster.http:
        await cluster.wait_ready(name, timeout_s=READY_S)
    return pid


def deaths(cluster: LocalStack) -> list[ProcessEvent]:
    """Every end of a process that nobody asked the supervisor for, so far."""
    return [event for event in cluster.supervisor.events if event.kind is EventKind.EXITED]
