"""Who reads all bills and does nothing: what `$finance` may ask, and what it tries in vain."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from libs.bus.connect import Address
from libs.walls.accounts import CORE, FINANCE
from libs.walls.keyring import Keyring
from libs.walls.keys_of import NoCredential
from libs.walls.names import check_teams
from libs.walls.resolver import tell
from schemas import subjects
from schemas.subjects import OPERATOR, reply_prefix
from tests.kit.waiting import until
from tests.walls.world import broker

OWN = "_finance.fay"
ASKS = (
    f"baton.qry.bill.v1.get.main.{OWN}",
    f"baton.qry.use.v1.list.main.{OWN}",
    f"baton.qry.budgets.v1.list.main.{OWN}",
    f"baton.qry.ledger.v1.records.main.{OWN}",
)
MAY_NOT = (
    "baton.cmd.job.v1.submit.blue.fay",
    "baton.cmd.job.v1.submit._finance.fay",
    "baton.cmd.job.v1.cancel.blue.fay",
    "baton.cmd.job.v1.cancel._finance.fay",
    "baton.cmd.quota.v1.set.main.operator.fay",
    "baton.in.operator.v1.node-cordoned.main.operator.fay",
    "baton.in.operator.v1.node-dead.main._finance.fay",
    "baton.in.operator.v1.prices-applied.main.operator.fay",
    "baton.in.operator.v1.period-closed.main.operator.fay",
    "baton.in.operator.v1.period-closed.main._finance.fay",
    "baton.in.node.v1.observed.main.n1",
    "baton.led.pool.v1.record.main",
    "baton.evt.job.v1.succeeded.blue",
    "baton.qry.bill.v1.get.main.operator.fay",
    "baton.qry.bill.v1.get.main.blue.fay",
    "baton.qry.bill.v1.get.main._finance.eve",
    "baton.qry.ledger.v1.records.main.operator.fay",
    "baton.qry.job.v1.list.main._finance.fay",
    "baton.qry.job.v1.get._finance.fay",
    "baton.qry.job.v1.plan.main._finance.fay",
    "baton.qry.log.v1.read._finance.fay",
    "baton.qry.node.v1.list.main._finance.fay",
    "baton.qry.secret.v1.list._finance.fay",
    "baton.qry.secret.v1.set._finance.fay",
    "baton.qry.team.v1.manage._finance.fay",
    "baton.qry.audit.v1.read.main._finance.fay",
    "$JS.API.INFO",
    "$JS.API.STREAM.MSG.GET.LEDGER-main",
    "$JS.API.CONSUMER.CREATE.LEDGER-main",
    "$JS.API.STREAM.PURGE.LEDGER-main",
    "$KV.baton-cursors.ledger-format.main",
    "$SYS.REQ.CLAIMS.UPDATE",
)
MAY_NOT_HEAR = (">", "baton.>", "baton.evt.job.v1.granted.blue", "_INBOX_operator.>", "_INBOX__finance.eve.>", "$SYS.>")


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("finance")) as made:
        yield made


class Person:
    """A connection, and what the broker refused it."""

    nats: Client

    def __init__(self) -> None:
        self.refused: list[str] = []

    async def refuses(self, what: str) -> None:
        await until(lambda: any(what in said for said in self.refused))

    async def note(self, error: Exception) -> None:
        self.refused.append(str(error).lower())


async def person(bus: tuple[str, Keyring], user: str = "fay") -> Person:
    url, ring = bus
    known = ring.finance_users()
    path, made = ring.finance(user), Person()
    if user not in known:
        await tell(url, ring, [FINANCE] if known else [CORE, FINANCE])
    prefix = reply_prefix(subjects.FINANCE, user)
    made.nats = await nats.connect(url, error_cb=made.note, inbox_prefix=prefix, **Address("", path).options())
    return made


@pytest.fixture
async def fay(bus: tuple[str, Keyring]) -> AsyncIterator[Person]:
    one = await person(bus)
    yield one
    await one.nats.close()


@pytest.fixture
async def core(bus: tuple[str, Keyring]) -> AsyncIterator[Client]:
    url, ring = bus
    client = await nats.connect(url, inbox_prefix="_INBOX.services", **Address("", ring.service()).options())
    yield client
    await client.close()


async def test_it_is_answered_what_it_asks_about_money(fay: Person, core: Client) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(message.subject.encode())

    await core.subscribe("baton.qry.>", cb=answer)
    await core.flush()
    for subject in ASKS:

        async def told(asked: str = subject) -> bytes | None:
            try:
                return (await fay.nats.request(asked, b"{}", timeout=5)).data
            except NoRespondersError:  # the broker is taking in the accounts that it was told of
                return None

        assert await until(told) == subject.encode()
    assert fay.refused == []


@pytest.mark.parametrize("subject", MAY_NOT)
async def test_it_says_nothing_else(subject: str, fay: Person, core: Client) -> None:
    """No command, no input of a pool, no question of another, no API of the broker: nobody hears it."""
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    await core.subscribe(">", cb=hear)
    await core.flush()
    await fay.nats.publish(subject, b"{}")
    await fay.nats.flush()
    await fay.refuses(f'permissions violation for publish to "{subject.lower()}"')
    await core.flush()
    assert [message.subject for message in heard if message.subject == subject] == []


@pytest.mark.parametrize("subject", MAY_NOT_HEAR)
async def test_it_hears_its_own_answers_alone(subject: str, fay: Person) -> None:
    await fay.nats.subscribe(subject)
    await fay.nats.flush()
    await fay.refuses(f'permissions violation for subscription to "{subject.lower()}"')


@pytest.mark.parametrize(
    "reply", ["baton.cmd.job.v1.submit.blue.eve", "LEDGER-main", "baton.led.pool.v1.record.main", "_INBOX_operator.x"]
)
async def test_its_answer_goes_nowhere_else(reply: str, fay: Person, core: Client) -> None:
    """The broker puts a reply subject of its own in the place of the one that it chose."""
    heard: list[str] = []

    async def answer(message: Msg) -> None:
        heard.append(message.reply)
        await message.respond(b"forged")

    async def elsewhere(message: Msg) -> None:
        heard.append(message.subject)

    await core.subscribe(ASKS[0], cb=answer)
    await core.subscribe(reply, cb=elsewhere)
    await core.flush()

    async def asked() -> bool:
        await fay.nats.publish(ASKS[0], b"{}", reply=reply)
        await fay.nats.flush()
        return bool(heard)

    await until(asked)
    await core.flush()
    await asyncio.sleep(0)
    assert reply not in heard


async def test_a_team_may_not_ask_for_the_ledger(bus: tuple[str, Keyring], core: Client) -> None:
    url, ring = bus
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    await core.subscribe("baton.qry.ledger.>", cb=hear)
    await core.flush()
    blue = Person()
    blue.nats = await nats.connect(
        url, error_cb=blue.note, inbox_prefix=reply_prefix("blue", "ana"), **Address("", ring.team("blue")).options()
    )
    try:
        for asker in ("blue.ana", OWN, f"{OPERATOR}.ana"):
            subject = f"baton.qry.ledger.v1.records.main.{asker}"
            await blue.nats.publish(subject, b"{}", reply=f"{reply_prefix('blue', 'ana')}.x")
            await blue.refuses(f'permissions violation for publish to "{subject}"')
    finally:
        await blue.nats.close()
    await core.flush()
    assert heard == []


async def test_who_was_revoked_is_out_and_the_others_stay(bus: tuple[str, Keyring]) -> None:
    url, ring = bus
    gone, stays = await person(bus, "gone"), await person(bus, "stays")
    ring.revoke_finance("gone")
    await tell(url, ring, [FINANCE])
    await until(lambda: not gone.nats.is_connected)
    await stays.nats.flush()
    assert sorted(ring.finance_users()) == sorted({"stays", *ring.finance_users()} - {"gone"})
    with pytest.raises(NoCredential):
        ring.revoke_finance("gone")
    for one in (gone, stays):
        await one.nats.close()


def test_no_team_is_called_so(bus: tuple[str, Keyring]) -> None:
    for name in (subjects.FINANCE, FINANCE):
        with pytest.raises(ValueError, match=r"is not a team's name|cannot be a name"):
            check_teams([name])
    assert not {subjects.FINANCE, FINANCE} & set(bus[1].teams)
