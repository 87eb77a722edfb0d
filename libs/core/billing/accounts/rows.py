"""Open books of a device: what it is, what is known of it, and its open lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from libs.core.billing.accounts.capacity import units_of_share
from libs.core.billing.accounts.posting import Account, Posting
from libs.core.state.clock import Calendar


class Payer(NamedTuple):
    """Who pays for a line."""

    team: str = ""
    user: str = ""
    job_id: str = ""
    attempt: int = 0
    priority_class: str = ""
    queue: str = ""


NOBODY = Payer()
REST = ("", 0)
"""The key of the line for the part that no attempt holds."""

Key = tuple[str, int]
"""Key of a line: (job, attempt), or `REST`."""


class About(NamedTuple):
    """Place and kind of a line's device."""

    node: str
    device: str
    model: str
    profile: str


@dataclass(slots=True)
class BookLine:
    """A part of a device that has been in one account since `since_us`."""

    about: About
    account: Account
    payer: Payer
    units: int
    cause: str = ""
    since_us: int = 0
    seq: int = 0

    def same(self, other: "BookLine") -> bool:
        return self._state() == other._state()

    def postings(
        self, pool: str, calendar: Calendar, end_us: int, seq: int, since_us: int | None, proof: str
    ) -> Iterator[Posting]:
        """The line's postings until `end_us`, ended by record `seq`. After `since_us` the state was unknown; `proof`:
        what ended the uncertainty. None: the state was known throughout."""
        until = end_us if since_us is None else min(end_us, max(since_us, self.since_us))
        known = (self.account, self.payer, self.since_us, until, self.cause)
        payer = self.payer if self.payer.attempt else NOBODY
        for account, who, start_us, stop_us, cause in (known, (Account.UNCONFIRMED, payer, until, end_us, proof)):
            for start, end, wall in calendar.straight(start_us, stop_us):
                yield Posting(
                    account, pool, *self.about, self.units, start, end, wall, wall + end - start,
                    who.team, who.user, who.job_id, who.attempt, who.priority_class, who.queue,
                    self.seq, seq, cause,
                )  # fmt: skip

    def dump(self) -> list[Any]:
        """Plain JSON values for a snapshot."""
        return [*self.about, self.account.value, self.payer, self.units, self.cause, self.since_us, self.seq]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> "BookLine":
        about, (account, payer, *rest) = About(*dumped[:4]), dumped[4:]
        return cls(about, Account(account), Payer(*payer), *rest)

    def _state(self) -> tuple[About, Account, Payer, int, str]:
        return self.about, self.account, self.payer, self.units, self.cause


@dataclass(slots=True)
class DeviceBook:
    """A device, a MIG instance, or the rest of a board. Kept while it exists or is held."""

    id: str
    node: str
    model: str
    profile: str
    units: int
    board: str
    exists: bool = True
    claims: dict[Key, tuple[Payer, int]] = field(default_factory=dict)
    """Holder -> payer and thousandths held."""
    held_for: Payer | None = None
    quarantine: str | None = None
    """Who uses it without a grant; None if it is not in quarantine."""
    lines: dict[Key, BookLine] = field(default_factory=dict)
    """Open lines."""

    def now(self, *, cleaning: bool, kept_out: str | None, reserved_for: Payer | None) -> dict[Key, BookLine]:
        """How its capacity is divided now, by all that is known. Of a removed device only the held part exists.
        `kept_out`: who cordoned its node, and why. `reserved_for`: the gang that it is reserved for."""
        out: dict[Key, BookLine] = {}
        taken, about = 0, About(self.node, self.id, self.model, self.profile)
        for key, (payer, milli) in self.claims.items():
            units = units_of_share(self.units, milli)
            taken += units
            if units:
                out[key] = BookLine(about, Account.BILLED, payer, units)
        if self.exists and taken < self.units:
            rest = self.units - taken
            out[REST] = self._rest(about, rest, cleaning=cleaning, kept_out=kept_out, reserved_for=reserved_for)
        return out

    def _rest(
        self, about: About, units: int, *, cleaning: bool, kept_out: str | None, reserved_for: Payer | None
    ) -> BookLine:
        if self.quarantine is not None:
            return BookLine(about, Account.FAULTY, NOBODY, units, self.quarantine)
        if cleaning:
            return BookLine(about, Account.CLEANING, NOBODY, units)
        if kept_out is not None:
            return BookLine(about, Account.MAINTENANCE, NOBODY, units, kept_out)
        if self.held_for is not None:
            return BookLine(about, Account.HELD, self.held_for, units)
        if reserved_for is not None:
            return BookLine(about, Account.RESERVED, reserved_for, units)
        return BookLine(about, Account.IDLE, NOBODY, units)

    def dump(self) -> list[Any]:
        """Plain JSON values for a snapshot."""
        claims = [[payer, milli] for payer, milli in self.claims.values()]
        lines = [[*key, line.dump()] for key, line in self.lines.items()]
        what = [self.id, self.node, self.model, self.profile, self.units, self.board, self.exists]
        return [*what, claims, self.held_for, self.quarantine, lines]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> "DeviceBook":
        *what, claims, held_for, quarantine, lines = dumped
        book = cls(*what)
        book.held_for, book.quarantine = Payer(*held_for) if held_for else None, quarantine
        for payer, milli in ((Payer(*payer), milli) for payer, milli in claims):
            book.claims[payer.job_id, payer.attempt] = payer, milli
        book.lines = {(job_id, attempt): BookLine.load(line) for job_id, attempt, line in lines}
        return book
