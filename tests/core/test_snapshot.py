"""A state that comes back from its parts."""

from libs.core.scheduling.decider import Decider
from libs.core.state import snapshot
from schemas import inbox
from schemas.ledger import AttemptRunning
from tests.core.builders import World, job, node


def test_jobs_of_one_kind_in_many_parts_come_back_each_with_its_own_words() -> None:
    """A kind is told in each part, with the first of its jobs there: names, commands and times are of each job."""
    world = World(node("a", 1))
    admitted = []
    for n in range(450):
        one = job(f"waits-{n}", team=("red", "blue")[n % 2], priority=n % 3, time_limit_s=60 * (n // 200))
        command = ("true",) if n % 100 < 90 else ("run", str(n))
        admitted.append(one.model_copy(update={"spec": one.spec.model_copy(update={"command": command})}))
    world.send(*admitted)
    parts = list(world.decider.dump())
    assert sum(part[:1] == b"J" for part in parts) > 2
    again = snapshot.load(parts).state
    assert {j.id: (j.spec, j.team, j.spec_hash) for j in again.jobs.values()} == {
        j.id: (j.spec, j.team, j.spec_hash) for j in world.decider.state.jobs.values()
    }
    assert list(Decider.load(parts).dump()) == parts


def test_a_gang_that_comes_back_half_started_runs_with_the_last_of_its_starts() -> None:
    world = World(node("a", 2), node("b", 2), node("c", 2))
    gang = world.submit(job("gang", 6))
    first, second, third = world.nodes_of(gang)
    world.observe(first, inbox.Started(job_id=gang, attempt=1))
    world.decider = Decider.load(world.decider.dump())
    assert not world.observe(first, inbox.Started(job_id=gang, attempt=1)), "known already"
    world.observe(second, inbox.Started(job_id=gang, attempt=1))
    (running,) = world.observe(third, inbox.Started(job_id=gang, attempt=1))
    assert isinstance(running, AttemptRunning)
    world.released(gang, nodes=[first, second])
    world.decider = Decider.load(world.decider.dump())
    assert world.state_of(gang) == "running"
    world.released(gang, nodes=[third])
    assert world.state_of(gang) == "ended"
    world.check()
