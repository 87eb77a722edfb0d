"""`baton team` for a team's admin, who has a credential and no keys: asks the holder of the keys. And the holder's
side."""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from nats.aio.client import Client
from nats.errors import ConnectionClosedError

from libs.bus.cancel import cancel
from libs.bus.connect import Address, close, connect
from libs.bus.creds import speaker
from libs.bus.wire import CA_FILE
from libs.cli.exits import UsageFault
from libs.cli.operator_action import tell as tell_ledger
from libs.cli.output import hint
from libs.cli.pool_commands import say_to_pool
from libs.cli.session import run
from libs.cli.stopping import when_asked_to_stop
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import ClientError, Denied, NeedsOperator
from libs.client.sending import valid
from libs.client.where import Place, check_operator, find, read_instance, shown_credential, state_dir
from libs.core.state.queue_tree import QueueTree
from libs.ports.private_files import write_private
from libs.walls import broker_claims, claims
from libs.walls.claims import SEED_BYTES, KeyKind, KeyPair
from libs.walls.floods import Floods, limits_of
from libs.walls.keyring import Keyring
from libs.walls.managing import AdminRefused, TeamAdmins
from libs.walls.resolver import tell
from schemas import subjects
from schemas.inbox import BoostJob
from schemas.queue_status import QueuesQuery, QueuesReply
from schemas.team_management import ManageTeam, TeamManaged

log = logging.getLogger("baton.nodes")

_AGAIN_S = 2.0


def asks(folder: Path | None) -> bool:
    """Whether the keys are elsewhere, and there is a credential to ask with."""
    return not Keyring(folder or state_dir()).exists and bool(os.environ.get("BATON_NATS_CREDS"))


def credential(what: str, name: str, write: Path | None, url: str | None, *, pseudonym: bool | None = None) -> Path:
    """Asks for a credential of the user `<team>.<user>`. Its key is created here, and its secret half never leaves.
    Returns the path."""
    path = write or Path(f"{name}.creds")
    if what == "add" and path.exists():
        raise UsageFault(f"{path} is there already: name another file with --write")
    key = KeyPair.of(KeyKind.USER, secrets.token_bytes(SEED_BYTES))
    done = manage(what, name, url, key.public, pseudonym=pseudonym)
    write_private(path, claims.credentials(done.token, key))
    beside = Path(os.environ["BATON_NATS_CREDS"]).with_name(CA_FILE)
    known_by = f", with {beside}, by which the broker is known" if beside.is_file() else ""
    hint(f"give it to its user{known_by}, who can rotate it through you: whoever has this file speaks as that user")
    return path


def manage(
    what: str, name: str, url: str | None, public_key: str = "", *, pseudonym: bool | None = None
) -> TeamManaged:
    """Asks the holder of the keys. Raises ClientError: NeedsOperator for what only operators may do, Denied for others
    than admins, Invalid with the reason for a refusal."""
    team, dot, user = name.partition(".")
    if name and not dot:
        check_operator(shown_credential())
        raise UsageFault(f"{name!r} is a whole team, which is the operators' affair: write TEAM.USER")

    async def work(baton: Baton) -> TeamManaged:
        if name and team != baton.team:
            raise NeedsOperator(f"{name!r} is of another team than yours, {baton.team}")
        asked = valid(ManageTeam, what=what, user=user, public_key=public_key, pseudonym=pseudonym)
        try:
            done: TeamManaged = await ask(baton.nats, "team.manage", baton.place, asked, timeout_s=15.0)
        except Denied:
            whose = f"{shown_credential()} is that of no admin of {baton.team}"
            raise Denied(
                "refused: needs an operator's credential, or a team admin's", whose, "ask one of them to do it"
            ) from None
        return done

    return run(work, None, url, operator=False)


def admin(url: str | None = None) -> bool:
    """Whether the present credential is a single user's. Of these only an admin may ask for more than its own."""
    place = find(url, operator=True)
    owner, dot, _ = speaker(place.address.creds).partition(".") if place.address.creds else ("", "", "")
    return bool(dot) and owner != subjects.OPERATOR


async def priority_of(baton: Baton, pool: str, name: str, by_admin_of: str = "") -> int:
    """The priority of a class, from an operator's query. Raises UsageFault for an unknown name, and for a class that the team
    of an admin may not use."""
    reply: QueuesReply = await ask(baton.nats, "queues.list", baton.place, QueuesQuery(), pool=pool)
    if name not in reply.priorities:
        classes = ", ".join(sorted(reply.priorities, key=lambda one: -reply.priorities[one]))
        raise UsageFault(f"--to {name}: there is no such priority class; there are {classes}")
    tree = QueueTree.of(tuple(share.queue for share in reply.shares if share.applied), reply.version)
    if by_admin_of and (allowed := tree.classes(by_admin_of)) is not None and name not in allowed:
        may = f"it may use {', '.join(allowed)}" if allowed else "it may use none"
        raise UsageFault(f"--to {name}: the queue of team {by_admin_of} may not use that class; {may}; ask an operator")
    return reply.priorities[name]


async def boost(baton: Baton, pool: str, said: BoostJob, to: str) -> int | None:
    """Asks the holder of the keys to forward it; returns the deciding record of the pool's ledger. Raises ClientError:
    Invalid with the pool's reason for a refusal."""
    asked = ManageTeam(what="boost", pool=pool, boost=said, to=to)
    managed: TeamManaged = await ask(baton.nats, "team.manage", baton.place, asked, timeout_s=20.0)
    return managed.ledger_seq


@asynccontextmanager
async def answering(url: str, ring: Keyring, teams_file: Path | None = None) -> AsyncIterator[None]:
    """Within the block, answers admins, and cuts off nodes and teams that send too much; without keys, neither. Raises
    BadFile."""
    if not ring.exists:
        yield
        return
    nats = await connect(Address(url, ring.service()), name="team-admins")
    place = Place(Address(url, ring.service()), subjects.OPERATOR)

    async def boosts(pool: str, said: BoostJob, to: str) -> int | None:
        baton, subject = Baton(nats, place), subjects.boost_job(pool, said.user, said.team)
        try:
            priority = await priority_of(baton, pool, to, by_admin_of=said.team) if to else 0
            ranked = said.model_copy(update={"priority": priority})
            return await say_to_pool(baton, pool, ranked, subject, said.job_id)
        except (ClientError, UsageFault) as e:
            raise AdminRefused(f"{e.why}: {e.fix}" if isinstance(e, ClientError) and e.why else str(e)) from None

    async def watch() -> Client:
        return await connect(
            Address(url, broker_claims.claims_credential(ring, lasting=True), ca=ring.ca), name="floods"
        )

    watching = await watch()
    push, booked = partial(tell, url, ring), partial(tell_ledger, ring.folder, url)
    admins = TeamAdmins(nats, ring, push, booked=booked, boosts=boosts)
    floods = Floods(ring, push, booked=booked, say=hint, limits=limits_of(teams_file), core=nats)
    await admins.start()
    looking = asyncio.create_task(look(floods, watching, watch), name="who sends too much")
    try:
        yield
    finally:
        await cancel(looking)
        await admins.stop()
        await close(nats)


async def look(floods: Floods, nats: Client, again: Callable[[], Awaitable[Client]]) -> None:
    """Runs for ever; replaces a connection that was closed for good."""
    while True:
        try:
            await floods.run(nats)
        except ConnectionClosedError:
            hint(
                "the connection by which it is seen how much nodes and teams send was closed: there will be another one"
            )
        finally:
            await close(nats)
        while nats.is_closed:
            try:
                nats = await again()
            except Exception as error:
                log.warning("it cannot be seen how much nodes and teams send: %r", error)
                await asyncio.sleep(_AGAIN_S)


def serve(ring: Keyring, folder: Path, url: str | None) -> None:
    """Runs until asked to stop."""
    address = url or os.environ.get("BATON_NATS_URL") or str(read_instance(folder)["url"])

    async def forever() -> None:
        stop = asyncio.Event()
        when_asked_to_stop(stop.set)
        teams_file = os.environ.get("BATON_TEAMS_FILE")
        async with answering(address, ring, Path(teams_file) if teams_file else None):
            hint("answering admins of teams, and cutting off nodes and teams that send too much; Ctrl-C ends it")
            await stop.wait()

    asyncio.run(forever())
