"""Admins of teams: users who may add, rotate and revoke users of their own team, without the keys.

The one process that holds the keys answers them. The naive way hands an admin a signing key of its team: then who signs is seen
by nobody, and an admin who is revoked goes on signing. So here each request is looked at, written down and carried out by us:

- the broker says who asks: only the role of an admin may publish the question, and only under its own team and name;
- whether that is an admin *now* is read from the keys each time;
- an admin makes users and no admins, and touches neither admins nor the whole team's credential;
- an admin boosts jobs of its team: we pass on the word under its name, and the pool looks whose the job is and what is left
  of the team's budget;
- a new user's key is made where the user is, and only its public half comes here: what is signed is useless to whoever sees it;
- every request, refused ones too, is a line of `team-admins.jsonl`: who, what, for whom, which key;
- what was changed is besides a line of the operator's book, and so in the ledger (`libs.walls.book`).

Who made a key can use it: an admin that adds `ben` could speak as `ben`. It is in the file, and `ben`, who then has no
credential of his own making, knows. What a revoked admin has made stays good, because it is the team's and not the admin's: the
file says what that is, and `baton team revoke` voids it.
"""

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence

from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import BaseModel

from libs.bus.asking import FAILED, INVALID, OK, STATUS
from libs.bus.messages import Malformed, decode_bare
from libs.core.admission.intake import Bucket
from libs.walls.book import Book
from libs.walls.keyring import Keyring
from libs.walls.keys_of import NoCredential
from libs.walls.people import People, is_pseudonym
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.inbox import BoostJob
from schemas.queries import QueryFailed
from schemas.team_management import ManageTeam, TeamManaged, TeamUser

log = logging.getLogger("baton.team")

CHANGES_AT_ONCE, CHANGES_PER_S = 1_000.0, 1 / 30
"""Of the users of one team, by its admins: each is kept for good, here and in the ledger of each pool."""
ASKED_AT_ONCE, ASKED_PER_S = 2_000.0, 5.0
"""Requests of one team, also those that change nothing: each reads all keys, in the process that looks after much else."""
AUDIT_FILE = "team-admins.jsonl"
_MESSAGE = BY_TYPE["io.baton.team.manage.query.v1"]
_QUEUE = "keys"
_WAITING = 256

SaysToPool = Callable[[str, BoostJob, str], Awaitable[int | None]]
"""Says to the pool of that name what an admin says, for the priority of that class (empty: the boost ends), and waits until it
is decided: by which record of its ledger. Raises AdminRefused with the pool's reason."""
Tell = Callable[[Sequence[str]], Awaitable[None]]
"""Tells the broker of these accounts (`libs.walls.resolver.tell`)."""


class AdminRefused(ValueError):
    """An admin may not do that; the text says why."""


class TeamAdmins:
    """Answers on `nats` until it is stopped. Of each team one request at a time: another team never waits for it."""

    def __init__(
        self,
        nats: Client,
        keyring: Keyring,
        tell: Tell,
        now: Callable[[], float] = time.time,
        booked: Callable[[], object] = lambda: None,
        *,
        boosts: SaysToPool,
    ) -> None:
        """`booked` is called in a thread when the operator's book has new lines: it tells the ledger. Nobody waits for it."""
        self._boosts = boosts
        self._nats, self._keyring, self._tell, self._now, self._booked = nats, keyring, tell, now, booked
        self._people = People(keyring.folder)
        self._book = Book(keyring.folder)
        self._lines = asyncio.Event()
        self._changed: dict[str, Bucket] = {}  # of teams that have an admin
        self._asked: dict[str, Bucket] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._subscription = await self._nats.subscribe(
            subjects.anyone(_MESSAGE.subject), queue=_QUEUE, cb=self._heard, pending_msgs_limit=_WAITING
        )
        await self._nats.flush()
        self._telling = asyncio.create_task(self._tell_ledger(), name="lines of the operator's book")

    async def _tell_ledger(self) -> None:
        while True:
            await self._lines.wait()
            self._lines.clear()
            try:
                await asyncio.to_thread(self._booked)
            except Exception:
                log.exception(
                    "the ledger was not told of lines of the book: the next ones tell them, or `baton audit push`"
                )

    async def stop(self) -> None:
        await self._subscription.unsubscribe()
        self._telling.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _heard(self, message: Msg) -> None:
        team = subjects.read(_MESSAGE.subject, message.subject)["team"]
        at_us = int(self._now() * 1e6)
        asked = self._asked.setdefault(team, Bucket(ASKED_AT_ONCE, at_us))
        if wait_s := asked.take(ASKED_AT_ONCE, ASKED_PER_S, at_us):
            often = f"{ASKED_PER_S:g} times a second, {ASKED_AT_ONCE:g} at once"
            why = f"admins of team {team} may ask {often}: ask again in {wait_s:.1f} s"
            return await _answer(message, FAILED, QueryFailed(status=FAILED, message=why))
        if team in self._busy:
            return await _answer(
                message, FAILED, QueryFailed(status=FAILED, message=f"team {team} has asked already: ask again")
            )
        self._busy[team] = task = asyncio.create_task(self._decide(message))
        task.add_done_callback(lambda _: self._busy.pop(team, None))

    async def _decide(self, message: Msg) -> None:
        try:
            asker = subjects.read(_MESSAGE.subject, message.subject)
            _, asked = decode_bare(ManageTeam, message.subject, message.headers, message.data or b"{}")
            done = await self.manage(asker["team"], asker["user"], asked)
            await _answer(message, OK, done)
        except (Malformed, AdminRefused, NoCredential) as e:
            await _answer(message, INVALID, QueryFailed(status=INVALID, message=str(e)[:4096]))
        except Exception as e:
            log.exception("a request of an admin failed")
            failed = QueryFailed(status=FAILED, message=f"{type(e).__name__}: run it again, or ask an operator"[:4096])
            await _answer(message, FAILED, failed)

    async def manage(self, team: str, user: str, asked: ManageTeam) -> TeamManaged:
        """Carries out what `user` of `team` asks. Raises AdminRefused, NoCredential, and what `tell` raises."""
        try:
            if asked.what == "boost":
                return await self._boost(team, user, asked)
            if asked.user:
                known = await asyncio.to_thread(self._people.known, team, asked.user)
                asked = asked.model_copy(update={"user": known})
            asked, done = await asyncio.to_thread(self._carry_out_and_book, team, user, asked)
        except (AdminRefused, NoCredential) as e:
            self._write(team, user, asked, refused=str(e))
            raise
        if asked.what != "list":
            self._write(team, user, asked)
            await self._tell([team])
            self._lines.set()
        return done

    async def _boost(self, team: str, user: str, asked: ManageTeam) -> TeamManaged:
        """The pool's ledger has what became of it, so the operator's book has no line."""
        await asyncio.to_thread(self._may, team, user, asked)
        if asked.boost is None or not asked.pool:
            raise AdminRefused("boost, pool: say which job, and in which pool")
        self._slowly(team)
        said = asked.boost.model_copy(update={"user": user, "team": team})
        seq = await self._boosts(asked.pool, said if asked.to else said.model_copy(update={"for_s": 0.0}), asked.to)
        self._write(team, user, asked)
        return TeamManaged(team=team, ledger_seq=seq)

    def _carry_out_and_book(self, team: str, user: str, asked: ManageTeam) -> tuple[ManageTeam, TeamManaged]:
        """What changes something has a line of the book from before it begins; what is refused does not begin. Returns what
        was asked as well, as it is kept: by a pseudonym, if the instance has them."""
        self._may(team, user, asked)
        if asked.what == "list":
            return asked, self._carry_out(team, user, asked)
        self._slowly(team)
        drawn = False
        if asked.what == "add" and self._people.wanted(asked.pseudonym):
            people = self._people.of(team)
            drawn = asked.user not in people and asked.user not in people.values()
            asked = asked.model_copy(update={"user": self._pseudonym(team, asked.user)})
        said = {
            "what": f"team-admin.{asked.what}", "target": f"{team}.{asked.user}", "reason": "",
            "at_us": int(self._now() * 1e6), "host": socket.gethostname()[:255], "login": "", "tool": "",
        }  # fmt: skip
        with self._book.entry(said) as more:
            try:
                done = self._carry_out(team, user, asked)
            except NoCredential:
                if drawn:
                    self._people.erase(team, asked.user)
                raise
            more["detail"] = f"by {team}.{user}" + (f", key {asked.public_key}" if asked.public_key else "")
        return asked, done

    def _pseudonym(self, team: str, person: str) -> str:
        """Of a new user; drawn when everything else is well, for each is kept until it is erased. Raises AdminRefused."""
        if person in self._people.of(team):
            return person
        try:
            return self._people.pseudonym(team, person)
        except ValueError as e:
            raise AdminRefused(f"user: {e}") from None

    def _slowly(self, team: str) -> None:
        """Raises AdminRefused: each change is a line of the ledger, which only grows."""
        at_us = int(self._now() * 1e6)
        bucket = self._changed.setdefault(team, Bucket(CHANGES_AT_ONCE, at_us))
        if wait_s := bucket.take(CHANGES_AT_ONCE, CHANGES_PER_S, at_us):
            raise AdminRefused(
                f"admins of team {team} have changed {CHANGES_AT_ONCE:g} things at once, and may {60 * CHANGES_PER_S:g} times "
                f"a minute: ask again in {wait_s:.0f} s"
            )

    def _may(self, team: str, user: str, asked: ManageTeam) -> None:
        """Raises AdminRefused."""
        ring = self._keyring
        if f"{team}.{user}" not in ring.admins(team):
            raise AdminRefused(
                f"{team}.{user} is no admin of {team}: an operator makes one with `baton team add {team}.{user} --admin`"
            )
        name = f"{team}.{asked.user}"
        if asked.what not in ("list", "boost"):
            if not asked.user:
                raise AdminRefused("user: say which user of your team")
            if name in ring.admins(team):
                raise AdminRefused(f"user = {asked.user}: an admin; admins are the operators' to make and to revoke")
        if asked.what in ("add", "rotate"):
            known = name in ring.users(team)
            if asked.what == "add" and known:
                raise AdminRefused(f"user = {asked.user}: has a credential already; rotate it, and the old one is void")
            if asked.what == "rotate" and not known:
                raise AdminRefused("user: has no credential; add one")
            if not asked.public_key:
                raise AdminRefused("public_key: say for which key, the public half of one that the user made")
            ring.check_signing(name, asked.public_key)
        elif asked.what == "revoke" and name not in ring.users(team):
            raise AdminRefused("user: has no credential")

    def _carry_out(self, team: str, user: str, asked: ManageTeam) -> TeamManaged:
        ring, name, token = self._keyring, f"{team}.{asked.user}", ""
        if asked.what in ("add", "rotate"):
            token = ring.sign(name, asked.public_key, by=f"{team}.{user}")
        elif asked.what == "revoke":
            ring.revoke(name)
        admins, people = set(ring.admins(team)), self._people.of(team)
        users = tuple(
            TeamUser(name=one, admin=one in admins, person=people.get(one.partition(".")[2], ""))
            for one in ring.users(team)
            if "." in one
        )
        return TeamManaged(team=team, token=token, users=users)

    def _write(self, team: str, user: str, asked: ManageTeam, refused: str = "") -> None:
        """A line for whoever asks later who did it. Whom a refused request names is not told when nobody of that name has a
        credential: it may be a person's."""
        told = not refused or is_pseudonym(asked.user) or f"{team}.{asked.user}" in self._keyring.users(team)
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now())),
            "team": team, "by": f"{team}.{user}", "what": asked.what, "user": asked.user if told else "",
            "public_key": asked.public_key, "refused": refused,
        }  # fmt: skip
        if asked.boost is not None:
            line |= {"job": asked.boost.job_id, "pool": asked.pool}
        path = self._keyring.folder / AUDIT_FILE
        if refused and path.is_file() and path.stat().st_size > _AUDIT_BYTES:
            return  # whoever is refused for ever fills no disk; what was done is always written
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(json.dumps(line) + "\n")


_AUDIT_BYTES = 16 * 1024 * 1024


async def _answer(message: Msg, status: str, answer: BaseModel) -> None:
    if message.reply:
        await message._client.publish(message.reply, answer.model_dump_json().encode(), headers={STATUS: status})
