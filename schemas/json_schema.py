"""JSON Schema (draft 2020-12) of every message and answer, as readers of each must take them.

What outsiders write refuses unknown fields; what services write allows them, at every depth, since a v1 fact may gain
fields: so the same class inside a command and inside a fact has two schemas here.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from schemas.base import Strict
from schemas.catalog import CATALOG, Model
from schemas.queries import QueryFailed

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FAILED = "io.baton.query.failed.v1"
"""Names the schema of what every question may be answered with instead of its answer."""

Json = dict[str, Any]


def models() -> dict[str, Model]:
    """Type -> model, of every message, every answer and `QueryFailed`, in the catalogue's order."""
    messages: dict[str, Model] = {m.type: m.model for m in CATALOG}
    answers: dict[str, Model] = {m.reply_type: m.reply for m in CATALOG if m.reply}
    return messages | answers | {FAILED: QueryFailed}


@cache
def documents() -> dict[str, Json]:
    """Type -> a self-contained JSON Schema document. The same each time: change none."""
    return {
        type_: {"$schema": DIALECT, "$id": f"urn:baton:{type_}", **schema(model, "#/$defs/{model}")}
        for type_, model in models().items()
    }


def schema(model: type[BaseModel], ref_template: str) -> Json:
    """The schema of what `model` reads. `ref_template` says where its `$defs` will be found."""
    made = model.model_json_schema(ref_template=ref_template)
    # `discriminator` is OpenAPI's: strict validators refuse the keyword, and every variant has a `const` kind anyway.
    unwanted = {"discriminator"} if issubclass(model, Strict) else {"discriminator", "additionalProperties: false"}

    def plain(node: Json) -> Json:
        kept = {k: v for k, v in node.items() if k not in unwanted and not (v is False and f"{k}: false" in unwanted)}
        # A table whose keys have a pattern holds no other keys; pydantic leaves that unsaid.
        return kept | ({"additionalProperties": False} if "patternProperties" in node else {})

    return rewritten(made, plain)


def rewritten(made: Mapping[str, Any], change: Callable[[Json], Json]) -> Json:
    """`made` with `change` applied to every schema in it, innermost first; names of fields are never mistaken for
    keywords, since what lies under `properties` and `$defs` is a table of schemas."""
    out: Json = {}
    for key, value in made.items():
        if key in ("properties", "$defs", "patternProperties"):
            out[key] = {name: rewritten(sub, change) for name, sub in value.items()}
        elif key in ("default", "const", "examples", "enum"):
            out[key] = value
        elif isinstance(value, dict):
            out[key] = rewritten(value, change)
        elif isinstance(value, list):
            out[key] = [rewritten(sub, change) if isinstance(sub, dict) else sub for sub in value]
        else:
            out[key] = value
    return change(out)
