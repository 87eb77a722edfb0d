"""Bytes that the broker read of each connection, as the kernel counts them, and the end of connections without the broker.

The broker counts messages. `PING`, and subscriptions that it refuses or that end at once, are none, and 64 connections that say
such words keep its processors for themselves: whoever else is connected waits for seconds, and so does who asks it about its
connections, since it must wait for each of them. So whose a connection is, is asked when it has said more than who begins says;
what comes on it is seen in the kernel; and of who says too much it is the kernel that ends them.

The kernel is asked where it is the broker's, too: where the watcher's own connection is seen from the other side.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from libs.bus.json_checks import MAX_BYTES
from libs.ports import sockdiag
from libs.ports.sockdiag import Connection
from libs.walls.accounts import CONNZ, HEADER_BYTES
from libs.walls.answers import BrokerAnswers

log = logging.getLogger("baton.nodes")

STRANGE: Final = 4 * 1024
"""Of this many bytes on it is asked whose a connection is: a credential and a first question are less."""
STRANGERS_AT_ONCE: Final = 6.0 * 1024 * 1024
"""Of connections together of which the broker has not said whose they are, although it was asked."""
_STRANGER_MOST = 16 * 1024
"""Who has said less is not ended with them."""
_OF_USER = 1024 * 1024
"""Of so many bytes on it is asked again what of them the broker counted as messages: of a user it does not say it by itself."""
UNTOLD: Final = 16.0 * 1024 * 1024
"""Of an account, while the broker says of nobody what it has counted."""
OF_MESSAGE: Final = 512
"""Bytes of a message beside what the broker counts: its subjects, and what encrypts it."""
LARGEST: Final = MAX_BYTES + HEADER_BYTES
"""Of the messages that a team or a node may say."""
_HASTE_S, _CALM_S, _SILENT_S, _FORGOTTEN_S = 0.05, 0.25, 0.5, 5.0
"""Between two looks, when something is waited for and else; until the broker is silent; until whose they are is asked again."""
_PATIENCE = 3
"""So many turns one after the other without an answer."""
_PAGE = 500
"""Connections in one answer, each some 2 KB."""
_CLOSED = 1
"""Connections that have ended, as the broker calls that."""
_NOT_ENDED = 8
"""So many connections one after the other that could not be ended: another user's, whom only root may touch."""
_ENDED_S, _AGAIN_S = 120.0, 1.0
"""For how long, and how often, it is asked who they were that were ended as strangers."""
_REMEMBERED = 10_000
"""So many the broker remembers."""


@dataclass(frozen=True, slots=True)
class WatchedAccounts:
    """Whose connections are counted: names by accounts (public keys), and in the account `core` by users."""

    names: Mapping[str, str]
    core: str


@dataclass(frozen=True, slots=True)
class _EndedStranger:
    """How much of it was read, when it was ended, and what was told of it before."""

    read: int
    at_s: float
    before: "SaidOnConnection | None"


@dataclass(frozen=True, slots=True)
class SaidOnConnection:
    """Messages, as the broker counts them, and of bytes those that were read; `heard`: messages that were sent on it."""

    read: int = 0
    messages: int = 0
    bytes: int = 0
    heard: int = 0

    def plus(self, other: "SaidOnConnection", times: int = 1) -> "SaidOnConnection":
        return SaidOnConnection(
            self.read + times * other.read,
            self.messages + times * other.messages,
            self.bytes + times * other.bytes,
            self.heard + times * other.heard,
        )


def words(said: SaidOnConnection) -> int:
    """Bytes of one connection that are no messages, at the least: one that says messages may be in the middle of one."""
    return max(0, said.read - said.bytes - OF_MESSAGE * said.messages - (LARGEST if said.messages else 0))


class ConnectionWatch:
    """`run` is a task; `libs.walls.floods` judges what it finds. `silent_s`: for how long the broker has not said what it has
    counted."""

    def __init__(self, watched: Callable[[], WatchedAccounts], silent_s: Callable[[], float]) -> None:
        self._watched, self._silent_s = watched, silent_s
        self._whose = BrokerAnswers(CONNZ)
        self._ports: dict[int, tuple[int, ...]] = {}  # with the families of addresses that are listened to
        self._now: dict[bytes, Connection] = {}
        self._since: dict[bytes, int] = {}  # what each had read when it was seen first, or of a user's was told last
        self._owner: dict[bytes, str] = {}  # "": of nobody who is counted
        self._read = Counter[str]()
        self._ended: dict[str, _EndedStranger] = {}  # by peer
        self._of_users: dict[bytes, SaidOnConnection] = {}  # what the broker had counted when `_since` was set
        self._told: dict[str, SaidOnConnection] = {}
        self._in_vain = self._unheard = self._not_ended = 0
        self._others, self._asked_s, self._looked_s = False, 0.0, 0.0

    @property
    def sees(self) -> bool:
        """Whether the broker's connections are seen here."""
        return bool(self._ports)

    async def run(self, nats: Client) -> None:
        """For ever, by a connection to the system account."""
        self._begin(nats)
        if not self.sees:
            log.warning(
                "the broker's connections are not seen from here: who says words that are no messages without end is not "
                "ended. On the broker's machine, as root or as its user, they are (docs/security.md)"
            )
        try:
            while self.sees:
                try:
                    await self._turn(nats)
                except NatsError:  # there will be another connection
                    await asyncio.sleep(_CALM_S)
                except Exception as error:
                    log.warning("words that are no messages were not seen whole: %r", error)
                    await asyncio.sleep(_CALM_S)
        finally:
            await self._whose.close()

    def _begin(self, nats: Client) -> None:
        """What was counted by another connection than before is forgotten when this one shows another network, or none."""
        ports = _ports(nats)
        if ports != self._ports:
            self._ports, self._owner, self._ended, self._of_users, self._told = ports, {}, {}, {}, {}
            self._read.clear()
            self._now = {one.id: one for one in self._connections()}
            self._since = {id: one.read for id, one in self._now.items()}

    async def _turn(self, nats: Client) -> None:
        self._look()
        strangers = self._strangers()
        ended = bool(self._ended) and time.monotonic() - self._asked_s > _AGAIN_S
        if (strangers or ended) and not 0 < self._whose.waited_s < _FORGOTTEN_S:
            # The broker answers one after the other, and while it is at this question it does nothing else.
            await self._ask_whose(nats, bool(strangers), ended)
        heard = await self._whose.heard(_HASTE_S) if self._whose.waited_s else []
        for told in heard:
            self._learn(told.get("connections") or ())
        # By turns and not by the clock alone: a process that was held up itself finds the answer in its next.
        self._in_vain = 0 if heard or not self._whose.waited_s else self._in_vain + 1
        self._unheard = self._unheard + 1 if self._silent_s() > _SILENT_S else 0
        if self._in_vain >= _PATIENCE:
            self._end_strangers()
        if self._unheard >= _PATIENCE:
            for owner in [owner for owner, read in self._read.items() if read > UNTOLD]:
                self.end(owner)
        await asyncio.sleep(0 if self._in_vain else _HASTE_S if strangers or self._unheard else _CALM_S)

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        before, self._now = self._now, {one.id: one for one in self._connections()}
        self._since = {id: self._since.get(id, 0) for id in self._now}
        self._owner = {id: owner for id in self._now if (owner := self._owner.get(id)) is not None}
        self._of_users = {id: said for id, said in self._of_users.items() if id in self._now}
        others, self._others = self._others, False
        for id, owner in list(self._owner.items()):
            if not owner and others:
                del self._owner[id]
                self._since[id] = self._now[id].read
            elif not _is_user(owner):
                self._read[owner] += self._now[id].read - before[id].read
            elif self._now[id].read - self._since[id] > _OF_USER:
                del self._owner[id]
        self._read.pop("", None)

    def _connections(self) -> Iterable[Connection]:
        return (one for port, families in self._ports.items() for one in sockdiag.connections(port, families))

    def _strangers(self) -> dict[bytes, int]:
        """Whose it is is to be asked, and how much of each was read."""
        grown = {id: one.read - self._since[id] for id, one in self._now.items() if id not in self._owner}
        return {id: read for id, read in grown.items() if read > STRANGE}

    async def _ask_whose(self, nats: Client, strangers: bool, ended: bool) -> None:
        for at in range(0, len(self._now) if strangers else 0, _PAGE):
            await self._whose.ask(nats, {"auth": True, "limit": _PAGE, "offset": at})
        if ended:
            await self._whose.ask(nats, {"auth": True, "state": _CLOSED, "sort": "stop", "limit": 2 * _PAGE})
            self._asked_s = time.monotonic()
            left = {at: one for at, one in self._ended.items() if one.at_s > time.time() - _ENDED_S}
            self._ended = dict(list(left.items())[-_REMEMBERED:])

    def _learn(self, told: Iterable[Mapping[str, Any]]) -> None:
        """What the broker said of connections."""
        watched, ids = self._watched(), {one.peer: id for id, one in self._now.items() if id not in self._owner}
        for one in told if watched.core else ():
            if not (user := one.get("authorized_user")):  # it has not said who it is
                continue
            at, account, stop = f"{one['ip']}:{one['port']}", one.get("account", ""), one.get("stop")
            named = user if account == watched.core else account
            whose = named if named in watched.names else ""
            counted = SaidOnConnection(0, one["in_msgs"], one["in_bytes"], one["out_msgs"])
            if not stop and (id := ids.get(at)) is not None:
                self._owner[id] = whose
                said = replace(counted, read=self._now[id].read - self._since[id])
                if _is_user(whose):
                    self._tell(whose, said, self._of_users.get(id))
                    self._of_users[id] = counted
                    self._since[id] = self._now[id].read
                else:  # what it said before is in the account's count already
                    self._read[whose] += words(said)
            elif stop and (ended := self._ended.get(at)) and datetime.fromisoformat(stop).timestamp() >= ended.at_s:
                del self._ended[at]  # one of before may have had the same port
                self._tell(whose, replace(counted, read=ended.read), ended.before)
        self._read.pop("", None)
        self._told.pop("", None)

    def _tell(self, owner: str, said: SaidOnConnection, before: SaidOnConnection | None) -> None:
        self._told[owner] = self._told.get(owner, SaidOnConnection()).plus(said).plus(before or SaidOnConnection(), -1)

    def ask_again(self) -> None:
        """The accounts and users that are looked at are others: who was none of them may be one now. In any thread."""
        self._others = True

    def many(self, owner: str) -> int:
        """Connections of `owner`."""
        return sum(whose == owner for whose in self._owner.values())

    def taken(self) -> Mapping[str, int]:
        """How much was read until now of each owner, since it was taken last."""
        if self.sees and time.monotonic() > self._looked_s + 2 * _CALM_S:  # `run` was held up
            self._look()
        read, self._read = self._read, Counter()
        return read

    def told(self) -> Mapping[str, SaidOnConnection]:
        """What the broker told of connections of users, and of those that were ended before it was known whose they are, since
        this was asked last."""
        told, self._told = self._told, {}
        return told

    def put_back(self, read: Mapping[str, int]) -> None:
        """What was taken, and not counted."""
        self._read.update(read)

    def forget(self, owner: str) -> None:
        self._read.pop(owner, None)

    def _end_strangers(self) -> None:
        """When they have said too much together: whoever has said some of it, also if it was not read yet."""
        if sum(self._strangers().values()) > STRANGERS_AT_ONCE:
            strangers = [one for id, one in self._now.items() if id not in self._owner]
            said = {one.id: one.read + one.unread - self._since[one.id] for one in strangers}
            if ended := sum(self._end(id) for id, many in said.items() if many > _STRANGER_MOST):
                log.warning("%d connections were ended that said much: the broker does not say whose they are", ended)

    def end(self, owner: str) -> None:
        """All connections of `owner`."""
        if ended := sum(self._end(id) for id, whose in list(self._owner.items()) if whose == owner):
            log.warning("%d connections of %s were ended", ended, self._watched().names.get(owner, owner))

    def _end(self, id: bytes) -> bool:
        one, at_s = self._now[id], time.time()
        if self._not_ended >= _NOT_ENDED:
            return False
        try:
            sockdiag.end(one)
        except OSError as error:
            self._not_ended += 1
            if self._not_ended == _NOT_ENDED:
                log.warning(
                    "connections that say too much are not ended by the kernel, but by the broker alone: %s", error
                )
            return False
        self._not_ended = 0
        if id not in self._owner:
            self._ended[one.peer] = _EndedStranger(one.read - self._since[id], at_s, self._of_users.get(id))
        del self._now[id]
        self._owner.pop(id, None)
        return True


def _is_user(owner: str) -> bool:
    """Public keys of users begin so, those of accounts do not."""
    return owner.startswith("U")


def _ports(nats: Client) -> dict[int, tuple[int, ...]]:
    """Of the servers that `nats` may be connected to, if their connections are seen in this network: each with the families of
    addresses that it listens to."""
    writer = getattr(getattr(nats, "_transport", None), "_io_writer", None)
    name = writer.get_extra_info("sockname") if writer is not None else None
    url = nats.connected_url
    if not name or url is None or url.port is None:
        return {}
    peers = {one.peer for one in sockdiag.connections(url.port)}
    if f"{name[0]}:{name[1]}" not in peers:
        return {}
    ports = {url.port, *(server.port for server in nats.servers if server.port)}
    return {port: sockdiag.families_of(port) or sockdiag.FAMILIES for port in sorted(ports)}
