"""Ledgers that look like lies and are none: the checker says nothing of them."""

from schemas import inbox
from schemas.ids import job_id
from tests.core.builders import World, job, node
from tests.core.lives import ON_A_CLOCK, records_of
from tests.core.test_verify_lies import report


def test_a_node_is_lost_whose_lease_was_shorter_than_its_jobs_class_allows() -> None:
    """It was taken for an end that came too early."""
    w = World(node("n0"))
    w.send(inbox.GranterClaimed(epoch=1, holder="a", term_s=5, max_lease_s=30))
    w.submit(job("long", 8).model_copy(update={"lease_s": 900}))
    w.started(job_id("research", "long"))
    w.send(inbox.NodeSilent(node="n0", incarnation=1, silent_s=16), after_us=16_000_000)
    w.send(inbox.NodeLost(node="n0", incarnation=1, silent_s=40), after_us=24_000_000)
    assert not w.nodes_of(job_id("research", "long"))
    w.check()


def test_while_older_readers_live_the_clock_jumps_untold() -> None:
    """What they do not know is not written."""
    newer = ("lease.granter", "clock.jumped")
    records = [
        record.model_copy(update={"events": tuple(event for event in record.events if event.kind not in newer)})
        for record in records_of(ON_A_CLOCK)
    ]
    assert report(records).ok
