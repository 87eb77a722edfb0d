"""Folds a ledger into every team's lines and heads, and judges the sums that it has. History's projection, and the auditor's.

A sum is proposed by history and written some records later. So that whoever reads the record can judge it, the heads of a while
ago are kept as what to take back (`_since`): one entry for each line since the last sum.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from libs.core.proofs.lines import OF_JOBS, OF_TEAMS, TeamLine, first_head, next_head, write
from libs.core.proofs.sums import SumChain
from libs.core.proofs.tree import Tree, depth_for, leaf_of, salt_of
from libs.core.state import parts
from libs.core.state.by_job import ByJob
from libs.core.state.clock import Calendar
from schemas import ledger as led
from schemas.proofs import Sum
from schemas.resources import kind_of

MOST_SINCE = 50_000
"""The last lines, that can be taken back, about 6 MB: a sum that came into the ledger later than that counts for nothing."""


@dataclass(frozen=True, slots=True)
class TeamHead:
    """A team's lines so far: how many, the hash over them, the record of the last, and how many pieces of the calendar it was
    told."""

    count: int
    hash: bytes
    seq: int
    pieces: int


@dataclass(frozen=True, slots=True)
class JudgedSum:
    """A sum that a record says. `problem`: why it does not count; "" with `repeat`: it was there before."""

    sum: Sum
    nonce: bytes
    problem: str = ""
    repeat: bool = False
    leaves: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordLines:
    """What a record adds."""

    lines: tuple[TeamLine, ...] = ()
    sums: tuple[JudgedSum, ...] = ()


class TeamChains:
    """Feed it every valid record. Memory: some 300 bytes for each team, device and unfinished job, and for each line since the
    last sum."""

    version: ClassVar[int] = 1
    """Of the layout of `dump`."""
    handled: ClassVar[frozenset[str]] = led.kinds_of(
        (*OF_JOBS, *OF_TEAMS, led.NodeJoined, led.BoardCutDone, led.LedgerSummed)
    )
    ignored: ClassVar[frozenset[str]] = frozenset(led.EVENT_KINDS) - handled
    """They are of no one team, and no bill is made of them."""

    def __init__(self) -> None:
        self.heads: dict[str, TeamHead] = {}
        self.sums = SumChain()
        self.seq = 0
        self.t_us = 0
        self._teams: ByJob[str] = ByJob()
        """Job that has not ended -> its team."""
        self._models: dict[str, str] = {}
        self._calendar = Calendar()
        self._pieces = 0
        """Of the calendar, in all."""
        self._since: deque[tuple[int, str, TeamHead | None]] = deque()
        """What each line since the last sum took the place of: (record, team, the head before)."""
        self._from = 0
        """The last record whose line is not in `_since` any more."""

    # ------------------------------------------------------------------------------------------------------- the fold

    def apply(self, record: led.LedgerRecord, seq: int) -> RecordLines:
        """The lines that the valid record at `seq` adds, and its sums."""
        self.t_us, self.seq = record.t_us, seq
        self._note(record)
        own: dict[str, list[Any]] = {}
        sums: list[JudgedSum] = []
        for event in record.events:
            if isinstance(event, led.JobQueued):
                self._teams[event.job_id] = sys.intern(event.team)
            elif isinstance(event, led.NodeJoined | led.BoardCutDone):
                self._models.update(
                    (device.id, kind_of(device.model, device.mig_profile)) for device in event.inventory.devices
                )
            elif isinstance(event, led.LedgerSummed):
                sums.append(self._judge(event, record.pool, seq))
            if team := self._whose(event):
                own.setdefault(team, []).append(event)
            if isinstance(event, led.JobFinished):
                self._teams.pop(event.job_id, None)
        return RecordLines(tuple(self._line(record, seq, team, own[team]) for team in own), tuple(sums))

    def skip(self, seq: int) -> None:
        """A void record adds nothing."""

    def _whose(self, event: Any) -> str:
        if isinstance(event, OF_JOBS):
            return self._teams.get(event.job_id, "")  # type: ignore[attr-defined]
        says = OF_TEAMS.get(type(event))
        return says(event) if says is not None else ""

    def _note(self, record: led.LedgerRecord) -> None:
        last = self._calendar.last
        self._calendar.hear(record)
        self._pieces += self._calendar.last != last

    def _line(self, record: led.LedgerRecord, seq: int, team: str, events: list[Any]) -> TeamLine:
        before = self.heads.get(team)
        count, digest, told = (
            (before.count, before.hash, before.pieces)
            if before
            else (0, first_head(record.pool, team), self._pieces - 1)
        )
        new = self._calendar.pieces[-(self._pieces - told) :] if self._pieces > max(told, 0) else ()
        granted = (claim.device for e in events if isinstance(e, led.JobGranted) for claim in e.claims)
        models = {device: self._models.get(device, "") for device in granted}
        text = write(record, seq, team, count + 1, events, models=models, calendar=new)
        after = TeamHead(count + 1, next_head(digest, text), seq, self._pieces)
        self.heads[team] = after
        self._since.append((seq, team, before))
        if len(self._since) > MOST_SINCE:
            self._from = self._since.popleft()[0]
        return TeamLine(team, seq, record.t_us, after.count, text, after.hash.hex(), digest.hex())

    # ----------------------------------------------------------------------------------------------------------- sums

    def proposal(self, pool: str, nonce: bytes) -> Sum:
        """The next sum, over all that was folded. `nonce`: 32 random bytes that nobody has seen."""
        leaves, depth = self._leaves(self.heads, nonce), depth_for(len(self.heads))
        return Sum(
            pool=pool, number=self.sums.number + 1, upto_seq=self.seq, t_us=self.t_us,
            root=Tree(leaves, nonce, depth).root.hex(), depth=depth, prev=self.sums.prev, skip=self.sums.skip,
        )  # fmt: skip

    def _judge(self, event: led.LedgerSummed, pool: str, seq: int) -> JudgedSum:
        """What the record at `seq` says of a sum. One that is right is the last one from here on."""
        one, nonce, last = event.sum, bytes.fromhex(event.nonce), self.sums
        if one.number <= last.number:
            return JudgedSum(one, nonce, repeat=True)
        problem = ""
        if one.number != last.number + 1 or one.prev != last.prev or one.skip != last.skip or one.pool != pool:
            problem = f"does not follow sum {last.number}"
        elif not last.upto_seq < one.upto_seq < seq or not last.t_us <= one.t_us <= self.t_us:
            problem = f"is up to record {one.upto_seq}, the one before it up to {last.upto_seq}"
        elif one.upto_seq < self._from:
            problem = f"is up to record {one.upto_seq}, so far back that it cannot be looked at"
        leaves: list[bytes] = []
        if not problem:
            leaves = self._leaves(self._heads_at(one.upto_seq), nonce)
            if one.depth != depth_for(len(leaves)) or Tree(leaves, nonce, one.depth).root.hex() != one.root:
                problem = f"is not what the teams' lines up to record {one.upto_seq} come to"
        if problem:
            return JudgedSum(one, nonce, problem)
        self.sums = last.after(one)
        while self._since and self._since[0][0] <= one.upto_seq:
            self._from = self._since.popleft()[0]
        return JudgedSum(one, nonce, leaves=tuple(sorted(leaves)))

    def _heads_at(self, seq: int) -> dict[str, TeamHead]:
        heads: dict[str, TeamHead | None] = dict(self.heads)
        for at, team, before in reversed(self._since):
            if at <= seq:
                break
            heads[team] = before
        return {team: head for team, head in heads.items() if head is not None}

    @staticmethod
    def _leaves(heads: dict[str, TeamHead], nonce: bytes) -> list[bytes]:
        return [leaf_of(salt_of(nonce, team), team, head.count, head.hash) for team, head in heads.items()]

    def needed(self) -> dict[str, int]:
        """Of each team the record of the last line that the newest sum is over, or, before there is one, of its last line. What
        is before may be forgotten; a team that is not named needs all that it has."""
        heads = self._heads_at(self.sums.upto_seq) if self.sums.number else self.heads
        return {team: head.seq for team, head in heads.items()}

    # --------------------------------------------------------------------------------------------------- the snapshot

    def dump(self) -> Iterator[bytes]:
        """Parts for a snapshot; it must not change before the last one is taken."""
        sums = self.sums
        return parts.write(
            {
                "seq": self.seq, "t_us": self.t_us, "from": self._from, "pieces": self._pieces,
                "calendar": self._calendar.pieces,
                "sums": (sums.number, sums.upto_seq, sums.t_us, sums.named),
            },
            {
                "heads": ((team, *_row(head)) for team, head in self.heads.items()),
                "jobs": self._teams.items(),
                "models": self._models.items(),
                "since": ((seq, team, head and _row(head)) for seq, team, head in self._since),
            },
        )  # fmt: skip

    @classmethod
    def load(cls, dumped: Iterable[bytes]) -> "TeamChains":
        """The inverse of `dump`."""
        made = cls()
        about, tables = parts.read(dumped)
        made.seq, made.t_us, made._from, made._pieces = (about[name] for name in ("seq", "t_us", "from", "pieces"))
        made._calendar = Calendar(about["calendar"])
        number, upto_seq, t_us, named = about["sums"]
        made.sums = SumChain(number, upto_seq, t_us, tuple((n, h) for n, h in named))
        for table, rows in tables:
            match table:
                case "heads":
                    made.heads.update((team, _head(row)) for team, *row in rows)
                case "jobs":
                    made._teams.fill((job_id, sys.intern(team)) for job_id, team in rows)
                case "models":
                    made._models.update(rows)
                case "since":
                    made._since.extend((seq, team, row and _head(row)) for seq, team, row in rows)
        return made


def _row(head: TeamHead) -> list[Any]:
    return [head.count, head.hash.hex(), head.seq, head.pieces]


def _head(row: list[Any]) -> TeamHead:
    count, digest, seq, pieces = row
    return TeamHead(count, bytes.fromhex(digest), seq, pieces)
