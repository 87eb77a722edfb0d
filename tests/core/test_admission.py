"""What admission refuses, with every reason at once, and what it lets wait."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from libs.core.accelerators import vram
from libs.core.admission.evaluate import AdmissionContext, Admitted, NotAdmitted, Repeated, evaluate
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.priority_class import DEFAULT_CLASSES, PriorityClass
from libs.core.admission.refusal import RefusalCause
from libs.core.scheduling import limits
from schemas import ledger as led
from schemas.ids import content_hash, job_id
from schemas.jobs import JobLimits, JobSpec, Simulation
from schemas.model_shape import ModelShape, Workload
from schemas.queues import Queue
from schemas.reasons import reasons_of
from schemas.requests import SubmitJob
from schemas.resources import (
    Device,
    DeviceKind,
    Inventory,
    Level,
    Position,
    Precision,
    Resources,
    Role,
    Runtime,
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
    shape.apply(record(*events), 1)
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
    return evaluate(request, team, AdmissionContext(fleet(*(events or TWO_LEAVES)), limits.room))


def refusals(request: SubmitJob, *events: Any) -> dict[RefusalCause, tuple[str, str, str]]:
    result = outcome(request, *events)
    assert isinstance(result, NotAdmitted), result
    return {r.why: (r.reason.field, r.reason.problem, r.reason.fix) for r in result.refusals}


def test_two_roles_whose_hosts_would_be_told_in_one_variable_are_refused() -> None:
    told = refusals(submit(resources={"roles": (Role(name="judge-1"), Role(name="judge_1"))}))
    field, problem, _ = told[RefusalCause.ENVIRONMENT]
    assert field == "job.resources.roles.1.name"
    assert "judge-1 and of judge_1" in problem


@pytest.mark.parametrize(
    ("uses", "env", "field", "problem"),
    [
        ([{"secret": "a", "env": "LD_PRELOAD"}], {}, "job.secrets.0.env", "belongs to Baton or to the program loader"),
        ([{"secret": "a", "env": "RANK"}], {}, "job.secrets.0.env", "belongs to Baton or to the program loader"),
        ([{"secret": "a", "env": "X"}], {"X": "y"}, "job.secrets.0.env", "job.env has this name already"),
        ([{"secret": "a"}, {"secret": "a"}], {}, "job.secrets.1.file", "job.secrets.0 has this name already"),
        ([{"secret": "a"}, {"secret": "b", "file": "a"}], {}, "job.secrets.1.file", "has this name already"),
        ([{"secret": "a", "env": "X"}, {"secret": "b", "env": "X"}], {}, "job.secrets.1.env", "has this name already"),
    ],
)
def test_secrets_that_cannot_be_delivered_are_refused(
    uses: list[dict[str, str]], env: dict[str, str], field: str, problem: str
) -> None:
    told_field, told, _ = refusals(submit(secrets=uses, env=env))[RefusalCause.ENVIRONMENT]
    assert (told_field, problem in told) == (field, True), told


def test_a_job_without_secrets_has_the_body_that_it_had_before_there_were_any() -> None:
    """Its digest names it: the same request that came before an upgrade is the same job after it."""
    assert "secrets" not in submit().model_dump_json()
    uses = [{"secret": "a"}, {"secret": "a", "env": "X"}, {"secret": "b", "file": "c"}]
    admitted = outcome(submit(secrets=uses))
    assert isinstance(admitted, Admitted)
    assert [use.secret for use in admitted.job.secrets] == ["a", "a", "b"]


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
    fixes = {r.reason.field: r.reason.fix for r in found.refusals if r.why is not RefusalCause.CAPACITY}
    assert fixes["job.priority_class"] == "did you mean production? use one of: serving, production, experiment"
    assert fixes["job.resources.types.0"].startswith("did you mean H100? this pool has H100")
    assert fixes["job.resources.mig_profile"] == "did you mean 1g.10gb? this pool has 1g.10gb"
    assert "disk=hdd" in fixes["job.resources.labels.disk"]
    assert "at most 4 accelerators" in fixes["job.resources.devices"]


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
        _, problem, _ = refusals(submit(name="other"), *TWO_LEAVES, *events)[RefusalCause.CLIENT_KEY]
        assert problem == f"client_key already names {admitted.job_id} with another body"


def test_the_order_of_env_is_no_part_of_the_body() -> None:
    """Many languages send the keys of a map in any order: a repeat was refused as another body."""
    env = {"B": "1", "A": "2"}
    first, again = submit(env=env), submit(env=dict(reversed(env.items())))
    admitted = outcome(first)
    assert list(admitted.job.env) == ["B", "A"]
    as_before = content_hash(first.model_dump_json().encode())
    assert as_before != admitted.spec_hash == outcome(again).spec_hash
    for known in (admitted.spec_hash, as_before):  # a release of before wrote the second
        queued = led.JobQueued(
            job_id=admitted.job_id, team="research", spec=admitted.job, spec_hash=known,
            client_key="run-1", priority=1, preempts=False, submitted_us=1,
        )  # fmt: skip
        assert outcome(first, *TWO_LEAVES, queued) == Repeated(admitted.job_id)
    other = submit(env={"B": "2", "A": "1"})
    assert RefusalCause.CLIENT_KEY in refusals(other, *TWO_LEAVES, queued)


def test_an_empty_fleet_waits() -> None:
    result = evaluate(
        submit(resources={"types": ("X9",), "devices": 512}), "research", AdmissionContext(FleetShape(), limits.room)
    )
    assert isinstance(result, Admitted)
    assert result.note == "no node has registered yet: it waits for the first"


def test_a_lost_node_may_return() -> None:
    left = led.NodeLeft(node="d", incarnation=1, reason="silent")
    assert isinstance(outcome(submit(resources={"types": ("A100",)}), *TWO_LEAVES, left), Admitted)


def test_an_unknown_type_is_named_and_a_known_alternative_may_be_missing() -> None:
    assert refusals(submit(resources={"types": ("H100", "h10o")}))[RefusalCause.TYPE][0] == "job.resources.types.1"
    assert isinstance(outcome(submit(resources={"types": ("H200", "H100")})), Admitted)
    _, problem, fix = refusals(submit(resources={"types": ("H200", "B200")}))[RefusalCause.TYPE]
    assert (problem, fix) == ("no node of this pool has such a device", "this pool has A100, H100")


def test_an_unknown_type_does_not_hide_what_is_too_large_for_the_whole_pool() -> None:
    found = refusals(submit(resources={"types": ("h10o",), "devices": 99, "memory_mib": 900 * GIB}))
    assert found[RefusalCause.TYPE][0] == "job.resources.types.0"
    assert found[RefusalCause.CAPACITY] == (
        "job.resources.devices", "this pool has 32 devices of all kinds", "ask for at most 32 devices"
    )  # fmt: skip
    assert found[RefusalCause.MEMORY][:2] == (
        "job.resources.memory_mib", "no device of this pool has so much memory; the largest has 81920 MiB"
    )  # fmt: skip
    assert set(refusals(submit(resources={"types": ("h10o",), "devices": 32, "memory_mib": 80 * GIB}))) == {
        RefusalCause.TYPE
    }


@pytest.mark.parametrize("level", [Level.DEVICE])
@pytest.mark.parametrize("policy", list(TopologyPolicy))
def test_a_level_that_placement_does_not_know_is_refused(level: Level, policy: TopologyPolicy) -> None:
    result = outcome(submit(resources={"topology": Topology(level=level, policy=policy)}))
    (refusal,) = result.refusals
    assert (refusal.why, refusal.reason.field, refusal.reason.value, refusal.reason.fix) == (
        RefusalCause.TOPOLOGY, "job.resources.topology.level", level.value, "use nvlink, node, leaf, spine, zone or pool"
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
    assert found[RefusalCause.TOPOLOGY][1] == "the largest nvlink has 4 fitting devices of one model (H100)"
    assert "set topology.level to node" in found[RefusalCause.TOPOLOGY][2]
    assert isinstance(outcome(submit(resources={"devices": 1, "topology": within})), Admitted)


def test_each_role_must_be_possible_by_itself() -> None:
    within = Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
    stages = Role(name="stage", count=2, devices=8, topology=within)
    assert isinstance(outcome(submit(resources={"roles": (stages,)})), Admitted)
    wide = stages.model_copy(update={"count": 1, "devices": 9})
    assert refusals(submit(resources={"roles": (wide,)}))[RefusalCause.TOPOLOGY][0] == "job.resources.roles.0.topology"
    many = stages.model_copy(update={"count": 99})
    assert refusals(submit(resources={"roles": (many,)}))[RefusalCause.CAPACITY][0] == "job.resources.roles.0"
    fewer = many.model_copy(update={"min_count": 1})
    assert isinstance(outcome(submit(resources={"roles": (fewer,)})), Admitted)


def test_an_elastic_job_is_measured_by_its_least() -> None:
    assert isinstance(outcome(submit(resources={"devices": 64, "min_devices": 4})), Admitted)
    quota = led.QuotaSet(team="research", limit_milli=4000)
    assert isinstance(outcome(submit(resources={"devices": 8, "min_devices": 4}), *TWO_LEAVES, quota), Admitted)
    assert RefusalCause.QUOTA in refusals(submit(resources={"devices": 8, "min_devices": 5}), *TWO_LEAVES, quota)


def test_cpus_are_used_only_when_named() -> None:
    cpu = node("c", 4, model="CPU", gib=4)
    assert isinstance(outcome(submit(resources={"types": ("CPU",)}), cpu), Admitted)
    assert refusals(submit(), cpu)[RefusalCause.TYPE][2] == "set types to [CPU]"


def test_memory_beyond_every_device_is_refused() -> None:
    _, problem, fix = refusals(submit(resources={"memory_mib": 90 * GIB}))[RefusalCause.MEMORY]
    assert "the largest has 81920 MiB" in problem
    assert "at most 81920 MiB" in fix
    found = refusals(submit(resources={"memory_mib": 60 * GIB, "types": ("A100",)}))
    assert "the largest has 40960 MiB" in found[RefusalCause.MEMORY][1]


def test_a_model_that_cannot_fit_is_refused_with_the_arithmetic_and_a_change_that_helps() -> None:
    request = submit(resources={"devices": 4}, model=ModelShape(parameters_b=70))
    field, problem, fix = refusals(request)[RefusalCause.MODEL]
    assert field == "job.model"
    assert "70e9 x 12 bytes (adamw)" in problem
    assert "81920 MiB of the largest acceptable device" in problem
    assert fix == "set resources.devices to 16 and model.zero_stage to 3"
    fixed = submit(resources={"devices": 16}, model=ModelShape(parameters_b=70, zero_stage=3))
    assert isinstance(outcome(fixed), Admitted)


def test_a_change_that_needs_more_devices_than_the_pool_has_is_no_help() -> None:
    model = ModelShape(parameters_b=2_000)
    assert "set resources.devices to 512" in vram.remedy(model, 8, 80 * GIB), "of a larger pool it is"
    *_, fix = refusals(submit(resources={"devices": 8}, model=model))[RefusalCause.MODEL]
    assert fix.startswith("split the model further")


def test_the_estimate_becomes_the_memory_demand() -> None:
    shape = ModelShape(workload=Workload.INFERENCE, parameters_b=24)
    result = outcome(submit(model=shape))
    assert isinstance(result, Admitted)
    assert result.job.resources.memory_mib == pytest.approx(24e9 * 2 / 2**20 + 300, abs=1)
    more = outcome(submit(model=shape, resources={"memory_mib": 60 * GIB}))
    assert more.job.resources.memory_mib == 60 * GIB
    share = submit(model=shape, resources={"share_milli": 500, "memory_mib": 8 * GIB})
    assert refusals(share)[RefusalCause.MODEL][0] == "job.resources.memory_mib"


def test_a_model_that_is_split_wrongly_is_refused() -> None:
    found = refusals(submit(resources={"devices": 6}, model=ModelShape(parameters_b=1, tensor_parallel=4)))
    assert found[RefusalCause.MODEL][0] == "job.model.tensor_parallel"
    found = refusals(submit(model=ModelShape(parameters_b=1, precision=Precision.INT8)))
    assert found[RefusalCause.MODEL][0] == "job.model.precision"


def test_a_gang_that_no_group_can_ever_hold_is_refused() -> None:
    required = Topology(level=Level.LEAF, policy=TopologyPolicy.REQUIRED)
    assert isinstance(outcome(submit(resources={"devices": 16, "topology": required})), Admitted)
    _, problem, fix = refusals(submit(resources={"devices": 24, "topology": required}))[RefusalCause.TOPOLOGY]
    assert problem == "the largest leaf has 16 fitting devices of one model (H100)"
    assert fix == "set topology.level to spine, or policy to preferred, or ask for at most 16 devices"
    assert isinstance(outcome(submit(resources={"devices": 24})), Admitted)
    _, problem, fix = refusals(submit(resources={"devices": 32}))[RefusalCause.CAPACITY]
    assert problem == "this pool has 24 fitting devices of one model (H100), even when all are free"
    assert fix == "ask for at most 24 devices"


def test_demands_that_only_fail_together_are_explained() -> None:
    a = node("a", labels={"disk": "nvme"}, gib=40)
    b = node("b", gib=80)
    asked = submit(resources={"memory_mib": 60 * GIB, "labels": {"disk": "nvme"}})
    field, _, fix = refusals(asked, a, b)[RefusalCause.CAPACITY]
    assert field == "job.resources"
    assert "of 16 devices type leaves 16, profile leaves 16, memory leaves 8, labels leaves 0" in fix


def test_a_mig_instance_is_granted_only_by_its_profile() -> None:
    mig = node("m", 7, profile="1g.10gb", gib=9)
    assert isinstance(outcome(submit(resources={"mig_profile": "1g.10gb", "devices": 3}), mig), Admitted)
    assert "set mig_profile to one of: 1g.10gb" in refusals(submit(), mig)[RefusalCause.PROFILE][2]


def test_timer_jobs_need_a_simulated_node() -> None:
    request = submit(command=(), simulation=Simulation(duration_s=5))
    assert RefusalCause.SIMULATION in refusals(request)
    assert isinstance(outcome(request, node("s", simulated=True)), Admitted)


def test_long_and_impossible_commands_are_refused() -> None:
    assert "65536 are allowed" in refusals(submit(command=("x" * 4000,) * 20))[RefusalCause.COMMAND][1]
    assert refusals(submit(command=("a\0b",)))[RefusalCause.COMMAND][0] == "job.command.0"


def test_a_quota_smaller_than_the_request_is_refused_and_shares_count_in_part() -> None:
    quota = led.QuotaSet(team="research", limit_milli=500)
    assert refusals(submit(), *TWO_LEAVES, quota)[RefusalCause.QUOTA][1] == (
        "team research may hold 0.5 accelerators at once, this job alone asks for 1"
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
        ),
        9,
    )
    again = FleetShape.load(shape.dump())
    assert list(again.dump()) == list(shape.dump())
    assert (again.blocks, again.quotas, again.jobs) == (shape.blocks, shape.quotas, 1)
    assert evaluate(request, "research", AdmissionContext(again, limits.room)) == Repeated(admitted.job_id)


def test_a_change_of_the_fleet_is_seen_at_once() -> None:
    shape = fleet(*TWO_LEAVES)
    context, request = AdmissionContext(shape, limits.room), submit(resources={"devices": 32})
    assert isinstance(evaluate(request, "research", context), NotAdmitted)
    shape.apply(record(node("e")), 2)
    assert isinstance(evaluate(request, "research", context), Admitted)


def test_the_shipped_classes_are_those_of_the_code() -> None:
    path = Path(__file__).parents[2] / "deploy/classes.yaml"
    shipped = tuple(PriorityClass(**entry) for entry in yaml.safe_load(path.read_text())["classes"])
    assert shipped == DEFAULT_CLASSES


def test_a_class_says_what_its_jobs_may_take_where_they_say_nothing() -> None:
    """The body that was sent stays the job's body: the same request again is the same job."""
    held = DEFAULT_CLASSES[-1].model_copy(update={"limits": JobLimits(processes=100, disk_mib=500)})
    context = AdmissionContext(fleet(*TWO_LEAVES), limits.room, {held.name: held})
    found = []
    for asked in ({}, {"limits": {"processes": 20, "open_files": 64}}):
        request = submit(**asked)
        admitted = evaluate(request, "research", context)
        assert isinstance(admitted, Admitted)
        assert admitted.spec_hash == content_hash(request.model_dump_json().encode())
        found.append(admitted.job.limits)
    assert found == [JobLimits(processes=100, disk_mib=500), JobLimits(processes=20, open_files=64, disk_mib=500)]
    plain = evaluate(submit(), "research", AdmissionContext(fleet(*TWO_LEAVES), limits.room))
    assert isinstance(plain, Admitted)
    assert "limits" not in plain.job.model_dump(), "a body without them is the body that it was before they came"


def test_what_no_node_has_is_refused_with_what_it_has() -> None:
    events = (node("a", cpus=96, memory_mib=1024 * GIB), node("b", model="A100", gib=40, cpus=32, memory_mib=256 * GIB))
    field, problem, fix = refusals(submit(resources={"cpu_milli": 96_001}), *events)[RefusalCause.CPU]
    assert field == "job.resources.cpu_milli"
    assert problem.endswith("the largest has 96")
    assert fix == "ask for at most 96000 thousandths per device"
    _, problem, _ = refusals(submit(resources={"host_memory_mib": 1025 * GIB}), *events)[RefusalCause.HOST_MEMORY]
    assert problem.endswith(f"the largest has {1024 * GIB} MiB")
    assert "leave cpu_milli out" in refusals(submit(resources={"cpu_milli": 1}))[RefusalCause.CPU][2]
    field, _, fix = refusals(submit(resources={"runtime": "rocm"}), *events)[RefusalCause.RUNTIME]
    assert field == "job.resources.runtime"
    assert fix.startswith("this pool has cuda;")
    field, problem, fix = refusals(submit(resources={"precision": "fp4"}), *events)[RefusalCause.PRECISION]
    assert (field, problem) == ("job.resources.precision", "no device of this pool computes in it; it has A100, H100")
    assert fix == "use one of: fp32, tf32, bf16, fp16, fp8, int8, int4"
    assert RefusalCause.CAPACITY in refusals(submit(resources={"precision": "fp8", "types": ("A100",)}), *events)
    assert RefusalCause.CAPACITY in refusals(submit(resources={"types": ("A100",), "cpu_milli": 33_000}), *events)


def test_a_gang_counts_the_processors_of_its_nodes() -> None:
    events = [node(name, cpus=32) for name in "ab"]
    _, problem, fix = refusals(submit(resources={"devices": 9, "cpu_milli": 8000}), *events)[RefusalCause.CAPACITY]
    assert "8 fitting devices" in problem
    assert fix == "ask for at most 8 devices"
    assert isinstance(outcome(submit(resources={"devices": 8, "cpu_milli": 8000}), *events), Admitted)


def test_measured_free_memory_is_what_a_device_has() -> None:
    event = node("a", 1)
    device = event.inventory.devices[0].model_copy(update={"memory_free_mib": 50 * GIB})
    event = event.model_copy(update={"inventory": event.inventory.model_copy(update={"devices": (device,)})})
    _, problem, _ = refusals(submit(resources={"memory_mib": 60 * GIB}), event)[RefusalCause.MEMORY]
    assert f"the largest has {50 * GIB} MiB" in problem


def within(level: Level) -> Topology:
    return Topology(level=level, policy=TopologyPolicy.REQUIRED)


ONE, TWO = (node("a"),), (node("a"), node("b"))


@pytest.mark.parametrize(
    ("resources", "event"),
    [
        ({"memory_mib": 90 * GIB, "roles": (Role(name="a", memory_mib=10 * GIB),)}, node("a")),
        ({"cpu_milli": 900_000, "roles": (Role(name="a", cpu_milli=10),)}, node("a", cpus=64)),
        (
            {"host_memory_mib": 9000 * GIB, "roles": (Role(name="a", host_memory_mib=10),)},
            node("a", memory_mib=64 * GIB),
        ),
        ({"types": ("B200",), "roles": (Role(name="a", types=("H100",)),)}, node("a")),
        ({"roles": (Role(name="a", types=("CPU",)),)}, node("c", 4, model="CPU", gib=4)),
    ],
)
def test_what_every_role_gives_itself_the_jobs_value_does_not_bind(resources: dict[str, Any], event: Any) -> None:
    assert isinstance(outcome(submit(resources=resources), event), Admitted)
    inherits = (*resources["roles"], Role(name="b"))
    assert isinstance(outcome(submit(resources=resources | {"roles": inherits}), event), NotAdmitted)


def test_a_wrong_value_of_a_role_is_told_by_the_roles_field_and_a_shared_one_once() -> None:
    def told(*roles: Role, **resources: Any) -> dict[RefusalCause, tuple[str, str, str]]:
        result = outcome(submit(resources=resources | {"roles": roles}), *ONE)
        assert len(result.refusals) == len({r.reason.field for r in result.refusals})
        return {r.why: (r.reason.field, r.reason.problem, r.reason.fix) for r in result.refusals}

    found = told(Role(name="a", types=("H1000",)))
    assert found == {
        RefusalCause.TYPE: ("job.resources.roles.0.types.0", "no device model of this name is known",
                   "did you mean H100? this pool has H100")
    }  # fmt: skip
    assert told(Role(name="a", types=("B200",)))[RefusalCause.TYPE][0] == "job.resources.roles.0.types"
    level = told(Role(name="a"), Role(name="b", topology=Topology(level=Level.DEVICE)))[RefusalCause.TOPOLOGY]
    assert level[0] == "job.resources.roles.1.topology.level"
    assert told(Role(name="a", memory_mib=90 * GIB))[RefusalCause.MEMORY][0] == "job.resources.roles.0.memory_mib"
    assert told(Role(name="a", cpu_milli=9))[RefusalCause.CPU][0] == "job.resources.roles.0.cpu_milli"
    shared = told(Role(name="a"), Role(name="b"), memory_mib=90 * GIB)
    assert {why: found[0] for why, found in shared.items()} == {RefusalCause.MEMORY: "job.resources.memory_mib"}
    both = Role(name="a", types=("A100",), memory_mib=60 * GIB)
    result = refusals(submit(resources={"roles": (both,), "labels": {"disk": "nvme"}}), *TWO_LEAVES)
    assert "at most 0" not in str(result)


def capped(cap_w: int, board_w: int = 700) -> Any:
    """A node of eight boards whose rack has a power cap."""
    event = node("p", rack_power_w=cap_w)
    devices = tuple(d.model_copy(update={"power_limit_w": board_w}) for d in event.inventory.devices)
    return event.model_copy(update={"inventory": event.inventory.model_copy(update={"devices": devices})})


def tpus(model: str, torus: tuple[int, ...], host: tuple[int, ...]) -> list[Any]:
    """The hosts of one torus."""
    events = []
    for corner in product(*(range(0, length, side) for length, side in zip(torus, host, strict=True))):
        name = "t-" + "-".join(map(str, corner))
        places = [tuple(c + o for c, o in zip(corner, offset, strict=True)) for offset in product(*map(range, host))]
        devices = tuple(
            Device(
                id=f"{name}-{i}", index=i, kind=DeviceKind.TPU, model=model, memory_mib=16 * GIB, runtime=Runtime.TPU,
                torus="t", torus_shape=torus, torus_at=at,
            )
            for i, at in enumerate(places)
        )  # fmt: skip
        events.append(led.NodeJoined(incarnation=1, inventory=Inventory(node=name, devices=devices)))
    return events


V5E, V5P = tpus("v5e", (4, 4), (2, 4)), tpus("v5p", (4, 4, 4), (2, 2, 1))
MI300X = node("m", model="MI300X")
FIVES = Role(name="a", count=3, devices=5, topology=within(Level.NODE))


@pytest.mark.parametrize(
    ("resources", "events", "why", "field", "fix"),
    [
        (
            {"roles": (Role(name="a", devices=12), Role(name="b", devices=12))}, TWO,
            RefusalCause.CAPACITY, "roles", "ask for fewer or smaller groups, or give a role other types",
        ),
        (
            {"roles": (Role(name="a", devices=6), Role(name="b", devices=6)), "topology": within(Level.NODE)}, TWO,
            RefusalCause.TOPOLOGY, "topology.level",
            "set topology.level to leaf, or policy to preferred, or ask for fewer devices",
        ),
        ({"roles": (FIVES,)}, TWO, RefusalCause.TOPOLOGY, "roles.0", "ask for at most 2 groups"),
        (
            {"roles": (Role(name="a", count=8, cpu_milli=3000),)}, (node("a", cpus=16),),
            RefusalCause.CAPACITY, "roles.0", "ask for at most 5 groups",
        ),
        (
            {"roles": (Role(name="a", devices=12, types=("H100", "A100")),)}, (node("a"), node("b", model="A100")),
            RefusalCause.CAPACITY, "roles.0", "ask for groups of at most 8 devices",
        ),
        (
            {"roles": (Role(name="a", devices=4),)}, V5E, RefusalCause.CAPACITY, "roles.0",
            "name other types: chips of a TPU are granted as boxes of a torus, which a role cannot ask for",
        ),
        ({"torus": (2, 2, 1)}, ONE, RefusalCause.TOPOLOGY, "torus", "leave torus out and set devices to 4"),
        ({"torus": (2, 2, 1)}, V5E, RefusalCause.TOPOLOGY, "torus", "set torus to [2, 2] or [1, 2]"),
        ({"torus": (8, 8)}, V5E, RefusalCause.TOPOLOGY, "torus", "set torus to [4, 4] or [2, 4]"),
        ({"torus": (4, 2, 2)}, V5P, RefusalCause.TOPOLOGY, "torus", "set torus to [2, 2, 4] or [2, 2, 2]"),
        ({"devices": 4}, V5P, RefusalCause.TOPOLOGY, "torus", "set torus to [2, 2, 1] or [1, 2, 1] instead of devices"),
        ({"devices": 16}, [*V5E, *ONE], RefusalCause.CAPACITY, "devices", "ask for at most 8 devices"),
        (
            {"share_milli": 500}, (MI300X,),
            RefusalCause.TYPE, "share_milli", "leave share_milli out, or ask for types that can be shared",
        ),
        (
            {"share_milli": 500, "types": ("MI300X", "H100")}, (MI300X,),
            RefusalCause.TYPE, "share_milli", "leave share_milli out, or ask for types that can be shared",
        ),
        ({"devices": 8}, (capped(2000),), RefusalCause.CAPACITY, "devices", "ask for at most 2 devices"),
        (
            {}, (capped(500),),
            RefusalCause.CAPACITY, "devices", "name types that take less power, or have an operator raise the cap",
        ),
    ],
)  # fmt: skip
def test_what_the_placer_could_never_place_is_refused_by_a_field_and_with_a_fix(
    resources: dict[str, Any], events: Any, why: RefusalCause, field: str, fix: str
) -> None:
    result = outcome(submit(resources=resources), *events)
    assert isinstance(result, NotAdmitted)
    (refusal,) = result.refusals
    assert (refusal.why, refusal.reason.field, refusal.reason.fix) == (why, f"job.resources.{field}", fix)


@pytest.mark.parametrize(
    ("resources", "events"),
    [
        ({"roles": (Role(name="a", devices=10), Role(name="b", devices=6))}, TWO),
        ({"roles": (FIVES.model_copy(update={"min_count": 2}),)}, TWO),
        ({"roles": (FIVES.model_copy(update={"topology": Topology()}),)}, TWO),
        ({"torus": (4, 4)}, V5E),
        ({"torus": (2, 2, 4)}, V5P),
        ({"devices": 1}, V5E),
        ({"share_milli": 500, "types": ("MI300X", "H100")}, (MI300X, *ONE)),
        ({"devices": 2}, (capped(2000),)),
        ({"devices": 8, "min_devices": 2}, (capped(2000),)),
        ({"devices": 16, "topology": Topology(level=Level.NODE, widen_after_s=86_400)}, TWO),
    ],
)
def test_what_the_placer_could_place_is_admitted(resources: dict[str, Any], events: Any) -> None:
    assert isinstance(outcome(submit(resources=resources), *events), Admitted)


def test_a_verdict_is_remembered_until_devices_change_and_survives_a_snapshot() -> None:
    shape, request = fleet(*TWO), submit(resources={"roles": (FIVES,)})
    assert isinstance(evaluate(request, "research", AdmissionContext(shape, limits.room)), NotAdmitted)
    again = FleetShape.load(shape.dump())
    for each in (shape, again):
        assert isinstance(evaluate(request, "research", AdmissionContext(each, limits.room)), NotAdmitted)
        each.apply(record(led.NodeLeft(node="a", incarnation=1, reason="silent"), node("c")), 7)
        assert isinstance(evaluate(request, "research", AdmissionContext(each, limits.room)), Admitted)


@pytest.mark.parametrize(
    ("resources", "field", "value", "fix"),
    [
        ({"devices": 2, "min_devices": 4}, "min_devices", "4", "lower it"),
        ({"devices": 2, "share_milli": 500}, "share_milli", "500", "set devices to 1, or ask for whole devices"),
        ({"roles": [{"name": "a"}, {"name": "a"}]}, "roles.1.name", "a", "rename one"),
        ({"roles": [{"name": "a"}, {"name": "b", "min_count": 3}]}, "roles.1.min_count", "3", "lower it"),
        ({"devices": 3, "roles": [{"name": "a"}]}, "devices", "3", "leave devices out"),
        ({"devices": 3, "torus": [2, 2]}, "devices", "3", "leave devices out"),
        ({"torus": [2, 2], "min_devices": 2}, "min_devices", "2", "leave min_devices out"),
        ({"roles": [{"name": "a"}], "min_devices": 1}, "min_devices", "1", "use min_count of the role that may shrink"),
    ],
)
def test_fields_that_do_not_go_together_are_told_by_the_one_to_correct(
    resources: dict[str, Any], field: str, value: str, fix: str
) -> None:
    with pytest.raises(ValidationError) as e:
        SubmitJob.model_validate({"client_key": "k", "job": {"command": ["a"], "resources": resources}})
    (reason,) = reasons_of(e.value, model=SubmitJob)
    assert (reason.field, reason.value, reason.fix) == (f"job.resources.{field}", value, fix)


@pytest.mark.parametrize(
    ("resources", "field"),
    [
        ({"types": ("H100",), "mig_profile": "9g.999gb"}, "mig_profile"),
        ({"types": ("A100",), "precision": "fp8"}, "precision"),
        (
            {"precision": "fp8", "roles": (Role(name="a", types=("A100",)), Role(name="b", types=("A100",)))},
            "precision",
        ),
        ({"topology": Topology(level=Level.DEVICE)}, "topology.level"),
        ({"types": ("H1000",)}, ""),
        ({"types": ("X9",), "mig_profile": "9g.999gb"}, ""),
        ({"types": ("A100", "H100"), "precision": "fp8"}, ""),
        ({"types": ("H100",), "mig_profile": "1g.10gb"}, ""),
    ],
)
def test_without_any_node_a_known_model_is_held_to_what_it_can_do(resources: dict[str, Any], field: str) -> None:
    result = evaluate(submit(resources=resources), "research", AdmissionContext(FleetShape(), limits.room))
    if not field:
        assert isinstance(result, Admitted)
        return
    assert isinstance(result, NotAdmitted)
    assert [r.reason.field for r in result.refusals] == [f"job.resources.{field}"]


def test_an_elastic_job_must_fit_on_its_fewest_devices() -> None:
    model = ModelShape(parameters_b=30, zero_stage=3)
    found = refusals(submit(resources={"devices": 8, "min_devices": 2}, model=model), node("a"))
    field, _, fix = found[RefusalCause.MODEL]
    assert (field, fix) == ("job.model", "set min_devices to 6: on fewer devices each must hold more")
    assert isinstance(outcome(submit(resources={"devices": 8, "min_devices": 6}, model=model), node("a")), Admitted)


def test_a_role_needs_what_the_model_needs_though_it_asks_for_less() -> None:
    request = submit(
        resources={"roles": [{"name": "a", "count": 2, "memory_mib": 1}]}, model=ModelShape(parameters_b=4)
    )
    assert refusals(request, node("a", model="A10", gib=24))[RefusalCause.MODEL][0] == "job.model"
    admitted = outcome(request, node("a"))
    assert isinstance(admitted, Admitted)
    assert admitted.job.resources.roles[0].memory_mib == admitted.job.resources.memory_mib > 60_000


def test_an_elastic_role_comes_and_goes_by_whole_replicas_of_the_model() -> None:
    model = ModelShape(parameters_b=1, workload=Workload.INFERENCE, tensor_parallel=4)

    def roles(devices: int, count: int, min_count: int | None) -> Any:
        role = Role(name="trainer", devices=devices, count=count, min_count=min_count)
        return outcome(submit(resources={"roles": (role,)}, model=model), node("a"))

    assert isinstance(roles(4, 2, 1), Admitted)
    assert isinstance(roles(2, 4, None), Admitted)
    refused = roles(2, 4, 2)  # 6 of its 8 devices would be one replica and a half
    assert isinstance(refused, NotAdmitted)
    assert [(r.reason.field, r.reason.value) for r in refused.refusals] == [("job.resources.roles.0.min_count", "2")]


def test_a_job_takes_no_longer_to_save_and_stop_than_its_class_allows() -> None:
    """A victim of preemption would keep for an hour what others wait for."""
    asked = {"stop_grace_s": 301, "checkpoint": {"grace_s": 3600}}
    verdict = outcome(submit(priority_class="experiment", **asked), node("a"))
    assert isinstance(verdict, NotAdmitted)
    found = {r.reason.field: r.reason.fix for r in verdict.refusals if r.why is RefusalCause.GRACE}
    assert found == {"job.stop_grace_s": "use at most 300", "job.checkpoint.grace_s": "use at most 300"}
    assert isinstance(outcome(submit(priority_class="production", stop_grace_s=600), node("a")), Admitted)


def test_a_secret_that_the_team_does_not_have_is_refused() -> None:
    """Where the names are known; a node says the rest."""
    request = submit(secrets=[{"secret": "hf-token"}, {"secret": "wandb", "env": "KEY"}])
    context = AdmissionContext(fleet(*TWO_LEAVES), limits.room)
    assert isinstance(evaluate(request, "research", context), Admitted)
    known = replace(context, secrets={"research": ("hf-tokens", "wandb")}.get)
    verdict = evaluate(request, "research", known)
    assert isinstance(verdict, NotAdmitted)
    (refusal,) = verdict.refusals
    assert refusal.why is RefusalCause.SECRET
    assert (refusal.reason.field, refusal.reason.value) == ("job.secrets.0.secret", "hf-token")
    assert "research has no secret hf-token; it has: hf-tokens, wandb" in refusal.reason.problem
    assert "`baton secret set hf-token`, then submit again" in refusal.reason.fix
    assert isinstance(
        evaluate(request, "research", replace(known, secrets=lambda team: ("hf-token", "wandb"))), Admitted
    )


@pytest.mark.parametrize(
    "event",
    [
        led.QuotaSet(team="research", limit_milli=0),
        led.QueuesApplied(queues=(Queue(name="research", classes=("serving",)),), version=1),
    ],
)
def test_what_was_found_of_a_spec_holds_for_its_team_until_the_pool_is_another(event: Any) -> None:
    first, again = (
        SubmitJob.model_validate_json(submit(key).model_dump_json()) for key in ("run-1", "run-2")
    )  # fmt: skip
    assert again.job is first.job, "written alike"
    context = AdmissionContext(fleet(*TWO_LEAVES), limits.room)
    assert isinstance(evaluate(first, "research", context), Admitted)
    assert list(context.fleet.allowed) == [("research", id(first.job))]
    assert isinstance(evaluate(again, "research", context), Admitted)
    context.fleet.apply(record(event), 2)
    assert isinstance(evaluate(again, "vision", context), Admitted), "the others are as they were"
    assert isinstance(evaluate(again, "research", context), NotAdmitted)


def test_a_team_that_is_suspended_is_refused_what_it_had_before() -> None:
    context = AdmissionContext(fleet(*TWO_LEAVES), limits.room)
    request = submit()
    assert isinstance(evaluate(request, "research", context), Admitted)
    context.fleet.apply(record(led.TeamSuspended(team="research", reason="r", user="o")), 2)
    assert isinstance(evaluate(request, "research", context), NotAdmitted)


def test_other_classes_judge_a_spec_anew() -> None:
    shape = fleet(*TWO_LEAVES)
    request = submit(stop_grace_s=100)
    assert isinstance(evaluate(request, "research", AdmissionContext(shape, limits.room)), Admitted)
    hasty = {c.name: c.model_copy(update={"longest_grace_s": 10}) for c in DEFAULT_CLASSES}
    assert isinstance(evaluate(request, "research", AdmissionContext(shape, limits.room, hasty)), NotAdmitted)
