"""The processors of a GPU node are a device too: granted to who names them, and never twice."""

import pytest

from libs.adapters.devices.fleet import parse_fleet
from libs.core.placement.answer import Blocked, BlockReason
from schemas import inbox
from schemas.ids import job_id
from schemas.jobs import JobSpec
from schemas.resources import Inventory, Resources
from tests.core.builders import GIB, World

FLEET = """
groups:
  - {name: "gpu-{i}", count: 2, devices: {model: H100, count: 4}, cpus: 16, memory_gib: 64, grant_cpus: true}
"""
CPU_ONLY = (
    FLEET
    + """
  - {name: "cpu-{i}", count: 1, devices: {model: CPU, count: 1, memory_gib: 32}, cpus: 8, memory_gib: 32}
"""
)


def fleet(text: str = FLEET) -> tuple[Inventory, ...]:
    return parse_fleet(text, "test")


def asking(name: str, **resources) -> inbox.JobAdmitted:
    spec = JobSpec(name=name, command=("true",), resources=Resources(**resources))
    return inbox.JobAdmitted(
        job_id=job_id("research", name), team="research", spec=spec, spec_hash=name, client_key=name, priority=0,
        submitted_us=1,
    )  # fmt: skip


def claims(world: World, job: str):
    current = world.decider.state.jobs[job].current
    return current.claims if current else ()


def test_a_share_of_a_nodes_processors_takes_its_part_of_the_nodes_processors_and_memory():
    w = World(fleet()[0])
    half = w.submit(asking("half", types=("CPU",), share_milli=500))
    (claim,) = claims(w, half)
    assert (claim.device, claim.milli, claim.cpu_milli, claim.host_memory_mib) == ("gpu-0-cpu0", 500, 8000, 32 * GIB)
    fits = w.submit(asking("two GPUs", devices=2, cpu_milli=4000, host_memory_mib=16 * GIB))
    waits = w.submit(asking("one more", cpu_milli=1))
    assert [w.state_of(job) for job in (fits, waits)] == ["granted", "queued"]
    w.check()


@pytest.mark.parametrize(
    ("taken", "reason"),
    [({"cpu_milli": 9000}, BlockReason.CPU), ({"host_memory_mib": 33 * GIB}, BlockReason.HOST_MEMORY)],
)
def test_processors_that_gpu_jobs_use_are_not_granted(taken, reason):
    w = World(fleet()[0])
    w.submit(asking("training", **taken))
    waits = w.submit(asking("half", types=("CPU",), share_milli=500))
    (blocked,) = w.decider.plan.waiting.values()
    assert isinstance(blocked, Blocked)
    assert (w.state_of(waits), blocked.reason) == ("queued", reason)
    small = w.submit(asking("small", types=("CPU",), share_milli=400))
    assert w.state_of(small) == "granted"
    w.check()


def test_only_who_names_processors_gets_them():
    w = World(fleet()[0])
    jobs = [w.submit(asking(f"gpu {n}")) for n in range(5)]
    assert [w.state_of(job) for job in jobs] == ["granted"] * 4 + ["queued"]
    assert {c.device for job in jobs for c in claims(w, job)} == {f"gpu-0-gpu{n}" for n in range(4)}


def test_processors_that_no_accelerator_needs_are_taken_first():
    w = World(*fleet(CPU_ONLY))
    jobs = [w.submit(asking(f"{n}", types=("CPU",), share_milli=600)) for n in range(3)]
    assert [claims(w, job)[0].node for job in jobs] == ["cpu-0", "gpu-0", "gpu-1"]
    w.check()


def test_what_is_freed_is_there_again():
    w = World(fleet()[0])
    job = w.submit(asking("all", types=("CPU",)))
    assert claims(w, job)[0].cpu_milli == 16_000
    w.send(inbox.CancelRequested(job_id=job, team="research", reason="done"))
    seen = inbox.Released(job_id=job, attempt=1, exit_code=0, own_exit=False)
    w.send(inbox.NodeObserved(node="gpu-0", incarnation=1, observations=(seen,)))
    assert w.state_of(w.submit(asking("again", devices=4, cpu_milli=4000))) == "granted"
    w.check()
