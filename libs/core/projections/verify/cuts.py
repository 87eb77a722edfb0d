"""Checks for whom boards are repartitioned (I8): for a job that waits, whose team has fewer repartitions unused than it may.
A repartition for which no job is named is of an older format, or of an older release that wrote on in this one, because an
upgrade was taken back: it counts for no team."""

from dataclasses import dataclass, field
from typing import ClassVar

from libs.core.projections.verify.books import Books, Stage, Subject
from libs.core.state.formats import CUTS_COUNTED, FIRST
from libs.core.state.unused_cuts import AT_ONCE, EACH_US, FULL_US
from schemas import ledger as led


@dataclass(slots=True)
class _Bucket:
    """The time for which a team may still have boards repartitioned, at `EACH_US` each."""

    left_us: int
    at_us: int

    def add(self, us: int, t_us: int) -> None:
        self.left_us = min(FULL_US, self.left_us + t_us - self.at_us + us)
        self.at_us = t_us


@dataclass(slots=True)
class _LastCut:
    """The last repartition of a board."""

    node: str
    team: str
    asked: set[tuple[str, int]]
    at_us: int
    made: set[str] = field(default_factory=set)
    """The devices that the node says to have made of these."""
    used_us: int = 0
    users: dict[str, int] = field(default_factory=dict)
    """Device -> since when a job of the team has it."""


class CutsOfTeams(Subject):
    """Tracks the last repartition of each board until its team has used it."""

    handlers: ClassVar = {
        led.BoardRecut: "asked",
        led.BoardCutDone: "done",
        led.JobGranted: "granted",
        led.DevicesFreed: "freed",
        led.NodeJoined: "node_begins_anew",
        led.NodeLeft: "node_begins_anew",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._buckets: dict[str, _Bucket] = {}
        self._cuts: dict[str, _LastCut] = {}
        self._made_by: dict[str, str] = {}
        """Device -> the board of the last of these of which a node says that it has made it."""

    def asked(self, e: led.BoardRecut) -> None:
        books, board = self.books, e.recut.board
        self._forget(board)
        if e.for_job is None:
            return
        if (books.format or FIRST) < CUTS_COUNTED:
            books.broken("I8", f"board {board} is to be repartitioned for {e.for_job}, in format {books.format}")
        job = books.jobs.get(e.for_job)
        if job is None or job.stage is not Stage.WAITING:
            books.broken("I8", f"board {board} is to be repartitioned for {e.for_job}, which does not wait")
            return
        self._forget_full()
        bucket = self._buckets.setdefault(job.team, _Bucket(FULL_US, books.t_us))
        bucket.add(-EACH_US, books.t_us)
        if bucket.left_us < 0:
            books.broken(
                "I8", f"board {board} is to be repartitioned for team {job.team}, which has {AT_ONCE} unused already"
            )
        places = {(place.profile, place.start) for place in e.recut.create}
        self._cuts[board] = _LastCut(e.node, job.team, places, books.t_us)

    def done(self, e: led.BoardCutDone) -> None:
        cut = self._cuts.get(e.board)
        if not e.ok:
            self._failed(e.board)
        elif cut is not None:
            there = (device for device in e.inventory.devices if device.parent == e.board)
            cut.made = {device.id for device in there if (device.mig_profile, device.mig_start) in cut.asked}
            self._made_by |= dict.fromkeys(cut.made, e.board)

    def granted(self, e: led.JobGranted) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is None or not self._cuts:
            return
        for claim in e.claims:
            cut = self._cuts.get(self._made_by.get(claim.device, ""))
            if cut is None or cut.team != job.team or self._is_old(cut):
                continue
            if not cut.users:
                self._give(cut.team, EACH_US)
            cut.users[claim.device] = self.books.t_us

    def freed(self, e: led.DevicesFreed) -> None:
        for device in e.devices if self._cuts else ():
            board = self._made_by.get(device, "")
            cut = self._cuts.get(board)
            if cut is None or device not in cut.users or self._is_old(cut):
                continue
            cut.used_us += self.books.t_us - cut.users.pop(device)
            if cut.used_us >= EACH_US:
                self._forget(board)
            elif not cut.users:
                self._give(cut.team, -EACH_US)

    def node_begins_anew(self, e: led.NodeJoined | led.NodeLeft) -> None:
        if self._cuts:
            node = e.node if isinstance(e, led.NodeLeft) else e.inventory.node
            for board in [board for board, cut in self._cuts.items() if cut.node == node]:
                self._failed(board)

    def _forget(self, board: str) -> _LastCut | None:
        """No longer is anything counted of the last repartition of the board."""
        cut = self._cuts.pop(board, None)
        for device in cut.made if cut is not None else ():
            if self._made_by.get(device) == board:
                del self._made_by[device]
        return cut

    def _failed(self, board: str) -> None:
        """Nobody could use it."""
        cut = self._forget(board)
        if cut is not None and not cut.users:
            self._give(cut.team, EACH_US)

    def _give(self, team: str, us: int) -> None:
        self._buckets.setdefault(team, _Bucket(FULL_US, self.books.t_us)).add(us, self.books.t_us)

    def _is_old(self, cut: _LastCut) -> bool:
        return cut.at_us <= self.books.t_us - FULL_US

    def _forget_full(self) -> None:
        t_us = self.books.t_us
        self._buckets = {t: b for t, b in self._buckets.items() if b.left_us + t_us - b.at_us < FULL_US}
        for board in [board for board, cut in self._cuts.items() if self._is_old(cut)]:
            self._forget(board)
