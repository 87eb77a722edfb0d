"""A small fuzzer: every field of every event of ledgers that lived is changed, some times each. The checker finds it, or there
is a reason why nobody can: `UNSEEN` has every field of which some change is accepted."""

import json
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.ledger import LedgerRecord
from tests.core.lives import EVERY, records_of
from tests.core.test_verify_lies import report

TIMES = 2
"""How often a field is changed in each way, in different events."""

WORDS = "words for people"
WHO = "who asked, as the subject of the request said: the broker's permissions, not the ledger, vouch for it"
NODES = "a node's own word"
CLASS = "of the operator's classes, as they were when the job was queued; nothing here was decided by it"
ASKED = "the team's own word, and what it got fits this as well"
ELSEWHERE = "nothing that follows relied on it"
CLOCK = "within what clocks may differ, or no tick since"
CHAIN = "the reader of the chain (`libs.ledger.chain`), or of its place on the broker, looks at it"
FIGURE = "a figure for people: it decided, and nothing can be decided again without the state of that moment"

UNSEEN: dict[str, str] = {
    "* reason": WORDS, "* text": WORDS, "* why": WORDS, "device.quarantined users": WORDS,
    "node.declared-dead fenced_by": WORDS,
    "* user": WHO, "input.rejected subject": WHO, "input.rejected request": WHO, "record writer": WHO,
    "node.joined inventory": NODES, "board.cut inventory": NODES, "board.cut ok": NODES,
    "devices.freed category": NODES, "devices.freed exit_code": f"{NODES}: not of the first part, nor of a job that failed",
    "devices.freed own_exit": f"{NODES}: of a part that ended after an end was decided",
    "devices.freed unproven": NODES,
    "devices.freed silent_s": "the silence may have been longer than it had to be",
    "node.silent silent_s": "of leases, and as long as nothing ends by it", "node.silent ended_lease_s": ELSEWHERE,
    "node.silent kept": "only kept work is there: it could be told so a little later",
    "attempt.checkpointed checkpoint": f"{NODES}, and {ELSEWHERE}",
    "attempt.progress job_id": f"{NODES}: of another job that runs",
    "queues.applied order": ELSEWHERE, "queues.applied preemption": f"{ELSEWHERE}: nobody reached a limit",
    "quota.set kind": f"another word of an operator about a team: {ELSEWHERE}",
    "gang.promised promise": f"{FIGURE}: it may be told with another time",
    "gang.promised job_id": f"{FIGURE}: of another gang that waits",
    "gang.promised stays": f"{FIGURE}: fewer, where the gang waits for others all the same",
    "devices.reserved devices": f"{FIGURE}: others may be kept free",
    "devices.fragmented units": f"{FIGURE}: less, or more as long as there is so much",
    "attempt.progress progress": f"{NODES}: it may be further, or slower, as long as it is possible",
    "job.queued priority": CLASS, "job.queued preempts": CLASS, "job.queued lease_s": CLASS, "job.queued latency": CLASS,
    "job.queued network": CLASS,
    "job.queued spec": ASKED, "job.queued spec_hash": ASKED, "job.queued submitted_us": ASKED,
    "job.granted span": "it may be nearer than it is told to be; speeds are of a table",
    "job.granted claims": "an epoch may be left out",
    "attempt.preempting cost_device_s": FIGURE, "devices.held cost_device_s": FIGURE,
    "plan.declined plan_id": FIGURE, "plan.declined beneficiary": FIGURE,
    "board.recut recut": "which instances serve best is placement's; what goes is idle in any case",
    "board.recut for_job": "a release of before names none, also where it writes on in a newer format",
    "lease.granter holder": ELSEWHERE, "lease.granter term_s": ELSEWHERE, "lease.granter max_lease_s": ELSEWHERE,
    "node.joined incarnation": "lives may be left out",
    "attempt.running job_id": f"{NODES}: of another attempt that was granted, and not seen running yet",
    "attempt.starting node": f"{NODES}: of another part of it, that was not seen running yet",
    "queues.applied version": ELSEWHERE, "queues.applied queues": f"{ELSEWHERE}: nobody reached a limit",
    "job.boosted priority": f"{ELSEWHERE}: still above its class, and of nobody else's",
    "job.boosted until_us": "its operator may have given it another time", "job.boosted job_id": ELSEWHERE,
    "job.boosted team": "an admin of the job's team may have said it", "job.boost-ended team": "the same",
    "devices.freed evidence": NODES, "node.silent node": f"{ELSEWHERE}: of another node, where nothing ended by it",
    "budget.reached teams": "a team that stands there twice is one team",
    "prices.applied book": f"{ELSEWHERE}: what it comes to is `baton bill verify`'s question",
    "period.closed period": f"{ELSEWHERE}: what it comes to is `baton bill verify`'s question",
    "budgets.applied budgets": f"{ELSEWHERE}: nobody reached a limit",
    "quota.set team": ELSEWHERE, "quota.set limit_milli": f"{ELSEWHERE}: nobody reached it", "quota.set by_type": ELSEWHERE,
    "operator.acted team": f"{WHO}: one that changed a secret of its own",
    "operator.acted action": "the first word of it, or a line whose neighbours were not told",
    "command.refused command": f"{WHO}; and of the service that refused it",
    "ledger.summed sum": "of one that is told again nothing counts; the time may be a little earlier",
    "ledger.summed nonce": "of one that is told again nothing counts",
    "record format": "the first ones may be of before there was a declaration",
    "devices.held devices": f"{ELSEWHERE}: its job was cancelled before it was granted any",
    "* cause": WHO, "* policy": "of the operator's files, as they were then",
    "record t_us": CLOCK, "record wall_us": CLOCK, "record clock": CLOCK, "clock.jumped elapsed_us": CLOCK,
    "clock.jumped from_us": CLOCK, "clock.jumped to_us": CLOCK,
    "record inbox_seq": "inputs may lead to nothing, and be passed over",
    "record more": "a decision may have been cut short by a crash after any of its records",
    "record prev_seq": CHAIN, "record prev_hash": CHAIN, "record pool": CHAIN,
    "record events": "an event is left out or doubled: `test_verify_sweep.py` says which may be",
}  # fmt: skip
"""`<kind of event, or record> <its field>` -> why some change of it cannot be found. `*`: of any kind."""

Place = tuple[str, int, tuple[Any, ...]]
"""Life, number of the record, path in it."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Everything in a record that can be changed by itself; of a list, the list too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
        return
    yield path, value
    if isinstance(value, list):
        for n, inner in enumerate(value):
            yield from leaves(inner, (*path, n))


def ways(value: Any) -> tuple[str, ...]:
    """How it can be changed."""
    match value:
        case bool():
            return ("other way",)
        case int() | float():
            return ("more", "less", "nothing", "much more", "left out")
        case str():
            return ("another", "left out")
        case list() if value:
            return ("shorter", "longer")
    return ("something",) if value is None else ()


def changed(value: Any, how: str, others: list[str], chance: Random) -> Any:
    match how:
        case "other way":
            return not value
        case "more" | "less":
            return value + (1 if how == "more" else -1)
        case "nothing":
            return 0
        case "much more":
            return value * 2 + 10**6
        case "left out":
            return None
        case "shorter":
            at = chance.randrange(len(value))
            return value[:at] + value[at + 1 :]
        case "longer":
            return [*value, chance.choice(value)]
        case "something":
            return chance.choice([7, "hardware", {"step": 3, "reference": "s3://x"}])
    return chance.choice(others)


def about(document: dict[str, Any], path: tuple[Any, ...]) -> tuple[str, str]:
    """The kind of event, or `record`, and its field."""
    if path[0] == "events" and len(path) > 2:
        return document["events"][path[1]]["kind"], path[2]
    return "record", path[0]


def with_change(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> LedgerRecord | None:
    """None: such a record cannot be read."""
    copy = json.loads(json.dumps(document))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    try:
        return LedgerRecord.model_validate(copy)
    except ValidationError:
        return None


@pytest.mark.parametrize("seed", [1, 2])
def test_every_change_of_a_field_is_found_or_there_is_a_reason(seed: int) -> None:
    chance = Random(seed)
    ledgers = {life: [json.loads(r.model_dump_json()) for r in records_of(life)] for life in EVERY}
    places: dict[tuple[str, str, str, str], list[Place]] = defaultdict(list)
    texts: dict[str, set[str]] = defaultdict(set)
    for life, documents in ledgers.items():
        for n, document in enumerate(documents):
            for path, value in leaves(document):
                name = next(step for step in reversed(path) if isinstance(step, str))
                if isinstance(value, str):
                    texts[name].add(value)
                for how in ways(value):
                    places[(*about(document, path), name, how)].append((life, n, path))
    accepted: dict[str, list[str]] = defaultdict(list)
    tried = found = 0
    for (kind, field, name, how), where in sorted(places.items()):
        for life, n, path in chance.sample(where, min(TIMES, len(where))):
            document = ledgers[life][n]
            value = document
            for step in path:
                value = value[step]
            others = sorted(texts[name] - {value}) if isinstance(value, str) else []
            told = with_change(document, path, changed(value, how, others or [f"{value}-x"], chance))
            truth = records_of(life)
            if told is None or told == truth[n]:
                continue
            tried += 1
            if report([*truth[:n], told, *truth[n + 1 :]]).ok:
                if f"{kind} {field}" not in UNSEEN and f"* {field}" not in UNSEEN:
                    accepted[f"{kind} {field}"].append(f"{how} at record {n} of {life!r}, {path}: {value!r}")
            else:
                found += 1
    assert accepted == {}
    assert found > tried // 3
