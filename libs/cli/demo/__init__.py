"""`baton demo`: all of Baton on this machine, a load, a story that is checked as it goes, and a report. docs/demo.md"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from libs.cli.demo.follow import Stuck
from libs.cli.demo.play import Demo, DemoResult
from libs.cli.demo.screen import Screen
from libs.cli.exits import Ended, Exit
from libs.cli.output import hint
from libs.cli.stopping import when_asked_to_stop
from libs.report import summary


def command(
    out: Annotated[Path, typer.Option("--out", help="Where report.json and report.html go.")] = Path("out/demo"),
    folder: Annotated[
        Path, typer.Option("--state-dir", help="Data and logs of this run; removed at the next one.")
    ] = Path(".baton/demo"),
) -> None:
    """Run Baton on a simulated fleet of 128 GPUs for one to two minutes, check what it does, and write a report."""
    console = Console()
    try:
        result = asyncio.run(_run(console, folder.absolute(), out))
    except Stuck as e:
        hint(f"baton: the demo is stuck. {e}")
        raise Ended(Exit.FAILED) from None
    if result is None:
        hint(f"baton: stopped before its end; logs are in {folder / 'logs'}")
        raise Ended(Exit.INTERRUPTED)
    console.print()
    console.print(summary(result.report))
    failed = [step for step in result.report.steps if not step.ok]
    for step in failed:
        hint(f"baton: check failed: {step.name}\n  expected: {step.expected}\n  observed: {step.observed}")
    for name in result.restarted:
        hint(f"baton: {name} ended by itself and was started again; see {folder / 'logs' / name}.log")
    good = len(result.report.steps) - len(failed)
    console.print(f"{good} of {len(result.report.steps)} checks passed in {result.took_s:.0f} s", style="bold")
    console.print(f"page:    {result.as_html}\nnumbers: {result.as_json}", highlight=False, soft_wrap=True)
    if not result.report.ok:
        hint(f"baton: the logs are in {folder / 'logs'}: begin with placement.log")
        raise Ended(Exit.FAILED)


async def _run(console: Console, folder: Path, out: Path) -> DemoResult | None:
    """The result; None when a signal ended the run. Stops everything in either case."""
    stopped = False
    with Screen(console) as screen:
        playing = asyncio.ensure_future(Demo(folder, out, screen).play())
        telling = asyncio.ensure_future(screen.tell())

        def stop() -> None:
            nonlocal stopped
            stopped = True
            playing.cancel()

        when_asked_to_stop(stop)
        try:
            return await playing
        except asyncio.CancelledError:
            if not stopped:
                raise
            return None
        finally:
            telling.cancel()
