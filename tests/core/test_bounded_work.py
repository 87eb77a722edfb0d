"""What a request costs is bounded by what a pool is, however the request and the nodes' names are made up."""

from libs.core.accelerators.spelling import listed, meant
from libs.core.admission.evaluate import AdmissionContext, Admitted, NotAdmitted, evaluate
from libs.core.admission.fleet_shape import FleetShape
from libs.core.placement.search import gang
from libs.core.placement.view import Context
from libs.core.scheduling import cycle, limits, preemption
from libs.core.state.limits import Limits
from libs.core.state.shape import shape_of
from schemas import inbox
from schemas.jobs import JobSpec
from schemas.requests import SubmitJob
from schemas.resources import Device, Inventory, Level, Resources, Role, Topology, TopologyPolicy
from tests.core.builders import World, job, node


def test_a_misspelt_name_is_compared_with_some_and_told_some() -> None:
    names = [f"label-{n:05d}" for n in range(8000)]
    assert meant("H10O", ["H100", "A100"]) == "did you mean H100? "
    assert meant("x" * 65, ["x" * 66]) == ""
    assert meant("label-0000l", names).startswith("did you mean label-0")
    assert listed(names[:3]) == "label-00000, label-00001, label-00002"
    assert listed(names).endswith("label-00015 and 7984 more")


def test_a_refusal_is_as_long_as_it_can_be_read() -> None:
    """Seen: one misspelt type was answered with 160 KB, sixteen roles of sixteen with 5 MB, which could not be sent."""
    devices = tuple(Device(id=f"e{n}", index=n, model=f"model-{n:05d}{'z' * 90}", memory_mib=1) for n in range(1500))
    fleet = FleetShape.of([Inventory(node="evil", devices=devices)], dict[str, Limits]())
    roles = tuple(Role(name=f"r{k}", types=tuple(f"modle-{k:02d}{n:03d}" for n in range(16))) for k in range(16))
    asked = SubmitJob(client_key="k", job=JobSpec(command=("x",), resources=Resources(roles=roles)))
    found = evaluate(asked, "team", AdmissionContext(fleet, limits.room))
    assert isinstance(found, NotAdmitted)
    assert len(found.refusals) <= 51
    assert sum(len(refusal.reason.model_dump_json()) for refusal in found.refusals) < 150_000


def test_packings_of_a_nested_gang_have_a_budget(monkeypatch) -> None:
    """Seen: sixteen elastic roles of groups that fit a node once each were packed for minutes, by admission first of all."""
    packed = []
    pack = gang._Nest._pack_in
    monkeypatch.setattr(gang._Nest, "_pack_in", lambda self, *args: packed.append(len(args[1])) or pack(self, *args))
    top = Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
    roles = tuple(
        Role(name=f"r{i}", count=2 if i else 17, min_count=2 if i else 1, devices=5, topology=top) for i in range(16)
    )
    spec = JobSpec(command=("x",), resources=Resources(topology=Topology(level=Level.POOL), roles=roles))
    fleet = FleetShape.of([node(f"n{i:02d}") for i in range(32)], dict[str, Limits]())
    evaluate(SubmitJob(client_key="k", job=spec), "team", AdmissionContext(fleet, limits.room))
    gang.place_nested(fleet.empty_view(), shape_of(spec), -1, Context())
    assert sum(packed) * 16 <= 2 * (gang._LOOKS + 6 * 256 * 16), "in admission, and in a cycle"


def test_what_fits_at_the_widest_level_alone_is_found_whatever_nearer_levels_have_cost(monkeypatch) -> None:
    monkeypatch.setattr(gang, "_LOOKS", 0)
    fleet = FleetShape.of([node(f"n{i}", leaf=f"leaf{i % 4}") for i in range(32)], dict[str, Limits]())
    roles = tuple(Role(name=f"r{i}", count=8, devices=5) for i in range(4))
    spec = JobSpec(command=("x",), resources=Resources(topology=Topology(level=Level.POOL), roles=roles))
    assert isinstance(
        evaluate(SubmitJob(client_key="k", job=spec), "team", AdmissionContext(fleet, limits.room)), Admitted
    )


def nested(name: str, groups: int, memory_mib: int = 0, team: str = "many") -> inbox.JobAdmitted:
    """A gang of `groups` and thirty more groups of five devices, each on a node of its own; no packing shows it sooner."""
    top = Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
    roles = tuple(
        Role(name=f"r{i}", count=2 if i else groups, devices=5, memory_mib=0 if i else memory_mib, topology=top)
        for i in range(16)
    )
    asked = job(name, team=team)
    resources = Resources(topology=Topology(level=Level.POOL), roles=roles)
    return asked.model_copy(update={"spec": asked.spec.model_copy(update={"resources": resources})})


def test_gangs_that_fit_nowhere_cost_a_cycle_together_little_more_than_one(monkeypatch) -> None:
    """Seen: of twenty kinds of them in a pool of 32 nodes each device that was freed cost 1.9 s, with a thousand a minute and
    a half, in which nobody's job was decided."""
    looked = []
    pack = gang._Nest._pack_in
    monkeypatch.setattr(
        gang._Nest, "_pack_in", lambda self, *args: looked.append(len(args[1]) * 16) or pack(self, *args)
    )
    world = World(*(node(f"n{i:02d}") for i in range(32)))
    world.send(*(nested(f"j{n}", 3, 1000 + n) for n in range(20)))
    assert sum(looked) <= 2 * gang.SEARCH_BUDGET + 20 * 256 * 16, "the last one of the budget may go over it"
    assert len(looked) >= 20, "each is packed once"
    looked.clear()
    small = world.submit(nested("small", 2))
    assert world.state_of(small) == "granted", "one of the same team that fits"
    world.check()


def test_gangs_that_nobody_can_let_in_cost_a_plan_together_little_more_than_one(monkeypatch) -> None:
    """Seen: with 62 kinds of them, of a class that may preempt, each round of preemption took 8 s, in which no other team's
    job was planned for."""
    looked = []
    pack = gang._Nest._pack_in
    monkeypatch.setattr(
        gang._Nest, "_pack_in", lambda self, *args: looked.append(len(args[1]) * 16) or pack(self, *args)
    )
    world = World(*(node(f"n{i:02d}") for i in range(32)))
    for n in range(32):
        world.started(world.submit(job(f"full-{n}", 8, team="green")))
    preempts = {"priority": 200, "preempts": True}
    world.send(*(nested(f"j{n}", 3, 1000 + n).model_copy(update=preempts) for n in range(20)))
    other = world.submit(job("other", 8, team="blue").model_copy(update=preempts))
    looked.clear()
    found = preemption.plans(world.decider.state, world.now_us, 1)
    assert [plan.beneficiary for plan in found] == [other], "behind them, and planned for all the same"
    assert sum(looked) <= 2 * gang.SEARCH_BUDGET + 20 * 256 * 16, "the last one of the budget may go over it"
    assert len(looked) >= 20, "each is packed once"


def test_what_gangs_of_one_team_cost_is_not_taken_from_anothers(monkeypatch) -> None:
    given = []
    made = gang._Nest.__init__
    monkeypatch.setattr(gang._Nest, "__init__", lambda self, *args: made(self, *args) or given.append(self.most_looks))
    monkeypatch.setattr(cycle, "SEARCH_BUDGET", 1)
    world = World(*(node(f"n{i:02d}") for i in range(32)))
    world.send(*(nested(f"j{n}", 3, 1000 + n, team) for n in range(3) for team in ("blue", "green")))
    assert sorted(given) == [0, 0, 0, 0, 1, 1]
