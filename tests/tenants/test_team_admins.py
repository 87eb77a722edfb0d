"""Admins of teams, on a real broker: what they may do takes effect at once; what they may not is refused and written down."""

import asyncio
import json
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from libs.bus.asking import QueryError, ask
from libs.bus.connect import Address, BusConnection, BusUnavailable, close, connect
from libs.cli.team_admin import answering
from libs.walls import claims, managing
from libs.walls.book import Book
from libs.walls.claims import SEED_BYTES, KeyKind, KeyPair
from libs.walls.keyring import Keyring
from libs.walls.keys_of import NoCredential
from libs.walls.managing import AUDIT_FILE, TeamAdmins
from libs.walls.names import check_numbers
from libs.walls.people import People
from libs.walls.resolver import tell
from libs.walls.wire import Wire
from schemas import ledger, subjects
from schemas.audit import ActionOutcome
from schemas.catalog import BY_TYPE
from schemas.ids import team_uid
from schemas.inbox import ApplyQueues, BoostJob
from schemas.queue_status import QueuesQuery
from schemas.queues import Queue
from schemas.team_management import ManageTeam, TeamManaged
from services.placement.app import make_app as make_placement
from services.placement.settings import PlacementSettings
from services.queries.app import make_app as make_queries
from services.queries.settings import QueriesSettings
from tests.admission.running import running
from tests.cli.test_command import Result, baton
from tests.core.builders import job
from tests.kit.waiting import until
from tests.services.pool import Pool
from tests.walls.claimed import said_by
from tests.walls.world import broker

ONE_NUMBER = ("team-4297", "team-10338")
"""Two names whose user ids are one."""
MANAGE, QUEUES = BY_TYPE["io.baton.team.manage.query.v1"], BY_TYPE["io.baton.queues.list.query.v1"]


@dataclass
class House:
    """A broker with teams blue (ana its admin, ben a user) and green (eve its admin), and who answers admins."""

    url: str
    ring: Keyring

    async def of(self, creds: Path | str, name: str) -> BusConnection:
        team, _, user = name.partition(".")
        return await connect(Address(self.url, creds), name=name, inbox_prefix=subjects.reply_prefix(team, user))


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("admins")) as made:
        yield made


@pytest.fixture
async def house(bus: tuple[str, Keyring]) -> AsyncIterator[House]:
    url, ring = bus
    for admin in ("blue.ana", "green.eve"):
        ring.team(admin, admin=True)
    ring.team("blue.ben")
    await tell(url, ring, ring.accounts)
    async with answering(url, ring):
        yield House(url, ring)


def a_key() -> KeyPair:
    return KeyPair.of(KeyKind.USER, secrets.token_bytes(SEED_BYTES))


async def manage(nats: Client, asker: str, what: str, user: str = "", key: str = "") -> TeamManaged:
    team, _, name = asker.partition(".")
    asked = ManageTeam(what=what, user=user, public_key=key, pseudonym=False)  # type: ignore[arg-type]
    answer: TeamManaged = await ask(nats, MANAGE, asked, team=team, user=name)
    return answer


async def test_an_admin_adds_rotates_and_revokes_users_of_its_own_team(house: House) -> None:
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    key = a_key()
    added = await manage(ana, "blue.ana", "add", "carl", key.public)
    assert [(one.name, one.admin) for one in added.users if one.name in ("blue.ana", "blue.carl")] == [
        ("blue.ana", True), ("blue.carl", False),
    ]  # fmt: skip
    carl = await house.of(claims.credentials(added.token, key), "blue.carl")
    ack = await carl.request(subjects.submit("blue", "carl"), b"{}", timeout=10)
    assert json.loads(ack.data)["stream"] == "REQUESTS"
    before = house.ring.keys()
    house.ring.team("blue.carl")  # as at each start of `baton up --users blue.carl`
    assert house.ring.keys() == before, "nobody makes a second credential beside the one that was made elsewhere"
    newer = a_key()
    again = await manage(ana, "blue.ana", "rotate", "carl", newer.public)
    await until(lambda: not carl.is_connected)
    carl = await house.of(claims.credentials(again.token, newer), "blue.carl")
    await manage(ana, "blue.ana", "revoke", "carl")
    await until(lambda: not carl.is_connected)
    with pytest.raises(BusUnavailable, match="revoked or rotated"):
        await house.of(claims.credentials(again.token, newer), "blue.carl")
    said = [(one["by"], one["what"], one["user"], one["public_key"]) for one in written_down(house)]
    assert said[-3:] == [
        ("blue.ana", "add", "carl", key.public),
        ("blue.ana", "rotate", "carl", newer.public),
        ("blue.ana", "revoke", "carl", ""),
    ]  # fmt: skip
    await close(ana)


def written_down(house: House) -> list[dict[str, str]]:
    """What admins asked for, in order."""
    return [json.loads(line) for line in (house.ring.folder / AUDIT_FILE).read_text().splitlines()]


@pytest.mark.parametrize(
    ("what", "user", "key", "why"),
    [
        ("add", "ben", "own", "has a credential already"),
        ("rotate", "nobody", "own", "has no credential"),
        ("rotate", "ana", "own", "admins are the operators' to make"),
        ("revoke", "ana", "", "admins are the operators' to make"),
        ("revoke", "nobody", "", "has no credential"),
        ("add", "", "own", "say which user"),
        ("add", "dora", "", "public_key"),
    ],
)
async def test_what_an_admin_may_not_is_refused_and_written_down(
    house: House, what: str, user: str, key: str, why: str
) -> None:
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    before = house.ring.keys()
    with pytest.raises(QueryError, match=why):
        await manage(ana, "blue.ana", what, user, a_key().public if key else "")
    assert house.ring.keys() == before
    assert why in written_down(house)[-1]["refused"]
    await close(ana)


async def test_an_admin_makes_nobody_elses_credential_void_by_its_key(house: House) -> None:
    """What is void is a key: a user made with another admin's key, or with the whole team's, and revoked would take that along.
    A public key is no secret."""
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    house.ring.team("blue.amy", admin=True)
    await tell(house.url, house.ring, ["blue"])
    amy = await house.of(house.ring.team("blue.amy", admin=True), "blue.amy")
    keys = house.ring.keys().teams["blue"].users
    for what, user, whose in (("add", "dora", "blue.amy"), ("rotate", "ben", "blue.amy"), ("add", "dora", "blue.ben")):
        with pytest.raises(QueryError, match="somebody else's"):
            await manage(ana, "blue.ana", what, user, keys[whose])
    assert amy.is_connected
    assert house.ring.keys().teams["blue"].users == keys
    house.ring.revoke("blue.amy")
    await close(ana)
    await close(amy)


@pytest.mark.parametrize("what", ["rotate", "revoke", "add"])
async def test_whom_a_refused_request_names_is_not_written_down(house: House, what: str) -> None:
    """Who has no credential is somebody's name, mistyped, or of before it was erased."""
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    with pytest.raises(QueryError):
        await manage(ana, "blue.ana", what, "smith", "" if what == "add" else a_key().public)
    assert written_down(house)[-1]["what"] == what
    assert "smith" not in json.dumps(written_down(house))
    await close(ana)


async def test_of_whom_a_refused_request_names_no_name_is_kept_with_the_keys(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team has room for so many names, and the file with them is read for each request of any team."""
    monkeypatch.setattr(managing, "CHANGES_AT_ONCE", 1.0)
    people = People(house.ring.folder)
    people.begin()
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    subject = subjects.fill(MANAGE.subject, team="blue", user="ana")

    async def added(person: str, key: str) -> str:
        body = {"what": "add", "user": person, "public_key": key}
        answer = await ana.request(subject, json.dumps(body).encode(), timeout=10)
        return (answer.headers or {})["Baton-Status"]

    assert await added("smith", "") == "invalid", "without a key"
    assert people.of("blue") == {}
    assert await added("jones", a_key().public) == "ok"
    assert await added("smith", a_key().public) == "invalid", "so many changes at once, and no more"
    assert list(people.of("blue").values()) == ["jones"]
    await close(ana)


@pytest.mark.parametrize("body", [
    {"what": "add", "user": "a.b", "public_key": ""},
    {"what": "add", "user": "dora", "public_key": "A" + "B" * 55},
    {"what": "add", "user": "dora", "public_key": "U" + "B" * 55, "role": "services"},
    {"what": "make-operator"},
    ["add"],
])  # fmt: skip
async def test_what_cannot_be_is_refused_and_answers_go_on(house: House, body: Any) -> None:
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    subject = subjects.fill(MANAGE.subject, team="blue", user="ana")
    answer = await ana.request(subject, json.dumps(body).encode(), timeout=10)
    assert (answer.headers or {})["Baton-Status"] == "invalid"
    assert "blue.dora" not in house.ring.users("blue")
    assert (await manage(ana, "blue.ana", "list")).team == "blue"
    await close(ana)


async def test_only_an_admin_may_ask_and_only_for_its_own_team_and_name(house: House) -> None:
    for name, asks_as in (
        ("blue.ben", "blue.ben"),
        ("blue.ben", "blue.ana"),
        ("blue.ana", "green.eve"),
        ("blue.ana", "blue.ben"),
    ):
        refused: list[str] = []

        async def note(error: Exception, refused: list[str] = refused) -> None:
            refused.append(str(error))

        nats = await house.of(house.ring.team(name), name)
        nats._error_cb = note
        team, _, user = asks_as.partition(".")
        await nats.publish(subjects.fill(MANAGE.subject, team=team, user=user), b'{"what": "list"}', reply="_INBOX.x")
        await until(lambda refused=refused: any("permissions violation" in text.lower() for text in refused))
        await close(nats)


async def test_a_user_of_an_admin_has_a_users_rights_and_no_more(house: House) -> None:
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    key = a_key()
    token = (await manage(ana, "blue.ana", "add", "fred", key.public)).token
    said = said_by(token)
    assert (said["name"], said["nats"].get("pub"), said["nats"].get("sub")) == ("blue.fred", None, None)
    assert said["iss"] == house.ring.keys().teams["blue"].role("user").public, "signed with the users' own key"
    await manage(ana, "blue.ana", "revoke", "fred")
    await close(ana)


async def test_an_admin_who_is_revoked_is_out_and_what_it_made_stays(house: House) -> None:
    made = house.ring.team("blue.gina", admin=True)
    await tell(house.url, house.ring, ["blue"])
    gina = await house.of(made, "blue.gina")
    key = a_key()
    token = (await manage(gina, "blue.gina", "add", "hal", key.public)).token
    house.ring.revoke("blue.gina")
    await tell(house.url, house.ring, ["blue"])
    await until(lambda: not gina.is_connected)
    hal = await house.of(claims.credentials(token, key), "blue.hal")
    await close(hal)
    assert "blue.gina" not in house.ring.admins("blue")


async def test_an_admin_that_asks_without_end_is_answered_at_a_rate(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """460 lists a second took 40 % of a processor, in the process that looks after services and floods."""
    monkeypatch.setattr(managing, "ASKED_AT_ONCE", 3.0)
    monkeypatch.setattr(managing, "ASKED_PER_S", 1e-6)
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    for _ in range(3):
        await manage(ana, "blue.ana", "list")
    with pytest.raises(QueryError, match="3 at once: ask again in"):
        await manage(ana, "blue.ana", "list")
    eve = await house.of(house.ring.team("green.eve"), "green.eve")
    assert (await manage(eve, "green.eve", "list")).team == "green"
    await close(ana)
    await close(eve)


async def test_what_is_asked_while_a_team_leaves_leaves_no_user_and_no_name(tmp_path: Path) -> None:
    """The admin was looked at, then all of its team was made void, and then its user was signed, for good."""
    ring, people, began = Keyring(tmp_path), People(tmp_path), False
    ring.team("red.ana", admin=True)

    def now() -> float:
        """It is asked for once who asks has been looked at."""
        nonlocal began
        if not began:
            began = True
            ring.revoke("red")
            people.erase("red")
        return time.time()

    async def told(accounts: Sequence[str]) -> None:
        pass

    async def boosts(pool: str, boost: BoostJob, to: str) -> None:
        pass

    admins = TeamAdmins(Client(), ring, told, now, boosts=boosts)
    asked = ManageTeam(what="add", user="mallory", public_key=a_key().public, pseudonym=True)
    with pytest.raises(NoCredential, match=r"red\.ana is no admin of red"):
        await admins.manage("red", "ana", asked)
    assert (ring.users("red"), people.of("red")) == ([], {})


async def test_the_command_of_an_admin_needs_no_keys(house: House, tmp_path: Path) -> None:
    other = Keyring(tmp_path / "other")
    Wire(other).make(["127.0.0.1"])
    mine = Path(shutil.copy(house.ring.team("blue.ana"), other.creds))

    async def admin(*words: str) -> Result:
        env = {"BATON_NATS_CREDS": str(mine), "BATON_STATE_DIR": str(tmp_path / "none")}
        return await baton("team", *words, BATON_NATS_URL=house.url, **env)

    path = tmp_path / "ida.creds"
    added = await admin("add", "blue.ida", "--plain", "--write", str(path))
    assert (added.code, added.out) == (0, f"{path}\n"), added.err
    assert f"with {mine.with_name('ca.pem')}, by which the broker is known" in added.err, (
        "it was not said, and is needed"
    )
    assert path.stat().st_mode & 0o077 == 0
    await close(await house.of(path, "blue.ida"))
    rotated = await admin("rotate", "blue.ida", "--write", str(path), "-o", "json")
    about = {"team": "blue", "credential": "blue.ida", "file": str(path), "broker_told": True}
    assert (rotated.code, json.loads(rotated.out)) == (0, {**about, "done": "rotated"}), rotated.err
    foreign, twice = await asyncio.gather(admin("add", "green.x"), admin("revoke", "blue.nobody", "--reason", "gone"))
    assert (foreign.code, twice.code) == (4, 2)
    assert "of another team than yours" in foreign.err
    for words in (("add", "blue.eva", "--admin"), ("revoke", "blue", "--reason", "x"), ("add", "green"), ("push",)):
        operators = await admin(*words)
        assert (operators.code, "refused: needs an operator's credential" in operators.err) == (4, True), operators.err


async def test_what_an_admin_changes_is_a_line_of_the_operators_book(house: House) -> None:
    ana = await house.of(house.ring.team("blue.ana"), "blue.ana")
    book = Book(house.ring.folder)
    before = len(book.lines())
    key = a_key()
    await manage(ana, "blue.ana", "add", "dora", key.public)
    await manage(ana, "blue.ana", "revoke", "dora")
    await manage(ana, "blue.ana", "list")
    with pytest.raises(QueryError, match="has no credential"):
        await manage(ana, "blue.ana", "revoke", "nobody")
    said = [(line.what, line.target, line.outcome, line.detail) for line in book.lines()[before:]]
    assert said[:2] == [
        ("team-admin.add", "blue.dora", ActionOutcome.DONE, f"by blue.ana, key {key.public}"),
        ("team-admin.revoke", "blue.dora", ActionOutcome.DONE, "by blue.ana"),
    ]
    assert len(said) == 2, "what is refused changes nothing, and fills no book"
    await close(ana)


async def test_an_admin_boosts_jobs_of_its_own_team_and_the_pool_looks(
    house: House, redis_url: str, tmp_path: Path
) -> None:
    creds = house.ring.service()
    core = await connect(Address(house.url, creds), name="core")
    world, own, other = Pool(core, "main"), job("own", 8, team="blue"), job("other", 8, team="green")
    common: dict[str, Any] = {"nats_url": house.url, "nats_creds": creds, "pool": "main", "redis_url": redis_url}

    async def said(who: str, of: str, *words: str) -> Result:
        env = {"BATON_NATS_CREDS": str(house.ring.team(who)), "BATON_STATE_DIR": str(tmp_path / "none")}
        words = ("boost", of, *words, "--reason", "a deadline", "--pool", "main")
        return await baton(*words, BATON_NATS_URL=house.url, **env)

    async with (
        running(make_placement(PlacementSettings(**common), writer_id="w1")),
        running(make_queries(QueriesSettings(**common))),
    ):
        await world.put(own, other)
        await world.event(ledger.JobQueued, job_id=other.job_id)
        raised = await said("blue.ana", own.job_id, "--to", "serving", "--for", "1h", "-o", "json")
        assert raised.code == 0, raised.err
        told = json.loads(raised.out)
        decided = await world.events_of(told.pop("ledger_seq"))
        assert [event.job_id for event in decided if isinstance(event, ledger.JobBoosted)] == [own.job_id]
        assert told == {
            "pool": "main", "job_id": own.job_id, "class": "serving", "for_s": 3600, "done": "boosted",
        }  # fmt: skip
        boosted = await world.event(ledger.JobBoosted, job_id=own.job_id)
        assert (boosted.team, boosted.user, boosted.priority > own.priority) == ("blue", "ana", True)
        ana, eve = [await house.of(house.ring.team(name), name) for name in ("blue.ana", "green.eve")]
        for asker, nats, of, to, hours, why in (
            ("blue.ana", ana, other, "serving", 1, "no such job waits or runs"),
            ("green.eve", eve, other, "servin", 1, "there is no such priority class"),
            ("green.eve", eve, other, "serving", 48, "86400 s at the most"),
        ):
            words = BoostJob(job_id=of.job_id, priority=0, for_s=3600 * hours, reason="late")
            asked = ManageTeam(what="boost", pool="main", boost=words, to=to)
            team, _, name = asker.partition(".")
            with pytest.raises(QueryError, match=why):
                await ask(nats, MANAGE, asked, timeout_s=20, team=team, user=name)
        queues = (Queue(name="blue", classes=("experiment", "production")),)
        await world.put(ApplyQueues(version=1, queues=queues, user="olga"))
        await world.event(ledger.QueuesApplied)

        async def read() -> bool:
            reply = await ask(core, QUEUES, QueuesQuery(), pool="main", team=subjects.OPERATOR, user="olga")
            return bool(reply.version == 1)

        await until(read)
        above = await said("blue.ana", own.job_id, "--to", "serving", "--for", "1h")
        assert (above.code, "may not use that class; it may use experiment, production" in above.err) == (2, True), (
            above.err
        )
        below = await said("blue.ana", own.job_id, "--to", "production", "--for", "1h")
        assert below.code == 0, below.err
        user, ended = await asyncio.gather(said("blue.ben", own.job_id, "--end"), said("blue.ana", own.job_id, "--end"))
        assert (user.code, ended.code) == (4, 0), ended.err
        assert (await world.event(ledger.BoostEnded, job_id=own.job_id)).team == "blue"
        await asyncio.gather(close(ana), close(eve))
    written = [(one["by"], one.get("job"), bool(one["refused"])) for one in written_down(house) if "job" in one]
    assert ("blue.ana", own.job_id, False) in written
    assert ("blue.ana", other.job_id, True) in written
    await close(core)


def test_two_teams_with_one_number_are_not_both_taken(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)
    one, other = ONE_NUMBER
    assert team_uid(one) == team_uid(other)
    ring.team(one)
    with pytest.raises(ValueError, match=f"{other}.* the user id of team '{one}' on nodes, {team_uid(one)}"):
        ring.team(other)
    with pytest.raises(ValueError, match="give one of them another name"):
        ring.team(f"{other}.ana")
    assert ring.teams == [one]
    ring.team(f"{one}.ana")
    with pytest.raises(ValueError, match="give one of them another name"):
        check_numbers(ONE_NUMBER)
