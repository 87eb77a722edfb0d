"""A training on the first GPU that can be preempted: `load.py`'s kernel in place of a step, the weights are a step's number.

python train.py STEPS [MIB]
"""

import json
import os
import signal
import sys
from pathlib import Path

from load import found, library, say, worker


def replace(path: str, content: dict[str, object]) -> None:
    new = Path(f"{path}.new")
    new.write_text(json.dumps(content))
    new.replace(path)


def main() -> None:
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))  # first of all: it may come at any time
    steps, mib = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    saved = os.environ.get("BATON_RESUME_REFERENCE", "")
    step = json.loads(Path(saved).read_text())["step"] if saved else 0
    cuda = library()
    if cuda is None or not found(cuda):
        sys.exit("no GPU is here")
    one_step = worker(cuda, mib)
    say(begins=step)
    while step < steps:
        one_step()
        step += 1
        replace(os.environ["BATON_PROGRESS_FILE"], {"step": step, "steps": steps})
        if asked:
            asked.clear()
            reference = f"{os.environ['BATON_CHECKPOINT_DIR']}/step.json"
            replace(reference, {"step": step})
            replace(os.environ["BATON_CHECKPOINT_FILE"], {"step": step, "reference": reference})
            say(saved=step)
    say(done=step)


if __name__ == "__main__":
    main()
