"""A validation error as reasons that a person can act on: field, value, problem, fix."""

import difflib
import json
import re
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from schemas.base import NAME_PATTERN
from schemas.jobs import Reason

MAX_REASONS = 50
_NAME = 64
"""Characters: no field of ours is so long, so a longer name is no misspelt one."""


def clip(value: Any, limit: int = 200) -> str:
    """`value` as JSON where it can be, shortened to `limit` characters."""
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):
            text = repr(value)
    # A value may be half of a surrogate pair, which no header and no database takes.
    text = text.encode(errors="replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def reasons_of(
    error: ValidationError, payload: bytes = b"", model: type[BaseModel] | None = None
) -> tuple[Reason, ...]:
    """One reason for each error, at most 50, so that a sender can correct everything at once.

    `model`, when given, lets a misspelt field be answered with the nearest known one.
    """
    details = details_of(error)
    reasons = [_reason(d, payload, model) for d in details[:MAX_REASONS]]
    if len(details) > MAX_REASONS:
        rest = len(details) - MAX_REASONS
        reasons.append(
            Reason(field="(more)", value=str(rest), problem=f"{rest} more errors", fix="correct these first")
        )
    return tuple(reasons)


def details_of(error: ValidationError) -> list[ErrorDetails]:
    """Those that somebody can act on, in the order of `reasons_of`: of a list whose items are wrong pydantic counts the others,
    and says that it is too short."""
    return [
        detail
        for detail in error.errors(include_url=False)
        if not (detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"])
    ]


def _reason(detail: ErrorDetails, payload: bytes, model: type[BaseModel] | None) -> Reason:
    kind = detail["type"]
    if kind == "json_invalid":
        shown = payload[:200].decode(errors="replace")
        return Reason(field="(payload)", value=clip(shown), problem=detail["msg"], fix="send one JSON object")
    path = clip(".".join(str(part) for part in detail["loc"])) or "(payload)"
    value = "" if kind == "missing" else clip(detail.get("input"))
    problem, fix = _explain(kind, detail, model)
    return Reason(field=path, value=value, problem=problem, fix=fix)


def _explain(kind: str, detail: ErrorDetails, model: type[BaseModel] | None) -> tuple[str, str]:
    context = detail.get("ctx") or {}
    message = detail["msg"]
    if kind == "missing":
        return "the field is missing", "add it"
    if kind == "extra_forbidden":
        return "unknown field", _nearest(detail, model)
    if kind in ("value_error", "assertion_error"):
        # Our own validators say "problem: fix".
        text = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
        problem, _, fix = text.partition(": ")
        return problem, fix or "correct the value"
    if kind in ("enum", "literal_error"):
        return "not one of the allowed values", f"use {context.get('expected', 'an allowed value')}"
    if kind == "string_pattern_mismatch":
        return "has characters or a form that is not allowed", _of_the_form(context["pattern"], detail.get("input"))
    if kind in _BOUNDS and (bound := _BOUNDS[kind])[0] in context:
        name, problem, fix = bound
        return problem, fix.format(context[name])
    return _BY_PREFIX.get(kind.partition("_")[0], (message, "correct the value"))


def _of_the_form(pattern: str, value: Any) -> str:
    """The fix for text that does not match: in small letters where that is all it takes, else in words where there are some."""
    if isinstance(value, str) and len(value) <= _NAME and re.fullmatch(pattern, value.lower()):
        return f"write it in small letters: {value.lower()}"
    if pattern == NAME_PATTERN:
        return "use at most 63 small letters, digits and '-', with a letter or a digit at both ends"
    return f"match {pattern}"


_BOUNDS = {
    "greater_than_equal": ("ge", "too small", "use at least {}"),
    "greater_than": ("gt", "too small", "use more than {}"),
    "less_than_equal": ("le", "too large", "use at most {}"),
    "less_than": ("lt", "too large", "use less than {}"),
    "string_too_long": ("max_length", "too long", "shorten it to at most {} characters"),
    "too_long": ("max_length", "too many", "send at most {}"),
    "string_too_short": ("min_length", "too short", "its length must be at least {}"),
    "too_short": ("min_length", "too few", "send at least {}"),
}
"""Of a bound that a value breaks: its name in the context of the error, the problem, the fix."""

_BY_PREFIX = {
    "int": ("not a whole number", "send an integer"),
    "float": ("not a number", "send a number"),
    "finite": ("not a finite number", "send a finite number"),
    "bool": ("neither true nor false", "send true or false"),
    "string": ("not text", "send a string"),
    "dict": ("not a JSON object", "send a JSON object"),
    "model": ("not a JSON object", "send a JSON object"),
    "tuple": ("not a list", "send a JSON array"),
    "list": ("not a list", "send a JSON array"),
    "union": ("of no known kind", "set the field that tells the kinds apart to a known one"),
    "none": ("not null", "send null, or leave the field out"),
}
"""By the beginning of an error's kind: the problem and the fix, in words for who does not know our libraries."""


def _nearest(detail: ErrorDetails, model: type[BaseModel] | None) -> str:
    if model is None:
        return "remove it, or correct its spelling"
    *path, name = (str(part) for part in detail["loc"])
    known = _fields_at(_schema(model), path)
    if len(name) <= _NAME and (near := difflib.get_close_matches(name, known, n=1)):
        return f"did you mean {near[0]!r}?"
    return f"remove it; known here: {', '.join(known)}" if known else "remove it"


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """Made once: it takes 20 ms, and an error has up to fifty fields to look up."""
    return model.model_json_schema()


def _fields_at(schema: dict[str, Any], path: list[str]) -> list[str]:
    """The names that an object at `path` may have, looked up in a JSON Schema; empty when it cannot be told."""
    definitions = schema.get("$defs", {})

    def resolve(node: dict[str, Any]) -> dict[str, Any]:
        for branch in (node, *node.get("anyOf", ()), *node.get("allOf", ())):
            if "$ref" in branch:
                found: dict[str, Any] = definitions.get(branch["$ref"].rpartition("/")[2], {})
                return found
        return node

    node = resolve(schema)
    for part in path:
        step = node.get("items", {}) if part.isdigit() else node.get("properties", {}).get(part, {})
        node = resolve(step)
    return sorted(node.get("properties", {}))
