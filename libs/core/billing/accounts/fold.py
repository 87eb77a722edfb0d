"""Folds ledger records into postings: closed intervals are posted, the others stay open."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from libs.core.billing.accounts.capacity import pieces
from libs.core.billing.accounts.posting import Account, Posting
from libs.core.billing.accounts.rows import REST, BookLine, DeviceBook, Key, Payer
from libs.core.billing.unbillable import Unbillable
from libs.core.state import parts
from libs.core.state.by_job import ByJob
from libs.core.state.clock import Calendar
from libs.core.state.queue_tree import QueueTree
from schemas import ledger as led
from schemas.attempts import Evidence
from schemas.resources import Inventory, kind_of

_WITHOUT_NODE = frozenset({Evidence.LEASE_ENDED, Evidence.NEW_INCARNATION})
"""Evidence that does not come from the life in which the part ran: what happened during the silence is unknown."""


@dataclass(slots=True)
class _Silence:
    """The silence of a node that is up."""

    since_us: int
    ended: list[tuple[BookLine, int, int]] = field(default_factory=list)
    """Lines without a payer that ended during the silence, each with time and record. Their account is known when the
    node is heard or lost."""


@lru_cache(maxsize=4096)
def _payer_of(team: str, user: str, klass: str) -> Payer:
    """One shared object per user and class."""
    return Payer(team, user, priority_class=klass)


class Accounts:
    """Folds ledger records, each once and in order. Memory: a few hundred bytes per device and per running attempt."""

    version: ClassVar[int] = 2
    """Version of the layout of `dump`."""
    handled: ClassVar[frozenset[str]]
    ignored: ClassVar = frozenset({
        "job.boosted", "job.boost-ended",
        "quota.set", "attempt.starting", "attempt.running", "attempt.checkpointed", "attempt.progress", "gang.promised",
        "attempt.preempting", "attempt.stopping", "attempt.closed", "job.requeued", "board.recut-withdrawn",
        "input.rejected", "plan.declined", "clock.jumped", "segment.sealed", "team.suspended", "team.resumed", "team.left",
        "lease.granter", "node.declared-dead", "operator.acted", "command.refused", "ledger.summed",
        "prices.applied", "period.closed", "budgets.applied",
        "budget.topped-up", "budget.period-began", "budget.holds-renewed", "budget.reached",
    })  # fmt: skip
    """Events that move no capacity: starts, checkpoints and stops stay within the attempt's account; a withdrawn
    repartition lasts until its node answers."""

    def __init__(self) -> None:
        self.seq = 0
        self.t_us = 0
        self.posted: Counter[Account] = Counter()
        """Account -> unit-microseconds of all postings."""
        self.posted_to_attempts = 0
        """Part of these that attempts pay: the bill."""
        self._pool = ""
        self._devices: dict[str, DeviceBook] = {}
        self._on_node: dict[str, set[str]] = {}
        self._joined_us: dict[str, int] = {}
        """Node -> start of its present or last life; it was heard then."""
        self._jobs: ByJob[Payer] = ByJob()  # unfinished jobs, without their ids
        self._holds: dict[str, tuple[str, ...]] = {}
        self._reserved: dict[str, Payer] = {}
        """Device -> the gang that it is reserved for."""
        self._cordoned: dict[str, str] = {}
        """Cordoned node -> who cordoned it, and why."""
        self._cleaning: dict[str, tuple[str, frozenset[str]]] = {}
        """Board being repartitioned -> its node, and the instances that go."""
        self._silent: dict[str, _Silence] = {}
        self._lost: dict[str, tuple[_Silence, str]] = {}
        """Nodes whose silence ended in this record without a report by them, with the proof."""
        self._freed: dict[tuple[str, Key], tuple[int, str]] = {}
        """In this record: what was freed without a report by its node -> when the node was last heard, and the proof."""
        self._touched: dict[str, None] = {}
        self.idle: Counter[str] = Counter()
        """Device kind -> units known to be idle now."""
        self._told_fragmented: Mapping[str, int] = {}
        """Device kind -> units last reported to fit no waiting job."""
        self._fragmented_unit_us = 0
        self._tree = QueueTree()
        self._calendar = Calendar()
        self._units = 0
        self._capacity_unit_us = 0
        self._out: list[Posting] = []

    def apply(self, record: led.LedgerRecord, seq: int) -> list[Posting]:
        """Folds one valid record at ledger sequence `seq`; returns the postings it closed. A record that was applied
        before changes nothing.

        Raises Unbillable for what no valid ledger contains.
        """
        if seq <= self.seq:
            return []
        t_us = record.t_us
        if t_us < self.t_us:
            raise Unbillable(f"record {seq} is of {t_us}, after {self.t_us}")
        self._calendar.hear(record)
        self._pool = record.pool
        self._capacity_unit_us += self._units * (t_us - self.t_us)
        self._fragmented_unit_us += sum(self.fragmented.values()) * (t_us - self.t_us)
        self._out = []
        for event in record.events:
            fold = _FOLD.get(type(event))
            if fold is not None:
                fold(self, event, t_us)
        if self._touched:
            self._settle(t_us, seq)
        self.seq, self.t_us = seq, t_us
        return self._out

    def skip(self, seq: int) -> None:
        """Skips a void record."""
        self.seq = max(self.seq, seq)

    def open(self, until_us: int) -> Iterator[Posting]:
        """Open intervals up to `until_us`, as they would be posted if nothing more became known: a silent node's time
        is unconfirmed. None is final; later records may decide otherwise."""
        for node, silence in sorted(self._silent.items()):
            for line, end_us, seq in silence.ended:
                yield from self._cut(line, min(end_us, until_us), seq, silence.since_us, f"{node} is silent")
        for _, book in sorted(self._devices.items()):
            for line in book.lines.values():
                known, node = self._silent.get(line.about.node), line.about.node
                since_us, why = (known.since_us, f"{node} is silent") if known is not None else (None, "")
                yield from self._cut(line, until_us, self.seq, since_us, why)

    def balances(self, until_us: int | None = None) -> dict[Account, int]:
        """Account -> unit-microseconds, with open intervals up to `until_us` (default: the last record)."""
        sums = Counter(self.posted)
        for posting in self.open(self.t_us if until_us is None else until_us):
            sums[posting.account] += posting.unit_us
        return {account: sums[account] for account in Account}

    def of_attempts(self, until_us: int | None = None) -> int:
        """Part of the balances that attempts pay, in unit-microseconds: the bill."""
        now = self.open(self.t_us if until_us is None else until_us)
        return self.posted_to_attempts + sum(posting.unit_us for posting in now if posting.attempt)

    def capacity_unit_us(self, until_us: int | None = None) -> int:
        """Existing capacity, units x microseconds, up to `until_us`, at or after the last record (default: the last
        record)."""
        return self._capacity_unit_us + self._units * (0 if until_us is None else until_us - self.t_us)

    @property
    def fragmented(self) -> dict[str, int]:
        """Device kind -> idle units that fit no waiting job: as last reported, at most what is still idle."""
        return {kind: min(units, self.idle[kind]) for kind, units in self._told_fragmented.items()}

    @property
    def overstated(self) -> str:
        """A kind of device with more units reported fragmented than idle; "" if there is none."""
        return next((kind for kind, units in self._told_fragmented.items() if units > self.idle[kind]), "")

    def fragmented_unit_us(self, until_us: int | None = None) -> int:
        """Part of the `idle` balance that fitted no waiting job, in unit-microseconds up to `until_us` (default: the
        last record). Time that turns out not to have been idle is excluded, so it never exceeds the balance."""
        after_us = 0 if until_us is None else until_us - self.t_us
        total = self._fragmented_unit_us + sum(self.fragmented.values()) * after_us
        return min(total, self.balances(until_us)[Account.IDLE])

    @property
    def calendar(self) -> list[tuple[int, int]]:
        """Ledger time to wall time, as pieces of a `Calendar`."""
        return self._calendar.pieces

    # ----------------------------------------------------------------------------------------------------- the fold

    def _joined(self, event: led.NodeJoined, t_us: int) -> None:
        node = event.inventory.node
        self._silence_ends(node, "a new life of its node began")
        self._joined_us[node] = t_us
        for board in [board for board, (of, _) in self._cleaning.items() if of == node]:
            self._cleaned(board)
        self._offers(event.inventory)

    def _offers(self, inventory: Inventory) -> None:
        node = inventory.node
        on_node = self._on_node.setdefault(node, set())
        offered = set()
        for piece in pieces(inventory):
            offered.add(piece.device)
            book = self._devices.get(piece.device)
            if book is None:
                self._devices[piece.device] = book = DeviceBook(piece.device, node, *piece[1:])
            elif book.node != node:
                self._on_node.get(book.node, set()).discard(piece.device)
                book.quarantine = None
            self._touch(book.id)
            on_node.add(piece.device)
            book.node, (book.model, book.profile, book.units, book.board) = node, piece[1:]
            book.exists = True
        for device in sorted(on_node - offered):
            self._gone(device)
            self._devices[device].quarantine = None

    def _left(self, event: led.NodeLeft, t_us: int) -> None:
        self._silence_ends(event.node, event.reason)
        for board in [board for board, (of, _) in self._cleaning.items() if of == event.node]:
            self._cleaned(board)
        for device in sorted(self._on_node.get(event.node, ())):
            self._gone(device)

    def _cut_asked(self, event: led.BoardRecut, t_us: int) -> None:
        board = event.recut.board
        going = frozenset((*event.recut.destroy, board))
        self._cleaning[board] = (event.node, going)
        for device in sorted(going):
            self._touch(device)

    def _cut_done(self, event: led.BoardCutDone, t_us: int) -> None:
        self._cleaned(event.board)
        self._offers(event.inventory)

    def _silenced(self, event: led.NodeSilence, t_us: int) -> None:
        if event.node not in self._silent:
            since_us = t_us - int(event.silent_s * 1_000_000)
            self._silent[event.node] = _Silence(max(since_us, self._joined_us.get(event.node, 0)))

    def _heard(self, event: led.NodeHeard, t_us: int) -> None:
        silence = self._silent.pop(event.node, None)
        for line, end_us, seq in silence.ended if silence is not None else ():
            self._post(self._cut(line, end_us, seq))

    def _quarantined(self, event: led.DeviceQuarantined, t_us: int) -> None:
        if (book := self._devices.get(event.device)) is not None:
            book.quarantine = event.users
            self._touch(book.id)

    def _returned(self, event: led.DeviceReturned, t_us: int) -> None:
        if (book := self._devices.get(event.device)) is not None:
            book.quarantine = None
            self._touch(book.id)

    def _cordon(self, event: led.NodeCordoned, t_us: int) -> None:
        self._cordoned[event.node] = f"{event.user or 'an operator'}: {event.reason}"
        self._touch_node(event.node)

    def _uncordon(self, event: led.NodeUncordoned, t_us: int) -> None:
        self._cordoned.pop(event.node, None)
        self._touch_node(event.node)

    def _queues(self, event: led.QueuesApplied, t_us: int) -> None:
        self._tree = QueueTree.of(event.queues, event.version)

    def _queued(self, event: led.JobQueued, t_us: int) -> None:
        self._jobs[event.job_id] = _payer_of(event.team, event.user, event.spec.priority_class)

    def _granted(self, event: led.JobGranted, t_us: int) -> None:
        payer = self._payer(event.job_id, event.attempt)
        self._keep(event.job_id, ())
        for claim in event.claims:
            book = self._devices.get(claim.device)
            if book is None:
                raise Unbillable(f"{event.job_id} is granted {claim.device}, which no node has brought")
            book.claims[event.job_id, event.attempt] = payer, claim.milli
            self._touch(book.id)

    def _given_back(self, event: led.DevicesFreed, t_us: int) -> None:
        key = (event.job_id, event.attempt)
        silence = self._silent.get(event.node)
        if silence is None and (lost := self._lost.get(event.node)) is not None:
            silence = lost[0]
        since_us = silence.since_us if silence is not None else None
        if since_us is None and event.silent_s is not None:
            since_us = max(0, t_us - int(event.silent_s * 1_000_000))
        for device in event.devices:
            book = self._devices.get(device)
            if book is None or book.claims.pop(key, None) is None:
                raise Unbillable(f"{event.job_id}.{event.attempt} frees {device} and does not hold it")
            if since_us is not None and event.evidence in _WITHOUT_NODE:
                self._freed[device, key] = since_us, event.reason or event.evidence.value
            self._touch(device)

    def _finish(self, event: led.JobFinished, t_us: int) -> None:
        self._keep(event.job_id, ())
        self._jobs.pop(event.job_id, None)

    def _held(self, event: led.DevicesHeld, t_us: int) -> None:
        self._holds[event.job_id] = event.devices
        payer = self._payer(event.job_id, 0)
        for device in event.devices:
            if (book := self._devices.get(device)) is not None:
                book.held_for = payer
                self._touch(device)

    def _reserve(self, event: led.DevicesReserved, t_us: int) -> None:
        self._keep(event.gang, event.devices)

    def _split(self, event: led.DevicesFragmented, t_us: int) -> None:
        self._told_fragmented = event.units

    def _keep(self, job_id: str, devices: tuple[str, ...]) -> None:
        """Reserves exactly these devices for a gang from now on."""
        for device in [device for device, payer in self._reserved.items() if payer.job_id == job_id]:
            del self._reserved[device]
            self._touch(device)
        for device in devices:
            self._reserved[device] = self._payer(job_id, 0)
            self._touch(device)

    def _let_go(self, event: led.HoldReleased, t_us: int) -> None:
        for device in self._holds.pop(event.job_id, ()):
            book = self._devices.get(device)
            if book is not None and book.held_for is not None and book.held_for.job_id == event.job_id:
                book.held_for = None
                self._touch(device)

    # --------------------------------------------------------------------------------------------- what these share

    def _payer(self, job_id: str, attempt: int) -> Payer:
        payer = self._jobs.get(job_id)
        if payer is None:
            raise Unbillable(f"{job_id} is given devices and was never queued, or has ended")
        return payer._replace(job_id=job_id, attempt=attempt, queue="/".join(self._tree.path(payer.team)))

    def _touch(self, device: str) -> None:
        self._touched[device] = None

    def _touch_node(self, node: str) -> None:
        for device in sorted(self._on_node.get(node, ())):
            self._touch(device)

    def _gone(self, device: str) -> None:
        self._devices[device].exists = False
        self._touch(device)

    def _cleaned(self, board: str) -> None:
        for device in sorted(self._cleaning.pop(board, ("", frozenset[str]()))[1]):
            self._touch(device)

    def _silence_ends(self, node: str, proof: str) -> None:
        silence = self._silent.pop(node, None)
        if silence is not None:
            self._lost[node] = silence, proof
            self._touch_node(node)

    def _settle(self, t_us: int, seq: int) -> None:
        """Ends a record: closes changed lines and opens new ones."""
        for silence, proof in self._lost.values():
            for line, end_us, end_seq in silence.ended:
                self._post(self._cut(line, end_us, end_seq, silence.since_us, proof))
        for device in self._touched:
            book = self._devices.get(device)
            if book is not None:
                self._settle_device(book, t_us, seq)
        self._lost.clear()
        self._freed.clear()
        self._touched.clear()

    def _settle_device(self, book: DeviceBook, t_us: int, seq: int) -> None:
        asked = self._cleaning.get(book.board) if book.board else None
        cleaning, out = asked is not None and book.id in asked[1], self._cordoned.get(book.node)
        now = book.now(cleaning=cleaning, kept_out=out, reserved_for=self._reserved.get(book.id))
        before, lost = book.lines, self._lost.get(book.node)
        for key, line in before.items():
            new = now.get(key)
            if new is not None and new.same(line) and not (lost is not None and key == REST):
                now[key] = line
                continue
            self._count(line, -line.units)
            self._close(book, key, line, t_us, seq)
        for key, line in now.items():
            if before.get(key) is not line:
                line.since_us, line.seq = t_us, seq
                self._count(line, line.units)
        book.lines = now
        if not now and not book.exists and book.quarantine is None:
            del self._devices[book.id]
            self._on_node.get(book.node, set()).discard(book.id)

    def _count(self, line: BookLine, units: int) -> None:
        self._units += units
        if line.account is Account.IDLE:
            self.idle[kind_of(line.about.model, line.about.profile)] += units

    def _close(self, book: DeviceBook, key: Key, line: BookLine, t_us: int, seq: int) -> None:
        if key == REST:
            lost, silence = self._lost.get(line.about.node), self._silent.get(line.about.node)
            if lost is not None:
                self._post(self._cut(line, t_us, seq, lost[0].since_us, lost[1]))
            elif silence is not None:
                if t_us > line.since_us:
                    silence.ended.append((line, t_us, seq))
            else:
                self._post(self._cut(line, t_us, seq))
        else:
            since_us, proof = self._freed.get((book.id, key), (None, ""))
            self._post(self._cut(line, t_us, seq, since_us, proof))

    def _cut(
        self, line: BookLine, end_us: int, seq: int, since_us: int | None = None, proof: str = ""
    ) -> Iterator[Posting]:
        return line.postings(self._pool, self._calendar, end_us, seq, since_us, proof)

    def _post(self, postings: Iterator[Posting]) -> None:
        for posting in postings:
            self.posted[posting.account] += posting.unit_us
            if posting.attempt:
                self.posted_to_attempts += posting.unit_us
            self._out.append(posting)

    # ------------------------------------------------------------------------------------------------- the snapshot

    def dump(self) -> Iterator[bytes]:
        """Parts for a snapshot. Accounts that folded the same records give equal parts."""
        about = {
            "at": [self.seq, self.t_us, self._pool, self._capacity_unit_us, self.posted_to_attempts],
            "posted": {account.value: self.posted[account] for account in Account if self.posted[account]},
            "fragmented": [self._fragmented_unit_us, self._told_fragmented],
            "calendar": self._calendar.pieces,
            "tree": self._tree.dump(),
        }
        silent = (
            (n, s.since_us, [(line.dump(), *at) for line, *at in s.ended]) for n, s in sorted(self._silent.items())
        )
        return parts.write(about, {
            "devices": (book.dump() for _, book in sorted(self._devices.items())),
            "joined": sorted(self._joined_us.items()),
            "jobs": (payer._replace(job_id=job) for job, payer in self._jobs.items()),
            "holds": self._holds.items(),
            "reserved": self._reserved.items(),
            "cordoned": self._cordoned.items(),
            "cleaning": ((board, node, sorted(going)) for board, (node, going) in self._cleaning.items()),
            "silent": silent,
        })  # fmt: skip

    @classmethod
    def load(cls, dumped: Iterable[bytes]) -> "Accounts":
        """The inverse of `dump`, for parts of the same `version`."""
        books, (about, tables) = cls(), parts.read(dumped)
        books.seq, books.t_us, books._pool, books._capacity_unit_us, books.posted_to_attempts = about["at"]
        books.posted = Counter({Account(name): amount for name, amount in about["posted"].items()})
        books._fragmented_unit_us, books._told_fragmented = about.get("fragmented", (0, {}))
        books._calendar, books._tree = Calendar(about["calendar"]), QueueTree.load(about["tree"])
        loads: dict[str, Callable[[list[Any]], None]] = {
            "devices": lambda row: books._add(DeviceBook.load(row)),
            "joined": lambda row: books._joined_us.update({row[0]: row[1]}),
            "holds": lambda row: books._holds.update({row[0]: tuple(row[1])}),
            "reserved": lambda row: books._reserved.update({row[0]: Payer(*row[1])}),
            "cordoned": lambda row: books._cordoned.update({row[0]: row[1]}),
            "cleaning": lambda row: books._cleaning.update({row[0]: (row[1], frozenset(row[2]))}),
            "silent": lambda row: books._silent.update({row[0]: _silence(row[1:])}),
        }
        for table, rows in tables:
            if table == "jobs":
                books._jobs.fill((row[2], _payer_of(row[0], row[1], row[4])) for row in rows)
                continue
            for row in rows:
                loads[table](row)
        return books

    def _add(self, book: DeviceBook) -> None:
        self._devices[book.id] = book
        self._on_node.setdefault(book.node, set()).add(book.id)
        for line in book.lines.values():
            self._count(line, line.units)


def _silence(row: list[Any]) -> _Silence:
    return _Silence(row[0], [(BookLine.load(line), end_us, seq) for line, end_us, seq in row[1]])


_FOLD: Mapping[type, Callable[[Accounts, Any, int], None]] = {
    led.NodeJoined: Accounts._joined,
    led.NodeLeft: Accounts._left,
    led.BoardRecut: Accounts._cut_asked,
    led.BoardCutDone: Accounts._cut_done,
    led.NodeSilence: Accounts._silenced,
    led.NodeHeard: Accounts._heard,
    led.DeviceQuarantined: Accounts._quarantined,
    led.DeviceReturned: Accounts._returned,
    led.NodeCordoned: Accounts._cordon,
    led.NodeUncordoned: Accounts._uncordon,
    led.DevicesReserved: Accounts._reserve,
    led.DevicesFragmented: Accounts._split,
    led.QueuesApplied: Accounts._queues,
    led.JobQueued: Accounts._queued,
    led.JobGranted: Accounts._granted,
    led.DevicesFreed: Accounts._given_back,
    led.JobFinished: Accounts._finish,
    led.DevicesHeld: Accounts._held,
    led.HoldReleased: Accounts._let_go,
}
Accounts.handled = led.kinds_of(_FOLD)
