"""`baton watch [JOB]`: events as they happen."""

import contextlib
import json
import sys
from typing import Annotated

import typer

from libs.cli import units
from libs.cli.exits import UsageFault
from libs.cli.options import NoHeader, Output, Team, Url
from libs.cli.output import Format, clean, hint, say
from libs.cli.session import run, short, whole_id
from libs.client import Baton
from libs.core.state.ranges import in_ranges
from schemas.jobs import JobEvent
from schemas.queries import EventsLost


def command(
    *,
    job: Annotated[
        str | None, typer.Argument(help="One job, until it has ended; all of the team's without.", metavar="JOB")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Begin so long ago, e.g. 1h; `all` for everything.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after", metavar="[POOL=]NUMBER", help="Go on behind the event of this `number` (-o json shows it)."
        ),
    ] = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Events, each once and in order; a job's from its first to its last, a team's from now on, from a time, or behind one.

    What was dropped before you came back is told on stderr as events.lost, with its numbers."""
    if output is Format.YAML:
        raise UsageFault("events are written as they come, which YAML is not fit for: use -o json, one object a line")
    after_us, numbers = _start(since), [_number(text) for text in after or ()]
    if numbers and (job is not None or since is not None):
        raise UsageFault("--after NUMBER is where all of the team's events go on: leave out JOB and --since")

    async def follow(baton: Baton) -> None:
        seen = {pool or baton.place.pool: number for pool, number in numbers} or None
        found = (
            baton.watch(await whole_id(baton, job))
            if job is not None
            else baton.events(after_us, after=seen, on_lost=_tell_lost)
        )
        if output not in (Format.JSON, Format.NAME) and not no_header:
            say(_line("TIME", "JOB", "NAME", "EVENT", "ATTEMPT", "DETAIL"))
        async with contextlib.aclosing(found) as events:
            async for event in events:
                say(_shown(event, output))

    run(follow, team, url)


def _tell_lost(lost: EventsLost) -> None:
    count, before = lost.last - lost.first + 1, units.moment(lost.before_us)
    whose = f" of team {lost.team}" if lost.team else ""
    hint(
        f"events.lost: {count} events of pool {lost.pool}{whose} before {before} (numbers {lost.first} to {lost.last}) "
        "are not kept"
    )


def _start(since: str | None) -> int | None:
    if since is None:
        return None
    if since == "all":
        return 0
    import time

    from libs.cli.grammar import parse_duration

    try:
        return max(0, int((time.time() - parse_duration(since)) * 1e6))
    except ValueError as e:
        raise UsageFault(str(e)) from None


def _number(text: str) -> tuple[str, int]:
    """The pool ("": the default one) and number of the last handled event. Raises UsageFault."""
    pool, equals, number = text.rpartition("=")
    if (equals and not pool) or not number.isdecimal() or len(number) > 18:
        raise UsageFault(f"--after {text}: not understood; write the number of an event, e.g. 4711 or west=4711")
    return pool, int(number)


def _shown(event: JobEvent, output: Format) -> str:
    if output is Format.JSON:
        return json.dumps(event.model_dump(mode="json"))
    if output is Format.NAME:
        return event.job_id
    job = short(event.job_id) if sys.stdout.isatty() else event.job_id
    return _line(units.moment(event.at_us), job, event.name, event.what, str(event.attempt or "-"), detail(event))


def detail(event: JobEvent) -> str:
    """Details beside the event's name."""
    parts = [event.reason]
    if event.what == "granted":
        parts.append(f"{len(event.devices)} devices on {','.join(in_ranges(event.nodes))}")
    if event.checkpoint is not None:
        parts.append(f"step {event.checkpoint.step}")
    if event.promise is not None:
        parts.append(f"starts by {units.moment(event.promise.start_us)}")
        if event.promise.cause is not None:
            parts.append(f"moved: {event.promise.cause.value}")
    if (progress := event.progress) is not None:
        parts.append(f"step {progress.step} of {progress.steps}")
        if progress.left_s is not None:
            parts.append(f"{units.duration(progress.left_s)} left")
        if progress.doubt is not None:
            parts.append(f"not believed any more: {progress.doubt.value}")
    if event.exit_code is not None:
        parts.append(f"exit {event.exit_code}")
    return ", ".join(part for part in parts if part) or "-"


def _line(*cells: str) -> str:
    kept = [clean(cell) or "-" for cell in cells]
    if not sys.stdout.isatty():
        return "\t".join(kept)
    widths = (24, 12, 20, 12, 7)
    return "  ".join([*(f"{cell:<{width}}" for cell, width in zip(kept, widths, strict=False)), kept[-1]])
