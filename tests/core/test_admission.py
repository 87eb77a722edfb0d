"""What admission refuses, with every reason at once, and what it lets wait."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.core.admission import DEFAULT_CLASSES, AdmissionContext, Admitted, PriorityClass, Rejected, Repeated, evaluate
from libs.core.fleet_shape import FleetShape
from libs.core.refusal import Why
from schemas import ledger as led
from schemas.ids import content_hash, job_id
from schemas.jobs import JobSpec, ModelShape, Simulation, SubmitJob, Workload
from schemas.resources import (
    Device,
    DeviceKind,
    Inventory,
    Level,
    Position,
    Precision,
    Resources,
    Role,
    Topology,
    TopologyPolicy,
)

GIB = 1024


def node(name: str, devices: int = 8, *, leaf: str = "leaf-0", model: str = "H100", gib: int = 80, **kw: Any) -> Any:
    kind = DeviceKind.CPU if model == "CPU" else DeviceKind.GPU
    profile = kw.pop("profile", "")
    found = tuple(
        Device(id=f"{name}-{i}", index=i, kind=kind, model=model, memory_mib=gib * GIB, mig_profile=profile)
        for i in range(devices)
    )
    inventory = Inventory(node=name, position=Position(leaf=leaf), devices=found, **kw)
    return led.NodeJoined(incarnation=1, inventory=inventory)


def fleet(*events: Any) -> FleetShape:
    shape = FleetShape()
    shape.apply(record(*events))
    return shape


def record(*events: Any) -> led.LedgerRecord:
    return led.LedgerRecord(
        pool="main", prev_seq=0, prev_hash="", inbox_seq=0, t_us=0, writer="test", events=tuple(events)
    )


def submit(key: str = "run-1", *, resources: dict[str, Any] | None = None, **job: Any) -> SubmitJob:
    job.setdefault("command", ("python", "train.py"))
    return SubmitJob(client_key=key, job=JobSpec(resources=Resources(**resources or {}), **job))


TWO_LEAVES = (node("a"), node("b"), node("c", leaf="leaf-1"), node("d", leaf="leaf-1", model="A100", gib=40))


def outcome(request: SubmitJob, *events: Any, team: str = "research") -> Any:
    return evaluate(request, team, AdmissionContext(fleet(*(events or TWO_LEAVES))))


def refusals(request: SubmitJob, *events: Any) -> dict[Why, tuple[str, str, str]]:
    result = outcome(request, *events)
    assert isinstance(result, Rejected), result
    return {r.why: (r.reason.field, r.reason.problem, r.reason.fix) for r in result.refusals}


def test_a_plain_job_is_admitted_with_its_class() -> None:
    request = submit(priority_class="serving")
    result = outcome(request)
    assert isinstance(result, Admitted)
    assert result.job_id == job_id("research", "run-1")
    assert result.job == request.job
    assert (result.priority_class.priority, result.priority_class.preempts) == (300, True)
    assert result.spec_hash == content_hash(request.model_dump_json().encode())


def test_every_reason_is_given_at_once() -> None:
    request = submit(
        priority_class="produktion",
        env={"LD_PRELOAD": "/tmp/x.so", "RANK": "0", "HOME": "/elsewhere"},
        workdir="relative",
        resources={"devices": 9, "types": ("H1000",), "mig_profile": "1g.11gb", "labels": {"disk": "nvme"}},
        simulation=Simulation(duration_s=1),
    )
    found = outcome(
        request, node("m", profile="1g.10gb", labels={"disk": "hdd"}), led.QuotaSet(team="research", limit_milli=4000)
    )
    assert {(r.why.value, r.reason.field) for r in found.refusals} == {
        ("class", "job.priority_class"),
        ("environment", "job.env.LD_PRELOAD"),
        ("environment", "job.env.RANK"),
        ("command", "job.workdir"),
        ("type", "job.resources.types.0"),
        ("mig-profile", "job.resources.mig_profile"),
        ("labels", "job.resources.labels.disk"),
        ("simulation", "job.simulation"),
        ("quota", "job.resources.devices"),
        ("capacity", "job.resources.devices"),
    }
    assert all(r.reason.problem and r.reason.fix for r in found.refusals)
    fixes = {r.reason.field: r.reason.fix for r in found.refusals if r.why is not Why.CAPACITY}
    assert fixes["job.priority_class"] == "did you mean production? use one of: serving, production, experiment"
    assert fixes["job.resources.types.0"].startswith("did you mean H100? this pool has H100")
    assert fixes["job.resources.mig_profile"] == "did you mean 1g.10gb? this pool has 1g.10gb"
    assert "disk=hdd" in fixes["job.resources.labels.disk"]
    assert "at most 4 devices" in fixes["job.resources.devices"]


def test_the_same_body_again_is_the_first_job_and_another_body_is_refused() -> None:
    first = submit()
    admitted = outcome(first)
    queued = led.JobQueued(
        job_id=admitted.job_id, team="research", spec=admitted.job, spec_hash=admitted.spec_hash,
        client_key="run-1", priority=1, preempts=False, submitted_us=1,
    )  # fmt: skip
    ended = led.JobFinished(job_id=admitted.job_id, state="succeeded")
    for events in ((queued,), (queued, ended)):
        assert outcome(first, *TWO_LEAVES, *events) == Repeated(admitted.job_id)
        assert outcome(submit("run-2"), *TWO_LEAVES, *events).job_id != admitted.job_id
        assert isinstance(outcome(first, *TWO_LEAVES, *events, team="vision"), Admitted)
        _, problem, _ = refusals(submit(name="other"), *TWO_LEAVES, *events)[Why.CLIENT_KEY]
        assert problem == f"client_key already names {admitted.job_id} with another body"


def test_an_empty_fleet_waits() -> None:
    result = evaluate(submit(resources={"types": ("X9",), "devices": 512}), "research", AdmissionContext(FleetShape()))
    assert isinstance(result, Admitted)
    assert result.note == "no node has registered yet: it waits for the first"


def test_a_lost_node_may_return() -> None:
    left = led.NodeLeft(node="d", incarnation=1, reason="silent")
    assert isinstance(outcome(submit(resources={"types": ("A100",)}), *TWO_LEAVES, left), Admitted)


def test_an_unknown_type_is_named_and_a_known_alternative_may_be_missing() -> None:
    assert refusals(submit(resources={"types": ("H100", "h10o")}))[Why.TYPE][0] == "job.resources.types.1"
    assert isinstance(outcome(submit(resources={"types": ("H200", "H100")})), Admitted)
    _, problem, fix = refusals(submit(resources={"types": ("H200", "B200")}))[Why.TYPE]
    assert (problem, fix) == ("no node of this pool has such a device", "this pool has A100, H100")


def test_an_unknown_type_does_not_hide_what_is_too_large_for_the_whole_pool() -> None:
    found = refusals(submit(resources={"types": ("h10o",), "devices": 99, "memory_mib": 900 * GIB}))
    assert found[Why.TYPE][0] == "job.resources.types.0"
    assert found[Why.CAPACITY] == (
        "job.resources.devices", "this pool has 32 devices of all kinds", "ask for at most 32 devices"
    )  # fmt: skip
    assert found[Why.MEMORY][:2] == (
        "job.resources.memory_mib", "no device of this pool has so much memory; the largest has 81920 MiB"
    )  # fmt: skip
    assert set(refusals(submit(resources={"types": ("h10o",), "devices": 32, "memory_mib": 80 * GIB}))) == {Why.TYPE}


@pytest.mark.parametrize("level", [Level.DEVICE])
@pytest.mark.parametrize("policy", list(TopologyPolicy))
def test_a_level_that_placement_does_not_know_is_refused(level: Level, policy: TopologyPolicy) -> None:
    result = outcome(submit(resources={"topology": Topology(level=level, policy=policy)}))
    (refusal,) = result.refusals
    assert (refusal.why, refusal.reason.field, refusal.reason.value, refusal.reason.fix) == (
        Why.TOPOLOGY, "job.resources.topology.level", level.value, "use nvlink, node, leaf, spine, zone or pool"
    )  # fmt: skip


def test_a_gang_within_nvlink_needs_an_island_of_its_size() -> None:
    within = Topology(level=Level.NVLINK, policy=TopologyPolicy.REQUIRED)
    islands = [
        led.NodeJoined(
            incarnation=1,
            inventory=Inventory(
                node=f"n{n}",
                devices=tuple(
                    Device(id=f"n{n}-{i}", index=i, model="H100", memory_mib=80 * GIB, nvlink_domain=f"nvl{i // 4}")
                    for i in range(8)
                ),
            ),
        )
        for n in range(2)
    ]
    assert isinstance(outcome(submit(resources={"devices": 4, "topology": within}), *islands), Admitted)
    found = refusals(submit(resources={"devices": 6, "topology": within}), *islands)
    assert found[Why.TOPOLOGY][1] == "the largest nvlink has 4 fitting devices of one model (H100)"
    assert "set topology.level to node" in found[Why.TOPOLOGY][2]
    assert isinstance(outcome(submit(resources={"devices": 1, "topology": within})), Admitted)


def test_each_role_must_be_possible_by_itself() -> None:
    within = Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
    stages = Role(name="stage", count=2, devices=8, topology=within)
    assert isinstance(outcome(submit(resources={"roles": (stages,)})), Admitted)
    wide = stages.model_copy(update={"count": 1, "devices": 9})
    assert refusals(submit(resources={"roles": (wide,)}))[Why.TOPOLOGY][0] == "job.resources.roles.0.topology"
    many = stages.model_copy(update={"count": 99})
    assert refusals(submit(resources={"roles": (many,)}))[Why.CAPACITY][0] == "job.resources.roles.0"
    fewer = many.model_copy(update={"min_count": 1})
    assert isinstance(outcome(submit(resources={"roles": (fewer,)})), Admitted)


def test_an_elastic_job_is_measured_by_its_least() -> None:
    assert isinstance(outcome(submit(resources={"devices": 64, "min_devices": 4})), Admitted)
    quota = led.QuotaSet(team="research", limit_milli=4000)
    assert isinstance(outcome(submit(resources={"devices": 8, "min_devices": 4}), *TWO_LEAVES, quota), Admitted)
    assert Why.QUOTA in refusals(submit(resources={"devices": 8, "min_devices": 5}), *TWO_LEAVES, quota)


def test_cpus_are_used_only_when_named() -> None:
    cpu = node("c", 4, model="CPU", gib=4)
    assert isinstance(outcome(submit(resources={"types": ("CPU",)}), cpu), Admitted)
    assert refusals(submit(), cpu)[Why.TYPE][2] == "set types to [CPU]"


def test_memory_beyond_every_device_is_refused() -> None:
    _, problem, fix = refusals(submit(resources={"memory_mib": 90 * GIB}))[Why.MEMORY]
    assert "the largest has 81920 MiB" in problem
    assert "at most 81920 MiB" in fix
    found = refusals(submit(resources={"memory_mib": 60 * GIB, "types": ("A100",)}))
    assert "the largest has 40960 MiB" in found[Why.MEMORY][1]


def test_a_model_that_cannot_fit_is_refused_with_the_arithmetic_and_a_change_that_helps() -> None:
    request = submit(resources={"devices": 4}, model=ModelShape(parameters_b=70))
    field, problem, fix = refusals(request)[Why.MODEL]
    assert field == "job.model"
    assert "70e9 x 12 bytes (adamw)" in problem
    assert "81920 MiB of the largest acceptable device" in problem
    assert fix == "set resources.devices to 16 and model.zero_stage to 3"
    fixed = submit(resources={"devices": 16}, model=ModelShape(parameters_b=70, zero_stage=3))
    assert isinstance(outcome(fixed), Admitted)


def test_the_estimate_becomes_the_memory_demand() -> None:
    shape = ModelShape(workload=Workload.INFERENCE, parameters_b=24)
    result = outcome(submit(model=shape))
    assert isinstance(result, Admitted)
    assert result.job.resources.memory_mib == pytest.approx(24e9 * 2 / 2**20 + 300, abs=1)
    more = outcome(submit(model=shape, resources={"memory_mib": 60 * GIB}))
    assert more.job.resources.memory_mib == 60 * GIB
    share = submit(model=shape, resources={"share_milli": 500, "memory_mib": 8 * GIB})
    assert refusals(share)[Why.MODEL][0] == "job.resources.memory_mib"


def test_a_model_that_is_split_wrongly_is_refused() -> None:
    found = refusals(submit(resources={"devices": 6}, model=ModelShape(parameters_b=1, tensor_parallel=4)))
    assert found[Why.MODEL][0] == "job.model.tensor_parallel"
    found = refusals(submit(model=ModelShape(parameters_b=1, precision=Precision.INT8)))
    assert found[Why.MODEL][0] == "job.model.precision"


def test_a_gang_that_no_group_can_ever_hold_is_refused() -> None:
    required = Topology(level=Level.LEAF, policy=TopologyPolicy.REQUIRED)
    assert isinstance(outcome(submit(resources={"devices": 16, "topology": required})), Admitted)
    _, problem, fix = refusals(submit(resources={"devices": 24, "topology": required}))[Why.TOPOLOGY]
    assert problem == "the largest leaf has 16 fitting devices of one model (H100)"
    assert fix == "set topology.level to spine, or policy to preferred, or ask for at most 16 devices"
    assert isinstance(outcome(submit(resources={"devices": 24})), Admitted)
    _, problem, fix = refusals(submit(resources={"devices": 32}))[Why.CAPACITY]
    assert problem == "this pool has 24 fitting devices of one model (H100), even when all are free"
    assert fix == "ask for at most 24 devices"


def test_demands_that_only_fail_together_are_explained() -> None:
    a = node("a", labels={"disk": "nvme"}, gib=40)
    b = node("b", gib=80)
    field, _, fix = refusals(submit(resources={"memory_mib": 60 * GIB, "labels": {"disk": "nvme"}}), a, b)[Why.CAPACITY]
    assert field == "job.resources"
    assert "of 16 devices type leaves 16, profile leaves 16, memory leaves 8, labels leaves 0" in fix


def test_a_mig_instance_is_granted_only_by_its_profile() -> None:
    mig = node("m", 7, profile="1g.10gb", gib=9)
    assert isinstance(outcome(submit(resources={"mig_profile": "1g.10gb", "devices": 3}), mig), Admitted)
    assert "set mig_profile to one of: 1g.10gb" in refusals(submit(), mig)[Why.PROFILE][2]


def test_timer_jobs_need_a_simulated_node() -> None:
    request = submit(command=(), simulation=Simulation(duration_s=5))
    assert Why.SIMULATION in refusals(request)
    assert isinstance(outcome(request, node("s", simulated=True)), Admitted)


def test_long_and_impossible_commands_are_refused() -> None:
    assert "65536 are allowed" in refusals(submit(command=("x" * 4000,) * 20))[Why.COMMAND][1]
    assert refusals(submit(command=("a\0b",)))[Why.COMMAND][0] == "job.command.0"


def test_a_quota_smaller_than_the_request_is_refused_and_shares_count_in_part() -> None:
    quota = led.QuotaSet(team="research", limit_milli=500)
    assert refusals(submit(), *TWO_LEAVES, quota)[Why.QUOTA][1] == (
        "team research may hold 0.5 devices at once, this job alone asks for 1"
    )
    half = submit(resources={"share_milli": 500})
    assert isinstance(outcome(half, *TWO_LEAVES, quota), Admitted)
    assert isinstance(outcome(submit(), *TWO_LEAVES, quota, led.QuotaSet(team="research", limit_milli=None)), Admitted)


def test_the_shape_survives_a_snapshot() -> None:
    request = submit()
    admitted = outcome(request)
    shape = fleet(
        *TWO_LEAVES, node("l", labels={"disk": "nvme"}, simulated=True), led.QuotaSet(team="a", limit_milli=5)
    )
    shape.apply(
        record(
            led.JobQueued(
                job_id=admitted.job_id,
                team="research",
                spec=request.job,
                spec_hash=admitted.spec_hash,
                client_key="run-1",
                priority=1,
                preempts=False,
                submitted_us=1,
            )
        )
    )
    again = FleetShape.load(shape.dump())
    assert again.dump() == shape.dump()
    assert (again.blocks, again.quotas, again.jobs) == (shape.blocks, shape.quotas, 1)
    assert evaluate(request, "research", AdmissionContext(again)) == Repeated(admitted.job_id)
    with pytest.raises(ValueError, match="snapshot version"):
        FleetShape.load(b'{"version": 99}')


def test_a_change_of_the_fleet_is_seen_at_once() -> None:
    shape = fleet(*TWO_LEAVES)
    context, request = AdmissionContext(shape), submit(resources={"devices": 32})
    assert isinstance(evaluate(request, "research", context), Rejected)
    shape.apply(record(node("e")))
    assert isinstance(evaluate(request, "research", context), Admitted)


def test_the_shipped_classes_are_those_of_the_code() -> None:
    path = Path(__file__).parents[2] / "deploy/classes.yaml"
    shipped = tuple(PriorityClass(**entry) for entry in yaml.safe_load(path.read_text())["classes"])
    assert shipped == DEFAULT_CLASSES


def test_what_no_node_has_is_refused_with_what_it_has() -> None:
    events = (node("a", cpus=96, memory_mib=1024 * GIB), node("b", model="A100", gib=40, cpus=32, memory_mib=256 * GIB))
    field, problem, fix = refusals(submit(resources={"cpu_milli": 96_001}), *events)[Why.CPU]
    assert field == "job.resources.cpu_milli"
    assert problem.endswith("the largest has 96")
    assert fix == "ask for at most 96000 thousandths per device"
    _, problem, _ = refusals(submit(resources={"host_memory_mib": 1025 * GIB}), *events)[Why.HOST_MEMORY]
    assert problem.endswith(f"the largest has {1024 * GIB} MiB")
    assert "leave cpu_milli out" in refusals(submit(resources={"cpu_milli": 1}))[Why.CPU][2]
    field, _, fix = refusals(submit(resources={"runtime": "rocm"}), *events)[Why.RUNTIME]
    assert field == "job.resources.runtime"
    assert fix.startswith("this pool has cuda;")
    field, problem, fix = refusals(submit(resources={"precision": "fp4"}), *events)[Why.PRECISION]
    assert (field, problem) == ("job.resources.precision", "no device of this pool computes in it; it has A100, H100")
    assert fix == "use one of: fp32, tf32, bf16, fp16, fp8, int8, int4"
    assert Why.CAPACITY in refusals(submit(resources={"precision": "fp8", "types": ("A100",)}), *events)
    assert Why.CAPACITY in refusals(submit(resources={"types": ("A100",), "cpu_milli": 33_000}), *events)


def test_a_gang_counts_the_processors_of_its_nodes() -> None:
    events = [node(name, cpus=32) for name in "ab"]
    _, problem, fix = refusals(submit(resources={"devices": 9, "cpu_milli": 8000}), *events)[Why.CAPACITY]
    assert "8 fitting devices" in problem
    assert fix == "ask for at most 8 devices"
    assert isinstance(outcome(submit(resources={"devices": 8, "cpu_milli": 8000}), *events), Admitted)


def test_measured_free_memory_is_what_a_device_has() -> None:
    event = node("a", 1)
    device = event.inventory.devices[0].model_copy(update={"memory_free_mib": 50 * GIB})
    event = event.model_copy(update={"inventory": event.inventory.model_copy(update={"devices": (device,)})})
    _, problem, _ = refusals(submit(resources={"memory_mib": 60 * GIB}), event)[Why.MEMORY]
    assert f"the largest has {50 * GIB} MiB" in problem
