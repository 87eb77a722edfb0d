"""Jobs for every kind of device, through admission and the decider, in one pool that has them all."""

from pathlib import Path

import pytest

from libs.adapters.devices.fleet import read_fleet
from libs.core.admission.evaluate import AdmissionContext, Admitted, NotAdmitted, evaluate
from libs.core.admission.fleet_shape import FleetShape
from libs.core.placement.find import find
from libs.core.placement.view import View
from libs.core.scheduling import limits
from libs.core.state.shape import Shape
from libs.core.state.snapshot import dump, load
from schemas import inbox
from schemas.jobs import JobSpec
from schemas.requests import SubmitJob
from tests.core.builders import World

ZOO = read_fleet(Path(__file__).parents[2] / "deploy" / "fleets" / "zoo.yaml")


@pytest.fixture
def zoo():
    return World(*ZOO)


def context(world: World) -> AdmissionContext:
    shape = FleetShape()
    for record in world.records:
        shape.apply(record, 1)
    return AdmissionContext(shape, limits.room)


def ask(world: World, name: str, **resources):
    """The verdict of admission, and what the decider granted: (node, device) of each rank."""
    spec = JobSpec.model_validate({"name": name, "simulation": {"duration_s": 60}, "resources": resources})
    request = SubmitJob(client_key=name, job=spec)
    verdict = evaluate(request, "blue", context(world))
    if not isinstance(verdict, Admitted):
        return verdict, []
    world.send(
        inbox.JobAdmitted(
            job_id=verdict.job_id, team="blue", spec=verdict.job, spec_hash=verdict.spec_hash, client_key=name,
            priority=0, preempts=False, submitted_us=1,
        )
    )  # fmt: skip
    current = world.decider.state.jobs[verdict.job_id].current
    return verdict, [c.device for part in current.parts.values() for c in part.claims] if current else []


@pytest.mark.parametrize(
    ("resources", "where", "count"),
    [
        ({"types": ["H100"], "devices": 32}, "h100-", 32),
        ({"types": ["H100"], "mig_profile": "3g.40gb"}, "mig-", 1),
        ({"types": ["H100"], "share_milli": 250}, "h100-", 1),
        ({"types": ["MI300X"], "devices": 16}, "mi300x-", 16),
        ({"types": ["v5p"], "torus": [2, 4, 4]}, "v5p-", 32),
        ({"torus": [4, 8]}, "v5e-", 32),
        ({"types": ["v5e"]}, "v5e-", 1),
        ({"types": ["Gaudi3"], "devices": 8}, "gaudi-", 8),
        ({"types": ["Trainium2"], "devices": 16}, "trn-", 16),
        ({"types": ["U280"], "devices": 2}, "fpga-", 2),
        ({"types": ["Hailo-8"]}, "hailo-", 1),
        ({"types": ["Coral"]}, "coral-", 1),
        ({"types": ["CPU"], "share_milli": 100}, "cpu-", 1),
        ({"runtime": "rocm", "devices": 8}, "mi300x-", 8),
    ],
    ids=str,
)
def test_each_kind_is_granted_to_who_asks_for_it(zoo, resources, where, count):
    verdict, devices = ask(zoo, "one", **resources)
    assert isinstance(verdict, Admitted), verdict
    assert len(devices) == count
    assert {device.startswith(where) for device in devices} == {True}


def test_slices_fill_the_pod_and_the_next_one_waits(zoo):
    taken = [d for n in range(4) for d in ask(zoo, f"slice {n}", types=["v5p"], torus=[2, 2, 4])[1]]
    assert len(set(taken)) == 64
    verdict, devices = ask(zoo, "one more", types=["v5p"], torus=[2, 2, 1])
    assert isinstance(verdict, Admitted)
    assert devices == []


@pytest.mark.parametrize(
    ("resources", "field"),
    [
        ({"types": ["U280"], "share_milli": 500}, "job.resources.share_milli"),
        ({"types": ["v5p"], "torus": [2, 3, 4]}, "job.resources.torus"),
        ({"types": ["H100"], "torus": [2, 2]}, "job.resources.torus"),
        ({"types": ["v5e"], "devices": 8}, "job.resources.torus"),
        ({"types": ["MI300X"], "mig_profile": "1g.10gb"}, "job.resources.mig_profile"),
    ],
    ids=str,
)
def test_what_a_kind_cannot_do_is_refused_with_its_field(zoo, resources, field):
    verdict, _ = ask(zoo, "never", **resources)
    assert isinstance(verdict, NotAdmitted)
    assert field in [r.reason.field for r in verdict.refusals]


def test_a_snapshot_knows_where_every_chip_is(zoo):
    ask(zoo, "first", types=["v5p"], torus=[2, 2, 4])
    before, after = zoo.decider.state, load(dump(zoo.decider.state)).state
    shape = Shape(devices=8, types=("v5p",), torus=(2, 2, 2))
    placed = [find(View.of(state.fleet), shape) for state in (before, after)]
    names = [[state.fleet.devices.names[r] for r in p.rows] for state, p in zip((before, after), placed, strict=True)]
    assert names[0] == names[1]
    at = {d.id: d.torus_at for node in ZOO for d in node.devices}
    assert [at[name] for name in names[0]] == sorted((at[name] for name in names[0]), key=lambda a: (a[2], a)), (
        "host by host: here hosts are 2x2x1 and lie along the third axis"
    )
