"""Themes that no seed draws by itself: each aims at one rare state, for a planted bug that only that state can show.

`./dev chaos --theme NAME --seed 7` is a seed that dwells on it. What seeds mean that name none stays as it is.
"""

import random

from libs.simulation.dst.operators import draw_leave, draw_pause, quota_gone
from libs.simulation.dst.scenario import POOL, TEAMS, Scenario, name_secrets
from libs.simulation.dst.themes import THEMES, Theme, become, cancel_what_stops, crowded, last_long, move


def named(theme: str) -> Theme:
    """Raises KeyError."""
    return AIMS.get(theme) or THEMES[theme]


def _two_vaults(scenario: Scenario, chance: random.Random) -> None:
    """Two processes of vault are told different secrets of one team at once, and what was told is needed soon."""
    scenario.vaults, scenario.saves = 2, 5000
    name_secrets(scenario, chance, 0.9)
    for job in scenario.jobs:
        move(job, chance.uniform(1.0, 4.0))


def _older_for_long(scenario: Scenario, chance: random.Random) -> None:
    """Work that takes long, of which a lease is short, while an older reader keeps the ledger from naming a granter."""
    scenario.leases, scenario.older_until = "short", 24.0
    scenario.nodes = max(2, scenario.nodes)
    last_long(scenario, chance)


def _unsaved(scenario: Scenario, chance: random.Random) -> None:
    """The ledger is archived while a reader can save nothing, so that all of it would be needed after a restart."""
    scenario.archivists, scenario.saves = 1, 4
    scenario.placements, scenario.older_until = 1, 0.0


def _paused_twice(scenario: Scenario, chance: random.Random) -> None:
    """Each team is suspended while its work runs, and again with another word before it goes on."""
    scenario.nodes = min(2, scenario.nodes)
    last_long(scenario, chance)
    scenario.stories = [draw_pause(chance, POOL, team, again=1.0) for team in TEAMS]
    for job in scenario.jobs:
        move(job, chance.uniform(0.5, 4.0))


def _cancelled_while_stopped(scenario: Scenario, chance: random.Random) -> None:
    """The same, and teams cancel what is being stopped for it."""
    _paused_twice(scenario, chance)
    cancel_what_stops(scenario, chance, 0.8)


def _brief(scenario: Scenario, chance: random.Random) -> None:
    """Work that ends before what is late has come; what gives way comes back to the same few devices."""
    crowded(scenario, chance)
    scenario.nodes = 2
    for job in scenario.jobs:
        simulation = job.spec.simulation
        assert simulation is not None
        if not job.spec.time_limit_s and chance.random() < 0.7:
            brief = simulation.model_copy(update={"duration_s": round(chance.uniform(0.1, 1.0), 3)})
            job.spec = job.spec.model_copy(update={"simulation": brief})


def _teams_leave(scenario: Scenario, chance: random.Random) -> None:
    """Each team leaves while its last jobs end, which is said too early, too, and comes back."""
    _brief(scenario, chance)
    scenario.older_until, scenario.nodes = 0.0, max(2, scenario.nodes)
    scenario.stories = [draw_leave(chance, POOL, team) for team in TEAMS]
    for job in scenario.jobs:
        move(job, chance.uniform(0.3, 2.0))


def _two_minds(scenario: Scenario, chance: random.Random) -> None:
    """Two admissions judge by different files, and what one has answered comes to the other."""
    scenario.admissions, scenario.two_minds = 2, True
    scenario.older_until = 0.0
    for job in scenario.jobs:
        job.twin_at = None
        move(job, chance.uniform(0.5, 8.0))


def _shorter_leases(scenario: Scenario, chance: random.Random) -> None:
    """Work that takes long and whose lease is shorter than its node's."""
    scenario.leases, scenario.older_until = "short", 0.0
    last_long(scenario, chance)
    become(scenario, chance, "serving", 0.8)
    for job in scenario.jobs:
        move(job, chance.uniform(0.5, 8.0))


def _stricter_meanwhile(scenario: Scenario, chance: random.Random) -> None:
    """Teams ask early, have no quota soon after, and have it again when what they asked was delivered once more."""
    scenario.admissions, scenario.budgets, scenario.trees = 2, [], []
    scenario.stories = [quota_gone(POOL, team, 3.0, 14.3) for team in TEAMS]
    for job in scenario.jobs:
        move(job, chance.uniform(0.5, 1.5))


AIMS: dict[str, Theme] = {
    "two vaults": Theme({"stop vault": 2, "messages": 1}, _two_vaults, ("vault.loaded",)),
    "deaf beside an older reader": Theme({"deaf standby": 1}, _older_for_long, ("leases.tick",)),
    "nothing saved": Theme({"nothing saved": 1, "roll": 3}, _unsaved, ("archive.deleted",)),
    "paused twice": Theme({"messages": 2, "kill": 1}, _paused_twice, ("writer.decided",)),
    "cancelled while stopped": Theme({"messages": 1, "kill": 1}, _cancelled_while_stopped, ("writer.decided",)),
    "teams leave": Theme({"messages": 2, "kill": 1}, _teams_leave, ("writer.decided",)),
    "late words to agents": Theme({"old words": 4, "messages": 1}, _brief, ("writer.told", "agent.reported"), loses=0.0),
    "two minds": Theme({"stop admission": 5, "messages": 2}, _two_minds, ("settle.stored", "settle.decided"), loses=0.5),
    "heard of at once": Theme({"freeze renewal": 1}, _shorter_leases, ("documents.saved",), loses=0.0),
    "stricter meanwhile": Theme(
        {"stop vault": 1},
        _stricter_meanwhile,
        ("documents.saved",),
        (("settle.stored", "late admission"),),
        loses=0.0,
    ),
    "said again": Theme({"old input": 6, "kill agent": 1}, crowded, ("writer.told",)),
}  # fmt: skip
