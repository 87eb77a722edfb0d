"""The catalogue as one AsyncAPI 3.0.0 document: channels, messages, and who sends and receives what.

One document describes all services: an operation's id is `<service>.<send|receive>.<type>` and its tag the service.
Payload schemas live in `components.schemas`; those of what outsiders write end in `.request`, because they refuse
unknown fields and the same class inside a fact does not. Schemas are kept within AsyncAPI's own dialect (draft 07).
"""

import re
from functools import cache
from typing import Any

from schemas import subjects
from schemas.base import Strict
from schemas.catalog import CATALOG, Message, Model, sentence
from schemas.json_schema import FAILED, Json, models, rewritten, schema

OUTSIDERS = ("teams", "operators")
SCATTERED = ("agent",)
"""Every instance receives these questions, and the one that knows answers; the other services share a queue group."""

PARAMETERS: dict[str, Json] = {
    "team": {"description": "A team, checked by the broker against the sender's credential.", "examples": ["research"]},
    "user": {"description": "Who of the team; checked by the broker like the team.", "examples": ["ana"]},
    "pool": {"description": "A pool of machines: one inbox, one ledger.", "examples": ["main"]},
    "node": {"description": "A machine of the pool; dots of its host name are hyphens.", "examples": ["gpu-rack1-07"]},
    "service": {"description": "A service whose processes ask each other.", "examples": ["admission"]},
}
STREAMS = (
    "`x-stream` names the JetStream stream that keeps a channel's messages; without it the channel is core NATS, "
    "and a message that nobody hears is gone."
)
ABOUT = (
    "Written by `python -m schemas.generate` from schemas/catalog.py. Messages are CloudEvents 1.0: written in binary "
    "mode (attributes are `ce-` headers), read in structured mode too. Commands and questions may also come as bare "
    f"JSON from any NATS client. {STREAMS} What cannot be processed goes to `baton.dead.<service>` with its reason."
)


@cache
def document() -> Json:
    """The whole AsyncAPI document, in an order that depends on the catalogue alone. The same each time: change it not."""
    return {
        "asyncapi": "3.0.0",
        "id": "urn:baton",
        "info": {"title": "Baton", "version": "1", "description": ABOUT, "license": {"name": "Apache-2.0"}},
        "defaultContentType": "application/json",
        "servers": {"nats": _server()},
        "channels": _channels(),
        "operations": {name: op for m in CATALOG for name, op in _operations(m)},
        "components": {
            "messages": {type_: _message(type_, model) for type_, model in models().items()},
            "parameters": PARAMETERS,
            "schemas": _schemas(),
        },
    }


def _server() -> Json:
    return {
        "host": "{host}:{port}",
        "protocol": "nats",
        "description": "NATS with JetStream.",
        "variables": {"host": {"default": "127.0.0.1"}, "port": {"default": "4222"}},
    }


def _channels() -> Json:
    out: Json = {}
    for m in CATALOG:
        out[m.type] = _channel(m)
        if m.reply:
            out[m.reply_type] = _reply_channel(m)
    return out


def _channel(m: Message) -> Json:
    keys = re.findall(r"{(\w+)}", m.subject)
    out: Json = {
        "address": m.subject,
        "title": m.type,
        "description": m.about,
        "messages": {m.type: _ref("components", "messages", m.type)},
        "parameters": {key: _ref("components", "parameters", key) for key in keys},
        "bindings": {"nats": {}},
    }
    return out | ({"x-stream": m.stream} if m.stream else {})


def _reply_channel(m: Message) -> Json:
    answers = [m.reply_type, *([FAILED] if subjects.is_question(m.subject) else [])]
    return {
        "address": None,
        "title": m.reply_type,
        "description": "The reply subject of the request: an inbox that the asking client made.",
        "messages": {type_: _ref("components", "messages", type_) for type_ in answers},
    }


def _operations(m: Message) -> list[tuple[str, Json]]:
    parties = [(m.producer, "send"), *((consumer, "receive") for consumer in m.consumers)]
    return [(f"{who}.{action}.{m.type}", _operation(m, who, action)) for who, action in parties]


def _operation(m: Message, who: str, action: str) -> Json:
    out: Json = {
        "action": action,
        "channel": _ref("channels", m.type),
        "summary": m.about,
        "tags": [{"name": who}],
        "messages": [_ref("channels", m.type, "messages", m.type)],
    }
    if m.reply:
        channel = _reply_channel(m)["messages"]
        messages = [_ref("channels", m.reply_type, "messages", type_) for type_ in channel]
        out["reply"] = {"channel": _ref("channels", m.reply_type), "messages": messages}
        if action == "receive" and who not in SCATTERED:
            out["bindings"] = {"nats": {"queue": who, "bindingVersion": "0.1.0"}}
    return out


def _message(type_: str, model: Model) -> Json:
    outsider = any(m.type == type_ and m.producer in OUTSIDERS for m in CATALOG)
    answer = type_ == FAILED or ".reply." in type_
    return {
        "name": type_,
        "title": model.__name__,
        "summary": sentence(model),
        "contentType": "application/json",
        "headers": _ref("components", "schemas", "Answer") if answer else _headers(type_, required=not outsider),
        "payload": _ref("components", "schemas", _name(model)),
    }


def _headers(type_: str, *, required: bool) -> Json:
    envelope = _ref("components", "schemas", "CloudEvent")
    const: Json = {"type": "object", "properties": {"ce-type": {"const": type_}}}
    if required:
        const["required"] = ["ce-specversion", "ce-id", "ce-type", "ce-source", "Nats-Msg-Id"]
    return {"allOf": [envelope, const]}


def _schemas() -> Json:
    found: Json = {"Answer": ANSWER, "CloudEvent": CLOUD_EVENT}
    for model in models().values():
        suffix = ".request" if issubclass(model, Strict) else ""
        made = rewritten(schema(model, "#/components/schemas/{model}" + suffix), _draft_07)
        parts = made.pop("$defs", {}) | {model.__name__: made}
        found |= {f"{name}{suffix}": part for name, part in parts.items()}
    return dict(sorted(found.items()))


def _draft_07(node: Json) -> Json:
    """Tuples are `items: [...]` there."""
    return {("items" if key == "prefixItems" else key): value for key, value in node.items()}


def _name(model: Model) -> str:
    return f"{model.__name__}.request" if issubclass(model, Strict) else model.__name__


def _ref(*path: str) -> Json:
    return {"$ref": "#/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)}


def _text(description: str, **more: Any) -> Json:
    return {"type": "string", "description": description} | more


CLOUD_EVENT: Json = {
    "type": "object",
    "description": "CloudEvents 1.0 attributes as NATS headers; what is not printable ASCII is percent-encoded.",
    "properties": {
        "ce-specversion": {"type": "string", "const": "1.0"},
        "ce-id": _text("derived from the event's cause: what is sent twice has one id"),
        "ce-type": _text("io.baton.<entity>.<what>.v1"),
        "ce-source": _text("who sent it", examples=["/baton/main/placement"]),
        "ce-subject": _text("what it is about, e.g. a job id"),
        "ce-time": _text("RFC 3339; for reading only, decisions use the broker's time"),
        "ce-correlationid": _text("the same on everything that one request leads to"),
        "ce-causationid": _text("the id of the message that led to this one"),
        "traceparent": _text("W3C trace context"),
        "Nats-Msg-Id": _text("equal to ce-id, or made of it and a secret: the broker drops a second copy"),
        "Content-Type": _text("application/json; application/cloudevents+json in structured mode"),
    },
}
ANSWER: Json = {
    "type": "object",
    "description": "Headers of an answer to a question. All statuses but ok carry QueryFailed.",
    "properties": {"Baton-Status": {"type": "string", "enum": ["ok", "invalid", "not-found", "failed"]}},
}
