"""Bugs that are planted on purpose, one at a time: the simulation must find each, or it proves too little.

`python -m tests.simulation.planted` looks for the first seed that finds each, writes it to found.json and the tables into
docs/reliability.md; `--limit N` bounds the seeds for one, `--only NAME` measures one again.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from libs.simulation.dst import cheap
from libs.simulation.dst.run import SeedResult, run
from libs.simulation.dst.themes import theme_of
from tests.simulation import bugs_keepers, bugs_nodes, bugs_operators, bugs_readers, bugs_writer
from tests.simulation.bug import BUGS, Bug
from tests.simulation.issue_findings import FINDINGS

MODULES = (bugs_writer, bugs_nodes, bugs_readers, bugs_keepers, bugs_operators)
"""Each registers its bugs."""

FOUND = Path(__file__).with_name("found.json")
PAGE = Path(__file__).parents[2] / "docs/reliability.md"

SAMPLE = 10
"""Of so many seeds it is counted how many find a bug."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    cheap.install()
    with ExitStack() as stack:
        BUGS[name].plant(stack)
        yield


def finds(name: str, seed: int) -> SeedResult:
    """The seed, with the bug in it."""
    with planted(name):
        return run(seed, to_first=True, theme=BUGS[name].aim)


def tried(one: Bug, limit: int) -> list[int]:
    """Seeds in which the bug is looked for: the first few, and of the others those that dwell on what can show it."""
    most = SAMPLE if one.harmless else limit
    return [seed for seed in range(most) if seed < SAMPLE or not one.themes or theme_of(seed) in one.themes]


def measure(name: str, limit: int) -> tuple[str, dict[str, Any]]:
    """How many of the first `SAMPLE` seeds find it; the first one that does, below `limit`, and how."""
    found, first, how = 0, None, ""
    for seed in tried(BUGS[name], limit):
        if seed >= SAMPLE and first is not None:
            break
        outcome = finds(name, seed)
        if outcome.violations:
            found += seed < SAMPLE
            if first is None:
                first, how = seed, outcome.violations[0].partition("\n")[0][:160]
    return name, {"seed": first, "of_sample": found, "limit": limit, "how": how}


def table(found: dict[str, Any]) -> str:
    """Of the planted bugs."""
    rows = [
        f"| planted bug | found by seed | of the first {SAMPLE} | what is violated |",
        "|---|---|---|---|",
    ]
    for name, one in BUGS.items():
        if name not in found:
            rows.append(f"| {one.what} | not measured | | |")
            continue
        row = found[name]
        seed = row["seed"] if row["seed"] is not None else "none" if one.harmless else f"none below {row['limit']}"
        if one.aim and row["seed"] is not None:
            seed = f"{seed} of *{one.aim}*"
        how = row["how"].split(":")[0] if row["how"] else (f"harmless: {one.harmless}" if one.harmless else "")
        sample = "" if row["of_sample"] is None else row["of_sample"]
        rows.append(f"| {one.what} | {seed} | {sample} | {how} |")
    return "\n".join(rows)


def findings_table(found: dict[str, Any]) -> str:
    """Of the findings, and of the planted bugs that bring them back."""
    rows = ["| finding | planted bugs, each with the seed that finds it | tests |", "|---|---|---|"]
    for number, finding in FINDINGS.items():
        names = [name for name, one in BUGS.items() if number in one.findings and not one.harmless]
        seeds = ", ".join(f"`{name}` {found.get(name, {}).get('seed')}" for name in names)
        rows.append(f"| {number}. {finding.what} | {seeds} | {finding.shown()} |")
    return "\n".join(rows)


def page(text: str, found: dict[str, Any]) -> str:
    """The page with both tables as they were measured."""
    for mark, made in (("planted", table(found)), ("findings", findings_table(found))):
        begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{made}\n{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=1500)
    parser.add_argument("--only", action="append")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="measure nothing, write the tables")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    names = [] if options.table else options.only or list(BUGS)
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        for name, measured in pool.imap_unordered(partial(measure, limit=options.limit), names):
            found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
            found[name] = measured
            print(f"{name}: {measured['seed']}, {measured['of_sample']} of {SAMPLE}, {measured['how']}", flush=True)
            FOUND.write_text(json.dumps({n: found[n] for n in BUGS if n in found}, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), {n: found[n] for n in BUGS if n in found}))


if __name__ == "__main__":
    main()
