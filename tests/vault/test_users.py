"""Which nodes may have which secrets: what vault folds of the ledger."""

from libs.core.projections.secret_users import SecretUsers
from schemas import inbox
from schemas.ledger import LedgerRecord
from tests.core.builders import World, job, node
from tests.vault.test_vault import naming


def folded(world: World) -> SecretUsers:
    """Of all its records; a snapshot in the midst changes nothing, and other kinds of events are not needed."""
    users = SecretUsers()
    for seq, record in enumerate(world.records, 1):
        events = tuple(event for event in record.events if event.kind in SecretUsers.handled)
        users.apply(LedgerRecord.model_validate(record.model_copy(update={"events": events})), seq)
        again = SecretUsers.load(list(users.dump()))
        assert again.jobs == users.jobs
        users = again
    return users


def test_from_the_grant_until_the_attempt_is_to_end() -> None:
    world = World(node("n1", 1), node("n2", 1))
    one = world.submit(naming("red", "one", "b", "a", "b"))
    (held,) = world.nodes_of(one)
    other = "n2" if held == "n1" else "n1"
    plain = world.submit(job("plain"))
    users = folded(world)
    assert plain not in users.jobs, "nothing is kept of jobs that name none"
    holder = users.holder(one, 1, held)
    assert holder is not None
    assert (holder.team, holder.names) == ("red", ("b", "a"))
    assert users.holder(one, 1, other) is None
    assert users.holder(one, 2, held) is None
    world.started(one)
    assert folded(world).holder(one, 1, held), "an agent that asks again"
    world.send(inbox.CancelRequested(job_id=one, team="red", reason="x", requested_us=world.now_us))
    assert folded(world).holder(one, 1, held) is None, "it is to end"
    world.released(one, own_exit=False)
    assert folded(world).jobs == {}


def test_a_job_that_runs_again_has_another_attempt() -> None:
    world = World(node("n1", 1))
    one = world.submit(naming("red", "one", "a"))
    world.started(one)
    world.send(inbox.NodeLost(node="n1", incarnation=1, silent_s=60))
    assert folded(world).holder(one, 1, "n1") is None
    world.send(inbox.NodeRegistered(incarnation=2, inventory=node("n1", 1), lease_s=10), after_us=3_600_000_000)
    world.send(after_us=1_000_000)
    assert world.attempt(one) == 2
    users = folded(world)
    assert (users.holder(one, 1, "n1"), bool(users.holder(one, 2, "n1"))) == (None, True)
