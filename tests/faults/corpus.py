"""Messages that nobody should send: what each service's input must survive, with a name for each."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from libs.bus.messages import type_of_subject
from schemas import subjects

GOOD: dict[str, Any] = {"client_key": "k", "job": {"command": ["true"], "resources": {"types": ["V100"]}}}
NODE = {"node": "replay-0", "position": {}, "devices": []}
JOB = "job-" + "0" * 32


@dataclass(frozen=True, slots=True)
class Bad:
    """One message. `name` says what is wrong with it."""

    name: str
    subject: str
    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def unreadable() -> dict[str, bytes]:
    """Payloads that no message type can have."""
    return {
        "empty": b"",
        "not json": b"hello",
        "cut off": b'{"client_key": "k", "job": {"comm',
        "not utf-8": b'{"client_key": "\xff\xfe"}',
        "nul bytes": b"\x00" * 64,
        "nul in text": b'{"client_key": "a\\u0000b", "job": {"command": ["true"]}}',
        "lone surrogate": b'{"client_key": "\\ud800", "job": {"command": ["true"]}}',
        "a list": b"[1, 2, 3]",
        "a number": b"42",
        "null": b"null",
        "deep lists": b"[" * 50_000,
        "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        "too large": json.dumps({**GOOD, "client_key": "x" * 400_000}).encode(),
        "a key twice": b'{"client_key": "k1", "client_key": "k2", "job": {"command": ["true"]}}',
        "not a number": b'{"client_key": "nan", "job": {"command": ["true"], "stop_grace_s": NaN}}',
        "infinite": b'{"client_key": "inf", "job": {"command": ["true"], "stop_grace_s": 1e400}}',
        "huge integer": b'{"client_key": "big", "job": {"command": ["true"], "time_limit_s": ' + b"9" * 5000 + b"}}",
        "pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94",
    }


def requests(team: str) -> Iterator[Bad]:
    """For the stream REQUESTS: submits and cancels."""
    submit, cancel = f"baton.cmd.job.v1.submit.{team}.ana", f"baton.cmd.job.v1.cancel.{team}.ana"
    for name, payload in unreadable().items():
        yield Bad(f"submit: {name}", submit, payload)
        yield Bad(f"cancel: {name}", cancel, payload)
    for name, body in _wrong_submits().items():
        yield Bad(f"submit: {name}", submit, json.dumps({"client_key": f"bad {name}", **body}).encode())
    good = json.dumps({**GOOD, "client_key": "bad envelope"}).encode()
    yield Bad("submit: another type", submit, good, _envelope("io.baton.node.observed.v1"))
    yield Bad("submit: an unknown type", submit, good, _envelope("io.baton.job.explode.v9"))
    yield Bad("submit: another version", submit, good, _envelope("io.baton.job.submit.v1") | {"ce-specversion": "9"})
    yield Bad("submit: no id", submit, good, {"ce-type": "io.baton.job.submit.v1", "ce-specversion": "1.0"})
    structured = {"Content-Type": "application/cloudevents+json"}
    yield Bad("submit: structured without data", submit, b'{"specversion": "1.0", "id": "1"}', structured)
    yield Bad("submit: structured and no object", submit, b"[]", structured)
    yield Bad("an unknown command", f"baton.cmd.job.v1.explode.{team}.ana", good)
    yield Bad("no team's name", "baton.cmd.job.v1.submit.NOT_A_TEAM.ana", good)
    yield Bad("cancel: no job id", cancel, b'{"job_id": "../../etc/passwd"}')


def quotas(pool: str) -> Iterator[Bad]:
    """For the stream REQUESTS: quotas."""
    operators = subjects.set_quota(pool, "root")
    for name, payload in unreadable().items():
        yield Bad(f"quota: {name}", operators, payload)
    yield Bad("quota: negative", operators, b'{"team": "a", "limit_milli": -5}')
    own = subjects.fill(subjects.POOL_COMMAND, entity="quota", what="set", pool=pool, team="a", user="ana")
    yield Bad("quota: a team sets its own", own, b'{"team": "a", "limit_milli": null}')


def inbox(pool: str) -> Iterator[Bad]:
    """For the pool's inbox, which services alone may write: placement must survive their bugs."""
    kinds = {
        subjects.node_inbox("observed", pool, "replay-0"): "io.baton.node.observed.v1",
        subjects.node_inbox("registered", pool, "replay-0"): "io.baton.node.registered.v1",
        f"baton.in.job.v1.admitted.{pool}": "io.baton.job.admitted.v1",
        f"baton.in.preemption.v1.planned.{pool}": "io.baton.preemption.planned.v1",
    }
    for subject, type_ in kinds.items():
        for name, payload in unreadable().items():
            yield Bad(f"{type_}: {name}", subject, payload, _envelope(type_))
        yield Bad(f"{type_}: no envelope", subject, b"{}")
        yield Bad(f"{type_}: another type", subject, b"{}", _envelope("io.baton.clock.tick.v1"))
    for name, (subject, body) in _impossible(pool).items():
        type_ = type_of_subject(subject)
        yield Bad(f"{type_}: {name}", subject, json.dumps(body).encode(), _envelope(type_))
    yield Bad(
        "an unknown subject",
        f"baton.in.node.v1.exploded.{pool}.replay-0",
        b"{}",
        _envelope("io.baton.node.exploded.v1"),
    )


def _wrong_submits() -> dict[str, dict[str, Any]]:
    def job(**changes: Any) -> dict[str, Any]:
        return {"job": {**GOOD["job"], **changes}}

    return {
        "a team in the payload": {**GOOD, "client_key": "forged", "team": "b"},
        "no job": {},
        "an unknown field": job(comand=["true"]),
        "nothing to run": {"job": {"name": "x"}},
        "a command of the wrong type": job(command="rm -rf /"),
        "too many arguments": job(command=["x"] * 10_000),
        "an unknown class": job(priority_class="emperor"),
        "an unknown enum": job(launch="per-galaxy"),
        "no devices": job(resources={"devices": 0}),
        "too many devices": job(resources={"devices": 10**30}),
        "a fraction of a device": job(resources={"devices": 1.5}),
        "a share of many": job(resources={"devices": 2, "share_milli": 10}),
        "more than there is": job(resources={"devices": 4000, "types": ["V100"]}),
        "a model that is not here": job(resources={"types": ["Z9000"]}),
        "a loader's variable": job(env={"LD_PRELOAD": "/tmp/x.so"}),
        "a variable with a strange name": job(env={"A B": "1"}),
        "a name from right to left": job(name="\u202egnirts"),
        "an invisible name": job(name="\u200b"),
        "a terminal's escape": job(name="\x1b[2J"),
        "a negative time": job(time_limit_s=-1),
        "text for a number": job(stop_grace_s="soon"),
    }


def _impossible(pool: str) -> dict[str, tuple[str, dict[str, Any]]]:
    observed, registered = (subjects.node_inbox(what, pool, "replay-0") for what in ("observed", "registered"))
    planned = f"baton.in.preemption.v1.planned.{pool}"
    stolen = {"id": "replay-0-gpu0", "index": 0, "model": "V100", "memory_mib": 1}
    return {
        "another node than the subject's": (observed, {"node": "replay-1", "incarnation": 1, "observations": []}),
        "another node's registration": (
            registered,
            {"incarnation": 9, "lease_s": 10, "inventory": NODE | {"node": "replay-1", "devices": []}},
        ),
        "an unknown node": (
            subjects.node_inbox("observed", pool, "nobody"),
            {"node": "nobody", "incarnation": 1, "observations": []},
        ),
        "an unknown observation": (
            observed,
            {"node": "replay-0", "incarnation": 1, "observations": [{"kind": "exploded", "job_id": JOB}]},
        ),
        "an old life": (registered, {"incarnation": 1, "lease_s": 10, "inventory": NODE | {"devices": []}}),
        "another node's device": (
            subjects.node_inbox("registered", pool, "thief"),
            {"incarnation": 1, "lease_s": 10, "inventory": {"node": "thief", "devices": [stolen]}},
        ),
        "a plan without victims": (
            planned,
            {
                "plan_id": "p",
                "base_seq": 0,
                "beneficiary": JOB,
                "victims": [],
                "devices": ["replay-0-gpu0"],
                "cost_device_s": 0,
            },
        ),
    }


def _envelope(type_: str) -> dict[str, str]:
    return {"ce-specversion": "1.0", "ce-id": "x", "ce-source": "/corpus", "ce-type": type_}
