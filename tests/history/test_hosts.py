"""Who reads a process's output is sent to the node that ran it: history numbers processes as the agents do."""

import pytest

from libs.core.projections.history import JobStory, advance, job_events
from libs.core.projections.hosts import hosts
from libs.core.state.desired import desired
from schemas.inbox import JobAdmitted
from schemas.jobs import Launch
from schemas.queries import JobDocument
from schemas.resources import Role
from services.agent.variables import slots
from tests.core.builders import World, job, node

TRAINERS, JUDGES = Role(name="trainer", count=3, devices=2), Role(name="judge", count=2, devices=1)
FEWER = TRAINERS.model_copy(update={"count": 9, "min_count": 1})
"""More groups than the pool has room for."""


def gang(launch: Launch, roles: tuple[Role, ...]) -> JobAdmitted:
    asked = job("gang", sum(role.count * role.devices for role in roles) or 8, roles=roles)
    return asked.model_copy(update={"spec": asked.spec.model_copy(update={"launch": launch})})


def document_of(asked: JobAdmitted, world: World) -> JobDocument:
    """What history keeps of it."""
    story: JobStory | None = None
    for seq, record in enumerate(world.records, 1):
        if events := job_events(record).get(asked.job_id):
            story = advance(story, events, record.t_us, seq)
    assert story is not None
    return story.document


@pytest.mark.parametrize("launch", Launch)
@pytest.mark.parametrize(
    "roles", [(), (TRAINERS, JUDGES), (JUDGES, FEWER)], ids=["no roles", "two roles", "one has fewer groups"]
)
def test_history_finds_each_process_where_its_agent_has_started_it(launch: Launch, roles: tuple[Role, ...]) -> None:
    """Seen: rank 1 of a gang with one process per node was looked for on the node of the second device."""
    world = World(node("n1", 3), node("n2", 4), node("n3", 2))
    asked = gang(launch, roles)
    world.send(asked)
    started = {
        slot.rank: name
        for name in ("n1", "n2", "n3")
        for part in desired(world.decider.state, name, "p", 9).parts
        for slot in slots(part)
    }
    document = document_of(asked, world)
    (attempt,) = document.attempts
    assert len(started) >= 3
    assert dict(enumerate(hosts(document.spec, attempt))) == started


def test_what_is_not_kept_is_not_guessed() -> None:
    world = World(node("n1", 8), node("n2", 8))
    both = tuple(role.model_copy(update={"count": 9, "min_count": 1}) for role in (TRAINERS, JUDGES))
    asked = gang(Launch.PER_NODE, both)
    world.send(asked)
    document = document_of(asked, world)
    (attempt,) = document.attempts
    assert attempt.nodes
    assert hosts(asked.spec, attempt) == ()
    assert hosts(job("one").spec, attempt.model_copy(update={"nodes": ()})) == ()
