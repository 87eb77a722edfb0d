"""Each mend of what was found, undone: its test must fail then, or it proves nothing.

`python -m tests.faults.undone` takes the tracked files to a temporary folder, undoes one mend after the other there, runs the
test that is named, and writes the table of docs/reliability.md; `--only WORD` takes those whose finding has the word. It ends
with 1 when a test passes although its mend is undone, or when a mend stands elsewhere by now. What messages, time and crashes
can show is undone in the simulation instead (`tests/simulation/planted.py`).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.faults.mends import MENDS, Undone

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- undone: begin -->", "<!-- undone: end -->"
LIMIT_S = 240
COMPILED = ("services/agent/keeper/native", "libs/core/placement/native")


def tracked(folder: Path) -> None:
    """A copy of the files of this checkout, those that are not committed, too, and what was compiled."""
    names = "".join(
        subprocess.run(
            ["git", "ls-files", *which, "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for which in (("-co",), ("-oi", *COMPILED))
    )
    subprocess.run(["tar", "-c", "-T", "-", "-f", f"{folder}.tar"], cwd=ROOT, input=names, text=True, check=True)
    folder.mkdir()
    subprocess.run(["tar", "-x", "-f", f"{folder}.tar", "-C", str(folder)], check=True)


def tried(one: Undone, folder: Path) -> str:
    """What is wrong with this row; "" when the test fails without the mend."""
    path = folder / one.file
    text = path.read_text()
    if text.count(one.mend) != 1:
        return f"{one.file} has the mend {text.count(one.mend)} times: write down where it stands now"
    file, _, name = one.test.partition("::")
    path.write_text(text.replace(one.mend, one.without))
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{file}.py", "-k", name],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    finally:
        path.write_text(text)
    if ran.returncode == 1 or "+ Timeout +" in ran.stderr + ran.stdout:
        return ""
    return f"it was not seen failing (pytest's exit code {ran.returncode}):\n{ran.stdout[-1000:]}"


def table() -> str:
    """The mends as Markdown."""
    lines = ["| what comes back when its mend is undone | where | the test that fails then |", "|---|---|---|"]
    lines += [f"| {one.finding} | `{one.file}` | `tests/{one.test.replace('::', '.py::')}` |" for one in MENDS]
    return "\n".join(lines)


def page(text: str) -> str:
    """docs/reliability.md with the present table."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.undone", description=__doc__)
    parser.add_argument("--only", default="", help="findings with this word")
    only = parser.parse_args(arguments).only
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="baton-undone-") as made:
        folder = Path(made) / "tree"
        tracked(folder)
        for one in MENDS:
            if only in one.finding:
                problem = tried(one, folder)
                wrong += bool(problem)
                print(f"{one.finding}: {problem or 'its test fails'}", flush=True)
    PAGE.write_text(page(PAGE.read_text()))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
