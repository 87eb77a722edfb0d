"""`./dev chaos --real`: real servers and processes under seeded faults, and the books compared after each round."""

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.faults.chaos.faults import FAULTS
from tests.faults.chaos.round import Outcome, draw, play
from tests.faults.chaos.world import world

FAULTS_PER_ROUND = 6


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos --real", description=__doc__)
    parser.add_argument("--real", action="store_true", help="said to get here")
    parser.add_argument("--rounds", type=int, help="how many; 3 unless --minutes is given")
    parser.add_argument("--minutes", type=float, help="rounds until so much time has passed")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; the next ones follow it")
    parser.add_argument("--faults", type=int, default=FAULTS_PER_ROUND, help="of each round")
    parser.add_argument(
        "--overlap", action="store_true", help="two faults at once, where they happen to different things"
    )
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), help="only this fault; may be repeated")
    parser.add_argument("--folder", type=Path, help="for data and logs; else a temporary one, kept when a round fails")
    options = parser.parse_args()
    logging.getLogger("baton").setLevel(logging.ERROR)  # that servers are away is the point
    for name, fault in FAULTS.items():
        if why := fault.cannot():
            _say(f"not here: {name} ({why})")
            if name in (options.only or ()):
                return 2
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="baton-chaos-"))).absolute()
    outcomes: list[Outcome] = []
    end = time.monotonic() + 60 * (options.minutes or 0)
    rounds = options.rounds or (3 if options.minutes is None else sys.maxsize)
    _say(f"starting in {folder} ...")
    async with world(folder, options.seed) as here:
        while len(outcomes) < rounds and (options.minutes is None or not outcomes or time.monotonic() < end):
            seed = options.seed + len(outcomes)
            _say(f"round {len(outcomes)}, seed {seed}")
            names = draw(seed, options.faults, options.only or ())
            outcome = await play(here, seed, names, _say, overlap=options.overlap)
            outcomes.append(outcome)
            _say(f"  {'; '.join(outcome.wrong) or 'the books agree'} ({outcome.seconds:.0f} s)")
            if outcome.wrong:
                break
    _table(outcomes)
    if outcomes[-1].wrong:
        only = "".join(f" --only '{name}'" for name in options.only or ())
        overlap = " --overlap" if options.overlap else ""
        _say(
            f"replay: ./dev chaos --real --seed {outcomes[-1].seed} --rounds 1 --faults {options.faults}{overlap}{only}"
        )
        _say(f"logs and data: {folder}")
        return 1
    if options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _table(outcomes: Sequence[Outcome]) -> None:
    times: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for name, _, seconds in outcome.faults:
            times[name].append(seconds)
    _say(f"\n{'fault':36} times  longest, s")
    for name in sorted(times):
        _say(f"{name:36} {len(times[name]):5}  {max(times[name]):10.1f}")
    _say("\n  seed faults  jobs  lost records letters  MiB     s  result")
    for o in outcomes:
        figures = f"{o.seed:6} {len(o.faults):6} {o.jobs:5} {o.lost:5} {o.records:7} {o.letters.total():7}"
        figures += f" {o.largest_mib:4} {o.seconds:5.0f}"
        _say(f"{figures}  {'VIOLATED' if o.wrong else 'ok'}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
