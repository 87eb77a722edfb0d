"""Runs scenarios on live services: a Baton on this machine, with real servers and a simulated fleet.

Consecutive scenarios with the same fleet and with distinct teams share one Baton: no scenario sees another's jobs,
shares or history by team.
"""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.scenario.play import Played, ScenarioStage, play
from libs.cli.scenario.schema import ScenarioFile
from libs.cli.scenario.simulated import voices
from libs.client import connect
from libs.report.document import Step
from schemas.subjects import OPERATOR

PATIENCE_S = 90.0


async def play_live(
    scenarios: Sequence[ScenarioFile],
    began: Callable[[ScenarioFile], None] = lambda scenario: None,
    told: Callable[[Step], None] = lambda step: None,
    folder: Path | None = None,
) -> list[Played]:
    """Plays each scenario; `began` is called when its turn comes. `folder`: where data and logs stay; otherwise nothing
    stays.

    Raises what `LocalStack` and the client raise.
    """
    played = []
    with contextlib.ExitStack() as stack:
        home = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-scenario-")))
        for number, together in enumerate(sharing(scenarios), 1):
            async with _stage(together, home / f"{number}") as stage:
                for scenario in together:
                    began(scenario)
                    played.append(await play(scenario, stage, told))
    return played


def sharing(scenarios: Sequence[ScenarioFile]) -> list[list[ScenarioFile]]:
    """Scenarios that may share a Baton, in order: same fleet, and no team in two of them."""
    groups: list[list[ScenarioFile]] = []
    for one in scenarios:
        for group in groups:
            teams = {team for other in group for team in other.given.teams}
            if group[0].given.fleet == one.given.fleet and not teams & one.given.teams.keys():
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


@contextlib.asynccontextmanager
async def _stage(scenarios: Sequence[ScenarioFile], home: Path) -> AsyncIterator[ScenarioStage]:
    fleet = _fleet_file(scenarios[0], home)
    speak = [who for scenario in scenarios for who in voices(scenario)]
    options = LaunchOptions(
        state_dir=home / "state",
        teams=[who for who in speak if "." not in who],
        users=[who for who in speak if "." in who],
        fleet=fleet,
        sync_always=False,
        log_level="WARNING",
    )
    async with LocalStack(options) as launch, contextlib.AsyncExitStack() as stack:
        clients = {}
        for who in [*speak, OPERATOR]:
            team, _, user = who.partition(".")
            clients[who] = await stack.enter_async_context(
                await connect(launch.address(who), team, user=user or "default", pool=options.pool)
            )
        yield ScenarioStage(clients, live=True, patience_s=PATIENCE_S)


def _fleet_file(scenario: ScenarioFile, home: Path) -> Path:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = home / "fleet.yaml"
    file.write_text(scenario.given.fleet.text)
    return file
