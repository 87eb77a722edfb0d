"""The seeds of `./dev test`: in pieces of a few seconds, over several files, so that they run side by side.

Every seed must be right, and over all of them every failpoint and every dangerous state must be reached, or they prove too
little. Each piece leaves what it reached in a folder that all workers of the run share; whoever finds all pieces there looks
at the sum.
"""

import json
from collections import Counter
from pathlib import Path

from libs.simulation.dst.many import EXPECTED, outcomes

SEEDS = 1000
"""What draw their own theme. Of the 56 planted bugs that need no aim, so many find 55, and half as many 53 (found.json)."""
FILES = 4
PIECE = 25
"""Seeds of one test."""
NICENESS = 5
"""They need processors and no clock: they take what is left by tests that wait for real servers, and hold none of those up."""
DWELLING = "archive"
"""The theme of one piece more: one in ten of its seeds reaches the rarest state, that a reader needs what was archived, and of
others one in four hundred."""
PIECES = (*(("", first) for first in range(0, SEEDS, PIECE)), (DWELLING, 0))
"""Theme ("": what each draws) and first seed of each piece."""


def pieces(file: int) -> tuple[tuple[str, int], ...]:
    """Of one file: every `FILES`-th piece."""
    return PIECES[file::FILES]


def all_right(theme: str, first: int, reached: Path) -> None:
    """Runs a piece. Raises AssertionError naming the failing seeds, each with the command that replays it, or what
    no piece reached. `reached`: the folder that is shared."""
    failed: list[str] = []
    got: Counter[str] = Counter()
    dwells = f"--theme {theme!r} " if theme else ""
    for outcome, _ in outcomes(range(first, first + PIECE), theme=theme, niceness=NICENESS):
        got += outcome.failpoints + outcome.seen
        if outcome.violations:
            failed.append(f"./dev chaos {dwells}--seed {outcome.seed}    {outcome.violations[0]}")
    assert not failed, f"{len(failed)} of {PIECE} seeds are violated:\n" + "\n".join(failed)
    leave(reached, theme, first, sorted(got))
    missed = never_reached(reached)
    assert not missed, f"what no seed of {len(PIECES)} pieces reached: {', '.join(missed)}"


def leave(reached: Path, theme: str, first: int, names: list[str]) -> None:
    """For whoever looks at the sum: what a piece reached."""
    reached.mkdir(exist_ok=True)
    fresh = reached / f"{theme}-{first}.new"
    fresh.write_text(json.dumps(names))
    fresh.replace(reached / f"{theme}-{first}.json")


def never_reached(reached: Path) -> list[str]:
    """What no piece reached, once all pieces are there; until then nothing."""
    found = list(reached.glob("*.json"))
    if len(found) < len(PIECES):
        return []
    names = {name for one in found for name in json.loads(one.read_text())}
    return [name for name in EXPECTED if name not in names]
