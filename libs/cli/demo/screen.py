"""The demo's display: a live panel on a terminal, plain lines elsewhere."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from libs.report.document import Step
from libs.report.facts import Facts
from schemas.resources import WHOLE_MILLI

_LINE_EVERY_S = 5.0
_BAR = 40
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


@dataclass(slots=True)
class _Phase:
    name: str
    began: float
    took_s: float | None = None


@dataclass(eq=False)
class Screen:
    """`with Screen(console) as screen:`; give it phases, checks and, once available, facts."""

    console: Console
    facts: Callable[[], Facts | None] = field(default=lambda: None)
    _began: float = field(default_factory=time.monotonic)
    _phases: list[_Phase] = field(default_factory=list)
    _checks: list[Step] = field(default_factory=list)
    _live: Live | None = None
    _told: float = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._panel, console=self.console, refresh_per_second=5, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._phases and self._phases[-1].took_s is None and kind is None:
            self._end_phase()
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def phase(self, name: str) -> None:
        """Starts the next phase and ends the last."""
        self._end_phase()
        self._phases.append(_Phase(name, time.monotonic()))
        if self._live is None:
            self._say(name)

    def check(self, step: Step) -> None:
        """Shows a check's result."""
        self._checks.append(step)
        if self._live is None:
            self._say(f"  {'ok  ' if step.ok else 'FAIL'}  {step.name}: {step.observed}")

    async def tell(self) -> None:
        """Runs beside the demo; without a terminal, prints a line of counts every few seconds."""
        with contextlib.suppress(asyncio.CancelledError):
            while self._live is None:
                await asyncio.sleep(_LINE_EVERY_S)
                facts = self.facts()
                if facts is not None and facts.jobs:
                    queued, running, done, held, capacity = _counts(facts)
                    self._say(
                        f"  {queued} queued, {running} running, {done} done; {held:.0f} of {capacity} devices held"
                    )

    def _end_phase(self) -> None:
        if self._phases and self._phases[-1].took_s is None:
            self._phases[-1].took_s = time.monotonic() - self._phases[-1].began

    def _say(self, text: str) -> None:
        self.console.print(f"{self.elapsed_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    # -------------------------------------------------------------------------------------------------------- the panel

    def _panel(self) -> RenderableType:
        parts: list[RenderableType] = [self._phase_table()]
        facts = self.facts()
        if facts is not None and facts.seats:
            parts += [Text(), _load(facts)]
        if self._checks:
            parts += [Text(), _check_table(self._checks)]
        return Group(*parts)

    def _phase_table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for phase in self._phases:
            over = phase.took_s is not None
            took = phase.took_s if phase.took_s is not None else time.monotonic() - phase.began
            table.add_row(
                Text("✓" if over else "▸", style="green" if over else "bold"),
                Text(phase.name, style="dim" if over else "bold"),
                Text(f"{took:.0f} s", style="dim"),
            )
        return table


def _load(facts: Facts) -> RenderableType:
    queued, running, done, held, capacity = _counts(facts)
    line = Text.assemble(
        (f"{queued:4d}", "bold"), " queued  ", (f"{running:4d}", "bold"), " running  ", (f"{done:4d}", "bold"), " done"
    )
    bar = Text("  ")
    drawn = 0
    for index, milli in enumerate(_by_team(facts).values()):
        cells = round(_BAR * milli / (capacity * WHOLE_MILLI)) if capacity else 0
        cells = min(cells, _BAR - drawn)
        drawn += cells
        bar.append("█" * cells, style=_COLOURS[index % len(_COLOURS)])
    bar.append("░" * (_BAR - drawn), style="dim")
    bar.append(f"  {held:.0f} of {capacity} devices")
    legend = Text("  ")
    for index, team in enumerate(_by_team(facts)):
        legend.append("■ ", style=_COLOURS[index % len(_COLOURS)])
        legend.append(f"{team}  ", style="dim")
    return Group(line, bar, legend)


def _check_table(checks: list[Step]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1, no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for step in checks:
        mark = Text("✓", style="green") if step.ok else Text("✗", style="bold red")
        table.add_row(mark, Text.assemble(step.name, ("  " + step.observed, "dim")))
    return table


def _by_team(facts: Facts) -> dict[str, int]:
    """Thousandths of accelerators held now, by team."""
    held = dict.fromkeys(facts.teams, 0)
    for job in facts.jobs.values():
        if job.state == "running":
            attempt = job.last
            held[job.team] += sum(
                h.milli for h in attempt.holds if h.node not in attempt.freed_us and facts.seats[h.device].accelerator
            )
    return held


def _counts(facts: Facts) -> tuple[int, int, int, float, int]:
    """(queued, running, done, accelerators held, accelerators)."""
    states = Counter(job.state for job in facts.jobs.values())
    capacity = sum(seat.accelerator for seat in facts.seats.values())
    queued, running = states["queued"], states["running"]
    return queued, running, len(facts.jobs) - queued - running, facts.held_milli() / WHOLE_MILLI, capacity
