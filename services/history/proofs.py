"""Keeps each team's lines and the sums over them in MongoDB, proposes the next sum, and proves to a team that its lines are in
one (docs/proofs.md).

    after      lines and sums of the records that were read, then the place in the ledger: a crash between repeats them
    lost       MongoDB has an older place than the snapshot: it was emptied or restored, so the ledger is folded anew
    proposed   a sum that did not come into the ledger is proposed again; the first of a number counts
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Sequence

from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter

from libs.adapters.mongo.proofs import KeptSum, ProofStore
from libs.adapters.mongo.store import StoreAway
from libs.bus.messages import outgoing
from libs.bus.outbox import Outbox
from libs.bus.queries import InvalidQuestion, NothingFound
from libs.bus.retry import UNAVAILABLE
from libs.core.proofs.chains import TeamChains
from libs.core.proofs.sums import way_back
from libs.core.proofs.tree import Tree, leaf_of, salt_of
from libs.ledger.chain import LedgerStopped
from libs.ledger.follower import FollowedEntry, Follower
from libs.ports.host import failpoint
from schemas import subjects
from schemas.inbox import SumProposed
from schemas.jobs import Reason
from schemas.proofs import AuditPart, AuditRead, Sum, TeamProof
from schemas.subjects import OPERATOR
from services.history.documents import IDLE_S
from services.history.outage import StoreOutage

log = logging.getLogger("baton.history")

MOST_BYTES = 600_000
"""Of lines in one answer, the first one excepted."""
_AGAIN_S = 30.0
"""A proposal is repeated after this."""
_FORGET_US = 3_600_000_000
"""How often what is too old is deleted, ledger time."""
_TREES = 4
_REST_S, _BUSY_REST_S = 0.2, 0.5
"""Each batch asks MongoDB three times, however many records it has."""


class _Lost(RuntimeError):
    """MongoDB has not what was written to it."""


class ProofLoop:
    """The loop. `problem` is "" while all is well; teams lack proofs meanwhile, and nothing else."""

    def __init__(
        self,
        js: JetStreamContext,
        pool: str,
        store: ProofStore,
        registry: CollectorRegistry,
        *,
        every_s: float,
        keep_days: float,
        snapshot_records: int = 5000,
    ) -> None:
        self.follower = Follower(
            js, pool, TeamChains, name="history-proofs", snapshot_every=snapshot_records, only=TeamChains.handled,
            idle_s=IDLE_S,
            rest_s=_REST_S,
            busy_rest_s=_BUSY_REST_S,
        )  # fmt: skip
        self._pool, self._store = pool, store
        self._outbox = Outbox(js)
        self._every_us, self._keep_us = int(every_s * 1e6), int(keep_days * 86_400e6)
        self._outage = StoreOutage("teams' lines")
        self._stopped = ""
        self._noted = 0
        self._not_before = 0.0
        self._forgot_us = 0
        self._written = Counter("baton_history_lines", "lines of teams written", registry=registry)
        self._summed = Counter("baton_history_sums", "sums of all teams' lines", ["what"], registry=registry)

    @property
    def problem(self) -> str:
        return self._stopped or self._outage.problem or self.follower.problem

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self._store.prepare()
                await self.follower.run(self._after, begin=self._begin)
            except StoreAway as error:
                await self._outage.wait(error, self._noted)
            except _Lost as error:
                log.warning("%s; writing all teams' lines again", error)
                await self.follower.forget()
            except LedgerStopped as error:
                # The documents and the feed say so as well, or can go on without what is archived; teams' lines cannot.
                self._stopped = f"teams' lines cannot be read on: {error}"
                log.error("%s", self._stopped)
                await asyncio.Event().wait()

    async def _begin(self) -> None:
        self._noted = await self._store.begin(self._pool)
        if self._noted < self.follower.resumed_at:
            raise _Lost(f"MongoDB has teams' lines up to record {self._noted}, not up to {self.follower.resumed_at}")

    async def _after(self, steps: Sequence[FollowedEntry]) -> None:
        stored = await self._store.place(self._pool)
        if stored is None or stored < self._noted:
            raise _Lost(f"MongoDB has lost teams' lines of before record {self._noted}")
        self._outage.over()
        told = [step.told for step in steps if step.told is not None]
        lines = [line for one in told for line in one.lines]
        sums = [one for entry in told for one in entry.sums]
        for one in sums:
            self._summed.labels("repeated" if one.repeat else "wrong" if one.problem else "written").inc()
            if one.problem:
                log.error("sum %d of pool %s %s", one.sum.number, self._pool, one.problem)
        await self._store.save(self._pool, lines, [one for one in sums if not one.problem and not one.repeat])
        failpoint("proofs.saved")
        self._noted = stored
        if self.follower.position > stored and await self._store.note(self._pool, stored, self.follower.position):
            self._noted = self.follower.position
        self._written.inc(len(lines))
        await self._forget()
        if self.follower.caught_up.is_set() and not self.follower.behind:
            await self._propose()

    async def _forget(self) -> None:
        now_us = self.follower.projection.t_us
        if now_us - self._forgot_us >= _FORGET_US and now_us > self._keep_us:
            await self._store.forget(self._pool, now_us - self._keep_us, self.follower.projection.needed())
            self._forgot_us = now_us

    async def _propose(self) -> None:
        """The next sum, when it is time. It does not depend on whether anything happened: that would tell a team of others."""
        chains, now = self.follower.projection, asyncio.get_running_loop().time()
        due = chains.heads and chains.t_us - chains.sums.t_us >= self._every_us and chains.seq > chains.sums.upto_seq
        if not due or now < self._not_before:
            return
        nonce = secrets.token_bytes(32)
        said = SumProposed(sum=chains.proposal(self._pool, nonce), nonce=nonce.hex())
        message = outgoing(
            said,
            subject=subjects.inbox("ledger", "summed", self._pool),
            type="io.baton.ledger.summed.v1",
            source=f"/baton/{self._pool}/history",
            cause=f"ledger:{self._pool}:{chains.seq}",
        )
        self._not_before = now + _AGAIN_S
        try:
            await self._outbox.publish_many([message])
        except UNAVAILABLE as error:
            log.warning("sum %d of pool %s is not proposed yet: %r", said.sum.number, self._pool, error)


class Proofs:
    """Answers teams from what is stored: any process may."""

    def __init__(self, pool: str, store: ProofStore) -> None:
        self._pool, self._store = pool, store
        self._trees: OrderedDict[str, Tree] = OrderedDict()

    async def read(self, query: AuditRead, asker: str) -> AuditPart:
        """The team's lines and a proof. Raises InvalidQuestion, NothingFound."""
        team = _meant(query.team, asker)
        store, pool = self._store, self._pool
        ledger_seq = await store.written_to(pool)  # first: lines may be newer than it says, and never older
        lines = await store.lines(pool, team, query.after, query.limit, MOST_BYTES)
        total = 0
        for at, line in enumerate(lines):
            total += len(line.text)
            if total > MOST_BYTES and at:
                lines = lines[:at]
                break
        last = lines[-1].seq if lines else query.after
        more = bool(await store.lines(pool, team, last, 1)) if query.limit else False
        kept = await store.sum_of(pool, query.sum)
        if kept is None and query.sum is not None:
            raise NothingFound(f"there is no sum {query.sum} (any more)", ledger_seq)
        oldest = await store.oldest_sum(pool)
        links: tuple[Sum, ...] = ()
        if kept is not None and query.since is not None and query.since <= kept.sum.number:
            links = tuple(await store.sums(pool, way_back(kept.sum.number, query.since)))
        return AuditPart(
            team=team, pool=pool, lines=tuple(line.text for line in lines), before=lines[0].before if lines else "",
            more=more,
            ledger_seq=ledger_seq, sum=kept.sum if kept is not None else None,
            proof=await self._proof(kept, team) if kept is not None else None,
            first_sum=oldest.sum.number if oldest is not None else None, links=links,
        )  # fmt: skip

    async def _proof(self, kept: KeptSum, team: str) -> TeamProof | None:
        line = await self._store.line_before(self._pool, team, kept.sum.upto_seq + 1)
        if line is None:
            return None
        salt = salt_of(kept.nonce, team)
        head = bytes.fromhex(line.head)
        try:
            place, path = self._tree(kept).path(leaf_of(salt, team, line.count, head))
        except KeyError:
            log.error("team %s has other lines than sum %d of pool %s", team, kept.sum.number, self._pool)
            return None
        return TeamProof(
            sum=kept.sum, count=line.count, head=line.head, salt=salt.hex(), place=place,
            path=tuple(one.hex() for one in path),
        )  # fmt: skip

    def _tree(self, kept: KeptSum) -> Tree:
        tree = self._trees.pop(kept.sum.root, None) or Tree(kept.leaves, kept.nonce, kept.sum.depth)
        self._trees[kept.sum.root] = tree
        if len(self._trees) > _TREES:
            self._trees.popitem(last=False)
        return tree


def _meant(named: str | None, asker: str) -> str:
    """Whose lines are asked for. Raises InvalidQuestion."""
    if asker != OPERATOR and named in (None, asker):
        return asker
    if asker == OPERATOR and named is not None:
        return named
    problem = "a team reads its own lines" if asker != OPERATOR else "whose lines is not said"
    fix = "leave it out" if asker != OPERATOR else "name a team"
    raise InvalidQuestion([Reason(field="team", value="", problem=problem, fix=fix)])
