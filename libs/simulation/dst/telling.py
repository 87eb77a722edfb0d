"""Teams that tell vault their secrets, and operators who change its master key."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nats.errors import Error as NatsError

from libs.bus.asking import NoAnswer, QueryError, ask
from libs.bus.boxes import ForVault, close_box, encoded
from libs.bus.connect import connect
from libs.simulation.dst.process import Process
from libs.simulation.dst.secrecy import ANSWER_S
from libs.simulation.dst.world import World
from schemas.catalog import BY_TYPE
from schemas.secrets import SecretListQuery, SecretRekey, SecretRemove, SecretSet
from schemas.subjects import OPERATOR

_LIST, _SET, _REMOVE, _REKEY = (
    BY_TYPE[f"io.baton.secret.{what}.query.v1"] for what in ("list", "set", "remove", "rekey")
)
_AGAIN_S = 0.5


async def tell_secrets(world: World, nats: Any, team: str, names: list[str]) -> None:
    """Sets all of them early and at once, one of them again with other values, and removes the one that is called `gone`, and
    sets that again, once or twice."""
    chance = world.hidden
    world.secrets.waiting += 1
    await asyncio.sleep(chance.uniform(0.2, 2.0))
    async with asyncio.TaskGroup() as together:  # of several processes of vault each gets some
        for name in names:
            together.create_task(_set(world, nats, team, name))
    for _ in range(chance.randint(0, 3)):
        await asyncio.sleep(chance.uniform(0.0, 6.0))
        await _set(world, nats, team, "token")
    if "gone" in names:
        await asyncio.sleep(chance.uniform(0.0, 6.0))
        await _remove(world, nats, team, "gone")
        for _ in range(chance.randint(0, 2)):
            await _set(world, nats, team, "gone")
            await asyncio.sleep(chance.uniform(0.0, 6.0))
            await _remove(world, nats, team, "gone")
        if chance.random() < 0.5:
            await _set(world, nats, team, "gone")
    world.secrets.waiting -= 1


async def _set(world: World, nats: Any, team: str, name: str) -> None:
    made = world.secrets.fresh(team, name)

    async def seal_and_send() -> None:
        held = await _ask(nats, _LIST, SecretListQuery(), team)
        sealed = close_box(held.key, ForVault(team=team, name=name, value=encoded(made.value)))
        removed = None if (replaces := held.version_of(name)) else held.removed
        asked = SecretSet(name=name, key=held.key, sealed=sealed, replaces=replaces, removed=removed)
        await _ask(nats, _SET, asked, team)

    await _until_answered(seal_and_send)
    made.stored_at = world.loop.now


async def _remove(world: World, nats: Any, team: str, name: str) -> None:
    gone = world.secrets.removal(team, name)

    async def look_and_send() -> None:
        held = await _ask(nats, _LIST, SecretListQuery(), team)
        if version := held.version_of(name):
            await _ask(nats, _REMOVE, SecretRemove(name=name, removes=version), team)

    await _until_answered(look_and_send)
    gone.stored_at = world.loop.now


async def _ask(nats: Any, message: Any, query: Any, team: str) -> Any:
    return await ask(nats, message, query, timeout_s=ANSWER_S, team=team, user="u")


async def _until_answered(send: Callable[[], Awaitable[object]]) -> None:
    """Sends it until vault has done it."""
    while True:
        try:
            await send()
            return
        except (QueryError, NoAnswer, NatsError):
            pass
        await asyncio.sleep(_AGAIN_S)


def rekey(world: World) -> None:
    """An operator asks for another master key, once; whether it is done is seen by what still opens."""

    async def asking() -> None:
        try:
            nats = await connect("sim://broker", name="operator")
            await ask(nats, _REKEY, SecretRekey(), timeout_s=5.0, team=OPERATOR, user="op")
            world.sometimes("the master key was changed")
        except (QueryError, NoAnswer, NatsError, ConnectionError):
            return

    Process(world, "operator", "operator").start(asking())
