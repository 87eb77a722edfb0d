"""A bug that is planted on purpose, behind a switch: `BUGS` has them all, once tests/simulation/bugs_*.py are imported."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """`what` is wrong; `plant` makes it so for as long as the stack is open.

    Args:
        harmless: why it is, "" when it is not: a defence behind it holds.
        findings: of docs/reliability.md, which it brings back.
        themes: what the seeds dwell on that can show it (libs.simulation.dst.themes); none: any seed.
        aim: what each seed dwells on while the bug is looked for (libs.simulation.dst.aims); "": what it draws.
    """

    what: str
    plant: Plant
    harmless: str = ""
    findings: tuple[int, ...] = ()
    themes: tuple[str, ...] = ()
    aim: str = ""


BUGS: dict[str, Bug] = {}


def bug(
    what: str, *themes: str, aim: str = "", harmless: str = "", findings: tuple[int, ...] = ()
) -> Callable[[Plant], Plant]:
    """Registers a function that plants a bug under its own name."""

    def register(plant: Plant) -> Plant:
        BUGS[plant.__name__.replace("_", "-")] = Bug(what, plant, harmless, findings, themes, aim)
        return plant

    return register


def set_on(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replaces an attribute while the stack is open."""
    stack.enter_context(patch.object(owner, name, value))
