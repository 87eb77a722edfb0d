"""Many seeds in one test: every one must be right. That every failpoint was reached is asked of a run over many more
(`./dev chaos`): among a few seeds a rare one may be missing."""

from libs.simulation.dst.run import run


def all_right(seeds: range) -> None:
    """Raises AssertionError naming the failing seeds, each with the command that replays it."""
    failed: list[str] = []
    for seed in seeds:
        outcome = run(seed)
        if outcome.violations:
            failed.append(f"./dev chaos --seed {seed}    {outcome.violations[0]}")
    assert not failed, f"{len(failed)} of {len(seeds)} seeds are violated:\n" + "\n".join(failed[:20])
