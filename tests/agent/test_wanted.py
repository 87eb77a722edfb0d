"""What an agent puts together from pieces, changes and specs, whatever is lost, late or repeated."""

import random

from schemas.nodes import Action, DesiredPart, NodeChanged, NodeState, ReferencedPart
from services.agent.wanted import Specs, Wanted
from tests.agent.build import but, part, rank, simulated
from tests.agent.world import digest, referenced


def wanted() -> Wanted:
    return Wanted("main", "n0", 1, Specs())


def whole(seq: int, *parts, **fields) -> NodeState:
    told = tuple(map(referenced, parts))
    return NodeState(pool="main", node="n0", incarnation=1, up=True, ledger_seq=seq, parts=told, **fields)


def changed(since: int, seq: int, *parts, gone=(), specs=()) -> NodeChanged:
    return NodeChanged(
        pool="main",
        node="n0",
        incarnation=1,
        since=since,
        ledger_seq=seq,
        parts=tuple(map(referenced, parts)),
        gone=tuple(one.job_id for one in gone),
        specs={digest(one): one.spec for one in specs},
    )


def running(here: Wanted) -> list[str]:
    return [one.job_id for one in here.state().parts]


def test_a_part_is_wanted_once_its_spec_is_known():
    here, one, two = wanted(), part(started=False), part(None, rank(device="gpu1", epoch=2), attempt=2, started=False)
    two = two.model_copy(update={"spec": two.spec.model_copy(update={"name": "another"})})
    here.take_state([whole(5, one, two)])
    assert running(here) == []
    assert here.lacking() == [digest(one), digest(two)]
    here.take_specs({digest(two): two.spec})
    assert here.lacking() == [digest(one)]
    assert here.state().parts == (two,)
    here.take_specs({digest(one): one.spec})
    assert here.state().parts == (one, two)


def test_what_was_granted_later_on_a_device_waits_for_a_part_whose_spec_is_not_known():
    here, first = wanted(), part(simulated(name="first"), rank(milli=300))
    second = part(simulated(name="second"), rank(milli=300, epoch=2))
    other = part(simulated(name="other"), rank(device="gpu1"))
    behind = part(simulated(name="behind"), rank(device="gpu2"), rank(milli=300, epoch=3))
    last = part(simulated(name="last"), rank(device="gpu2", epoch=2))
    here.take_state([whole(5, first, second, other, behind, last)])
    here.take_specs({digest(one): one.spec for one in (second, other, behind, last)})
    assert running(here) == [other.job_id], "the last waits behind one that waits for another device"
    assert [one.job_id for one in here.state({(second.job_id, 1): None}).parts] == [second.job_id, other.job_id]
    here.take_specs({digest(first): first.spec})
    assert running(here) == [one.job_id for one in (first, second, other, behind, last)]


def test_a_part_is_wanted_as_it_was_told_whether_its_spec_is_known_or_not():
    """All but its spec: a part that loses its lease on the way would end with another's, or when it is to be kept."""
    here, kept, short = wanted(), part(lease_s=0.0), part(None, rank(epoch=2), lease_s=30.0, started=True)
    told = [referenced(kept), referenced(short, started=True)]
    here.take_state([whole(5, kept).model_copy(update={"parts": tuple(told)})])
    unknown = here.state({(kept.job_id, 1): None, (short.job_id, 1): None})
    assert [one.lease_s for one in unknown.parts] == [0.0, 30.0]
    here.take_specs({digest(kept): kept.spec, digest(short): short.spec})
    assert here.state().parts == (kept.model_copy(update={"started": False}), short)
    assert ReferencedPart.model_fields.keys() == DesiredPart.model_fields.keys()


def test_a_change_builds_upon_what_is_known_or_says_that_something_was_missed():
    here, one, two, three = wanted(), part(), part(), part()
    assert not here.take_change(changed(0, 5, one, specs=[one])), "no state is known yet"
    here.take_state([whole(5, one)])
    assert here.take_change(changed(3, 7, two, gone=[one], specs=[two]))
    assert running(here) == [two.job_id]
    assert here.take_change(changed(5, 6, one)), "older than what is known"
    assert running(here) == [two.job_id]
    assert not here.take_change(changed(8, 9, three, specs=[three]))
    assert (running(here), here.seq) == ([two.job_id], 7)
    assert here.take_change(changed(7, 9, but(two, Action.STOP)))
    assert [one.action for one in here.state().parts] == [Action.STOP]


def test_an_older_state_changes_nothing_and_an_unchanged_one_moves_its_sequence():
    here, one = wanted(), part()
    here.take_state([whole(5, one)])
    here.take_specs({digest(one): one.spec})
    here.take_state([whole(4)])
    assert running(here) == [one.job_id]
    here.take_state([whole(9, unchanged=True)])
    assert (running(here), here.seq) == ([one.job_id], 9)


def test_an_attempt_that_is_granted_anew_comes_after_what_was_granted_before():
    """Of two shares of one device the older epoch must come first."""
    here, one, two = wanted(), part(), part(None, rank(epoch=2))
    here.take_state([whole(5, one, two)])
    again = one.model_copy(update={"attempt": 2, "ranks": (rank(epoch=3),)})
    here.take_specs({digest(one): one.spec, digest(two): two.spec})
    assert here.take_change(changed(5, 6, again))
    assert [(p.job_id, p.attempt) for p in here.state().parts] == [(two.job_id, 1), (one.job_id, 2)]


def test_a_part_that_runs_is_wanted_before_its_spec_is_known():
    """An agent that has come back goes on with what its keeper holds."""
    here, one, two = wanted(), part(), part()
    here.take_state([whole(5, one, but(two, Action.STOP))])
    here.take_specs({})
    told = here.state({(one.job_id, 1): None, (two.job_id, 1): None})
    assert [(p.job_id, p.action) for p in told.parts] == [(one.job_id, Action.RUN), (two.job_id, Action.STOP)]
    assert here.state({(one.job_id, 2): None}).parts == ()


def test_specs_that_are_no_longer_wanted_are_given_up_but_for_the_last_seen():
    seen = Specs(most=2)
    here, parts = Wanted("main", "n0", 1, seen), [part() for _ in range(4)]
    parts = [p.model_copy(update={"spec": p.spec.model_copy(update={"name": f"p{n}"})}) for n, p in enumerate(parts)]
    here.take_state([whole(1, *parts)])
    here.take_specs({digest(p): p.spec for p in parts})
    assert len(running(here)) == 4, "what is wanted is kept, however much that is"
    here.take_state([whole(2)])
    here.take_state([whole(3, *parts)])
    assert here.lacking() == [digest(parts[0]), digest(parts[1])]


def test_whatever_is_lost_the_state_is_the_truth_after_each_answer():
    """A random life: changes are lost or repeated; whoever notices asks."""
    for seed in range(40):
        dice, here = random.Random(seed), wanted()
        truth: dict[str, object] = {}
        last, seq = 0, 0
        for _ in range(30):
            seq += dice.randint(1, 3)
            gone = [truth.pop(dice.choice(sorted(truth)))] if truth and dice.random() < 0.4 else []
            new = [part() for _ in range(dice.randint(0, 2))]
            truth |= {one.job_id: one for one in new}
            change = changed(last, seq, *new, gone=gone, specs=new)
            last = seq
            if dice.random() < 0.3:
                continue
            known = all(here.take_change(change) for _ in range(dice.randint(1, 2)))
            if not known:
                here.take_state([whole(seq, *truth.values())])
                here.take_specs({digest(one): one.spec for one in truth.values()})
            assert sorted(running(here)) == sorted(truth)
