"""Late, repeated and reordered facts change nothing: a recorded day is told again in every such way, and bytes are compared."""

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from libs.core.billing.accounts import Accounts
from libs.core.billing.charges import charges
from libs.core.billing.metering import Meter
from libs.core.billing.usage_events import event_of, stripe
from schemas import inbox
from schemas.ledger import LedgerRecord
from tests.billing.ledgers import FIRST
from tests.core.builders import World, job, node
from tests.core.lives import LIVES

Day = list[tuple[int, tuple[Any, ...]]]
"""What came to the pool's inbox: (when, the messages of one batch)."""
FACTS = (inbox.NodeObserved, inbox.NodeRegistered, inbox.JobAdmitted, inbox.CancelRequested)


@pytest.fixture(scope="module", params=["every end", "preempted", "lost again", "particular", "suspended"])
def day(request: pytest.FixtureRequest) -> Day:
    """A day with gangs and shares, losses, preemptions, refusals, cancels."""
    told: Day = []

    class Recorded(World):
        def send(self, *messages: Any, after_us: int = 1000) -> list[Any]:
            events = super().send(*messages, after_us=after_us)
            told.append((self.now_us, messages))
            return events

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.core.lives.World", Recorded)
        LIVES[request.param]()
    return told


def told(day: Iterable[tuple[int, tuple[Any, ...]]]) -> World:
    day, world = list(day), World()
    world.now_us = day[0][0]
    world.send(inbox.ApplyPrices(book=FIRST, reason="the year begins", user="olga"), after_us=0)
    for t_us, messages in day:
        world.now_us = t_us
        world.send(*messages, after_us=0)
    return world


def as_bytes(records: Iterable[LedgerRecord]) -> bytes:
    """All postings, all rows of usage, what is charged for them and the events that are sent of them, in an order of their own,
    without the numbers of ledger records."""
    records = list(records)
    books, meter, lines = Accounts(), Meter(), []
    for seq, record in enumerate(records, 1):
        meter.apply(record, seq)
        lines += books.apply(record, seq)
    lines += books.open(books.t_us)
    about = [json.dumps(p._replace(from_seq=0, to_seq=0)) for p in lines]
    charged = list(charges(lambda: enumerate(records, 1)))
    rows = [c._replace(use=c.use._replace(from_seq=0, to_seq=0), posted_seq=0) for c in charged]
    sent = [str(stripe(event, "c")) for event in (event_of(charge, "p") for charge in charged) if event is not None]
    usage = [json.dumps(row) for row in meter.usage()]
    return "\n".join([*sorted(about), *sorted(usage), *sorted(map(str, rows)), *sorted(sent)]).encode()


def test_the_day_told_again_is_the_same_day(day: Day) -> None:
    whole = as_bytes(told(day).records)
    assert whole == as_bytes(told(day).records)
    assert b"billed" in whole
    assert b"identifier" in whole, "some of it has a price, and is sent"


def test_every_fact_that_comes_twice_at_once(day: Day) -> None:
    twice = told((t_us, tuple(m for each in messages for m in (each, each))) for t_us, messages in day)
    assert as_bytes(twice.records) == as_bytes(told(day).records)


@pytest.mark.parametrize("seed", range(3))
def test_every_fact_that_comes_again_at_any_later_time_in_any_order(day: Day, seed: int) -> None:
    random, late, out = Random(seed), [], []
    for t_us, messages in day:
        random.shuffle(late)
        again = [late.pop() for _ in range(random.randint(0, min(3, len(late))))]
        out.append((t_us, (*again, *messages, *(m for m in messages if random.random() < 0.2))))
        late += [m for m in messages if isinstance(m, FACTS)]
    assert late, "some come after the day"
    end_us = day[-1][0]
    out += [(end_us, tuple(late))]
    assert as_bytes(told(out).records) == as_bytes(told(day).records)


@pytest.mark.parametrize("seed", range(3))
def test_facts_of_one_moment_in_any_order(seed: int) -> None:
    """Where nobody waits for what they free, the order of facts that come together is nobody's business."""

    def in_order(shuffled: bool) -> bytes:
        random = Random(seed)
        world = World(*(node(f"n{n}") for n in range(4)))
        jobs = [world.submit(job(f"j{n}", 1 + n % 3)) for n in range(12)]
        batches = [
            [m for each in jobs for m in _seen(world, each, running=True)],
            [m for each in jobs for m in _seen(world, each, running=False)],
        ]
        for batch in batches:
            if shuffled:
                random.shuffle(batch)
            world.send(*batch, after_us=5_000_000)
        return as_bytes(world.records)

    assert in_order(True) == in_order(False)


def _seen(world: World, job_id: str, *, running: bool) -> list[inbox.NodeObserved]:
    attempt = 1
    saw: Any = inbox.Started(job_id=job_id, attempt=attempt)
    if not running:
        saw = inbox.Released(job_id=job_id, attempt=attempt, exit_code=0, own_exit=True)
    return [inbox.NodeObserved(node=n, incarnation=1, observations=(saw,)) for n in world.nodes_of(job_id)]
