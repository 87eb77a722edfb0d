"""What nodes are told: in messages of bounded size, whatever the jobs are, and together all that should run."""

from typing import Any

import pytest

from libs.core.state.desired import desired, node_change, node_state, specs_of
from libs.core.state.model import State
from schemas.ids import content_hash
from schemas.inbox import JobAdmitted
from tests.core.builders import World, job, node

LIMIT = 20_000


def sized(name: str, kib: int, share_milli: int = 100) -> JobAdmitted:
    """A job with so much environment, which no lease ends."""
    admitted = job(name, share_milli=share_milli).model_copy(update={"lease_s": 0.0})
    env = {f"PART_{n}": "x" * 1024 for n in range(kib)}
    return admitted.model_copy(update={"spec": admitted.spec.model_copy(update={"env": env})})


def size(model: Any) -> int:
    return len(model.model_dump_json())


@pytest.fixture
def state() -> State:
    """Forty jobs on one node, with 10 KiB of environment each."""
    world = World(node("n1", 4), node("n2", 1))
    world.send(*(sized(str(n), 10) for n in range(40)))
    assert len(world.decider.state.on_node["n1"]) >= 30
    return world.decider.state


def test_a_state_comes_in_pieces_that_are_small_and_together_whole(state: State) -> None:
    whole = desired(state, "n1", "p", 7)
    assert size(whole) > 10 * LIMIT
    pieces = node_state(state, "n1", "p", 7, limit=LIMIT // 4)
    assert len(pieces) > 1
    assert all(size(piece) <= LIMIT // 4 for piece in pieces)
    assert [(p.piece, p.pieces, p.ledger_seq, p.up) for p in pieces] == [
        (n, len(pieces), 7, True) for n in range(1, len(pieces) + 1)
    ]
    parts = [part for piece in pieces for part in piece.parts]
    about = [part.model_dump(exclude={"spec"}) for part in whole.parts]
    assert {part["lease_s"] for part in about} == {0.0}
    for part in (*whole.parts, *parts):
        assert part.model_fields_set == set(type(part).model_fields), (
            "a field that is left out would be told as its default"
        )
    assert [part.model_dump(exclude={"spec"}) for part in parts] == about
    specs = {part.job_id: part.spec for part in whole.parts}
    assert [part.spec for part in parts] == [
        content_hash(specs[part.job_id].model_dump_json().encode()) for part in parts
    ]


def test_a_node_that_is_not_up_hears_which_life_is_known(state: State) -> None:
    state.fleet.leave("n2")
    for name, incarnation in (("n2", 1), ("unheard", 0)):
        (told,) = node_state(state, name, "p", 7)
        assert (told.up, told.incarnation, told.parts) == (False, incarnation, ())


def test_a_change_tells_parts_and_the_specs_that_fit(state: State) -> None:
    some = list(state.on_node["n1"])[:3]
    change = node_change(state, "n1", [*some, "job-" + "0" * 32], "p", since=5, ledger_seq=7, limit=LIMIT)
    assert [part.job_id for part in change.parts] == some
    assert change.gone == ("job-" + "0" * 32,)
    assert (change.since, change.ledger_seq) == (5, 7)
    assert len(change.specs) == 1
    assert size(change) <= LIMIT + 200


def test_a_change_that_is_too_large_says_only_that_there_is_one(state: State) -> None:
    change = node_change(state, "n1", state.on_node["n1"], "p", since=5, ledger_seq=7, limit=2000)
    assert (change.parts, change.gone, change.specs, change.since) == ((), (), {}, 7)
    assert size(change) <= 2000


def test_specs_are_told_by_digest_some_at_a_time_and_of_the_nodes_own_parts_only(state: State) -> None:
    jobs = [state.jobs[job_id] for job_id in state.on_node["n1"]]
    wanted = {one.spec_digest() for one in jobs}
    found: dict[str, Any] = {}
    while lacking := wanted - found.keys():
        told = specs_of(state, "n1", lacking, limit=3 * LIMIT)
        assert told.specs
        assert size(told) <= 3 * LIMIT + 200
        found |= told.specs
    assert found == {one.spec_digest(): one.spec for one in jobs}
    assert specs_of(state, "n2", wanted - {state.jobs[j].spec_digest() for j in state.on_node["n2"]}).specs == {}
