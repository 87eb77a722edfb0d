"""Refuses JSON that two readers could understand differently, before any model sees it.

A key twice (first or last one wins, depending on the reader), NaN and numbers beyond a double or 64 bits (an integer of 400
digits is infinity to a model's float), NUL characters (end a string in C), nesting that exhausts a stack, and more bytes than
any of our messages needs.
"""

import json
from typing import Any

MAX_BYTES = 256 * 1024
"""What anybody may send."""
MAX_FACT_BYTES = 4 * 1024 * 1024
"""What a service may tell: an event about a job on a whole TPU pod names 9,216 devices."""
MAX_DEPTH = 32
MAX_VALUES = 8192
"""In what anybody may send. Each of them may be wrong, and all that is wrong is worked out before any of it is told: 60,000
took admission 0.4 s of its loop."""


class JsonProblem(ValueError):
    """What is wrong with a payload, with which part of it, and what to do."""

    def __init__(self, value: str, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.value, self.problem, self.fix = value[:200], problem, fix


def check_json(payload: bytes, max_bytes: int = MAX_BYTES) -> None:
    """Raises JsonProblem unless `payload` is one unambiguous JSON value of at most `max_bytes` and 32 levels; up to
    `MAX_BYTES`, what anybody may send, of at most `MAX_VALUES` members and elements as well."""
    if len(payload) > max_bytes:
        raise JsonProblem(
            f"{len(payload)} bytes", f"larger than {max_bytes} bytes", "send a reference to large data, not the data"
        )
    if not payload:
        raise JsonProblem("", "the payload is empty", "send a JSON object")
    try:
        text = payload.decode()
    except UnicodeDecodeError as e:
        near = repr(payload[max(0, e.start - 10) : e.start + 10])
        raise JsonProblem(near, f"not UTF-8 at byte {e.start}", "encode the JSON as UTF-8") from None
    if "\x00" in text:
        raise _nul(text.index("\x00"))
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except JsonProblem:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as e:
        at = getattr(e, "pos", 0)
        problem = f"not JSON ({e})" if isinstance(e, json.JSONDecodeError) else f"a number cannot be read ({e})"
        raise JsonProblem(text[max(0, at - 20) : at + 20], problem, "send one JSON object") from None
    if max_bytes <= MAX_BYTES and text.count(",") >= MAX_VALUES:  # as many as values, less one for each container
        _check_values(value)
    # Fewer brackets than levels allowed: nothing can be too deep. Spares nearly every message the walk.
    if text.count("{") + text.count("[") > MAX_DEPTH:
        _check_depth(value)
    if "\\u0000" in text:
        _check_nul(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonProblem(repr(key), f"the key {key[:100]!r} occurs twice in one object", "send it once")
            seen.add(key)
    return out


def _constant(name: str) -> float:
    raise JsonProblem(name, f"{name} is not JSON", "send a finite number, or leave the field out")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise JsonProblem(text, "the number is beyond a 64-bit float", "send a finite number, or leave the field out")
    return value


def _int(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise JsonProblem(
            text, "the number is beyond a signed 64-bit integer", "send a smaller one, or leave the field out"
        )
    return value


def _too_deep() -> JsonProblem:
    return JsonProblem("", f"nested deeper than {MAX_DEPTH} levels", "flatten it: no message of Baton needs so many")


def _nul(position: int) -> JsonProblem:
    return JsonProblem(f"at character {position}", "contains a NUL character", "leave NUL characters out of strings")


def _check_values(value: Any) -> None:
    todo, count = [value], 0
    while todo:
        one = todo.pop()
        if isinstance(one, dict | list):
            count += len(one)
            todo += one.values() if isinstance(one, dict) else one
    if count > MAX_VALUES:
        raise JsonProblem(
            f"{count} values", f"more than {MAX_VALUES} values", "send fewer: no message of Baton has so many"
        )


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [v for v in level if isinstance(v, dict | list)]
        if not level:
            return
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    raise _too_deep()


def _check_nul(value: Any) -> None:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            if "\x00" in one:
                raise _nul(one.index("\x00"))
        elif isinstance(one, dict):
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            todo += one
