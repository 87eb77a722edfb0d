"""Rate limits of nodes and teams at the broker, enforced by disconnecting: a node for good, a team for a while.

The broker limits the size of a node's messages and its connections and subscriptions, but no rate. A node's messages are
stored in the inbox of its pool, which placement decides in order, so a hostile node could fill it, or keep placement busy with
rejections. The broker counts what each account has sent, whatever became of it (unfinished atomic batches, too), and these
counts are checked here. A node over its limit loses its credential, as by `baton node revoke`: it gets the reason when it
connects, the operator's book and the ledger have it with the figures, and the pool goes on as if the node were cut off. `baton
node add` lets it in again.

With its second credential, which answers for logs, a node is connected to the core account, where no claim limits the
connections of one user. So these are counted here as well: otherwise one node could use up all of the broker's connections.

A team's messages go to the services, and the broker copies what it receives for each of its subscriptions. Questions that come
faster than they can be answered, or answers that a thousand subscriptions receive, would keep the broker busy for all. So each
copy is counted against the team's `traffic` (`libs.core.admission.traffic`). A team far beyond it keeps its credentials, but
its claim allows no connection for a minute, then two, up to an hour; the book, the ledger and the log say why, and when it was
let in again. Its jobs run on.

A server that is told to trace too many messages answers no look; then whoever traces is heard (`libs.walls.traces`).

An agent that stands for a whole pool (a simulated fleet) sends as much as all of its nodes, and is not checked.
"""

import asyncio
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError

from libs.bus.cancel import cancel
from libs.bus.queries import ANSWER_S
from libs.bus.retry import run_periodically
from libs.core.admission.intake import EVERYBODY, Bucket
from libs.core.admission.traffic import AT_ONCE_S, EVERYBODYS, TrafficLimits
from libs.service.teams_file import load_traffic
from libs.walls.accounts import CONNZ, FINANCE, NODE_CONNECTIONS, STATZ
from libs.walls.answers import BrokerAnswers
from libs.walls.answers import answers as answers_of
from libs.walls.book import Book
from libs.walls.keyring import Keyring, NotKeptOut, logs_of
from libs.walls.keys_of import NoCredential
from libs.walls.resolver import NotTold
from libs.walls.traces import FLOOD, LISTEN_S, traced
from libs.walls.words import LARGEST, OF_MESSAGE, ConnectionWatch, WatchedAccounts, words

log = logging.getLogger("baton.nodes")

MESSAGES_AT_ONCE: Final = 5_000.0
MESSAGES_PER_S: Final = 500.0
"""A busy agent sends one message of what it saw in 4 ms, and some each second beside."""
BYTES_AT_ONCE: Final = 64.0 * 1024 * 1024
BYTES_PER_S: Final = 4.0 * 1024 * 1024
"""An inbox has 1 GiB, so there is room left for others when a node has used up what it may at once."""
WORDS_AT_ONCE: Final = 4.0 * 1024 * 1024
WORDS_PER_S: Final = 256.0 * 1024
"""Bytes that are no messages, of a team or a node. Who begins says some KB, and then a `PING` in ten seconds."""
HALF_SAID: Final = 12.0 * 1024 * 1024
"""Bytes of first messages that are not read to their end, at most `LARGEST` of each connection: 64 clients that begin with a
large one at the same moment over a slow line."""
_USUAL_S: Final = 15.0
"""After so long what was said counts half."""
_WORDS = "words that are no messages"
LOOK_S: Final = 0.25
_NOBODY_S: Final = 1.0
"""While no node and no team has a credential."""
OUT_S, MOST_OUT_S = 60, 3_600
"""For how long a team is kept out: the first time, and the longest."""
_AGAIN_S: Final = 2.0
"""After an error that nobody foresaw."""

_ASKED = 500
"""Accounts in one question: an answer has some 500 bytes for each, and of a connection twice as many."""

Counted = tuple[str, str, "AccountTraffic"]
"""Server, account, and what it has had of it and sent to it."""
Tell = Callable[[list[str]], Awaitable[None]]
"""Tells the broker of these accounts (`libs.walls.resolver.tell`)."""


@dataclass(frozen=True, slots=True)
class AccountTraffic:
    """What an account has said and heard."""

    said: int = 0
    said_bytes: int = 0
    heard: int = 0
    heard_bytes: int = 0

    def plus(self, other: "AccountTraffic", times: int = 1) -> "AccountTraffic":
        return AccountTraffic(
            self.said + times * other.said,
            self.said_bytes + times * other.said_bytes,
            self.heard + times * other.heard,
            self.heard_bytes + times * other.heard_bytes,
        )


def limits_of(teams_file: Path | None) -> Mapping[str, TrafficLimits]:
    """What may pass between the broker and each team, as the file says; without one what is shipped. Raises BadFile."""
    return load_traffic(teams_file)


class Floods:
    """`run` is a task. `tell` tells the broker; `booked` is called in a thread when the operator's book has a new line; `say`
    has a sentence for the operator. `limits`: of a team, or of `EVERYBODY`. `core`: a connection to the core, on which is
    heard who has the broker trace messages; without it that is not looked at."""

    def __init__(
        self,
        keyring: Keyring,
        tell: Tell,
        booked: Callable[[], object] = lambda: None,
        say: Callable[[str], object] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
        *,
        limits: Mapping[str, TrafficLimits] | None = None,
        core: Client | None = None,
    ) -> None:
        self._limits, self._core_connection = limits or {}, core
        self._keyring, self._tell, self._booked, self._say, self._now = keyring, tell, booked, say, now
        self._book = Book(keyring.folder)
        self._read_ns = 0
        self._nodes: dict[str, str] = {}  # public key of an account -> <pool>.<node>
        self._teams: dict[str, str] = {}  # public key of an account -> team
        self._out: dict[str, int] = {}  # team -> until when it is kept out, s since 1970
        self._servers: set[str] = set()
        self._answers, self._words = (
            BrokerAnswers(STATZ),
            ConnectionWatch(self._watched, lambda: self._answers.waited_s),
        )
        self._counted: dict[
            tuple[str, str], AccountTraffic | None
        ] = {}  # (server, account) -> so far; None: begin anew
        self._left: dict[tuple[str, str, str], Bucket] = {}
        self._said: dict[str, _Unread] = {}
        self._questions: dict[str, _Questions] = {}
        self._core = ""  # its public key
        self._logs: dict[str, str] = {}  # public key of a node's second credential -> <pool>.<node>
        self._usual: dict[str, int] = {}  # server -> connections of the core there, less the most of one node
        self._untold: dict[str, None] = {}  # accounts that were cut off, and the broker may not know yet

    async def run(self, nats: Client) -> None:
        """For ever, by a connection to the system account (`Keyring.claims_credential`). A broker that is away is waited for,
        and no error ends it. Raises ConnectionClosedError: to be run again, by another connection; what is known stays."""
        words = asyncio.create_task(self._words.run(nats), name="words that are no messages")
        try:
            await self._run(nats)
        finally:
            await cancel(words)
            await self._answers.close()

    async def _run(self, nats: Client) -> None:
        told = ""
        while True:
            try:
                await run_periodically(
                    lambda: self.turn(nats), LOOK_S, log, "how much nodes and teams send is not known"
                )
            except ConnectionClosedError:
                raise
            except Exception as error:
                if (why := repr(error)) != told:
                    log.exception("how much nodes and teams send was not seen whole")
                    self._say(
                        f"how much nodes and teams send was not seen whole ({why}): it is looked at again and again"
                    )
                told = why
                await asyncio.sleep(_AGAIN_S)

    async def turn(self, nats: Client) -> float:
        """Looks once, at all of them, also where one could not be cut off; after so many seconds it is to look again. Raises
        nats errors, what `tell` raises but NotTold, and the first error that was met."""
        await self._tell_untold()
        if self._keyring.exists and self._keyring.changed_ns != self._read_ns:
            await asyncio.to_thread(self._reread)
        failed = await self._let_in()
        accounts = [*self._nodes, *self._teams]
        read = self._words.taken()  # first: what the broker says to have counted is no less
        for at in range(0, len(accounts), _ASKED):
            await self._answers.ask(nats, {"accounts": [self._core, *accounts[at : at + _ASKED]]})
        servers, answers = await self._heard() if accounts else (set[str](), [])
        too_many = await self._crowding(nats) if self._nodes and servers else {}
        if accounts and not servers:
            self._words.put_back(read)
            too_many |= await self._tracing()
        if servers:  # of one that is new it is not known what it has counted for what was read until now
            too_many |= self._floods(answers, read if servers <= self._servers else {})
        for name, why in too_many.items():
            try:
                await (self._cut(name, why) if "." in name else self._keep_out(name, why))
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
        known = {name: public for public, name in self._teams.items()}
        guests = keys.teams if keys.finance is None else {**keys.teams, FINANCE: keys.finance}
        self._teams = {known.get(name) or keys.public: name for name, keys in guests.items() if keys.users}
        self._out, before = keys.kept_out, self._out
        for team in before.keys() - self._out.keys():
            self._begin_anew(team)
        watched = self._nodes.keys() | self._teams.keys() | self._logs.keys()
        self._left = {key: left for key, left in self._left.items() if key[0] in watched}
        self._said = {account: said for account, said in self._said.items() if account in watched}
        self._questions = {user: asked for user, asked in self._questions.items() if user in self._logs}
        self._counted = {key: passed for key, passed in self._counted.items() if key[1] in watched}
        self._words.ask_again()
        self._read_ns = changed_ns

    def _name(self, account: str) -> str:
        """The node or team, "" for none that is looked at."""
        return self._nodes.get(account) or self._teams.get(account) or self._logs.get(account, "")

    def _end(self, name: str, why: str) -> None:
        """Of who says words that are no messages: while they come the broker would take seconds for each connection. All others
        are cut off by the broker, and so told why."""
        for names in (self._nodes, self._teams, self._logs) if _WORDS in why else ():
            for account in [account for account, one in names.items() if one == name]:
                self._words.end(account)

    def _watched(self) -> WatchedAccounts:
        """Whose connections are looked at."""
        return WatchedAccounts({**self._nodes, **self._teams, **self._logs}, self._core)

    def _floods(self, answers: list[Counted], read: Mapping[str, int]) -> dict[str, str]:
        """Who has said or heard too much, and what. `read`: bytes of connections, by account or a node's second user."""
        passed, read = self._since(answers), Counter(read)
        for one, said in self._words.told().items():
            if one in passed:
                read[one] += words(said)
            else:  # a server tells nothing of a user, nor of a team that has no connection
                passed[one], read[one] = AccountTraffic(said.messages, said.bytes, said.heard), said.read
        over = {self._name(one): self._over(one, traffic, read[one]) for one, traffic in passed.items()}
        return {name: why for name, why in over.items() if name and why}

    async def _tracing(self) -> dict[str, str]:
        """Who has so many messages traced that no server answers, and why each is to be cut off."""
        if self._core_connection is None:
            return {}
        try:
            heard = await traced(self._core_connection)
        except NatsError:  # that connection is made anew by its owner
            return {}
        return {
            name: f"it had the broker trace {many:,} messages in {LISTEN_S} s, which keeps it from answering anybody"
            for account, many in heard.items()
            if many >= FLOOD and (name := self._name(account)) and name not in self._out
        }

    async def _heard(self) -> tuple[set[str], list[Counted]]:
        """The servers that have answered since the last look, and what they have counted of accounts that somebody uses; of one
        server one after the other."""
        servers, found = set[str](), list[Counted]()
        for told in await self._answers.heard():
            servers.add(told.get("server_id", ""))
            for one in told.get("account_statz", ()):
                said, heard = one["received"], one["sent"]
                passed = AccountTraffic(said["msgs"], said["bytes"], heard["msgs"], heard["bytes"])
                found.append((told["server_id"], one["acc"], passed))
        return servers, found

    async def _crowding(self, nats: Client) -> dict[str, str]:
        """Nodes with more connections to the core than a node may have, and why each is cut off. Whose they are is asked when
        a server has so many more than before that it may be one."""
        answers = await answers_of(nats, STATZ, {"accounts": [self._core]})
        now = {told["server_id"]: one["conns"] for told in answers for one in told.get("account_statz", ())}
        if all(many <= self._usual.get(server, 0) + NODE_CONNECTIONS for server, many in now.items()):
            self._usual |= {server: min(many, self._usual.get(server, many)) for server, many in now.items()}
            return {}
        held, at, total = Counter[str](), 0, 1
        while at < total:
            page = {"acc": self._core, "auth": True, "limit": _ASKED, "offset": at}
            answers = await answers_of(nats, CONNZ, page)
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

    def _since(self, answers: list[Counted]) -> dict[str, AccountTraffic]:
        """Of each account since the last answer. What a server has counted before it was asked for the first time is nobody's
        fault, and one that was started anew counts from nothing."""
        found: dict[str, AccountTraffic] = {}
        for server, account, passed in answers:
            before = self._counted.get((server, account), AccountTraffic())
            self._counted[server, account] = passed
            if server in self._servers and before is not None:
                before = before if passed.said >= before.said and passed.heard >= before.heard else AccountTraffic()
                found[account] = found.get(account, AccountTraffic()).plus(passed).plus(before, -1)
        return found

    def _over(self, account: str, passed: AccountTraffic, read: int) -> str:
        """Counts what an account has said and heard; why that is too much, "" when it is not."""
        team = self._teams.get(account)
        if team in self._out:
            return ""
        at_us, why = int(self._now() * 1e6), ""
        if team is not None:
            rates = _of_team(passed, self._traffic(team))
        elif account in self._logs:
            questions = self._questions.setdefault(account, _Questions())
            rates = _of_answers(passed, questions.unasked(passed, at_us))
        else:
            rates = _of_node(passed)
        if self._words.sees:
            why = self._over_words(account, passed, read, at_us)
        for rate in rates:
            bucket = self._left.setdefault((account, rate.what, rate.unit), Bucket(rate.most, at_us))
            bucket.owe(rate.most, rate.per_s, at_us, rate.amount)
            if not why and bucket.wait_s(rate.most, rate.per_s, at_us) > 1 / rate.per_s:
                why = rate.text()
        return why

    def _over_words(self, account: str, passed: AccountTraffic, read: int, at_us: int) -> str:
        """Whether too much of what was `read` is no message. What will be one, when the rest of it has come, is repaid then; so
        much may stand open as is usual for who says large ones."""
        said = self._said.get(account) or _Unread(at_us)
        passed_s, more = (at_us - said.at_us) / 1e6, read - passed.said_bytes
        usual = said.usual * 0.5 ** (passed_s / _USUAL_S) + passed.said_bytes
        words = said.words + max(0.0, more - said.ahead) - max(0.0, -more)
        ahead = max(0.0, said.ahead - max(0, more)) + max(0.0, -words)
        leaked = min(said.words, WORDS_PER_S * passed_s)  # what is told late, of ended connections, was said at once
        words = max(0.0, words - OF_MESSAGE * passed.said - leaked)
        self._said[account] = _Unread(at_us, words, usual, min(ahead, usual))
        if words <= WORDS_AT_ONCE + min(LARGEST * self._words.many(account), max(HALF_SAID, usual)):
            return ""
        del self._said[account]
        who = "team" if account in self._teams else "node"
        return _Flow("said", who, words, WORDS_AT_ONCE, WORDS_PER_S, f"KiB of {_WORDS}", 1024).text()

    def _traffic(self, team: str) -> TrafficLimits:
        if team == FINANCE:
            return EVERYBODYS
        return self._limits.get(team) or self._limits.get(EVERYBODY, EVERYBODYS)

    async def _let_in(self) -> list[Exception]:
        """Those whose time is over; who could not be is tried again at the next look, and what was met is returned."""
        failed, over = list[Exception](), [team for team, at_s in self._out.items() if self._keyring.is_over(at_s)]
        for team in over:
            try:
                await asyncio.to_thread(self._open, team)
            except NotKeptOut:  # an operator was faster
                continue
            except Exception as error:
                failed.append(error)
                continue
            del self._out[team]
            self._begin_anew(team)
            self._untold[team] = None
            log.warning("%s is let in again", "finance" if team == FINANCE else f"team {team}")
        if len(over) > len(failed):
            await self._tell_untold()
            await asyncio.to_thread(self._booked)
        return failed

    def _begin_anew(self, team: str) -> None:
        """A server tells nothing of a team that has no connection: what it said last, while it was cut off, would count as said
        by the first one to come back."""
        for server, account in self._counted:
            if self._teams.get(account) == team:
                self._counted[server, account] = None
                self._words.forget(account)

    def _open(self, team: str) -> None:
        with self._book.entry(_line("team.let-in", team, "its time is over")):
            self._keyring.let_in(team)

    async def _keep_out(self, team: str, why: str) -> None:
        try:
            out_s = await asyncio.to_thread(self._shut, team, why)
        except NoCredential:  # it has left
            return
        self._end(team, why)
        self._untold[team] = None
        for key in [key for key in self._left if self._teams.get(key[0]) == team]:
            del self._left[key]
        await asyncio.to_thread(self._reread)
        whose = "finance" if team == FINANCE else f"team {team}"
        line = f"{whose} is kept out for {out_s} s: {why}" + (". What it submitted runs on" if team != FINANCE else "")
        log.error("%s", line)
        self._say(line)
        await self._tell_untold()
        await asyncio.to_thread(self._booked)

    def _shut(self, team: str, why: str) -> int:
        with self._book.entry(_line("team.keep-out", team, why)) as more:
            out_s = self._keyring.keep_out(team, OUT_S, MOST_OUT_S)
            more["detail"] = f"for {out_s} s"
        return out_s

    async def _cut(self, name: str, why: str) -> None:
        pool, _, node = name.partition(".")
        try:
            told = await asyncio.to_thread(self._revoke, pool, node, why)
        except NoCredential:  # somebody was faster
            return
        self._end(name, why)
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
            log.warning("the disconnections could not be pushed to the broker yet: %s", error)
        else:
            self._untold.clear()

    def _revoke(self, pool: str, node: str, why: str) -> list[str]:
        with self._book.entry(_line("node.revoke", f"{pool}/{node}", why)):
            return self._keyring.revoke_node(pool, node)


def _line(what: str, target: str, why: str) -> dict[str, Any]:
    """Of the operator's book."""
    return {
        "what": what, "target": target, "reason": why, "at_us": time.time_ns() // 1000,
        "host": socket.gethostname()[:255], "login": "", "tool": "",
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Unread:
    """Of an account: bytes that were no messages until then, beyond what may come in a second; of messages, those of late, and
    those that the broker has counted before they were seen to be read: it answers later than the kernel."""

    at_us: int
    words: float = 0.0
    usual: float = 0.0
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class _Flow:
    """What passed now, what may pass at once, and in a second."""

    what: str
    who: str
    amount: float
    most: float
    per_s: float
    unit: str
    """As it is told."""
    in_one: int = 1

    def text(self) -> str:
        now, most, per_s = (f"{one / self.in_one:,.0f}" for one in (self.amount, self.most, self.per_s))
        beyond = f"{now} {self.unit} in a moment beyond {most} at once and {per_s} a second"
        return f"it {self.what} more than a {self.who} may: {beyond}"


_MIB = 1024 * 1024


def _of_node(passed: AccountTraffic) -> Sequence[_Flow]:
    return (
        _Flow("sent", "node", passed.said, MESSAGES_AT_ONCE, MESSAGES_PER_S, "messages"),
        _Flow("sent", "node", passed.said_bytes, BYTES_AT_ONCE, BYTES_PER_S, "MiB", _MIB),
    )


class _Questions:
    """Those that a node has heard and may answer yet. What it was asked is seen before what it answers: over a slow line, or
    while several teams read, many looks before."""

    def __init__(self) -> None:
        self._open: deque[tuple[int, int]] = deque()  # when they were seen, how many

    def unasked(self, passed: AccountTraffic, at_us: int) -> int:
        """So many of the messages that it said were no answers."""
        while self._open and self._open[0][0] < at_us - ANSWER_S * 1_000_000:
            self._open.popleft()
        if passed.heard:
            self._open.append((at_us, passed.heard))
        said = passed.said
        while said and self._open:
            seen_us, many = self._open.popleft()
            if many > said:
                self._open.appendleft((seen_us, many - said))
            said -= min(many, said)
        return said


def _of_answers(passed: AccountTraffic, unasked: int) -> Sequence[_Flow]:
    """Of a node's second credential. The broker lets it answer each question once, and whoever asks is counted for what it
    hears: what it says beside answers is limited like a node's messages, and all of it together by what one team may hear."""
    per_s = EVERYBODYS.heard_bytes_per_s or 0.0
    return (
        *_of_node(AccountTraffic(unasked, passed.said_bytes * unasked // max(1, passed.said))),
        _Flow("answered", "node", passed.said_bytes, AT_ONCE_S * per_s, per_s, "MiB of logs", _MIB),
    )


def _of_team(passed: AccountTraffic, limits: TrafficLimits) -> Sequence[_Flow]:
    """Those that there is a limit for."""
    rates = (
        ("said", passed.said, limits.said_per_s, "messages", 1),
        ("said", passed.said_bytes, limits.said_bytes_per_s, "MiB", _MIB),
        ("heard", passed.heard, limits.heard_per_s, "messages", 1),
        ("heard", passed.heard_bytes, limits.heard_bytes_per_s, "MiB", _MIB),
    )
    return [
        _Flow(what, "team", amount, AT_ONCE_S * per_s, per_s, unit, in_one)
        for what, amount, per_s, unit, in_one in rates
        if per_s is not None
    ]
