"""A scenario in virtual time: the real services in one process, on simulated servers and machines."""

from collections.abc import Callable

from libs.bus.connect import Address, connect
from libs.cli.scenario.play import Played, ScenarioStage, play
from libs.cli.scenario.schema import ScenarioFile
from libs.client import Baton
from libs.client.where import Place
from libs.report.document import Step
from libs.simulation.dst.run import alone
from libs.simulation.dst.staged import POOL, playing, staged
from libs.simulation.dst.world import World
from schemas import subjects
from schemas.subjects import OPERATOR

_ADDRESS = Address("sim://broker")
_PATIENCE_S = 120.0


def simulate(scenario: ScenarioFile, told: Callable[[Step], None] = lambda step: None) -> Played:
    """Plays it from an idle pool. The same file gives the same run."""
    with alone(World(0)) as world:
        staged(world, scenario.given.fleet.text)

        async def work() -> Played:
            clients = {}
            for who in [*voices(scenario), OPERATOR]:
                team, _, user = who.partition(".")
                place = Place(_ADDRESS, team, POOL, user or "default")
                replies = subjects.reply_prefix(place.team, place.user)
                clients[who] = Baton(await connect(_ADDRESS, name="scenario", inbox_prefix=replies), place)
            return await play(scenario, ScenarioStage(clients, live=False, patience_s=_PATIENCE_S), told)

        played: Played = world.loop.run(playing(world, work))
        wrong = [*world.violations, *(f"{where}: {error!r}" for where, error in world.loop.failed)]
        if wrong:
            step = Step(
                name="nothing happens that must not", expected="nothing", observed="; ".join(wrong[:5]), ok=False
            )
            played.steps.append(step)
            told(step)
        return played


def voices(scenario: ScenarioFile) -> list[str]:
    """The clients: `team` for each team, and `team.user`."""
    teams = scenario.given.teams
    return [*teams, *(f"{team}.{user}" for team, users in teams.items() for user in users)]
