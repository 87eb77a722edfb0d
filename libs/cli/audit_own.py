"""`baton audit verify --team`: a team checks its own part of the ledger, and its bill against it, with what it may read
(docs/proofs.md).

One thing is trusted without proof: that the newest sum is in the ledger. So its number and hash are recorded in a
notebook. A later check must lead back to it, and other teams and auditors can compare theirs.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from libs.cli import units
from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.files import read_text, why_not
from libs.cli.output import Format, document, fields, hint
from libs.cli.pricesfile import PricesFileError, read_book
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import ClientError, Failed, Invalid
from libs.core.billing.own_part import OwnPart, days_of, narrowed
from libs.core.billing.pricing import Prices
from libs.core.billing.wall import DAY_US, day_text
from libs.core.proofs.lines import OwnRecord, read
from libs.core.proofs.sums import sum_hash, unlinked
from schemas.billing import BillQuery, BillReply, BillRow, PriceBook
from schemas.prices import RateBook
from schemas.proofs import MOST_LINES, AuditPart, AuditRead, Sum, TeamProof
from schemas.resources import kind_of
from schemas.yamlfile import Broken, plain


def verify_own(team: str | None, pool: str | None, url: str | None, prices: Path | None, output: Format) -> None:
    """Checks, reports and updates the notebook. Exits with 1 when something is wrong; then the notebook stays as it
    was."""
    text = _text(prices) if prices is not None else None
    try:
        known = prices_of(text, str(prices)) if text is not None else None
    except PricesFileError as error:
        if not _only_devices(error):
            raise UsageFault(str(error)) from None
        known = None

    async def work(baton: Baton) -> Checked:
        place, book = baton.place, known
        if text is not None and book is None:
            found = (await baton.devices("")).devices
            try:
                book = prices_of(text, str(prices), {kind_of(d.model, d.mig_profile) for d in found})
            except PricesFileError as error:
                raise UsageFault(str(error)) from None

        async def asked(what: str, query: Any) -> Any:
            return await ask(baton.nats, what, place, query, timeout_s=30.0)

        path = notebook(place.pool, place.team, await first_sum(asked))
        if not path.exists() and (others := notebooks(place.pool, place.team)):
            names = ", ".join(map(str, others))
            hint(
                f"this ledger was not checked before, and a new notebook begins; of other ledgers of this name: {names}"
            )
        done = await check(
            asked, place.pool, place.team, noted=noted_in(path), prices=book, where=f"the notebook {path}"
        )
        if done.ok and done.noted is not None:
            note(path, done.noted)
        return done

    done = run(work, team, url, pool=pool, operator=False)
    if output in (Format.JSON, Format.YAML):
        document(asdict(done) | {"ok": done.ok, "sum": done.sum and done.sum.model_dump(mode="json")}, output)
    else:
        _print_result(done)
    if not done.ok:
        raise Ended(Exit.FAILED)


def _print_result(done: "Checked") -> None:
    newest = f"{done.sum.number}, up to record {done.sum.upto_seq}, {done.hash}" if done.sum is not None else "none yet"
    fields([("team", done.team), ("lines", done.lines), ("events", done.events), ("in no sum yet", done.unproven),
            ("newest sum", newest), ("device-seconds billed", f"{done.device_seconds:.3f}"),
            ("cost", units.money(done.cost_micros, done.currency))])  # fmt: skip
    if not done.whole:
        hint(
            f"older lines are not kept any more; the use of {done.uncompared_jobs} jobs that began then is not compared"
        )
    if not done.priced and done.cost_micros:
        hint(
            "times are compared, and prices are the operator's word: give the book with --prices to compare money"
            if not done.book
            else "times are compared, and money is not: a book's contracts need all lines, and older ones are not kept"
        )
    for finding in done.findings:
        hint(f"wrong: {finding}")
    if done.ok:
        hint("all lines are there as they were written, and the bill is what they come to")


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFault(f"--prices {path} cannot be read: {why_not(error)}; name a price book in UTF-8") from None


def prices_of(text: str, name: str, offered: Collection[str] = ()) -> Prices | RateBook:
    """A price book with versions, or the price file of a pool without a book in its ledger (deploy/prices.yaml).

    Raises PricesFileError as `baton prices check` does; UsageFault when a price file is invalid."""
    try:
        said = plain(text)
    except Broken:
        return read_book(text, name, offered)
    listed = said.get("prices") if isinstance(said, dict) and "version" not in said else None
    if not isinstance(listed, list) or not any(isinstance(item, dict) and "model" in item for item in listed):
        return read_book(text, name, offered)
    try:
        return Prices(PriceBook.model_validate(said))
    except ValueError as error:
        raise UsageFault(f"--prices {name}: {str(error)[:300]}; give a file like deploy/prices.yaml") from None


def _only_devices(error: PricesFileError) -> bool:
    """Whether all problems are unknown kinds of device: the pool may have kinds that the catalogue lacks."""
    return all(problem.field.endswith(".device") for problem in error.problems)


Ask = Callable[[str, Any], Awaitable[Any]]
"""`ask("audit.read", AuditRead(...))`."""

_WAIT_S = 15.0
"""How long to wait for lines up to the bill's record: history writes them just after quota_billing bills them."""


@dataclass(frozen=True, slots=True)
class Noted:
    """The end of a check: the newest sum, and the team's lines up to it."""

    number: int
    hash: str
    count: int
    head: str


@dataclass(slots=True)
class Checked:
    """The result of a check. `ok`: nothing is wrong; `unproven`: lines that are in no sum yet."""

    team: str
    pool: str
    findings: list[str] = field(default_factory=list)
    lines: int = 0
    events: int = 0
    unproven: int = 0
    sum: Sum | None = None
    hash: str = ""
    noted: Noted | None = None
    whole: bool = True
    device_seconds: float = 0.0
    currency: str = ""
    cost_micros: int = 0
    priced: bool = False
    """Money was compared, too."""
    book: bool = False
    """A book with versions was given."""
    uncompared_jobs: int = 0

    @property
    def ok(self) -> bool:
        return not self.findings


async def check(
    ask: Ask,
    pool: str,
    team: str,
    *,
    noted: Noted | None = None,
    prices: Prices | RateBook | None = None,
    where: str = "the notebook",
) -> Checked:
    """Reads all of the team's lines, proves them in the newest sum, and compares the bill. `where`: the name of `noted`
    for people. Raises what `ask` raises; Failed when history does not catch up with the bill."""
    book = prices if isinstance(prices, RateBook) else None
    prices = None if isinstance(prices, RateBook) else prices
    part, done, lines = OwnPart(pool, team, book), Checked(team, pool, book=book is not None), _Lines(ask)
    bill: BillReply = await ask("bill.get", by_day := BillQuery(group_by="day"))
    if book is not None and bill.rows and bill.currency != book.currency:
        done.findings.append(f"the bill is in {bill.currency}, and the book in {book.currency}")
    first = await lines.first()
    if first is None or first.number == 1:
        await lines.take(part, bill.ledger_seq)
        done.findings += part.against(bill, by_day, prices)
    else:  # lines of earlier days, and of jobs that ran over midnight, are incomplete
        day = (first.wall_us or first.t_us) // DAY_US
        for row in bill.rows:
            if row.key > day_text(day):
                done.findings += await _of_day(ask, part, lines, row.key, prices)
    await lines.take(part, None)
    done.findings[:0] = part.findings
    done.findings += await _by_attempt(ask, part, days_of(done.findings), prices)
    done.lines, done.events, done.whole = part.count, part.events, part.whole
    done.device_seconds, done.cost_micros = bill.total_milli_us / 1e9, bill.total_cost_micros
    done.currency, done.uncompared_jobs = bill.currency, len(part.foreign_jobs)
    done.priced = part.whole if book is not None else prices is not None
    await _prove(ask, part, done, noted, where)
    return done


async def first_sum(ask: Ask) -> str:
    """The hash of the ledger's first sum, which identifies the ledger to a team; "" when it is not available (any
    more)."""
    reply: AuditPart = await ask("audit.read", AuditRead(limit=0, since=1))
    links = reply.links
    if not links or links[0] != reply.sum or links[-1].number != 1 or unlinked(links):
        return ""
    return sum_hash(links[-1])


class _Lines:
    """The team's lines, page by page."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._pending: deque[str] = deque()
        self._before = ""
        self._after, self._upto, self._more = 0, 0, True

    async def first(self) -> OwnRecord | None:
        """The oldest kept line; None when there is none or it is unreadable."""
        await self._next()
        try:
            return read(self._pending[0]) if self._pending else None
        except ValueError:
            return None

    async def take(self, part: OwnPart, upto: int | None) -> None:
        """Takes lines of records up to `upto` into `part`; None: all lines."""
        end = asyncio.get_running_loop().time() + _WAIT_S
        while True:
            while self._pending:
                seq, number = _place_of(self._pending[0])
                if upto is not None and seq > upto:
                    return
                if not part.count and number:
                    part.begin(number, bytes.fromhex(self._before or "00" * 32))
                part.take(self._pending.popleft())
            if not self._more:
                if upto is None or self._upto >= upto:
                    return
                if asyncio.get_running_loop().time() > end:
                    raise Failed(
                        "the lines are not there yet", f"they are written up to record {self._upto}, the bill is of {upto}",
                        "try again in a moment; if it stays so, history does not run",
                    )  # fmt: skip
                await asyncio.sleep(0.2)
            await self._next()

    async def _next(self) -> None:
        reply: AuditPart = await self._ask("audit.read", AuditRead(after=self._after, limit=MOST_LINES))
        if not self._after:
            self._before = reply.before
        last = max((_place_of(text)[0] for text in reply.lines), default=self._after)
        if reply.more and last <= self._after:
            raise Failed("the lines do not go on", f"after record {self._after} the same ones are told again")
        self._pending.extend(reply.lines)
        self._after, self._upto, self._more = last, reply.ledger_seq, reply.more


def _place_of(text: str) -> tuple[int, int]:
    """Record and number stated by a line; zeros when it is unreadable."""
    try:
        line = read(text)
    except ValueError:
        return 0, 0
    return line.seq, line.number


async def _of_day(ask: Ask, part: OwnPart, lines: _Lines, day: str, prices: Prices | None) -> list[str]:
    """Differences in one day's bill, by attempt; of a day with more attempts than an answer has, by the day."""
    query = BillQuery(group_by="attempt", from_day=day, to_day=day)
    try:
        bill: BillReply = await ask("bill.get", query)
    except Invalid:
        query = BillQuery(group_by="day", from_day=day, to_day=day)
        bill = await _own_day(ask, part, lines, query)
    await lines.take(part, bill.ledger_seq)
    return part.against(bill, query, prices)


async def _own_day(ask: Ask, part: OwnPart, lines: _Lines, query: BillQuery) -> BillReply:
    """A day's bill without the jobs that began before the lines at hand: few, since each was under way then. When one of them
    ends meanwhile, or another one is found, all are asked for again."""
    while True:
        jobs = part.foreign_jobs
        foreign = await _of_jobs(ask, query, jobs)
        bill: BillReply = await ask("bill.get", query)
        await lines.take(part, bill.ledger_seq)
        if part.foreign_jobs == jobs and await _of_jobs(ask, query, jobs) == foreign:
            return _less(bill, foreign)


async def _of_jobs(ask: Ask, query: BillQuery, jobs: Collection[str]) -> list[BillRow]:
    rows: list[BillRow] = []
    for job_id in sorted(jobs):
        reply: BillReply = await ask("bill.get", query.model_copy(update={"job_id": job_id}))
        rows += reply.rows
    return rows


def _less(bill: BillReply, foreign: Sequence[BillRow]) -> BillReply:
    used, cost, credit = (
        sum(getattr(row, name) for row in foreign) for name in ("milli_us", "cost_micros", "credit_micros")
    )
    rows = [
        row.model_copy(
            update={
                "milli_us": row.milli_us - used,
                "cost_micros": row.cost_micros - cost,
                "credit_micros": row.credit_micros - credit,
            }
        )
        for row in bill.rows
    ]
    totals = {"total_milli_us": bill.total_milli_us - used, "total_cost_micros": bill.total_cost_micros - cost}
    return bill.model_copy(update={"rows": tuple(rows), **totals})


async def _by_attempt(ask: Ask, part: OwnPart, days: list[str], prices: Prices | None) -> list[str]:
    """Attempts with differences in the bills of these days."""
    out: list[str] = []
    for day in days[:5]:
        query = BillQuery(group_by="attempt", from_day=day, to_day=day)
        try:
            out += part.against(await ask("bill.get", query), query, prices)
        except Invalid as error:
            out.append(f"{day}: {error}")
    return out


async def _prove(ask: Ask, part: OwnPart, done: Checked, noted: Noted | None, where: str) -> None:
    reply: AuditPart = await ask("audit.read", AuditRead(limit=0, since=noted.number if noted is not None else None))
    if reply.sum is None:
        done.unproven = part.count
        if noted is not None:
            done.findings.append(f"there is no sum (any more), and {where} has sum {noted.number}")
        return
    done.sum, done.hash = reply.sum, sum_hash(reply.sum)
    problem = part.prove(reply.sum, reply.proof)
    if problem:
        done.findings.append(problem)
        done.findings += await _narrow(ask, part, reply.sum, reply.first_sum or 1)
    elif reply.proof is not None:
        done.unproven = part.count - reply.proof.count
        done.noted = Noted(reply.sum.number, done.hash, reply.proof.count, reply.proof.head)
    if noted is not None:
        done.findings += _check_continues(part, reply, noted, where)


async def _narrow(ask: Ask, part: OwnPart, bad: Sum, oldest: int) -> list[str]:
    async def proof_of(number: int) -> tuple[Sum, TeamProof | None]:
        reply: AuditPart = await ask("audit.read", AuditRead(limit=0, sum=number))
        if reply.sum is None or reply.sum.number != number:
            raise Failed(f"sum {number} was asked for, and another one told")
        return reply.sum, reply.proof

    try:
        good, first = await narrowed(part, oldest, bad, proof_of)
    except ClientError as error:
        return [f"where it begins cannot be found: {error}"]
    after = (
        f"after record {good.upto_seq}, where sum {good.number} agrees" if good is not None else "from the first sum on"
    )
    return [f"what differs is {after}, up to record {first.upto_seq} of sum {first.number}"]


def _check_continues(part: OwnPart, reply: AuditPart, noted: Noted, where: str) -> list[str]:
    """Whether the ledger continues from the last notebook entry."""
    out = []
    links = reply.links
    if reply.sum is not None and reply.sum.number < noted.number:
        return [f"the newest sum is {reply.sum.number}, and {where} has sum {noted.number}: the ledger was cut off"]
    if not links or links[0] != reply.sum or links[-1].number != noted.number:
        out.append(f"the sums back to {noted.number}, which {where} has, are not told (any more)")
    elif problem := unlinked(links):
        out.append(problem)
    elif sum_hash(links[-1]) != noted.hash:
        out.append(f"sum {noted.number} is not the one that {where} has: the ledger is another one")
    head = part.at(noted.count)
    if head is not None and head.hex() != noted.head:
        out.append(f"the lines up to line {noted.count} are not those that {where} has")
    return out


# ------------------------------------------------------------------------------------------------------------ the notebook


def notebook(pool: str, team: str, ledger: str) -> Path:
    """The notebook of a ledger. Its name contains the ledger's first sum, since pool names are not unique. Without a
    first sum it is assumed to be the ledger checked last, because a forger would withhold the sum."""
    kept = notebooks(pool, team)
    if not ledger and kept:
        return kept[-1]
    mine = _proofs() / f"{pool}.{team}.{ledger[:16] or 'unnamed'}.json"
    before = _proofs() / f"{pool}.{team}.json"
    if mine not in kept and before in kept:  # written by a release whose names had no ledger
        before.replace(mine)
    return mine


def notebooks(pool: str, team: str) -> list[Path]:
    """Notebooks of all checked ledgers; the last checked comes last."""
    return sorted(_proofs().glob(f"{pool}.{team}.*json"), key=lambda path: path.stat().st_mtime)


def _proofs() -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "baton" / "proofs"


def noted_in(path: Path) -> Noted | None:
    """The notebook's content; None if it does not exist. Raises Invalid when it is unreadable."""
    try:
        return Noted(**json.loads(read_text(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise Invalid(f"the notebook {path} cannot be read", str(error), "move it away, and check anew") from None


def note(path: Path, noted: Noted) -> None:
    """Replaces the notebook's content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(noted)), "utf-8")
    new.replace(path)
