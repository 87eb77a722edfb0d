"""A JSON Schema validator of one page, for the keywords that our generated schemas use.

An unknown keyword is an AssertionError, so a schema can never be "valid" because nobody looked at it.
"""

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
SILENT = {"$schema", "$id", "$defs", "title", "description", "default", "examples", "x-beyond-double"}
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def resolve(document: Json, reference: str) -> Any:
    """What `#/a/b` names in `document`. Raises KeyError naming the reference that leads nowhere."""
    node: Any = document
    assert reference.startswith("#/"), f"{reference}: only references inside the document are portable"
    for part in reference[2:].split("/"):
        if part.replace("~1", "/").replace("~0", "~") not in node:
            raise KeyError(reference)
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return node


def references(node: Any) -> Iterator[str]:
    """Every `$ref` below `node`."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


class Checker:
    """Validates values against one schema document and remembers which fields it has `seen`."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.seen: set[tuple[str, str]] = set()

    def problems(self, value: Any, schema: Json | None = None, path: str = "$") -> list[str]:
        """What is wrong with `value`, each with its path; empty when it is valid."""
        schema = self.document if schema is None else schema
        found: list[str] = []
        for keyword, wanted in schema.items():
            if keyword in SILENT:
                continue
            check = getattr(self, "_" + keyword.replace("$", ""), None)
            assert check, f"{path}: the schema uses {keyword!r}, which this validator does not know: teach it"
            found += check(value, wanted, schema, path)
        return found

    def _ref(self, value: Any, wanted: str, _: Json, path: str) -> list[str]:
        return self.problems(value, resolve(self.document, wanted), path)

    def _type(self, value: Any, wanted: str, _: Json, path: str) -> list[str]:
        right = isinstance(value, TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
        return [] if right else [f"{path}: {value!r} is no {wanted}"]

    def _enum(self, value: Any, wanted: list[Any], _: Json, path: str) -> list[str]:
        return [] if value in wanted else [f"{path}: {value!r} is none of {wanted}"]

    def _const(self, value: Any, wanted: Any, _: Json, path: str) -> list[str]:
        return [] if value == wanted else [f"{path}: {value!r} is not {wanted!r}"]

    def _anyOf(self, value: Any, wanted: list[Json], _: Json, path: str) -> list[str]:  # noqa: N802
        tried = [self.problems(value, branch, path) for branch in wanted]
        return [] if [] in tried else min(tried, key=len)

    _oneOf = _anyOf  # our variants exclude each other by a `const` # noqa: N815

    def _pattern(self, value: Any, wanted: str, _: Json, path: str) -> list[str]:
        wrong = isinstance(value, str) and not re.search(wanted.replace("$", r"\Z"), value)
        return [f"{path}: {value!r} does not match {wanted}"] if wrong else []

    def _bound(self, broken: bool, text: str, path: str) -> list[str]:
        return [f"{path}: {text}"] if broken else []

    def _minimum(self, value: Any, wanted: float, _: Json, path: str) -> list[str]:
        return self._bound(isinstance(value, int | float) and value < wanted, f"{value} < {wanted}", path)

    def _exclusiveMinimum(self, value: Any, wanted: float, _: Json, path: str) -> list[str]:  # noqa: N802
        return self._bound(isinstance(value, int | float) and value <= wanted, f"{value} <= {wanted}", path)

    def _maximum(self, value: Any, wanted: float, _: Json, path: str) -> list[str]:
        return self._bound(isinstance(value, int | float) and value > wanted, f"{value} > {wanted}", path)

    def _length(self, kind: type) -> Any:
        def check(value: Any, wanted: int, at_least: bool, path: str) -> list[str]:
            if not isinstance(value, kind):
                return []
            wrong = len(value) < wanted if at_least else len(value) > wanted  # type: ignore[arg-type]
            return self._bound(wrong, f"has length {len(value)}, the bound is {wanted}", path)  # type: ignore[arg-type]

        return check

    def _minLength(self, value: Any, wanted: int, _: Json, path: str) -> list[str]:  # noqa: N802
        return self._length(str)(value, wanted, True, path)

    def _maxLength(self, value: Any, wanted: int, _: Json, path: str) -> list[str]:  # noqa: N802
        return self._length(str)(value, wanted, False, path)

    def _minItems(self, value: Any, wanted: int, _: Json, path: str) -> list[str]:  # noqa: N802
        return self._length(list)(value, wanted, True, path)

    def _maxItems(self, value: Any, wanted: int, _: Json, path: str) -> list[str]:  # noqa: N802
        return self._length(list)(value, wanted, False, path)

    def _maxProperties(self, value: Any, wanted: int, _: Json, path: str) -> list[str]:  # noqa: N802
        return self._length(dict)(value, wanted, False, path)

    def _required(self, value: Any, wanted: list[str], _: Json, path: str) -> list[str]:
        return [f"{path}: {name} is missing" for name in wanted if isinstance(value, dict) and name not in value]

    def _properties(self, value: Any, wanted: Json, schema: Json, path: str) -> list[str]:
        if not isinstance(value, dict):
            return []
        self.seen |= {(schema.get("title", ""), name) for name in wanted if name in value}
        return [
            p for name in wanted if name in value for p in self.problems(value[name], wanted[name], f"{path}.{name}")
        ]

    def _patternProperties(self, value: Any, wanted: Json, _: Json, path: str) -> list[str]:  # noqa: N802
        pairs = [(k, sub) for k in value for pattern, sub in wanted.items() if re.search(pattern, k)]
        return [p for k, sub in pairs for p in self.problems(value[k], sub, f"{path}.{k}")]

    def _additionalProperties(self, value: Any, wanted: Any, schema: Json, path: str) -> list[str]:  # noqa: N802
        if not isinstance(value, dict) or wanted is True:
            return []
        patterns = schema.get("patternProperties", {})
        rest = [
            k for k in value if k not in schema.get("properties", {}) and not any(re.search(p, k) for p in patterns)
        ]
        if wanted is False:
            return [f"{path}: {k} is unknown" for k in rest]
        return [p for k in rest for p in self.problems(value[k], wanted, f"{path}.{k}")]

    def _propertyNames(self, value: Any, wanted: Json, _: Json, path: str) -> list[str]:  # noqa: N802
        return (
            [p for k in value for p in self.problems(k, wanted, f"{path}: key {k}")] if isinstance(value, dict) else []
        )

    def _items(self, value: Any, wanted: Json | list[Json], _: Json, path: str) -> list[str]:
        if not isinstance(value, list):
            return []
        if isinstance(wanted, list):  # how draft 07 writes `prefixItems`
            return self._prefixItems(value, wanted, {}, path)
        return [p for n, item in enumerate(value) for p in self.problems(item, wanted, f"{path}[{n}]")]

    def _prefixItems(self, value: Any, wanted: list[Json], _: Json, path: str) -> list[str]:  # noqa: N802
        pairs = enumerate(zip(value, wanted, strict=False)) if isinstance(value, list) else ()
        return [p for n, (item, sub) in pairs for p in self.problems(item, sub, f"{path}[{n}]")]


def fields(document: Json) -> set[tuple[str, str]]:
    """(class, field) of every field that a schema document knows."""
    found = [document, *document.get("$defs", {}).values()]
    return {(schema.get("title", ""), name) for schema in found for name in schema.get("properties", {})}
