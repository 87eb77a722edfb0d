"""Runs seeds: `run(seed)` is one life of the whole of Baton, and says what was violated."""

import asyncio
import gc
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from libs.bus.connect import connect
from libs.bus.queries import NoAnswer, QueryError, ask
from libs.core.scheduling.precedence import OrderKnobs, turns
from libs.simulation.dst import aims, cheap, faults, operators, scenario, strangers, themes
from libs.simulation.dst.books import SimBooks
from libs.simulation.dst.failpoints import FAILPOINTS
from libs.simulation.dst.loop import Spinning
from libs.simulation.dst.populating import populate
from libs.simulation.dst.process import Process
from libs.simulation.dst.teams import teams
from libs.simulation.dst.world import World
from schemas.billing import BillQuery
from schemas.catalog import BY_TYPE

PATIENCE_S = 120.0
"""So long after the last fault everything is at rest, or never will be."""
_LOOK_S = 0.5
KNOBS = OrderKnobs(
    look_s=2.0, loss_s=0.1, min_run_s=1.0, move_run_s=2.0, age_s=40.0, slice_s=3.0, in_turn_least_s=8.0, lead_s=1.0
)
"""Jobs live for seconds: what an order says of minutes and hours is said of seconds, and jobs give way within their class."""


@dataclass(slots=True)
class SeedResult:
    """What became of a seed. `digest` is the hash of its trace."""

    seed: int
    violations: list[str]
    digest: str
    lasted_s: float
    steps: int
    failpoints: Counter[str]
    crashes: Counter[str]
    seen: Counter[str]
    notes: list[str] = field(default_factory=list)
    jobs: int = 0
    attempts: int = 0
    records: int = 0


def run(
    seed: int, *, keep_notes: bool = False, calm: bool = False, to_first: bool = False, theme: str = ""
) -> SeedResult:
    """One seed. `calm` leaves the faults out; with `to_first` it ends at the first violation; it dwells on `theme`, or on what
    it draws. Raises KeyError: there is no such theme."""
    with alone(World(seed, keep_notes=keep_notes, to_first=to_first)) as world:
        return _run(world, calm, theme or themes.theme_of(seed))


@contextmanager
def alone(world: World) -> Iterator[World]:
    """While the block runs, nothing of the interpreter's own gets into the world, which is closed then."""
    cheap.install()
    level, knobs = logging.root.manager.disable, turns.DEFAULT_KNOBS
    turns.DEFAULT_KNOBS = KNOBS
    logging.disable(logging.CRITICAL)
    collecting, unraisable = gc.isenabled(), sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda _: None  # coroutines of killed processes are closed wherever they stand
    try:
        yield world
    finally:
        try:
            world.close()
        finally:
            cheap.forget()
            turns.DEFAULT_KNOBS = knobs
            logging.disable(level)
            sys.unraisablehook = unraisable
            if collecting:
                gc.enable()


def _run(world: World, calm: bool, theme: str) -> SeedResult:
    chance = random.Random(f"scenario-{world.seed}")
    drawn = scenario.draw(chance)
    drawn.theme = theme
    if theme:
        aims.named(theme).shape(drawn, chance)
    world.note(f"theme: {theme or 'a mixture'}")
    books = SimBooks(world)
    world.on_record = books.follow
    try:
        world.loop.run(_life(world, drawn, books, chance, calm))
    except Spinning as error:
        world.violated("spin", str(error))
    except Exception as error:
        world.violated("simulation", repr(error))
        if world._keep_notes:
            raise
    for where, raised in world.loop.failed:
        world.violated("bug", f"{where}: {raised!r}")
    report = books.checker.report
    return SeedResult(
        world.seed, world.violations, world.digest(), world.loop.now, world.loop.steps, world.failpoints, world.crashes,
        world.seen, world.notes, jobs=len(drawn.jobs), attempts=report.attempts, records=report.records,
    )  # fmt: skip


async def _life(world: World, drawn: scenario.Scenario, books: SimBooks, chance: random.Random, calm: bool) -> None:
    populate(world, drawn)
    sender = Process(world, "teams", "teams")
    sender.start(teams(world, drawn))
    heal_at = 0.0
    if not calm:
        planned = faults.draw(world, chance, drawn.theme)
        faults.schedule(world, planned)
        world.faults_on = True
        world.plan.at = crash_plan(chance)
        world.plan.stalls = stall_plan(chance, drawn.theme)
        world.plan.strikes = faults.strike_plan(world, chance, drawn.theme)
        heal_at = faults.HEAL_S if planned or world.plan.at or world.plan.stalls or world.plan.strikes else 0.0
        await asyncio.sleep(heal_at)
        faults.heal(world)
    last_s = operators.LAST_S if drawn.stories else scenario.ASKED_S
    await asyncio.sleep(max(0.0, last_s + 1.0 - world.loop.now))
    problems = await _rest(world, drawn, books)
    for problem in problems[:5]:
        world.violated("rest", problem)
    books.settle(drawn.jobs)
    sender.die("done")


def crash_plan(chance: random.Random) -> dict[str, int]:
    """Failpoint -> the pass at which its process dies."""
    if chance.random() < 0.15:
        return {}
    return {chance.choice(FAILPOINTS): min(60, 1 + int(chance.expovariate(0.3))) for _ in range(chance.randint(1, 4))}


def stall_plan(chance: random.Random, theme: str) -> dict[str, tuple[int, float]]:
    """Failpoint -> the pass at which its process stands still, and for how long, s."""
    names = aims.named(theme).stalls if theme else FAILPOINTS
    count = chance.randint(1, 3) if theme else int(chance.random() < 0.3)
    return {
        chance.choice(names): (min(60, 1 + int(chance.expovariate(0.3))), chance.uniform(0.5, 8.0))
        for _ in range(count)
    }


async def _rest(world: World, drawn: scenario.Scenario, books: SimBooks) -> list[str]:
    """Waits until all work has come to rest and all books agree; what is still missing after `PATIENCE_S`."""
    until = world.loop.now + PATIENCE_S
    while True:
        problems = books.unfinished(drawn.jobs) or books.behind()
        if not problems:
            problems = await _bills(world, books)
        if not problems or world.loop.now > until:
            return problems
        strangers.look_once_more(world, books.hot.nodes, scenario.POOL)
        await asyncio.sleep(_LOOK_S)


async def _bills(world: World, books: SimBooks) -> list[str]:
    """Every attempt is billed with exactly its integral, and the total is their sum."""
    process = Process(world, "auditor", "auditor")
    problems: list[str] = []
    await process.start(_ask_bills(books, problems))
    process.die("asked")
    return problems


async def _ask_bills(books: SimBooks, problems: list[str]) -> None:
    nats = await connect("sim://broker", name="auditor")
    total = 0
    message = BY_TYPE["io.baton.bill.get.query.v1"]
    for team in sorted({story.document.team for story in books.stories.values()}):
        try:
            bill = await ask(nats, message, BillQuery(group_by="attempt"), timeout_s=2, pool=scenario.POOL, team=team,
                             user="auditor")  # fmt: skip
        except (NoAnswer, QueryError) as error:
            problems.append(f"no bill of {team}: {error}")
            return
        if bill.ledger_seq != books.position:
            problems.append(f"the bill is at {bill.ledger_seq}, the ledger at {books.position}")
            return
        billed = {row.key: row.milli_us for row in bill.rows if row.milli_us}
        due = {attempt: used for attempt, used in books.billed[team].items() if used}
        total += bill.total_milli_us
        if billed != due:
            problems.append(f"bill of {team}: {billed} instead of {due}")
    if total != books.checker.report.milli_us:
        problems.append(f"billed {total}, the integral is {books.checker.report.milli_us}")
