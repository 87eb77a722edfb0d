"""What goes wrong with what is stored: Redis, MongoDB, the inbox, the ledger's segments, snapshots."""

import random
from dataclasses import replace

from libs.bus.table import SNAPSHOTS_BUCKET
from libs.ledger.rolling import ASKED
from libs.ledger.segments import SegmentState, first_of
from libs.simulation.dst.aimed import FaultDraw, die, service_of
from libs.simulation.dst.scenario import POOL
from libs.simulation.dst.stream import Stream
from libs.simulation.dst.world import World
from schemas import subjects
from schemas.envelope import MSG_ID
from schemas.subjects import inbox_stream


def redis(world: World, chance: random.Random) -> FaultDraw:
    server = world.redis
    what = chance.choice(("down", "frozen", "flush", "old"))
    if what == "flush":
        return 0.0, server.flush, None
    if what == "old":
        kept: list[dict[str, dict[str, str]]] = []
        return chance.uniform(1.0, 10.0), lambda: kept.append(server.keep()), lambda: server.restore(kept[0])
    return chance.uniform(0.5, 8.0), lambda: setattr(server, what, True), lambda: setattr(server, what, False)


def mongo(world: World, chance: random.Random) -> FaultDraw:
    server = world.mongo
    what = chance.choice(("down", "slow", "empty"))
    if what == "empty":

        def emptied() -> None:
            if world.archive is not None:
                world.archive.state_lost = True
            server.empty()

        return 0.0, emptied, None
    if what == "slow":
        return chance.uniform(1, 8), lambda: setattr(server, "slow_s", 2.0), lambda: setattr(server, "slow_s", 0.0)
    return chance.uniform(0.5, 8.0), lambda: setattr(server, "down", True), lambda: setattr(server, "down", False)


def old_input(world: World, chance: random.Random) -> FaultDraw:
    """Messages of the inbox are stored again, as of somebody who asks for dead letters to be decided anew, or when the broker
    has forgotten their ids."""

    most = chance.choice((5, 1000))

    def begin() -> None:
        server = world.net.broker
        if world.net.broker_process is None or not world.net.broker_process.alive:
            return
        stream = world.disk.streams[inbox_stream(POOL)]
        old = [kept for kept in stream.messages.values() if subjects.stem(kept.subject) not in _TIME]
        for kept in chance.sample(old, min(len(old), most)):
            headers = {name: value for name, value in (kept.headers or {}).items() if name != MSG_ID}
            server.process.context.run(server.publish, kept.subject, "", kept.data, headers)
        if old:
            world.sometimes("old input came again")

    return 0.0, begin, None


_TIME = frozenset({subjects.stem(subjects.inbox("clock", "tick", POOL))})


def roll(world: World, chance: random.Random) -> FaultDraw:
    """An operator asks for the next segment of the ledger, perhaps more than once."""

    def begin() -> None:
        names = [name for name in world.disk.streams if first_of(POOL, name) is not None]
        for name in names:
            stream = world.disk.streams[name]
            if subjects.what_of(stream.config["subjects"][0]) == SegmentState.OPEN:
                stream.config = stream.config | {"metadata": {**(stream.config.get("metadata") or {}), ASKED: "1"}}
                world.note(f"{name} is to be sealed")

    return 0.0, begin, None


def _spoil(stream: Stream, what: str) -> None:
    if what == "lost":
        stream.purge()
        return
    for seq, kept in list(stream.messages.items()):
        about = ".M." in kept.subject
        if what == "rotten" and not about:
            stream.messages[seq] = replace(kept, data=kept.data[:-1] + bytes([kept.data[-1] ^ 1]))
        elif what == "another version" and about:
            stream.messages[seq] = replace(kept, data=kept.data.replace(b'\\"version\\": ', b'\\"version\\": 9'))


def snapshots(world: World, chance: random.Random) -> FaultDraw:
    """The store of snapshots loses all, or its contents rot, or another version of Baton has written them."""
    what = chance.choice(("lost", "rotten", "another version"))

    def begin() -> None:
        if world.archive is not None:
            world.archive.state_lost = True
        stores = [kept for name, kept in world.disk.streams.items() if name.startswith(f"OBJ_{SNAPSHOTS_BUCKET}")]
        if any(stream.messages for stream in stores):
            world.sometimes(f"snapshots: {what}")
        world.note(f"snapshots: {what}")
        for stream in stores:
            _spoil(stream, what)

    victim = service_of(world, chance) if chance.random() < 0.6 else ""
    return chance.uniform(0.05, 2.0), begin, (lambda: die(world, victim)) if victim else None
