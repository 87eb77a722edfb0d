"""Two of every service, of which one of each is killed at once and stays away: how long nothing is granted, in virtual time.

The same on real processes is tests/faults/test_two_of_everything.py: there time is the machine's, and a slow one may take any
time. Here it is Baton's own: what standbys wait for, and what they do then.
"""

import asyncio
from itertools import pairwise

from libs.simulation.dst import populating, scenario, teams
from libs.simulation.dst.books import SimBooks
from libs.simulation.dst.process import Process
from libs.simulation.dst.run import alone
from libs.simulation.dst.scenario import Asked, Scenario
from libs.simulation.dst.world import World
from schemas.jobs import JobSpec, Simulation
from schemas.ledger import AttemptRunning, JobGranted, LedgerRecord
from schemas.resources import Resources
from schemas.subjects import ledger_stream

LONGEST_S = 5.0
"""Without a grant, and without a start."""
EVERY_S = 0.1
FIRST_S, KILLED_S, LAST_S, END_S = 4.0, 6.0, 16.0, 24.0
AWAY_S = 60.0
"""Until a supervisor starts again what was killed: the others must do without."""
SERVICES = ("placement", "admission", "leases", "preemption", "quota_billing", "telemetry", "queries", "history")
SPEC = JobSpec(
    priority_class="serving",
    resources=Resources(types=("V100",), share_milli=125),
    simulation=Simulation(duration_s=0.2),
)


def test_no_more_than_five_seconds_pass_without_a_grant() -> None:
    """Whichever of the two it is: so those that lead are among the killed once."""
    was_leader = set()
    for killed in (0, 1):
        with alone(World(17)) as world:
            told = told_when(world, killed)
        for what in (JobGranted, AttemptRunning):
            times = [at for at, _, event in told if isinstance(event, what)]
            assert max(b - a for a, b in pairwise(times)) <= LONGEST_S
        before = [writer for at, writer, _ in told if at <= KILLED_S][-1]
        assert {writer for at, writer, _ in told if at > KILLED_S} == {f"placement-{1 - killed}.1"}
        was_leader.add(before == f"placement-{killed}.1")
    assert was_leader == {True, False}


def told_when(world: World, killed: int) -> list[tuple[float, str, object]]:
    """What the ledger said: when, by the clock that nobody sets, who wrote it, and the event."""
    times = [FIRST_S + number * EVERY_S for number in range(round((LAST_S - FIRST_S) / EVERY_S))]
    drawn = Scenario(nodes=2, placements=2, admissions=2, leases="long")
    drawn.jobs = [Asked(scenario.TEAMS[n % 2], f"job-{n}", SPEC, at=at) for n, at in enumerate(times)]
    books = SimBooks(world)
    told: list[tuple[float, str, object]] = []

    def listen() -> None:
        seq = books.position
        books.follow()
        for number in range(seq + 1, books.position + 1):
            kept = world.disk.streams[ledger_stream(scenario.POOL)].messages[number]
            record = LedgerRecord.model_validate_json(kept.data)
            told.extend((world.loop.now, record.writer, event) for event in record.events)

    world.on_record = listen
    world.loop.run(life(world, drawn, killed))
    books.catch_up()
    books.settle(drawn.jobs)
    assert world.violations == []
    assert len(books.ended) == len(drawn.jobs)
    assert books.checker.report.attempts == len(drawn.jobs)
    return told


async def life(world: World, drawn: Scenario, killed: int) -> None:
    populating.populate(world, drawn, doubled=True)
    sender = Process(world, "teams", "teams")
    sender.start(teams.teams(world, drawn))
    await asyncio.sleep(KILLED_S)
    for service in SERVICES:
        slot = world.services[f"{service}-{killed}"]
        slot.restart_s = (AWAY_S, AWAY_S)
        assert slot.process is not None
        slot.process.die("killed")
    await asyncio.sleep(END_S - KILLED_S)
    sender.die("done")
