"""May what was written for an old schema still be read with a new one? Says each place where it may not."""

import re
from collections.abc import Iterator
from typing import Any

from tests.schemas.checker import Json, resolve

UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
EXACT = ("pattern", "const", "type", "propertyNames", "format", "multipleOf", "uniqueItems")

_CHOICE = re.compile(r"\^\(([\w|-]+)\)\$")
"""A pattern that is one of several words."""


def narrowed(old: Json, new: Json) -> list[str]:
    """What `old` (a whole schema document) accepted and `new` refuses or forgets, each with its path."""
    return list(_Comparison(old, new).of(old, new, "$"))


class _Comparison:
    def __init__(self, old: Json, new: Json) -> None:
        self.old, self.new = old, new
        self.compared: set[tuple[str, str]] = set()

    def of(self, old: Json, new: Json, path: str) -> Iterator[str]:
        if "$ref" in old and "$ref" in new:
            if (pair := (old["$ref"], new["$ref"])) in self.compared:
                return
            self.compared.add(pair)
        old = old | resolve(self.old, old["$ref"]) if "$ref" in old else old
        new = new | resolve(self.new, new["$ref"]) if "$ref" in new else new
        if "anyOf" in new or "oneOf" in new or "anyOf" in old or "oneOf" in old:
            yield from self._branches(old, new, path)
            return
        yield from _keywords(old, new, path)
        yield from self._object(old, new, path)
        for keyword in ("items", "additionalProperties"):
            if isinstance(old.get(keyword), dict) and isinstance(new.get(keyword), dict):
                yield from self.of(old[keyword], new[keyword], f"{path}[]")
        for keyword in ("prefixItems",):
            for number, (a, b) in enumerate(zip(old.get(keyword, []), new.get(keyword, []), strict=False)):
                yield from self.of(a, b, f"{path}[{number}]")

    def _branches(self, old: Json, new: Json, path: str) -> Iterator[str]:
        """Every old variant must still be accepted by one of the new ones."""
        olds, news = _variants(old), _variants(new)
        for number, variant in enumerate(olds):
            before = set(self.compared)
            tries = []
            for candidate in news:
                self.compared = set(before)
                tries.append(list(self.of(variant, candidate, path)))
            if tries and [] not in tries:
                yield from min(tries, key=len) or [f"{path}: variant {number} is gone"]

    def _object(self, old: Json, new: Json, path: str) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        for name in before:
            if name in after:
                yield from self.of(before[name], after[name], f"{path}.{name}")
            else:
                yield f"{path}.{name} is gone"
        for name in new.get("required", []):
            if name not in old.get("required", []):
                yield f"{path}.{name} is required now"
        if new.get("additionalProperties") is False and old.get("additionalProperties") is not False:
            yield f"{path} refuses unknown fields now"


def _keywords(old: Json, new: Json, path: str) -> Iterator[str]:
    for keyword in UPPER:
        if keyword in new and new[keyword] < old.get(keyword, float("inf")):
            yield f"{path}: {keyword} fell from {old.get(keyword, 'none')} to {new[keyword]}"
    for keyword in LOWER:
        if keyword in new and new[keyword] > old.get(keyword, float("-inf")):
            yield f"{path}: {keyword} rose from {old.get(keyword, 'none')} to {new[keyword]}"
    for keyword in EXACT:
        if keyword in new and new[keyword] != old.get(keyword) and not _wider(keyword, old, new):
            yield f"{path}: {keyword} was {old.get(keyword)!r} and is {new[keyword]!r}"
    allowed = old.get("enum") or ([old["const"]] if "const" in old else None)
    if "enum" in new:
        gone = [value for value in allowed if value not in new["enum"]] if allowed is not None else ["any other value"]
        yield from (f"{path}: {value!r} is refused now" for value in gone)


def _wider(keyword: str, old: Json, new: Json) -> bool:
    if keyword == "pattern":
        before, after = (_CHOICE.fullmatch(some.get("pattern", "")) for some in (old, new))
        return before is not None and after is not None and set(before[1].split("|")) <= set(after[1].split("|"))
    return keyword == "type" and (old.get("type"), new.get("type")) == ("integer", "number")


def _variants(schema: Json) -> list[Any]:
    return schema.get("anyOf") or schema.get("oneOf") or [schema]
