"""A node that sends more than nodes have to say is cut off by whoever holds the keys.

The broker bounds how large a node's message is and how many connections and subscriptions it has; a rate it knows none. What a
node says is stored in the inbox of its pool, which placement decides in order, so one that was taken over could fill it, or
keep placement at rejecting what it says. The broker counts what each account has sent, whatever became of it (atomic batches
that are never ended, too), and that is looked at here. A node that has used up its allowance loses its credential, as by `baton
node revoke`: it is told so when it connects, the operator's book and the ledger have who, why and the figures, and the pool
goes on as if the node were cut off. `baton node add` lets it in again.

By its second credential, which answers for logs, a node is connected to the core, where no claim bounds how many connections
one user has. So these are counted here as well: without that one node could have all that the broker takes.

An agent that stands for a whole pool (a simulated fleet) says as much as all of its nodes, and is not looked at.
"""

import asyncio
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import ConnectionClosedError

from libs.bus.patience import in_turns
from libs.core.admission.intake import Bucket
from libs.walls.accounts import NODE_CONNECTIONS
from libs.walls.book import Book
from libs.walls.keyring import Keyring, NoCredential, logs_of
from libs.walls.resolver import NotTold

log = logging.getLogger("baton.nodes")

MESSAGES_AT_ONCE: Final = 5_000.0
MESSAGES_PER_S: Final = 500.0
"""A busy agent sends one message of what it saw in 4 ms, and some each second beside."""
BYTES_AT_ONCE: Final = 64.0 * 1024 * 1024
BYTES_PER_S: Final = 4.0 * 1024 * 1024
"""An inbox has 1 GiB, so there is room left for others when a node has used up what it may at once."""
LOOK_S: Final = 0.25
_NOBODY_S: Final = 1.0
"""While no node has a credential."""
_AGAIN_S: Final = 2.0
"""After an error that nobody foresaw."""

_STATZ = "$SYS.REQ.ACCOUNT.PING.STATZ"
_CONNZ = "$SYS.REQ.SERVER.PING.CONNZ"
_ASKED = 500
"""Accounts in one question: an answer has some 500 bytes for each, and of a connection twice as many."""
_ANSWER_S, _MORE_S = 1.0, 0.05
"""For the first server of a cluster, and for each further one."""

Counted = tuple[str, str, int, int]
"""Server, account, and the messages and bytes that it has had of it."""
Tell = Callable[[list[str]], Awaitable[None]]
"""Tells the broker of these accounts (`libs.walls.resolver.tell`)."""


class Floods:
    """`run` is a task. `tell` tells the broker; `booked` is called in a thread when the operator's book has a new line; `say`
    has a sentence for the operator."""

    def __init__(
        self,
        keyring: Keyring,
        tell: Tell,
        booked: Callable[[], object] = lambda: None,
        say: Callable[[str], object] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keyring, self._tell, self._booked, self._say, self._now = keyring, tell, booked, say, now
        self._book = Book(keyring.folder)
        self._read_ns = 0
        self._nodes: dict[str, str] = {}  # public key of an account -> <pool>.<node>
        self._servers: set[str] = set()
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}  # (server, account) -> messages and bytes so far
        self._left: dict[str, tuple[Bucket, Bucket]] = {}
        self._core = ""  # its public key
        self._logs: dict[str, str] = {}  # public key of a node's second credential -> <pool>.<node>
        self._usual: dict[
            str, int
        ] = {}  # server -> connections of the core there, less the most that one node had of them
        self._untold: dict[str, None] = {}  # accounts that were cut off, and the broker may not know yet

    async def run(self, nats: Client) -> None:
        """For ever, by a connection to the system account (`Keyring.claims_credential`). A broker that is away is waited for,
        and no error ends it. Raises ConnectionClosedError: to be run again, by another connection; what is known stays."""
        told = ""
        while True:
            try:
                await in_turns(lambda: self.turn(nats), LOOK_S, log, "how much nodes send is not known")
            except ConnectionClosedError:
                raise
            except Exception as error:
                if (why := repr(error)) != told:
                    log.exception("how much nodes send was not seen whole")
                    self._say(f"how much nodes send was not seen whole ({why}): it is looked at again and again")
                told = why
                await asyncio.sleep(_AGAIN_S)

    async def turn(self, nats: Client) -> float:
        """Looks once, at all of them, also where one could not be cut off; after so many seconds it is to look again. Raises
        nats errors, what `tell` raises but NotTold, and the first error that was met."""
        await self._tell_untold()
        if self._keyring.exists and self._keyring.changed_ns != self._read_ns:
            await asyncio.to_thread(self._reread)
        accounts, servers, failed = list(self._nodes), set[str](), list[Exception]()
        too_many = await self._crowding(nats) if accounts else {}
        for at in range(0, len(accounts), _ASKED):
            answers = await self._asked(nats, accounts[at : at + _ASKED])
            servers |= {server for server, _, _, _ in answers}
            for account, sent in self._since(answers).items():
                if why := self._over(account, *sent):
                    too_many[self._nodes[account]] = why
        for name, why in too_many.items():
            try:
                await self._cut(name, why)
            except Exception as error:
                failed.append(error)
        self._servers |= servers
        if failed:
            raise failed[0]
        return LOOK_S if accounts else _NOBODY_S

    def _reread(self) -> None:
        """The nodes that have a credential; anew when the keys have changed."""
        changed_ns = self._keyring.changed_ns
        known = {name: public for public, name in self._nodes.items()}
        keys = self._keyring.keys()
        nodes, self._core = keys.nodes, keys.core.public
        self._logs = {keys.core.users[logs]: name for name in nodes if (logs := logs_of(name)) in keys.core.users}
        self._nodes = {
            known.get(name) or keys.public: name for name, keys in nodes.items() if "." in name and keys.users
        }
        self._left = {public: left for public, left in self._left.items() if public in self._nodes}
        self._counted = {key: sent for key, sent in self._counted.items() if key[1] in self._nodes}
        self._read_ns = changed_ns

    async def _asked(self, nats: Client, accounts: list[str]) -> list[Counted]:
        """What the servers have counted of those of `accounts` that somebody uses."""
        found = list[Counted]()
        for told in await _answers(nats, _STATZ, {"accounts": accounts}):
            for one in told.get("account_statz", ()):
                found.append((told["server_id"], one["acc"], one["received"]["msgs"], one["received"]["bytes"]))
        return found

    async def _crowding(self, nats: Client) -> dict[str, str]:
        """Nodes with more connections to the core than a node may have, and why each is cut off. Whose they are is asked when
        a server has so many more than before that it may be one."""
        answers = await _answers(nats, _STATZ, {"accounts": [self._core]})
        now = {told["server_id"]: one["conns"] for told in answers for one in told.get("account_statz", ())}
        if all(many <= self._usual.get(server, 0) + NODE_CONNECTIONS for server, many in now.items()):
            self._usual |= {server: min(many, self._usual.get(server, many)) for server, many in now.items()}
            return {}
        held, at, total = Counter[str](), 0, 1
        while at < total:
            page = {"acc": self._core, "auth": True, "limit": _ASKED, "offset": at}
            answers = await _answers(nats, _CONNZ, page)
            held.update(one.get("authorized_user", "") for told in answers for one in told.get("connections") or ())
            at, total = at + _ASKED, max((told.get("total", 0) for told in answers), default=0)
        of_nodes = {self._logs[user]: many for user, many in held.items() if user in self._logs}
        most = max(of_nodes.values(), default=0)
        if most <= NODE_CONNECTIONS:
            self._usual |= {server: many - most for server, many in now.items()}
        return {
            name: f"it had {many:,} connections to answer for logs, and a node may have {NODE_CONNECTIONS}"
            for name, many in of_nodes.items()
            if many > NODE_CONNECTIONS
        }

    def _since(self, answers: list[Counted]) -> Mapping[str, tuple[int, int]]:
        """Messages and bytes of each account since the last look. What a server has counted before it was asked for the first
        time is nobody's fault, and one that was started anew counts from nothing."""
        found: dict[str, tuple[int, int]] = {}
        for server, account, messages, size in answers:
            before = self._counted.get((server, account), (0, 0))
            self._counted[server, account] = messages, size
            if server in self._servers:
                before = before if messages >= before[0] else (0, 0)
                so_far = found.get(account, (0, 0))
                found[account] = so_far[0] + messages - before[0], so_far[1] + size - before[1]
        return found

    def _over(self, account: str, messages: int, size: int) -> str:
        """Counts what an account has sent; why that is too much, "" when it is not."""
        at_us = int(self._now() * 1e6)
        both = self._left.setdefault(account, (Bucket(MESSAGES_AT_ONCE, at_us), Bucket(BYTES_AT_ONCE, at_us)))
        for bucket, amount, most, per_s, what in _allowed(both, messages, size):
            bucket.owe(most, per_s, at_us, amount)
            if bucket.wait_s(most, per_s, at_us) > 1 / per_s:
                return f"it sent more than a node may: {what}"
        return ""

    async def _cut(self, name: str, why: str) -> None:
        pool, _, node = name.partition(".")
        try:
            told = await asyncio.to_thread(self._revoke, pool, node, why)
        except NoCredential:  # somebody was faster
            return
        self._untold |= dict.fromkeys(told)
        line = f"node {node} of pool {pool} was cut off: {why}. `baton node add {node} --pool {pool}` lets it in again"
        log.error("%s", line)
        self._say(line)
        await self._tell_untold()
        await asyncio.to_thread(self._booked)

    async def _tell_untold(self) -> None:
        """What the broker did not hear, because it was away just then, it hears at the next look: the keys have it already."""
        if not self._untold:
            return
        try:
            await self._tell(list(self._untold))
        except NotTold as error:
            log.warning("the broker does not know yet who was cut off: %s", error)
        else:
            self._untold.clear()

    def _revoke(self, pool: str, node: str, why: str) -> list[str]:
        said = {
            "what": "node.revoke", "target": f"{pool}/{node}", "reason": why, "at_us": time.time_ns() // 1000,
            "host": socket.gethostname()[:255], "login": "", "tool": "",
        }  # fmt: skip
        with self._book.entry(said):
            return self._keyring.revoke_node(pool, node)


async def _answers(nats: Client, subject: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each server answers."""
    inbox, found, wait_s = nats.new_inbox(), list[dict[str, Any]](), _ANSWER_S
    answers = await nats.subscribe(inbox)
    try:
        await nats.publish(subject, json.dumps(body).encode(), reply=inbox)
        with suppress(TimeoutError):
            while True:
                found.append(json.loads((await answers.next_msg(timeout=wait_s)).data).get("data", {}))
                wait_s = _MORE_S
    finally:
        await answers.unsubscribe()
    return found


def _allowed(
    both: tuple[Bucket, Bucket], messages: int, size: int
) -> Iterator[tuple[Bucket, float, float, float, str]]:
    """(what is left, what it sent now, what it may at once, and in a second, in words)."""
    yield (
        both[0], messages, MESSAGES_AT_ONCE, MESSAGES_PER_S,
        f"{messages:,} messages in a moment beyond {MESSAGES_AT_ONCE:,.0f} at once and {MESSAGES_PER_S:g} a second",
    )  # fmt: skip
    mib = 1024 * 1024
    yield (
        both[1], size, BYTES_AT_ONCE, BYTES_PER_S,
        f"{size / mib:,.1f} MiB in a moment beyond {BYTES_AT_ONCE / mib:g} at once and {BYTES_PER_S / mib:g} a second",
    )  # fmt: skip
