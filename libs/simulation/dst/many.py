"""Many seeds side by side, each in a process that is replaced now and then: what a seed leaves in memory does not add up."""

import multiprocessing
import sys
import time
from collections import Counter
from functools import partial

from libs.simulation.dst.failpoints import FAILPOINTS, STATES
from libs.simulation.dst.faults import DRAWS
from libs.simulation.dst.run import SeedResult, run

_ENOUGH = 800
"""Among so many seeds everything that is expected is reached, or the simulation has lost sight of it."""

EXPECTED = (*FAILPOINTS, *STATES, *(f"fault: {name}" for name in DRAWS))
"""What many seeds must reach."""

_TOLD_EVERY = 500


def many(seeds: range, *, calm: bool, processes: int, theme: str = "") -> int:
    """Runs them all, prints each that is violated with the command that replays it, and how far it is to stderr; the exit
    status."""
    bad = done = 0
    dwells = f"--theme {theme!r} " if theme else ""
    cpu_s = 0.0
    reached: Counter[str] = Counter()
    crashed: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(processes, _ignore_unraisable, maxtasksperchild=200) as pool:
        for outcome, used_s in pool.imap_unordered(partial(one, calm=calm, theme=theme), seeds):
            cpu_s += used_s
            done += 1
            if done % _TOLD_EVERY == 0:
                print(f"{done} of {len(seeds)} seeds", file=sys.stderr, flush=True)
            reached += outcome.failpoints + outcome.seen
            crashed += outcome.crashes
            if outcome.violations:
                bad += 1
                print(f"./dev chaos {dwells}--seed {outcome.seed}    {outcome.violations[0][:300]}", flush=True)
    missed = [] if calm or theme or len(seeds) < _ENOUGH else [name for name in EXPECTED if not reached[name]]
    if missed:
        print(f"never reached: {', '.join(missed)}")
    crashes = f"{sum(crashed.values())} crashes at {len(crashed)} failpoints"
    print(f"{len(seeds)} seeds, {bad} with violations, {crashes}, {cpu_s / len(seeds):.3f} s of CPU each")
    return int(bool(bad or missed))


def _ignore_unraisable() -> None:
    """What a killed process was doing is closed wherever it stood, some of it only after its seed."""
    sys.unraisablehook = lambda _: None


def one(seed: int, calm: bool, theme: str) -> tuple[SeedResult, float]:
    """One seed, and the CPU that it took, s."""
    began = time.process_time()
    return run(seed, calm=calm, theme=theme), time.process_time() - began
