"""A training job that can be preempted: plain Python, no packages, the checkpoint protocol in thirty lines.

It fits y = 3x - 2 by gradient descent. Every rank keeps the same weights, as data-parallel replicas do, so rank 0's
checkpoint is the whole checkpoint. See docs/checkpoint-protocol.md; run it alone with `python -m examples.train`.
"""

import argparse
import json
import os
import random
import signal
import time
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))
SAVES = Path(os.environ.get("BATON_CHECKPOINT_DIR", "."))


class Training:
    """The weights, and how far they have come."""

    def __init__(self) -> None:
        self.step, self.slope, self.offset = 0, 0.0, 0.0

    def learn(self) -> float:
        """One step on a small batch; returns the loss. The batch depends on the step alone: a resumed run is equal."""
        chance = random.Random(self.step)
        batch = [(x, 3 * x - 2 + chance.gauss(0, 0.1)) for x in (chance.uniform(-1, 1) for _ in range(32))]
        errors = [(self.slope * x + self.offset - y, x) for x, y in batch]
        self.slope -= 0.05 * sum(error * x for error, x in errors) / len(batch)
        self.offset -= 0.05 * sum(error for error, _ in errors) / len(batch)
        self.step += 1
        return sum(error * error for error, _ in errors) / len(batch)

    def save(self) -> Path:
        path = SAVES / f"step-{self.step}.json"
        replace(path, vars(self))
        return path

    def load(self, path: str) -> None:
        vars(self).update(json.loads(Path(path).read_text()))


def replace(path: Path, content: dict) -> None:
    """Writes beside `path` and renames: nobody ever reads half a file."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content))
    new.replace(path)


def acknowledge(step: int, reference: str) -> None:
    """Tells Baton that the work up to `step` is safe at `reference`. Without Baton there is nobody to tell."""
    if file := os.environ.get("BATON_CHECKPOINT_FILE"):
        replace(Path(file), {"step": step, "reference": reference})


def tell_progress(step: int, steps: int, loss: float) -> None:
    """One line, as often as it likes: Baton looks at it once a second, and measures by its own clock how fast steps go."""
    if file := os.environ.get("BATON_PROGRESS_FILE"):
        replace(Path(file), {"step": step, "steps": steps, "loss": loss})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--step-s", type=float, default=0.1, help="how long a step takes, s")
    options.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    options.add_argument("--save-s", type=float, default=0.0, help="how long writing a checkpoint takes, s")
    given = options.parse_args()
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))  # first of all: it may come at any time
    training = Training()
    if reference := os.environ.get("BATON_RESUME_REFERENCE"):
        training.load(reference)
        print(f"rank {RANK}: resumed at step {training.step} from {reference}", flush=True)
    while training.step < given.steps:
        loss = training.learn()
        time.sleep(given.step_s)
        if RANK == 0:
            tell_progress(training.step, given.steps, loss)
        if training.step % 10 == 0:
            print(f"rank {RANK}: step {training.step} loss {loss:.5f}", flush=True)
        if asked or training.step % given.save_every == 0:
            asked.clear()
            time.sleep(given.save_s)
            # Rank 0 saves for all; the others have nothing of their own to save, and say so at once.
            acknowledge(training.step, str(training.save() if RANK == 0 else "rank 0's"))
    print(f"rank {RANK}: done, y = {training.slope:.2f} x + {training.offset:.2f}", flush=True)


if __name__ == "__main__":
    main()
