"""`python -m libs.simulation.dst --seed 7` replays a seed; `--seeds 1000` runs many."""

import argparse
import os
import sys

from libs.simulation.dst.aims import AIMS
from libs.simulation.dst.many import many
from libs.simulation.dst.run import run
from libs.simulation.dst.themes import THEMES


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its story")
    parser.add_argument("--seeds", type=int, default=12_000, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument(
        "--theme",
        default="",
        choices=[*THEMES, *AIMS],
        metavar="NAME",
        help="what seeds dwell on, instead of what they draw",
    )
    options = parser.parse_args()
    if options.seed is None:
        seeds = range(options.first, options.first + options.seeds)
        return many(seeds, calm=options.calm, processes=options.processes, theme=options.theme)
    outcome = run(options.seed, keep_notes=True, calm=options.calm, theme=options.theme)
    print("\n".join(outcome.notes))
    print(f"seed {outcome.seed}: trace {outcome.digest}, {outcome.lasted_s:.1f} s, {outcome.steps} steps")
    print("\n".join(outcome.violations) or "no violations")
    return int(bool(outcome.violations))


if __name__ == "__main__":
    sys.exit(main())
