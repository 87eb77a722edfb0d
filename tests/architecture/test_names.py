"""One meaning per class name: whoever reads `Attempt` need not look at the imports to know which one is meant."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = ("schemas", "libs", "services")


def classes() -> dict[str, list[str]]:
    """Class name -> where it is defined, nested and private ones too."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def aliases() -> dict[str, list[str]]:
    """Names that modules give to types (`Rows = Mapping[str, Row]`) -> where."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                for name in names:
                    found[name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_every_class_name_has_one_meaning() -> None:
    found = classes()
    assert len(found) > 300, "the classes were not found"
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_no_alias_of_a_type_has_the_name_of_a_class() -> None:
    known, found = classes(), aliases()
    assert len(found) > 50, "the aliases were not found"
    assert {name: (places, known[name]) for name, places in found.items() if name in known} == {}
