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
FILES = 4
PIECE = 25
"""Seeds of one test."""


def pieces(file: int) -> list[int]:
    """First seeds of the pieces of one file: every `FILES`-th piece."""
    return list(range(file * PIECE, SEEDS, FILES * PIECE))


def all_right(first: int, reached: Path) -> None:
    """Runs a piece. Raises AssertionError naming the failing seeds, each with the command that replays it, or what
    no piece reached. `reached`: the folder that is shared."""
    failed: list[str] = []
    got: Counter[str] = Counter()
    for outcome, _ in outcomes(range(first, min(first + PIECE, SEEDS))):
        got += outcome.failpoints + outcome.seen
        if outcome.violations:
            failed.append(f"./dev chaos --seed {outcome.seed}    {outcome.violations[0]}")
    assert not failed, f"{len(failed)} of {PIECE} seeds are violated:\n" + "\n".join(failed)
    _leave(reached, first, sorted(got))
    missed = never_reached(reached)
    assert not missed, f"what none of {SEEDS} seeds reached: {', '.join(missed)}"


def _leave(reached: Path, first: int, names: list[str]) -> None:
    reached.mkdir(exist_ok=True)
    fresh = reached / f"{first}.new"
    fresh.write_text(json.dumps(names))
    fresh.replace(reached / f"{first}.json")


def never_reached(reached: Path) -> list[str]:
    """What no piece reached, once all pieces are there; until then nothing."""
    found = list(reached.glob("*.json"))
    if len(found) < len(range(0, SEEDS, PIECE)):
        return []
    names = {name for one in found for name in json.loads(one.read_text())}
    return [name for name in EXPECTED if name not in names]
