"""A record is judged by the rules of its own format: what older writers decided stays valid when a rule is tightened."""

import pytest

from libs.core.state.formats import COUNTS_ONCE, FIRST, NEWEST, OWN_UNCOUNTED, PREEMPTION_LIMITED, UNCREDITED
from schemas import inbox
from schemas import ledger as led
from schemas.queues import JobPreemptionRate, PreemptionLimits
from schemas.resources import Claim
from tests.core.builders import World, job, node
from tests.core.test_preemption_guard import SERVING, planned, pool
from tests.core.test_verify_lies import report


def declaring(records: list[led.LedgerRecord], number: int | None) -> list[led.LedgerRecord]:
    """As a writer of that format would have written them."""

    def of_then(event: led.LedgerEvent) -> led.LedgerEvent:
        if not isinstance(event, led.AttemptPreempting):
            return event
        later = {"for_own_team": (False, UNCREDITED), "counts": (True, OWN_UNCOUNTED)}
        said = {name: value for name, (value, since) in later.items() if (number or FIRST) < since}
        return event.model_copy(update=said)

    return [
        record.model_copy(update={"format": number, "events": tuple(map(of_then, record.events))}) for record in records
    ]


def granted_before_its_victim_is_gone() -> list[led.LedgerRecord]:
    """As 0.1.0 did: blue is lowered to less than it holds, others' devices are free, and the grant takes these at once."""
    w = World(node("n0", 4), node("n1", 4))
    victim = w.submit(job("victim", 4, team="blue"))
    w.started(victim)
    other = w.submit(job("other", 4, team="red", **SERVING))
    w.started(other)
    serve = w.submit(job("serve", 4, team="blue", **SERVING))
    (plan,) = planned(w)
    w.send(plan)
    w.send(inbox.QuotaChanged(team="blue", limit_milli=1000))
    (where,) = w.nodes_of(other)
    w.released(other)
    claims = tuple(
        Claim(device=f"{where}-gpu{at}", node=where, milli=1000, memory_mib=80 * 1024, epoch=2) for at in range(4)
    )
    *before, last = w.records
    grant = (led.HoldReleased(job_id=serve), led.JobGranted(job_id=serve, attempt=1, claims=claims))
    return [*before, last.model_copy(update={"events": (*last.events, *grant)})]


@pytest.mark.parametrize("number", [None, *range(FIRST, NEWEST + 1)])
def test_what_is_kept_was_its_own_at_once_before_it_counted_once(number: int | None) -> None:
    found = report(declaring(granted_before_its_victim_is_gone(), number)).violations
    if (number or FIRST) < COUNTS_ONCE:
        assert found == []
    else:
        assert any("I7" in one and "team blue holds 8000 milli of *" in one for one in found)


def gives_way_for_ever(said: bool) -> list[led.LedgerRecord]:
    """Seven times within an hour, where a file lets it; `said`: the file stands in the ledger with its limit."""
    w = pool(per_job=JobPreemptionRate(most=7, within_s=3600))
    victim = w.submit(job("victim", 8))
    w.started(victim)
    for turn in range(7):
        serve = w.submit(job(f"serve {turn}", 8, team="blue", **SERVING))
        (plan,) = planned(w)
        w.send(plan)
        w.released(victim, exit_code=143, own_exit=False)
        w.started(serve)
        w.released(serve)
        w.started(victim)
    w.check()
    limits = PreemptionLimits(per_job=JobPreemptionRate(most=6, within_s=3600))
    return [
        record.model_copy(
            update={
                "events": tuple(
                    e.model_copy(update={"preemption": limits if said else None})
                    if isinstance(e, led.QueuesApplied)
                    else e
                    for e in record.events
                )
            }
        )
        for record in w.records
    ]


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("number", range(2, NEWEST + 1))
def test_how_often_a_job_gives_way_by_default_counts_since_there_was_a_default(number: int, said: bool) -> None:
    found = report(declaring(gives_way_for_ever(said), number)).violations
    if number < PREEMPTION_LIMITED and not said:
        assert found == []
    else:
        assert [one for one in found if "more than 6 times" in one]
