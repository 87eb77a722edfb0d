"""Many seeds in one test: every one must be right, and every failpoint must have been reached on the way."""

from collections import Counter

from libs.simulation.dst.failpoints import FAILPOINTS
from libs.simulation.dst.run import run


def all_right(seeds: range) -> None:
    """Raises AssertionError naming the failing seeds, each with the command that replays it."""
    failed: list[str] = []
    reached: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(seed)
        reached += outcome.failpoints
        if outcome.violations:
            failed.append(f"./dev chaos --seed {seed}    {outcome.violations[0]}")
    assert not failed, f"{len(failed)} of {len(seeds)} seeds are violated:\n" + "\n".join(failed[:20])
    missed = [name for name in FAILPOINTS if not reached[name]]
    assert not missed, f"failpoints that were never reached: {', '.join(missed)}"
