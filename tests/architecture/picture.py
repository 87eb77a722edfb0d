"""Draws the core from the import graph: `python -m tests.architecture.picture` writes the pictures of docs/architecture.md.

A box is a package, a row is a layer, an arrow says how many modules of one package import how many of another's.
"""

import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
PACKAGES = "libs.core"
POLICIES = "libs.core.scheduling"


def layers() -> list[list[str]]:
    """The packages of the core, top layer first, as the import contract has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (c["layers"] for c in contracts if c["name"].startswith("Nine packages"))
    return [[package.strip().removeprefix(f"{PACKAGES}.") for package in layer.split("|")] for layer in found]


def arrows(graph: grimp.ImportGraph, inside: str) -> Counter[tuple[str, str]]:
    """(importing child, imported child) of a package -> imports between their modules."""
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.find_descendants(inside):
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.startswith(f"{inside}.") and (pair := (_child(module, inside), _child(imported, inside))):
                found[pair] += pair[0] != pair[1]
    return +found


def depths(pairs: Iterable[tuple[str, str]], children: Iterable[str]) -> dict[str, int]:
    """How many layers lie below each child. Raises RecursionError when they import in a circle."""
    below = {child: {to for of, to in pairs if of == child} for child in children}

    def depth(child: str) -> int:
        return 1 + max((depth(to) for to in below[child]), default=-1)

    return {child: depth(child) for child in below}


def packages(graph: grimp.ImportGraph) -> Iterator[str]:
    yield "flowchart TB"
    for number, layer in enumerate(layers()):
        yield f'    subgraph layer{number} [" "]'
        yield "        direction LR"
        yield from (f"        {package}" for package in layer)
        yield "    end"
    yield from (f"    {of} -- {n} --> {to}" for (of, to), n in sorted(arrows(graph, PACKAGES).items()))


def policies(graph: grimp.ImportGraph) -> Iterator[str]:
    yield "flowchart TB"
    yield from (f"    {of} --> {to}" for of, to in sorted(arrows(graph, POLICIES)))


def wanted(page: str) -> str:
    """The page with its pictures as the code is now."""
    graph = grimp.build_graph("libs", cache_dir=None)
    for name, lines in (("packages", packages(graph)), ("policies", policies(graph))):
        page = filled(page, name, mermaid(lines))
    return page


def filled(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks of the picture `name`. Raises ValueError when it has no such marks."""
    start, end = f"<!-- picture: {name} -->\n", "<!-- end of picture -->"
    before, rest = page.split(start, 1)
    _, after = rest.split(end, 1)
    return f"{before}{start}{text}{end}{after}"


def mermaid(lines: Iterable[str]) -> str:
    return "```mermaid\n" + "".join(f"{line}\n" for line in lines) + "```\n"


def _child(module: str, inside: str) -> str:
    return module.removeprefix(f"{inside}.").split(".")[0]


if __name__ == "__main__":
    PAGE.write_text(wanted(PAGE.read_text()))
    sys.exit(0)
