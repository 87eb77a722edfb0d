"""Wires vault: the narrow reader of the ledger, the store, and who is answered what."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from faststream.asgi import AsgiFastStream
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter

from libs.bus.boxes import CannotOpen, ForNode, ForVault, close_box, decoded
from libs.bus.broker import make_broker
from libs.bus.outbox import Outbox
from libs.bus.queries import AskAgain, InvalidQuestion, NothingFound, serve
from libs.bus.retry import retry_while_away, run_periodically
from libs.bus.stream_space import SUBMITS_HIGH_WATER, StreamSpace
from libs.core.admission.intake import Bucket
from libs.core.projections.secret_users import SecretUsers
from libs.ledger.follower import FollowedEntry, Follower
from libs.ledger.room import room_of
from libs.ports import clock
from libs.service.app import Tasks, make_asgi
from libs.service.connection import connected
from libs.service.few_lines import few_lines
from libs.service.following import readiness, show
from schemas.catalog import BY_TYPE
from schemas.ids import content_hash
from schemas.jobs import Reason
from schemas.secrets import (
    NodeSecrets,
    NodeSecretsQuery,
    SecretInfo,
    SecretList,
    SecretListQuery,
    SecretRekey,
    SecretRekeyed,
    SecretRemove,
    SecretRemoved,
    SecretSet,
)
from schemas.subjects import OPERATOR
from services.vault.book import ChangesBook
from services.vault.changes import ChangeNote, OutboxRelay, Requester
from services.vault.keys import BadKeys, KeyFile, RekeyUnderWay
from services.vault.settings import VaultSettings
from services.vault.store import Contended, SecretStore, StoreFull, Superseded, TooMuch

log = logging.getLogger("baton.vault")
locked = few_lines("baton.vault.locked")
"""Of secrets that no key of ours opens."""

FOLLOWER = "vault"
_TEAMS = 10_000
_LOOK_S = 0.01
_REST_S, _BUSY_REST_S = 0.1, 0.5
"""A record is read so long after it has come (the latter: while they keep coming), unless a node asks for what it says."""
_TELL_S = 3.0
"""A change that the ledger's inbox does not take within this is told later, and its sender asked to say it again."""


class Vault:
    """The answers. Nothing of a value is in a log, a metric, an error or a question's answer but a node's sealed one."""

    def __init__(self, settings: VaultSettings, keys: KeyFile, registry: CollectorRegistry) -> None:
        self.settings, self.keys = settings, keys
        self.follower: Follower[SecretUsers] | None = None
        self.store: SecretStore | None = None
        self.book: ChangesBook | None = None
        self.relay = OutboxRelay(self._settle)
        self._asked: OrderedDict[str, Bucket] = OrderedDict()
        self._changes: OrderedDict[str, Bucket] = OrderedDict()
        self._given = Counter(
            "baton_vault_nodes", "questions of nodes by what became of them", ["outcome"], registry=registry
        )
        show(registry, lambda: [self.follower])

    def begin(self, js: JetStreamContext) -> Follower[SecretUsers]:
        """Makes store and follower; the follower is to be run then."""
        self.store = SecretStore(js, self.keys)
        self.follower = Follower(
            js,
            self.settings.pool,
            SecretUsers,
            name=FOLLOWER,
            snapshot_every=self.settings.snapshot_records,
            only=SecretUsers.handled,
            rest_s=_REST_S,
            busy_rest_s=_BUSY_REST_S,
        )
        return self.follower

    async def tell_names(self) -> None:
        """Of all teams, at the start. A broker that is away is waited for: it would end the process, again and again."""
        for team in await retry_while_away(self._of_store().tell_names, _away):
            self.relay.add(team)

    async def seen(self, seq: int) -> None:
        """Returns when the record at `seq` was read, after `seen_wait_s` at the latest."""
        follower = self.follower
        deadline = clock.boot_s() + self.settings.seen_wait_s
        while follower is not None and follower.position < seq and clock.boot_s() < deadline:
            follower.hurry()
            await asyncio.sleep(_LOOK_S)

    # ------------------------------------------------------------------------------------------------------ of people

    async def set(self, query: SecretSet, team: str, user: str) -> SecretInfo:
        self._slowly(team)
        if team == OPERATOR:
            raise _invalid("team", team, "an operator sets no secrets", "speak as the team: --team, BATON_TEAM")
        self.keys.refresh()
        key = self.keys.named(query.key)
        if key is None:
            raise _invalid("key", query.key, "vault does not have this key any more", "ask for its key and seal again")
        try:
            inside: ForVault = key.box.open_as(query.sealed, ForVault)
            value = decoded(inside.value)
        except (CannotOpen, ValueError):
            raise _invalid(
                "sealed", "", "this is no value that is sealed to vault's key", "use `baton secret set`"
            ) from None
        if (inside.team, inside.name) != (team, query.name):
            raise _invalid("sealed", "", "the value was sealed as another secret's", "seal it with this team and name")
        try:
            await self._may_change(team)
            by = Requester(team, user, content_hash(query.sealed.encode()))
            with self.relay.again_on_error(team):
                info, changes = await self._of_store().set(
                    team, query.name, value, by, replaces=query.replaces, removed=query.removed
                )
                await self._account(team, changes)
            return info
        except TooMuch as e:
            raise _invalid("secret", e.value, str(e), e.fix) from None
        except (StoreFull, Contended, Superseded) as e:
            raise AskAgain(str(e)) from None

    async def list(self, query: SecretListQuery, team: str) -> SecretList:
        self._slowly(team)
        self.keys.refresh()
        held, revision = await self._of_store().load(_meant(query.team, team))
        return SecretList(
            secrets=held.infos(),
            key=self.keys.newest.id,
            removed=held.removed,
            revision=revision if team == OPERATOR else None,  # it counts the changes of all teams
        )

    async def remove(self, query: SecretRemove, team: str, user: str) -> SecretRemoved:
        self._slowly(team)
        if query.name is None and team != OPERATOR:
            raise _invalid("name", "", "which secret is not said", "name one")
        meant = _meant(query.team, team)
        try:
            await self._may_change(team)
            with self.relay.again_on_error(meant):
                names, changes = await self._of_store().remove(
                    meant, query.name, Requester(team, user), removes=query.removes, revision=query.revision
                )
                await self._account(meant, changes)
        except (StoreFull, Contended, Superseded) as e:
            raise AskAgain(str(e)) from None
        if query.name is not None and not names:
            raise NothingFound("there is no secret of this name")
        return SecretRemoved(names=names)

    async def rekey(self, query: SecretRekey, team: str, user: str) -> SecretRekeyed:
        if team != OPERATOR:
            raise _invalid("team", team, "only an operator changes the master key", "ask one")
        try:
            values, lost = await self._of_store().rekey()
        except (RekeyUnderWay, Contended, StoreFull) as e:
            raise AskAgain(str(e)) from None
        by = Requester(team, user)
        await self._told().changed([by.note("secret.rekey", "", f"{values} values, {lost} lost")])
        return SecretRekeyed(key=self.keys.newest.id, values=values, lost=lost)

    # ------------------------------------------------------------------------------------------------------- of nodes

    async def for_node(self, query: NodeSecretsQuery, node: str) -> NodeSecrets:
        """What the job of an attempt named, if the ledger says that the attempt is this node's to run."""
        follower = self.follower
        assert follower is not None, "questions are served once the ledger was read"
        holder = follower.projection.holder(query.job_id, query.attempt, node)
        if holder is None:
            self._given.labels("refused").inc()
            raise NothingFound(
                f"node {node} holds no part of attempt {query.attempt} of {query.job_id} that needs secrets and is to run",
                follower.position,
            )
        store = self._of_store()
        held = await store.of(holder.team)
        if missing := tuple(name for name in holder.names if name not in held.secrets):
            self._given.labels("missing").inc()
            return NodeSecrets(missing=missing)
        try:
            found = store.open(holder.team, held, holder.names)
        except CannotOpen as e:
            self._given.labels("failed").inc()
            locked.error("no job that needs it starts: %s", e)
            raise AskAgain(str(e)) from None
        answer = ForNode(
            pool=self.settings.pool,
            node=node,
            job_id=query.job_id,
            attempt=query.attempt,
            nonce=query.nonce,
            secrets=found,
        )
        self._given.labels("given").inc()
        return NodeSecrets(sealed=close_box(query.key, answer))

    # ------------------------------------------------------------------------------------------------------ internals

    def _slowly(self, team: str) -> None:
        """Raises AskAgain when the team asks too often: each question reads its whole entry."""
        most, per_s = float(self.settings.asked_at_once), self.settings.asked_per_s
        if wait_s := _taken(self._asked, team, most, per_s):
            rate = f"{per_s:g} questions about secrets a second, {most:g} at once"
            raise AskAgain(f"team {team} may ask {rate}: ask again in {wait_s:.1f} s")

    async def _may_change(self, team: str) -> None:
        """Raises AskAgain when the team changes secrets too often, each of which the ledger keeps for ever, or when the ledger
        takes nothing."""
        most, per_s = float(self.settings.changes_at_once), self.settings.changes_per_s
        if wait_s := _taken(self._changes, team, most, per_s):
            rate = f"{most:g} changes of secrets at once, and then one in {1 / per_s:g} s"
            raise AskAgain(f"team {team} may make {rate}: say it again in {wait_s:.0f} s")
        await self._told().ready()

    async def _account(self, team: str, changes: Sequence[ChangeNote]) -> None:
        """Tells the ledger of these changes of the team's secrets, and removes their notes. Others that are there are left
        behind. Raises AskAgain."""
        await self._told().changed(changes)
        if await self._forgotten(team, changes):
            self.relay.add(team)

    async def _settle(self, team: str) -> bool:
        """Of what another process, or a broker that did not answer, left behind. Returns whether there is more."""
        held = await self._of_store().of(team)
        overdue = [change for change in held.outbox if change.overdue()]
        if not overdue:
            return bool(held.outbox)
        try:
            await self._told().changed(overdue)
        except AskAgain:
            return True
        return await self._forgotten(team, overdue)

    async def _forgotten(self, team: str, told: Sequence[ChangeNote]) -> bool:
        """What the ledger was told of needs no notes. Returns whether some are there all the same."""
        try:
            return bool(await self._of_store().told(team, told))
        except (StoreFull, Contended) as e:
            log.warning("notes of changes that the ledger knows of stay for now: %s", e)
            return True

    def _told(self) -> ChangesBook:
        assert self.book is not None, "questions are served once there is a connection"
        return self.book

    def _of_store(self) -> SecretStore:
        assert self.store is not None, "questions are served once there is a connection"
        return self.store


def _taken(buckets: OrderedDict[str, Bucket], team: str, most: float, per_s: float) -> float:
    """How long the team must wait, s; 0: it need not."""
    at_us = int(clock.wall_s() * 1e6)
    bucket = buckets.setdefault(team, Bucket(most, at_us))
    buckets.move_to_end(team)
    if len(buckets) > _TEAMS:
        buckets.popitem(last=False)
    return bucket.take(most, per_s, at_us)


def _meant(asked_of: str | None, team: str) -> str:
    """Whose secrets are meant. Raises InvalidQuestion."""
    if team != OPERATOR:
        if asked_of not in (None, team):
            raise _invalid("team", "", "this is another team", "leave it out")
        return team
    if asked_of is None:
        raise _invalid("team", "", "an operator has no secrets", "name the team whose are meant")
    return asked_of


def _invalid(field: str, value: str, problem: str, fix: str) -> InvalidQuestion:
    return InvalidQuestion([Reason(field=field, value=value[:200], problem=problem, fix=fix)])


def _away(error: Exception, failures: int) -> None:
    if not failures:
        log.warning("the names of secrets cannot be published yet: %r", error)


def make_app(settings: VaultSettings) -> AsgiFastStream:
    """The service as an ASGI application. Raises BadKeys. It answers once it has read the ledger to its end."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "vault")
    vault = Vault(settings, KeyFile(settings.keys_path()), registry)
    tasks = Tasks()
    spaces: list[StreamSpace] = []  # made once the event loop runs
    ask = partial(serve, broker, queue="vault")
    ask(BY_TYPE["io.baton.secret.set.query.v1"], vault.set, users=True)
    ask(BY_TYPE["io.baton.secret.list.query.v1"], vault.list)
    ask(BY_TYPE["io.baton.secret.remove.query.v1"], vault.remove, users=True)
    ask(BY_TYPE["io.baton.secret.rekey.query.v1"], vault.rekey, users=True)
    ask(BY_TYPE["io.baton.node.secrets.query.v1"], vault.for_node, pool=settings.pool, seen=vault.seen)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "vault-ledger") as nats:
            js = nats.jetstream()
            follower = vault.begin(js)
            spaces[:] = [space := room_of(js, settings.pool)]
            tasks.start("space of the inbox", space.run())
            vault.book = ChangesBook(
                settings.pool, Outbox(js, give_up_s=_TELL_S), lambda items: space.lacks(items, SUBMITS_HIGH_WATER)
            )

            async def after(_: Sequence[FollowedEntry]) -> None:
                await asyncio.sleep(0)

            tasks.start("ledger reader", follower.run(after))
            complaint = "what was done with secrets is not told to the ledger yet"
            tasks.start("outbox of changes", run_periodically(vault.relay.turn, 0.0, log, complaint))
            async with tasks.until_stopped():
                yield

    async def caught_up() -> None:
        assert vault.follower is not None
        await vault.follower.caught_up.wait()
        await spaces[0].known.wait()
        await vault.tell_names()

    def ready() -> dict[str, str]:
        try:
            vault.keys.refresh()
            keys = "ok"
        except BadKeys as e:
            keys = str(e)
        return {"ledger": readiness(vault.follower), "keys": keys}

    return make_asgi(
        broker, name="vault", settings=settings, lifespan=lifespan, registry=registry, ready=ready, first=caught_up
    )
