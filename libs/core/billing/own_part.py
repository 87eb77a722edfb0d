"""A team's check of its own lines: complete, unchanged, and in agreement with its bill.

    check = OwnPart(pool, team)
    check.take(text)  ...             each line, in order
    check.prove(sum, proof)           the lines' head is part of a sum over the ledger
    check.against(bill)               compares with the usage that quota_billing reports

A finding is a sentence that names the line, record or attempt. If a line and all later heads were forged, the first sum
that does not contain it shows that; `narrowed` finds that sum by bisection, with few proofs.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from libs.core.billing.metering import Meter
from libs.core.billing.posted import AppliedBook
from libs.core.billing.pricing import NO_PRICES, Prices, bill
from libs.core.billing.unbillable import Unbillable
from libs.core.proofs.lines import OwnRecord, first_head, next_head, read
from libs.core.proofs.tree import leaf_of, root_along
from libs.core.state import lifecycle
from schemas import ledger as led
from schemas.billing import BillQuery, BillReply
from schemas.jobs import JobState
from schemas.prices import RateBook
from schemas.proofs import Sum, TeamProof

MOST_FINDINGS = 20
"""Later findings are dropped."""


class OwnPart:
    """One team's lines, taken in order. `whole`: they start at the team's first."""

    def __init__(self, pool: str, team: str, book: RateBook | None = None) -> None:
        """`book`: the price of all use; with it, money is compared as well."""
        self.pool, self.team = pool, team
        self.findings: list[str] = []
        self.seq = 0
        """Ledger sequence of the last line."""
        self.whole = True
        self.events = 0
        self._heads: list[bytes] = []
        """The head after each line; before the first it is `_begins`."""
        self._seqs: list[int] = []
        self._begins = (0, first_head(pool, team))
        self._jobs: dict[str, tuple[JobState | None, lifecycle.AttemptState | None]] = {}
        self._foreign: set[str] = set()
        """Jobs queued before the first line at hand."""
        self.meter = Meter(credits=False)
        if book is not None:
            self.meter.money.apply(AppliedBook(0, 0, book))

    @property
    def count(self) -> int:
        """Number of the team's lines so far, with those that are no longer kept."""
        return self._begins[0] + len(self._heads)

    @property
    def head(self) -> bytes:
        return self._heads[-1] if self._heads else self._begins[1]

    def begin(self, number: int, head: bytes) -> None:
        """Starts at line number `number`, behind `head`. The sums prove that, too."""
        if number > 1:
            self._begins, self.whole = (number - 1, head), False

    # ----------------------------------------------------------------------------------------------------------- lines

    def take(self, text: str) -> None:
        """Takes the next line."""
        try:
            line = read(text)
        except ValueError as error:
            self._heads.append(next_head(self.head, text))
            self._seqs.append(self.seq)
            self._report(f"line {self.count} cannot be read: {str(error)[:200]}")
            return
        self._in_order(line)
        self._heads.append(next_head(self.head, text))
        self._seqs.append(line.seq)
        self.seq = max(self.seq, line.seq)
        self.events += len(line.events)
        self._fold(line)

    def _in_order(self, line: OwnRecord) -> None:
        if line.team != self.team:
            self._report(f"line {line.number} (record {line.seq}) is of team {line.team}")
        if line.number != self.count + 1:
            self._report(f"line {self.count + 1} is missing: there comes line {line.number} (record {line.seq})")
        if line.seq <= self.seq:
            self._report(f"line {line.number} is of record {line.seq}, and comes after one of record {self.seq}")

    def _fold(self, line: OwnRecord) -> None:
        own = [event for event in line.events if self._follows(event, line)]
        self.meter.add_context(line.models, line.calendar)
        record = led.LedgerRecord(
            pool=self.pool, prev_seq=0, prev_hash="", inbox_seq=0, t_us=line.t_us, wall_us=line.wall_us, writer="",
            events=tuple(own),
        )  # fmt: skip
        try:
            self.meter.apply(record, line.seq)
        except Unbillable as error:
            self._report(f"line {line.number} (record {line.seq}): {error}")

    def _follows(self, event: object, line: OwnRecord) -> bool:
        """Whether the event may follow the job's earlier events."""
        job_id = getattr(event, "job_id", None)
        if not isinstance(event, led.EventOfJob):
            return True
        if isinstance(event, led.JobQueued) and event.team != self.team:
            self._report(f"line {line.number} (record {line.seq}) queues {job_id} of team {event.team}")
            return False
        states = self._jobs.get(str(job_id), (None, None))
        if states == (None, None) and not isinstance(event, led.JobQueued) and not self.whole:
            self._foreign.add(str(job_id))
            return False
        try:
            after = lifecycle.after(event, *states)
        except lifecycle.Forbidden as error:
            self._report(f"line {line.number} (record {line.seq}): {error}")
            return False
        closed = after[1] is lifecycle.AttemptState.CLOSED
        self._jobs[str(job_id)] = (after[0], None if closed else after[1])
        if isinstance(event, led.JobFinished):
            del self._jobs[str(job_id)]
        return True

    # ---------------------------------------------------------------------------------------------------------- proofs

    def prove(self, one: Sum, proof: TeamProof | None) -> str:
        """What is wrong with the lines according to a sum and its proof; "" if they match."""
        at = f"sum {one.number} (up to record {one.upto_seq})"
        if proof is None:
            first = self._seqs[0] if self._seqs else None
            expected = first is not None and first <= one.upto_seq
            return f"{at} has not the lines of the team that were told" if expected or not self.whole else ""
        if proof.sum != one:
            return f"the proof is of sum {proof.sum.number}, not of {at}"
        head = bytes.fromhex(proof.head)
        leaf = leaf_of(bytes.fromhex(proof.salt), self.team, proof.count, head)
        if (
            len(proof.path) != one.depth
            or root_along(leaf, proof.place, [bytes.fromhex(h) for h in proof.path]).hex() != one.root
        ):
            return f"the proof does not lead to the root of {at}"
        known = proof.count - self._begins[0]
        if known < 0:
            return f"{at} has {proof.count} lines, and the first that was told is line {self._begins[0] + 1}"
        if known > len(self._heads):
            return f"{at} has {proof.count} lines of the team, {self.count} were told"
        mine = self._heads[known - 1] if known else self._begins[1]
        if mine != head:
            return f"the lines up to line {proof.count} are not those of {at}"
        beyond = known < len(self._seqs) and self._seqs[known] <= one.upto_seq
        if beyond:
            return f"line {proof.count + 1} is of record {self._seqs[known]}, and {at} does not have it"
        return ""

    def at(self, count: int) -> bytes | None:
        """The head after so many lines; None if these are not at hand."""
        known = count - self._begins[0]
        return self._begins[1] if known == 0 else self._heads[known - 1] if 0 < known <= len(self._heads) else None

    # ------------------------------------------------------------------------------------------------------------ bill

    def against(self, reply: BillReply, query: BillQuery, prices: Prices | None = None) -> list[str]:
        """Differences between the bill and these lines; with `prices`, of money too. The lines must end at the bill's
        record.

        Credits are left out: the platform alone reports them (no team's lines say that a node was lost). With a book of
        versions only total money is compared, since corrections lie on the day of the later version. Each differing row
        is named. A contract's use of its tiers needs all lines."""
        rows = (row for row in self.meter.usage(self.team) if row.job_id not in self._foreign)
        own = bill(rows, prices or NO_PRICES, query, reply.ledger_seq)
        mine = {row.key: (row.milli_us, row.cost_micros) for row in own.rows}
        theirs: Counter[str] = Counter()
        cost: Counter[str] = Counter()
        out = []
        for row in reply.rows:
            if row.key.partition(".")[0] in self._foreign:
                continue
            if row.team != self.team:
                out.append(f"the bill has a row of team {row.team}: {row.key}")
            theirs[row.key] += row.milli_us
            cost[row.key] += row.cost_micros - row.credit_micros
        if (reply.total_milli_us, reply.total_cost_micros) != (
            sum(row.milli_us for row in reply.rows), sum(row.cost_micros for row in reply.rows)
        ):  # fmt: skip
            out.append("the bill's total is not the sum of its rows")
        if query.from_day is None and query.to_day is None and sum(row.credit_micros for row in reply.rows) > 0:
            out.append("the bill's credits are above 0: they give nothing back")
        compared = prices is not None
        if self.meter.money.book is not None:
            compared = self.whole and sum(price for _, price in mine.values()) != cost.total()
        for key in sorted(mine.keys() | theirs.keys()):
            used, price = mine.get(key, (0, 0))
            if used != theirs[key]:
                out.append(f"{key}: billed {theirs[key]} milli-us, by the lines it is {used}")
            elif compared and price != cost[key]:
                out.append(f"{key}: billed {cost[key]} millionths, by the prices it is {price}")
        return out

    @property
    def foreign_jobs(self) -> frozenset[str]:
        """Jobs that began before the lines at hand; their use is not compared."""
        return frozenset(self._foreign)

    def _report(self, what: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(what)


async def narrowed(
    part: OwnPart, oldest: int, bad: Sum, ask: Callable[[int], Awaitable[tuple[Sum, TeamProof | None]]]
) -> tuple[Sum | None, Sum]:
    """The last sum from `oldest` on that the lines agree with (None if none does), and the first that they do not.
    `bad` is known to disagree."""
    good: Sum | None = None
    first, low, high = bad, oldest, bad.number
    while low < high:
        middle = (low + high) // 2
        one, proof = await ask(middle)
        if part.prove(one, proof):
            first, high = one, middle
        else:
            good, low = one, middle + 1
    return good, first


def days_of(findings: Sequence[str]) -> list[str]:
    """The days on which a bill by day differs."""
    return [finding.partition(":")[0] for finding in findings if finding[:4].isdigit()]
