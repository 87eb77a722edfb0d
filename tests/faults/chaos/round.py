"""One round: a seed draws faults and jobs, the faults come one after another while the jobs flow, then all books must agree."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from libs.bus.cancel import cancel
from libs.client import ClientError, Unreachable
from schemas.jobs import JobSpec
from schemas.resources import Resources
from tests.faults.books import Books, books_agree
from tests.faults.chaos.faults import FAULTS, OUTAGE_S
from tests.faults.chaos.observer import Observer
from tests.faults.chaos.world import SHORT, World
from tests.faults.cluster import TEAMS, clients, deaths
from tests.faults.load import RETRY, Planned, crowd, mixed, submit

LONG = "long"
"""The name of jobs that run through several faults."""
AT_ONCE = 6
"""Jobs of a handful; one follows another while faults go on."""
EVERY_S = 1.0
MOST = 400
REST_S = 300.0
"""Until everything is at rest after the last fault; only a hang takes so long."""


@dataclass(slots=True)
class Outcome:
    """What a round was, and what was wrong."""

    seed: int
    faults: list[tuple[str, str, float]] = field(default_factory=list)
    """Name, what was done, s."""
    jobs: int = 0
    lost: int = 0
    """Attempts that were lost with their node."""
    records: int = 0
    writers: int = 0
    letters: Counter[str] = field(default_factory=Counter)
    largest_mib: int = 0
    """What the largest process of a service took."""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def draw(seed: int, count: int, only: Sequence[str] = ()) -> list[str]:
    """The names of a round's faults."""
    chance = random.Random(f"faults {seed}")
    known = list(only) or [name for name, fault in FAULTS.items() if not fault.rare and not fault.cannot()]
    out: list[str] = []
    while len(out) < count:  # each once before any comes again
        out += chance.sample(known, min(len(known), count - len(out)))
    return out


def overlapping(names: Sequence[str]) -> list[list[str]]:
    """Those that come one after another and happen to different things, two and two."""
    out: list[list[str]] = []
    for name in names:
        if out and len(out[-1]) == 1 and FAULTS[out[-1][0]].of is not FAULTS[name].of:
            out[-1].append(name)
        else:
            out.append([name])
    return out


async def play(
    world: World, seed: int, names: Sequence[str], say: Callable[[str], None], *, overlap: bool = False
) -> Outcome:
    """Plays a round. What is wrong is in the outcome; raises nothing but what the test itself does wrong. `overlap`: two faults
    at once, where they happen to different things."""
    outcome, began = Outcome(seed), time.monotonic()
    world.chance, world.excused = random.Random(f"round {seed}"), set()
    observer, earlier = Observer(world.cluster), len(deaths(world.cluster))
    watching = asyncio.create_task(observer.watch())
    over = asyncio.Event()
    longest_s = OUTAGE_S if any(FAULTS[name].rare for name in names) else 25.0
    sending = asyncio.create_task(_send(world, seed, over, longest_s))
    try:
        await asyncio.sleep(2 * EVERY_S)  # something runs
        for at_once in [[name] for name in names] if not overlap else overlapping(names):
            async with asyncio.TaskGroup() as group:
                for name in at_once:
                    group.create_task(_cause(world, name, outcome, say))
                    await asyncio.sleep(world.chance.uniform(0.0, 2.0))
        over.set()
        jobs = await sending
        outcome.jobs = len(jobs)
        say(f"  {outcome.jobs} jobs; until all is at rest ...")
        books = await books_agree(world.cluster, {job.job_id: job.end for job in jobs}, deadline_s=REST_S)
        _note(outcome, books, {job.job_id for job in jobs})
        if all(FAULTS[name].spares for name in names):
            outcome.wrong += _not_spared(books, jobs)
    except* (AssertionError, TimeoutError, ProcessLookupError, ClientError) as group:
        outcome.wrong += [f"{type(error).__name__}: {error}" for error in group.exceptions]
    finally:
        over.set()
        await cancel(watching, sending)
    outcome.wrong += observer.seen
    outcome.largest_mib = max(observer.largest.values(), default=0)
    outcome.wrong += [
        f"{event.name} ended by itself: {event.detail}"
        for event in deaths(world.cluster)[earlier:]
        if "SIGKILL" not in event.detail and event.name not in world.excused
    ]
    outcome.seconds = time.monotonic() - began
    return outcome


async def _cause(world: World, name: str, outcome: Outcome, say: Callable[[str], None]) -> None:
    at = time.monotonic()
    try:
        done = await FAULTS[name].cause(world)
    except (TimeoutError, ProcessLookupError) as error:
        raise AssertionError(f"after '{name}' it does not go on: {error!r}") from error
    outcome.faults.append((name, done, time.monotonic() - at))
    say(f"  {name}: {done} ({time.monotonic() - at:.1f} s)")


def _note(outcome: Outcome, books: Books, jobs: set[str]) -> None:
    attempts = [a for job in jobs & books.stories.keys() for a in books.stories[job].document.attempts]
    outcome.lost = sum(attempt.outcome == "lost" for attempt in attempts)
    outcome.records, outcome.writers = books.seq, len(books.writers)
    outcome.letters = Counter(letter.subject.split(".")[4] for letter in books.letters)


def _not_spared(books: Books, jobs: Sequence[Planned]) -> list[str]:
    """Long processes that were lost although their lease is five minutes, and nothing happened to their nodes."""
    out = []
    for job in jobs:
        attempts = books.stories[job.job_id].document.attempts if job.spec.name == LONG else ()
        for attempt in attempts:
            if attempt.outcome == "lost" and not any(node.startswith(SHORT) for node in attempt.nodes):
                out.append(f"attempt {attempt.attempt} of {job.job_id} was lost on {', '.join(attempt.nodes)}")
    return out


async def _send(world: World, seed: int, over: asyncio.Event, longest_s: float) -> list[Planned]:
    """Sends jobs until it is over; returns those that were stored."""
    chance = random.Random(f"load {seed}")
    jobs = [*crowd(f"chaos-{seed}"), *mixed(f"chaos-{seed}", MOST)]
    jobs += [_long(seed, number, chance, longest_s) for number in range(MOST // 10)]
    chance.shuffle(jobs)
    sent: list[Planned] = []
    while not over.is_set() and len(sent) < len(jobs):
        some = jobs[len(sent) : len(sent) + AT_ONCE]
        try:
            async with clients(world.cluster) as teams:  # anew each time, as pipelines do
                await submit(teams, some, give_up_s=600)
            sent += some
        except Unreachable:
            pass  # they are sent again, with the same keys
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), EVERY_S)
    return sent


def _long(seed: int, number: int, chance: random.Random, longest_s: float) -> Planned:
    """A process that runs while several faults come and go."""
    spec = JobSpec(
        name=LONG,
        command=("sh", "-c", f"sleep {chance.uniform(5.0, longest_s):.1f}"),
        resources=Resources(types=(chance.choice(("CPU", "A100", "A100")),), share_milli=20),
        retry=RETRY,
    )
    return Planned(chance.choice(TEAMS), f"chaos-{seed}-long-{number}", spec)
