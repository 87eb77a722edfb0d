"""What a seed dwells on. Half of the seeds mix all faults; the others take a few kinds again and again, in a world in which
these meet something, and processes stand still at failpoints where others may go on meanwhile. A mixture alone meets what
needs three faults of one kind once in thousands of seeds.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from libs.simulation.dst.scenario import KEPT, LEASES, Asked, Scenario, let_operators_speak, name_secrets
from schemas.inbox import SuspendTeam

Reshape = Callable[[Scenario, random.Random], None]


@dataclass(frozen=True, slots=True)
class Theme:
    """`kinds`: faults (`faults.DRAWS`) and how often; `stalls`: failpoints; `strikes`: faults that begin when a failpoint is
    reached; `shape` changes the scenario that was drawn; so many of its seeds as `loses` lose messages all the time."""

    kinds: Mapping[str, float]
    shape: Reshape
    stalls: tuple[str, ...] = field(default=())
    strikes: tuple[tuple[str, str], ...] = field(default=())
    loses: float = 0.08


_SHARE = 0.5


def theme_of(seed: int) -> str:
    """The theme of a seed; "" for a mixture."""
    chance = random.Random(f"theme-{seed}")
    return chance.choice(tuple(THEMES)) if chance.random() < _SHARE else ""


def _requests(scenario: Scenario, chance: random.Random) -> None:
    """Two admissions; cancels soon after their jobs, and second bodies under the same keys."""
    scenario.admissions = 2
    for job in scenario.jobs:
        draw = chance.random()
        if draw < 0.35:
            job.cancel_at = job.at + chance.uniform(0.0, 0.1)
        elif draw < 0.7:
            job.twin_at = job.at + chance.choice((0.0, 0.002, 0.01, 0.1, 4.0)) * chance.random()
    at = chance.uniform(0.5, 12.0)
    for job in chance.sample(scenario.jobs, len(scenario.jobs) // 2):  # many at once
        move(job, at + chance.random())


def move(job: Asked, at: float) -> None:
    moved = at - job.at
    job.at = at
    job.cancel_at = None if job.cancel_at is None else job.cancel_at + moved
    job.twin_at = None if job.twin_at is None else job.twin_at + moved


def _leases(scenario: Scenario, chance: random.Random) -> None:
    """Leases that differ, work of the class with the short one; or a reader of an older version for long."""
    scenario.leases = chance.choice(tuple(LEASES))
    scenario.nodes = max(2, scenario.nodes)
    become(scenario, chance, "serving", 0.4)
    scenario.older_until = chance.uniform(12.0, 24.0) if chance.random() < 0.3 else 0.0


def last_long(scenario: Scenario, chance: random.Random) -> None:
    """Work that takes long, so that something runs when its agent is gone."""
    for job in scenario.jobs:
        if chance.random() < 0.7 and not job.spec.time_limit_s:
            simulation = job.spec.simulation
            assert simulation is not None
            longer = simulation.model_copy(update={"duration_s": round(chance.uniform(4.0, 16.0), 3)})
            job.spec = job.spec.model_copy(update={"simulation": longer})


def _kept(scenario: Scenario, chance: random.Random) -> None:
    """The same, and some of it is such that no silence ends it."""
    last_long(scenario, chance)
    scenario.nodes = max(2, scenario.nodes)
    become(scenario, chance, KEPT, chance.choice((0.0, 0.3, 0.6)))


def crowded(scenario: Scenario, chance: random.Random) -> None:
    """Small work first, then such as takes its place: jobs give way and come back."""
    scenario.nodes = min(2, scenario.nodes)
    last_long(scenario, chance)
    become(scenario, chance, "production", 0.4)
    for job in scenario.jobs:
        if job.spec.priority_class == "production":
            move(job, chance.uniform(5.0, 15.0))
        else:
            move(job, chance.uniform(0.5, 6.0))


def become(scenario: Scenario, chance: random.Random, klass: str, share: float) -> None:
    for job in scenario.jobs:
        if chance.random() < share:
            job.spec = job.spec.model_copy(update={"priority_class": klass})


def _replicas(scenario: Scenario, chance: random.Random) -> None:
    """Two of what saves snapshots, and they save often."""
    scenario.placements, scenario.saves = 2, chance.choice((3, 8))
    scenario.doubled = chance.choice(("preemption", "quota_billing", "history", "queries"))


def _segments(scenario: Scenario, chance: random.Random) -> None:
    scenario.placements, scenario.saves = chance.choice((1, 2)), chance.choice((8, 5000))


def _stores(scenario: Scenario, chance: random.Random) -> None:
    scenario.doubled = chance.choice(("history", "history", "queries", ""))


def _archived(scenario: Scenario, chance: random.Random) -> None:
    """One operator archives the ledger, or two at once; readers save often."""
    scenario.archivists, scenario.saves = chance.choice((1, 2)), chance.choice((2, 4))
    scenario.placements, scenario.older_until = chance.choice((1, 2)), 0.0


def _secrets(scenario: Scenario, chance: random.Random) -> None:
    """Most jobs need secrets, of one vault or two."""
    scenario.vaults, scenario.saves = chance.choice((1, 2)), chance.choice((8, 5000))
    name_secrets(scenario, chance, 0.7)


def _spoken_to(scenario: Scenario, chance: random.Random) -> None:
    """Operators speak, of work that takes long enough to be spoken of, and two admissions hear requests meanwhile. Teams cancel
    what is being stopped."""
    last_long(scenario, chance)
    scenario.nodes, scenario.admissions = min(2, scenario.nodes), chance.choice((1, 2))
    let_operators_speak(scenario, budgets=0.5)
    cancel_what_stops(scenario, random.Random(repr(("stopped", [job.at for job in scenario.jobs]))), 0.4)


def cancel_what_stops(scenario: Scenario, chance: random.Random, share: float) -> None:
    """Teams cancel so many of their jobs as they are suspended."""
    pauses = {}
    for story in scenario.stories:
        if isinstance(said := story.words[0].message, SuspendTeam):
            pauses[said.team] = story.words[0].at
    for job in scenario.jobs:
        if job.team in pauses and chance.random() < share:
            job.cancel_at = max(job.at, pauses[job.team]) + chance.uniform(0.0, 3.0)


def _same(scenario: Scenario, chance: random.Random) -> None:
    """As it was drawn."""


THEMES: dict[str, Theme] = {
    "requests": Theme(
        {"stop admission": 4, "kill": 1, "messages": 2, "full stream": 1, "broker killed": 1, "unclear": 1},
        _requests,
        ("settle.decided", "settle.stored", "settle.decided", "settle.stored", "writer.answered"),
    ),
    "leases": Theme(
        {"no leases": 4, "deaf leases": 4, "overrun": 4, "stop leases": 3, "partition": 2, "messages": 1, "clock": 1},
        _leases,
        ("leases.tick",),
    ),
    "nodes": Theme(
        {"kill agent": 4, "freeze agent": 5, "keeper": 2, "declared dead": 3, "stranger": 1,
         "power off": 1, "old node": 1, "node disk full": 1, "messages": 2,
         "partition": 3},
        _kept,
        ("agent.starting", "agent.started", "agent.reported", "agent.killed-all", "writer.told"),
    ),
    "again": Theme(
        {"old input": 5, "messages": 5, "freeze agent": 2, "unclear": 1, "kill": 1, "reset": 1},
        crowded,
        ("writer.told", "agent.reported", "agent.started", "writer.decided"),
    ),
    "snapshots": Theme(
        {"snapshots": 4, "kill": 6, "freeze": 2, "slow disk": 1, "broker killed": 1},
        _replicas,
        ("snapshots.found", "snapshots.found", "snapshots.found", "follower.applied", "writer.folded"),
    ),
    "segments": Theme(
        {"roll": 5, "kill": 3, "freeze": 2, "broker killed": 1, "slow disk": 1, "unclear": 2, "snapshots": 1},
        _segments,
        ("writer.decided", "writer.answered", "follower.applied", "writer.folded"),
        (("writer.decided", "lost append"),),
    ),
    "room": Theme(
        {"full stream": 5, "full disk": 3, "slow disk": 2, "unclear": 2, "broker frozen": 2, "broker killed": 2},
        crowded,
        ("preemption.planned", "settle.decided", "feed.stored"),
        (("preemption.planned", "full stream"), ("preemption.planned", "broker killed"), ("settle.decided", "full stream")),
    ),
    "stores": Theme(
        {"redis": 4, "mongo": 5, "kill": 2, "freeze": 2},
        _stores,
        ("documents.saved", "projector.written", "feed.stored"),
    ),
    "archive": Theme(
        {"roll": 3, "stop archivist": 5, "archive damaged": 4, "snapshots": 2, "messages": 3, "kill": 1, "mongo": 1,
         "unclear": 1, "broker killed": 1, "broker frozen": 1, "slow disk": 1},
        _archived,
        ("archive.written", "archive.checked", "archive.deleted", "archive.checked", "follower.applied"),
        (("archive.checked", "stop archivist"), ("archive.written", "stop archivist"), ("archive.checked", "snapshots")),
    ),
    "secrets": Theme(
        {"stop vault": 5, "rekey": 5, "kill agent": 2, "freeze agent": 1, "messages": 2, "partition": 1, "full stream": 1,
         "broker killed": 1, "snapshots": 1},
        _secrets,
        ("vault.changed", "vault.rekeying", "vault.loaded", "vault.rekeying", "agent.starting"),
        (("vault.rekeying", "stop vault"), ("vault.changed", "stop vault")),
    ),
    "operators": Theme(
        {"old input": 3, "messages": 3, "kill": 4, "freeze": 1, "lost append": 1, "unclear": 1, "full stream": 1, "clock": 1,
         "snapshots": 2, "stop admission": 1, "broker killed": 1, "roll": 1},
        _spoken_to,
        ("writer.decided", "writer.folded", "settle.decided", "settle.stored", "follower.applied"),
    ),
    "losses": Theme(
        {"messages": 2, "kill": 2, "reset": 2, "freeze": 1, "freeze agent": 1, "lost append": 2},
        _same,
        ("writer.decided", "settle.decided", "agent.reported"),
        (("writer.decided", "lost append"),),
        loses=1.0,
    ),
}  # fmt: skip
