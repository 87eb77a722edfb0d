"""`python -m libs.simulation.dst --seed 7` replays a seed; `--seeds 1000` runs many."""

import argparse
import sys
import time
from collections import Counter

from libs.simulation.dst.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m libs.simulation.dst", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its story")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--calm", action="store_true", help="without faults")
    options = parser.parse_args()
    if options.seed is not None:
        outcome = run(options.seed, keep_notes=True, calm=options.calm)
        print("\n".join(outcome.notes))
        print(f"seed {outcome.seed}: trace {outcome.digest}, {outcome.lasted_s:.1f} s, {outcome.steps} steps")
        print("\n".join(outcome.violations) or "no violations")
        return bool(outcome.violations)
    bad = 0
    began = time.process_time()
    kinds: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        outcome = run(seed, calm=options.calm)
        if outcome.violations:
            bad += 1
            kinds[outcome.violations[0][:60]] += 1
            print(f"seed {seed}: {outcome.violations[0][:300]}", flush=True)
    used = time.process_time() - began
    print(f"{options.seeds} seeds, {bad} with violations, {used / options.seeds:.3f} s of CPU each")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
