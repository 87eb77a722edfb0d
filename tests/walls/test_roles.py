"""Each service speaks for itself: what its role lets it say, and that this is all it needs."""

import nats
import pytest

from libs.bus.connect import Address
from libs.cli.launch import SERVICES as LAUNCHED
from libs.walls import roles
from schemas import subjects
from schemas.catalog import CATALOG
from tests.client.fakes import until
from tests.walls.world import broker

MAY_NOT = [
    ("admission", "baton.led.pool.v1.record.main"),
    ("history", "baton.led.pool.v1.record.main.7"),
    ("queries", "baton.in.job.v1.admitted.main"),
    ("telemetry", "baton.in.node.v1.lost.main.n1"),
    ("preemption", "baton.evt.job.v1.granted.blue"),
    ("leases", "baton.cmd.node.v1.desired.main.n1"),
    ("quota_billing", "baton.cmd.job.v1.submit.blue.ana"),
    ("history", "$JS.API.STREAM.DELETE.LEDGER-main"),
    ("admission", "$JS.API.STREAM.CREATE.MINE"),
    ("telemetry", "$JS.API.STREAM.PURGE.REQUESTS"),
    ("leases", "$SYS.REQ.CLAIMS.UPDATE"),
]


def test_every_service_has_a_role() -> None:
    assert set(LAUNCHED) == set(roles.SERVICES)
    producers = {message.producer for message in CATALOG} - {"teams", "operators", "agent"}
    assert producers <= set(roles.SERVICES)
    with pytest.raises(ValueError, match="herald"):
        roles.service_may("herald")


def test_the_ledger_is_placements_alone() -> None:
    ledger = ("baton.led.", "baton.>", "baton.*", ">")
    assert [name for name in roles.SERVICES if any(s.startswith(ledger) for s in roles.service_may(name))] == [
        "placement"
    ]


def test_every_message_has_one_service_that_may_say_it() -> None:
    """An inbox's messages come from the service that the catalogue names, and from no other."""
    for message in CATALOG:
        if message.subject.startswith(("baton.in.", "baton.evt.", "baton.led.", "baton.cmd.")):
            pattern = subjects.anyone(message.subject)
            speakers = {name for name in roles.SERVICES if pattern in roles.service_may(name)}
            assert speakers == ({message.producer} & set(roles.SERVICES)), message.type


async def test_a_service_is_refused_what_is_anothers(tmp_path) -> None:
    with broker(tmp_path) as (url, ring):
        for service, subject in MAY_NOT:
            refused: list[str] = []

            async def note(error: Exception, refused: list[str] = refused) -> None:
                refused.append(str(error))

            connection = await nats.connect(url, error_cb=note, **Address("", ring.service(service)).options())
            await connection.publish(subject, b"{}")
            await until(lambda refused=refused: any("permissions violation" in text.lower() for text in refused))
            await connection.close()
