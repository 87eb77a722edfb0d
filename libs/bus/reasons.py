"""A validation error as reasons that a person can act on: field, value, problem, fix."""

import difflib
import json
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

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
    details = error.errors(include_url=False)
    reasons = [_reason(d, payload, model) for d in details[:MAX_REASONS]]
    if len(details) > MAX_REASONS:
        rest = len(details) - MAX_REASONS
        reasons.append(
            Reason(field="(more)", value=str(rest), problem=f"{rest} more errors", fix="correct these first")
        )
    return tuple(reasons)


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
        return "has characters or a form that is not allowed", f"match {context.get('pattern')}"
    for name, words in _BOUNDS.items():
        if kind in words and name in context:
            return message, f"{words[kind]} {context[name]}"
    return message, _FIX_BY_PREFIX.get(kind.partition("_")[0], "correct the value")


_BOUNDS: dict[str, dict[str, str]] = {
    "ge": {"greater_than_equal": "use at least"},
    "gt": {"greater_than": "use more than"},
    "le": {"less_than_equal": "use at most"},
    "lt": {"less_than": "use less than"},
    "max_length": {"string_too_long": "shorten it to at most", "too_long": "send at most"},
    "min_length": {"string_too_short": "its length must be at least", "too_short": "send at least"},
}

_FIX_BY_PREFIX = {
    "int": "send an integer",
    "float": "send a number",
    "finite": "send a finite number",
    "bool": "send true or false",
    "string": "send a string",
    "dict": "send a JSON object",
    "model": "send a JSON object",
    "tuple": "send a JSON array",
    "list": "send a JSON array",
    "union": "set the field that tells the kinds apart to a known one",
    "none": "send null, or leave the field out",
}


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
