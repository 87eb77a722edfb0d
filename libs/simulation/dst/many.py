"""Many seeds side by side, in litters: each litter is a fork of a process that has run one seed already, so what is done once
is done once for all, and what seeds leave in memory goes with the fork and is never collected."""

import gc
import multiprocessing
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from functools import lru_cache
from multiprocessing.connection import Connection, wait

from libs.simulation.dst import populating, scenario
from libs.simulation.dst.failpoints import FAILPOINTS, STATES
from libs.simulation.dst.faults import DRAWS
from libs.simulation.dst.run import SeedResult, run

_ENOUGH = 800
"""Among so many seeds everything that is expected is reached, or the simulation has lost sight of it."""

EXPECTED = (*FAILPOINTS, *STATES, *(f"fault: {name}" for name in DRAWS))
"""What many seeds must reach."""

_LITTER = 25
"""Seeds of one fork. Each leaves some 3 MiB."""
_TOLD_EVERY = 500


def many(seeds: range, *, calm: bool, processes: int, theme: str = "") -> int:
    """Runs them all, prints each that is violated with the command that replays it, and how far it is to stderr; the exit
    status."""
    bad = 0
    dwells = f"--theme {theme!r} " if theme else ""
    cpu_s = 0.0
    reached: Counter[str] = Counter()
    crashed: Counter[str] = Counter()
    ended = outcomes(seeds, calm=calm, processes=processes, theme=theme)
    for done, (outcome, used_s) in enumerate(ended, 1):
        cpu_s += used_s
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


def outcomes(
    seeds: range, *, calm: bool = False, processes: int = 1, theme: str = "", niceness: int = 0
) -> Iterator[tuple[SeedResult, float]]:
    """What became of each seed, in the order in which they end, and the CPU that it took, s. `niceness`: how far what runs
    them gives way to other processes.

    Raises RuntimeError: a litter died before its last seed had ended.
    """
    _warm()
    fork = multiprocessing.get_context("fork")
    litters = deque(seeds[start : start + _LITTER] for start in range(0, len(seeds), _LITTER))
    running: dict[Connection, tuple[range, multiprocessing.process.BaseProcess]] = {}
    try:
        while litters or running:
            while litters and len(running) < processes:
                here, there = fork.Pipe(duplex=False)
                child = fork.Process(target=_litter, args=(there, litters[0], calm, theme, niceness), daemon=True)
                child.start()
                there.close()
                running[here] = litters.popleft(), child
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                try:
                    yield ready.recv()
                except EOFError:
                    litter, ended = running.pop(ready)
                    ready.close()
                    ended.join()
                    if ended.exitcode:
                        raise RuntimeError(f"of the seeds {litter} some did not end: status {ended.exitcode}") from None
    finally:
        for _, left in running.values():
            left.kill()


@lru_cache(maxsize=1)
def _warm() -> None:
    """What the first seed of a process does for all that follow."""
    for lengths in scenario.LEASES.values():
        populating.settings_of(lengths)
    run(0)
    gc.collect()


def _litter(results: Connection, seeds: range, calm: bool, theme: str, niceness: int) -> None:
    os.nice(niceness)
    gc.disable()
    sys.unraisablehook = lambda _: None  # what a killed process was doing is closed wherever it stood, some of it later
    for seed in seeds:
        began = time.process_time()
        outcome = run(seed, calm=calm, theme=theme)
        results.send((outcome, time.process_time() - began))
