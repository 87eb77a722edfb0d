"""`baton scenario run FILE...`: given, when, expect, played in virtual time, or live. docs/scenarios.md"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.files import read_text
from libs.cli.output import hint, say
from libs.cli.scenario.play import Played
from libs.cli.scenario.read import ScenarioError, read_scenario
from libs.cli.scenario.schema import ScenarioFile
from libs.report.document import Step

app = typer.Typer(help="Scenario files: given, when, expect.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("run")
def run(
    files: Annotated[list[Path], typer.Argument(help="Scenario files, see examples/scenarios/.", metavar="FILE")],
    live: Annotated[
        bool,
        typer.Option("--live", help="Start a Baton for them: real servers and services, a simulated fleet, real time."),
    ] = False,
) -> None:
    """Play scenarios and say which expectations are met. Exit code 1: one is not."""
    scenarios = _read(files)
    played = asyncio.run(_live(scenarios)) if live else _simulated(scenarios)
    bad = [one for one in played if not one.ok]
    good = len(played) - len(bad)
    say(f"{good} of {len(played)} scenarios are as expected")
    if bad:
        raise Ended(Exit.FAILED)


def _simulated(scenarios: list[ScenarioFile]) -> list[Played]:
    from libs.cli.scenario.simulated import simulate

    played = []
    for scenario in scenarios:
        _began(scenario)
        played.append(simulate(scenario, _print_step))
    return played


async def _live(scenarios: list[ScenarioFile]) -> list[Played]:
    from libs.cli.scenario.live import play_live

    return await play_live(scenarios, _began, _print_step)


def _began(scenario: ScenarioFile) -> None:
    say(scenario.scenario)


def _read(files: list[Path]) -> list[ScenarioFile]:
    found, wrong = [], []
    for path in files:
        try:
            found.append(read_scenario(read_text(path), str(path)))
        except ScenarioError as e:
            wrong.append(str(e))
        except (OSError, UnicodeDecodeError) as e:
            wrong.append(f"{path}: cannot be read ({e}); name a scenario file")
    if wrong:
        raise UsageFault("\n".join(wrong))
    return found


def _print_step(step: Step) -> None:
    mark = "  ok  " if step.ok else "  NOT "
    (say if step.ok else hint)(f"{mark}{step.name}: {step.expected}\n        seen: {step.observed}")
