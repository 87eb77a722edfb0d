"""Refused commands have a line in the ledger, and a team that is refused without end does not fill it."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from libs.bus.cancel import cancel
from libs.bus.messages import Malformed
from libs.bus.settle import Received
from libs.core.admission.refusals import AT_ONCE, EVERY_S, Refusals
from libs.core.projections.audit import AuditLines
from schemas.audit import RefusedCommand
from schemas.ids import content_hash
from schemas.inbox import RefusalTold, SecretChanged
from services.admission.refusing import Refusing, command_of
from services.quota_billing.quotas import set_quota
from services.quota_billing.refused import RefusedQuotas
from tests.admission.test_handlers import GOOD, judged, received
from tests.core.builders import World, node
from tests.core.lives import book
from tests.kit.waiting import until

S = 1_000_000


def refused(n: int, team: str = "red") -> RefusedCommand:
    digest = content_hash(str(n).encode())
    return RefusedCommand(service="admission", what="submit", team=team, user="ana", cause=f"REQUESTS:{n}", stored_us=n,
                          digest=digest, reason="no")  # fmt: skip


def test_a_few_refusals_have_a_line_each() -> None:
    known = Refusals()
    lines = [known.note(refused(n), n) for n in range(AT_ONCE)]
    assert lines == [refused(n) for n in range(AT_ONCE)]
    assert known.due(10**15) == []


def test_a_hostile_team_adds_a_line_a_minute_and_every_refusal_is_counted() -> None:
    known, lines, most = Refusals(), [], 100_000
    for n in range(most):  # a thousand a second
        if (line := known.note(refused(n), n * 1000)) is not None:
            lines.append(line)
    assert len(lines) <= AT_ONCE + most / 1000 / EVERY_S + 1
    lines += known.due(most * 1000 + int(EVERY_S * S))
    assert len(lines) + sum(line.more for line in lines) == most
    assert all(bool(line.more_digest) is bool(line.more) for line in lines)
    assert known.due(10**15) == [], "nothing is told twice"


def test_what_has_no_line_can_be_proven_by_who_kept_it() -> None:
    known = Refusals(at_once=1)
    assert known.note(refused(0), 0) == refused(0)
    assert [known.note(refused(n), n) for n in (1, 2, 3)] == [None] * 3
    (line,) = known.due(int(EVERY_S * S) + 9)
    digest = ""
    for n in (1, 2):
        digest = content_hash((digest + refused(n).digest).encode())
    assert (line.cause, line.more, line.more_digest) == ("REQUESTS:3", 2, digest)


def test_another_team_has_lines_of_its_own() -> None:
    known = Refusals()
    for n in range(1000):
        known.note(refused(n), n)
    assert known.note(refused(7, "blue"), 7) == refused(7, "blue")


class Inbox:
    """Takes what is published."""

    def __init__(self) -> None:
        self.told: list[RefusedCommand] = []

    async def publish_many(self, items: Any) -> None:
        assert {item.subject for item in items} == {"baton.in.job.v1.refused.main"}
        self.told += [RefusalTold.model_validate_json(item.payload).command for item in items]


async def test_what_admission_refuses_is_told_and_what_it_lets_in_is_not() -> None:
    inbox: Any = Inbox()
    telling, room = Refusing("main"), ["INBOX-main is 100% full"]
    task = asyncio.create_task(telling.run(lambda: inbox, lambda items: room[0], look_s=0.05))
    bad = {"client_key": "k", "job": {"command": [], "resources": {"devices": -1}}}
    for body, team in ((GOOD, "research"), (bad, "research"), (b"no json", "red"), (bad, "Not A Team")):
        request = received(body, team=team, user="ana")
        out = judged(body, team=team).out
        if body != GOOD and (command := command_of(request, out, "0123456789abcdef")) is not None:
            telling.note(command)
    await asyncio.sleep(0)
    assert inbox.told == [], "it waits for room, and the answers to teams do not wait for it"
    room[0] = ""
    await until(lambda: len(inbox.told) == 2)
    first, second = inbox.told
    assert (first.team, first.user, first.what, first.cause) == ("research", "ana", "submit", "REQUESTS:7")
    assert first.digest == content_hash(received(bad).payload)
    assert first.policy == "0123456789abcdef"
    assert first.reason.startswith("job.resources.devices: ")
    assert (second.team, second.more) == ("red", 0)
    await cancel(task)


def test_a_refused_quota_is_a_line_of_the_audit() -> None:
    """Beside the dead letter, in the same step: what cannot be stored is tried again, and neither is lost."""
    decided = RefusedQuotas("main", "0123456789abcdef", partial(set_quota, "main", lambda: None))
    body = json.dumps({"team": "research", "limit_milli": -1}).encode()
    asked = Received(
        subject="baton.cmd.quota.v1.set.main.operator.olga", headers={}, payload=body, stream="REQUESTS", stream_seq=9,
        time_us=1_700_000_000_000_000,
    )  # fmt: skip
    letter, told = decided(asked)
    assert letter.subject == "baton.dead.quota_billing.operator"
    command = RefusalTold.model_validate_json(told.payload).command
    world = World()
    world.send(RefusalTold(command=command))
    world.send(RefusalTold(command=command, line=False))
    (line,) = [line for n, record in enumerate(world.records) for line in AuditLines().of(record, n)]
    assert (line.actor, line.kind, line.outcome, line.source) == ("operator.olga", "quota.set", "refused", "REQUESTS:9")
    assert (line.policy, line.digest) == ("0123456789abcdef", content_hash(body))
    assert "limit_milli" in line.reason
    assert len(decided(replace(asked, payload=b'{"team": "research", "limit_milli": 5000}'))) == 1
    flood = [decided(replace(asked, stream_seq=n)) for n in range(10, 1010)]
    assert all(len(out) >= 1 for out in flood)
    assert sum(len(out) == 2 for out in flood) < AT_ONCE


def test_who_is_nobody_has_a_dead_letter_alone() -> None:
    decided = RefusedQuotas("main", "", partial(set_quota, "main", lambda: None))
    with pytest.raises(Malformed):
        decided(
            Received(subject="baton.cmd.quota", headers={}, payload=b"{}", stream="REQUESTS", stream_seq=1, time_us=1)
        )


def test_a_secret_that_a_team_changed_is_a_line_of_that_team() -> None:
    """And one that an operator removed is the operator's."""
    w = World(node("n0"))
    mine, theirs = (
        book(what, name=name * 8, target="red/token")[0]
        for what, name in (("secret.set", "a1"), ("secret.remove", "b2"))
    )
    w.send(SecretChanged(action=mine, team="red", user="ana"))
    w.send(SecretChanged(action=theirs, user="olga"))
    audit = AuditLines()
    told = [line for seq, record in enumerate(w.records, 1) for line in audit.of(record, seq)]
    assert [(line.actor, line.kind, line.target, line.teams) for line in told][-2:] == [
        ("red.ana", "secret.set", "red/token", ("red",)),
        ("operator.olga", "secret.remove", "red/token", ()),
    ]
