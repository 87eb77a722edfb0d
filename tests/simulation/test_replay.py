"""A seed is the whole run: the same trace, in another process and whatever hashes Python draws."""

import os
import subprocess
import sys
from pathlib import Path

from libs.service.teams_file import load_intake
from libs.simulation.dst.run import run
from libs.simulation.dst.world import World

SEED = 3


def test_a_seed_is_replayed_byte_for_byte() -> None:
    first = run(SEED)
    again = run(SEED, keep_notes=True)
    assert first.digest == again.digest
    code = f"from libs.simulation.dst.run import run; print(run({SEED}).digest)"
    for hashes in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == first.digest


def test_a_seed_with_secrets_is_replayed_byte_for_byte() -> None:
    """Each process of vault draws the name of its book by itself."""
    assert run(SEED, theme="two vaults").digest == run(SEED, theme="two vaults").digest


def test_other_seeds_are_other_runs() -> None:
    assert len({run(seed).digest for seed in range(3)}) == 3


def test_what_was_violated_is_part_of_the_outcome() -> None:
    world = World(1)
    world.violated("P1", "a device twice")
    assert world.violations == ["P1: a device twice"]
    world.close()


def test_a_process_that_ran_a_seed_reads_files_as_they_are(tmp_path: Path) -> None:
    run(SEED)
    path = tmp_path / "teams.yaml"
    for jobs in (5, 50):
        path.write_text(f"teams:\n  a: {{devices: 1, intake: {{open_jobs: {jobs}}}}}\n")
        assert load_intake(path)["a"].open_jobs == jobs
