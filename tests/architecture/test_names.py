"""One meaning per class name: whoever reads `Attempt` need not look at the imports to know which one is meant."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = ("schemas", "libs", "services")


@cache
def given() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Class name -> where it is defined, nested and private ones too. Names that modules give to types
    (`Rows = Mapping[str, Row]`) -> where."""
    classes: dict[str, list[str]] = defaultdict(list)
    aliases: dict[str, list[str]] = defaultdict(list)
    for path in (path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))):
        module = ast.parse(path.read_text())
        for node in statements(module):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
        for node in module.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                for name in (target.id for target in node.targets if isinstance(target, ast.Name)):
                    aliases[name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return classes, aliases


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below `node`: a class is one, and no part of any expression."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def test_every_class_name_has_one_meaning() -> None:
    found, _ = given()
    assert len(found) > 300, "the classes were not found"
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_no_alias_of_a_type_has_the_name_of_a_class() -> None:
    known, found = given()
    assert len(found) > 50, "the aliases were not found"
    assert {name: (places, known[name]) for name, places in found.items() if name in known} == {}
