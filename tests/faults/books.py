"""The books of a cluster, kept a second time and compared: `await books_agree(cluster, ends)`.

When work has come to rest these must say the same: the ledger as its checker reads it, how the jobs ended, the bill,
the documents in MongoDB, the events that teams were told, the projection in Redis, and the machine's process table.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from libs.adapters.mongo.store import JobStore, StoreAway
from libs.adapters.redis.projection import Projection, Unavailable
from libs.bus.connect import BusConnection, close, connect
from libs.bus.queries import NoAnswer, QueryError, ask
from libs.cli.launch import LocalStack
from libs.core.projections.history import JobStory, advance, job_events
from libs.core.projections.hot_state import HotState
from libs.core.projections.verify import Verification
from libs.ledger.audited import AuditedLedger
from libs.ledger.reader import LedgerReader
from schemas import ledger as led
from schemas import subjects
from schemas.billing import BillQuery, BillReply
from schemas.catalog import BY_TYPE
from schemas.ids import attempt_id
from schemas.jobs import JobRejected, JobState
from schemas.subjects import DEAD, EVENTS, ledger_stream
from tests.kit.waiting import stored

DEADLINE_S = 120.0
"""Only a hang takes so long."""

_AWAY = (NatsError, TimeoutError, OSError, NoAnswer, QueryError, StoreAway, *Unavailable)
_SHOWN = 5


@dataclass(slots=True)
class Letter:
    """A dead letter; `place` is the stream and the sequence of the message that it is about."""

    origin: str
    subject: str
    reason: str
    place: tuple[str, int]


def a_race(letter: Letter) -> bool:
    """Whether a letter tells of an ordinary race: a plan that came too late, or what a node saw in an earlier life."""
    late_plan = letter.subject.startswith("baton.in.preemption.v1.planned.")
    earlier_life = letter.subject.startswith("baton.in.node.v1.observed.") and "is not up" in letter.reason
    old_life = letter.subject.startswith("baton.in.node.v1.registered.") and "is not newer" in letter.reason
    return late_plan or earlier_life or old_life


@dataclass(slots=True)
class Books:
    """The ledger up to `seq`, folded by the tests themselves."""

    report: Verification
    state: HotState
    stories: dict[str, JobStory] = field(default_factory=dict)
    usage: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """team -> attempt id -> device-microseconds x thousandths, of what was freed"""
    ended: dict[str, JobState] = field(default_factory=dict)
    ended_seq: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, JobRejected] = field(default_factory=dict)
    writers: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    """events of each kind"""
    letters: list[Letter] = field(default_factory=list)
    changes: int = 0
    """how often a record was written by another process than the one before it"""
    seq: int = 0
    hash: str = ""

    @property
    def teams(self) -> set[str]:
        return {story.document.team for story in self.stories.values()}


class Auditor:
    """Reads a cluster's ledger as it grows, and asks everybody else for theirs."""

    def __init__(self, cluster: LocalStack, nats: BusConnection) -> None:
        self.cluster = cluster
        self.pool = cluster.options.pool
        self.nats = nats
        self.js: JetStreamContext = nats.jetstream()
        self._checker = AuditedLedger()
        self.books = Books(self._checker.report, HotState())
        self._open: dict[str, tuple[str, int, dict[str, int]]] = {}
        self._writer = ""
        self._reader = LedgerReader(self.js, self.pool)
        self._projection = Projection(cluster.redis_url, self.pool)
        self._documents = JobStore(cluster.mongo_url)

    async def close(self) -> None:
        await self._reader.close()
        await self._projection.close()
        self._documents.close()

    async def newest_writer(self) -> str:
        """Who wrote the ledger's last record."""
        stream = ledger_stream(self.pool)
        last = (await self.js.stream_info(stream)).state.last_seq
        stored_record = await self.js.get_msg(stream, seq=last)
        return led.LedgerRecord.model_validate_json(stored_record.data or b"").writer

    async def catch_up(self) -> Books:
        """Reads the ledger to its present end. Raises AssertionError at the first violation."""
        async for entries in self._reader.read_to(await self._reader.last_seq()):
            for entry in entries:
                self._checker.step(entry.seq, entry.record, entry.valid)
                self.books.seq = entry.seq
                if entry.valid:
                    self.books.hash = entry.hash
                    self._fold(entry.record, entry.seq)
        report = self._checker.finish()
        assert report.ok, f"the ledger is violated {report.violations_total} times: " + "; ".join(report.violations[:9])
        return self.books

    def _fold(self, record: led.LedgerRecord, seq: int) -> None:
        books = self.books
        books.changes += record.writer != self._writer
        self._writer = record.writer
        books.writers[record.writer] += 1
        books.state.apply(record, seq)
        for job, events in job_events(record).items():
            books.stories[job] = advance(books.stories.get(job), events, record.t_us, seq, record.pool)
        for event in record.events:
            books.kinds[event.kind] += 1
            match event:
                case led.JobGranted():
                    milli = {c.device: c.milli for c in event.claims}
                    self._open[event.job_id] = (attempt_id(event.job_id, event.attempt), record.t_us, milli)
                case led.DevicesFreed():
                    attempt, opened_us, milli = self._open[event.job_id]
                    used = sum(milli[device] for device in event.devices) * (record.t_us - opened_us)
                    of_team = books.usage[books.stories[event.job_id].document.team]
                    of_team[attempt] = of_team.get(attempt, 0) + used
                case led.JobFinished():
                    assert event.job_id not in books.ended, f"{event.job_id} ends twice"
                    books.ended[event.job_id], books.ended_seq[event.job_id] = event.state, seq

    # ------------------------------------------------------------------------------------------------ what is missing

    async def missing(self, ends: Mapping[str, JobState]) -> list[str]:
        """What does not agree yet: first whether work has come to rest, then whether everybody tells the same of it."""
        books = await self.catch_up()
        await self._read_rejections()
        if problems := self._jobs(ends) + self._work_left():
            return problems
        looks = [self._redis, self._history, self._told, self._processes]
        if "quota_billing" in self.cluster.options.services:
            looks.append(self._bill)
        problems = [problem for look in looks for problem in await self._safely(look)]
        if not problems and await self._reader.last_seq() != books.seq:
            problems = ["the ledger has grown meanwhile"]
        return problems

    async def _safely(self, look: Callable[[], Awaitable[list[str]]]) -> list[str]:
        try:
            return await look()
        except _AWAY as error:
            return [f"{look.__name__.strip('_')}: {type(error).__name__}: {error}"]

    def _jobs(self, ends: Mapping[str, JobState]) -> list[str]:
        """Every job that was submitted came to its one end: in the ledger, or refused."""
        known = self.books.ended | dict.fromkeys(self.books.rejected, JobState.REJECTED)
        both = self.books.stories.keys() & self.books.rejected.keys() & ends.keys()
        wrong = [
            f"{job}: {known[job].value} instead of {end.value}{self._why(job)}"
            for job, end in ends.items()
            if _other(known, job, end)
        ]
        assert not wrong, f"jobs came to another end than their own: {_some(wrong)}"
        assert not both, f"jobs are both refused and in the ledger: {_some(both)}"
        lacking = [f"{job} ({self._where(job)})" for job in ends if job not in known]
        return [f"{len(lacking)} jobs have not ended: {_some(lacking)}"] if lacking else []

    def _why(self, job: str) -> str:
        story = self.books.stories.get(job)
        return f" ({story.document.reason})" if story is not None and story.document.reason else ""

    def _where(self, job: str) -> str:
        story = self.books.stories.get(job)
        return "not in the ledger" if story is None else f"{story.document.state.value}, {story.document.name}"

    def _work_left(self) -> list[str]:
        held = [name for name, row in self.books.state.devices.items() if row["milli_used"] or row["jobs"]]
        active = list(self.books.state.jobs)
        out = [f"{len(active)} jobs are active: {_some(active)}"] if active else []
        return out + ([f"{len(held)} devices are held: {_some(held)}"] if held else [])

    async def _redis(self) -> list[str]:
        """The projection is the fold, row by row."""
        state = self.books.state
        seq, hash_ = await self._projection.head()
        if (seq, hash_) != (self.books.seq, self.books.hash):
            return [f"Redis stands at {seq}, the ledger at {self.books.seq}"]
        tables = {
            "nodes": (await self._projection.nodes(), state.nodes),
            "devices": (await self._projection.devices(), state.devices),
            "teams": (await self._projection.teams(), state.teams),
            "jobs": (await self._projection.jobs(), state.jobs),
        }
        return [f"Redis: {name}: {_different(*pair)}" for name, pair in tables.items() if pair[0] != pair[1]]

    async def _history(self) -> list[str]:
        """Each job's document is the fold of its ledger events."""
        found = await self._documents.load(list(self.books.stories))
        wrong = {job for job, story in self.books.stories.items() if found.get(job) != story}
        return [f"MongoDB: {len(wrong)} documents differ: {_different(found, self.books.stories)}"] if wrong else []

    async def _told(self) -> list[str]:
        """Each job's team was told its end exactly once."""
        ends: Counter[str] = Counter()
        for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
            for message in await stored(self.js, EVENTS, subjects.event(state.value)):
                ends[_job_of(message)] += 1
        wrong = [f"{job} x{ends[job]}" for job in self.books.ended.keys() | ends.keys() if ends[job] != 1]
        return [f"ends were not told once each: {_some(wrong)}"] if wrong else []

    async def _bill(self) -> list[str]:
        """Every attempt is billed with exactly its integral, under its own team, and the total is their sum."""
        message = BY_TYPE["io.baton.bill.get.query.v1"]
        out = []
        total = 0
        for team in self.books.teams:
            bill: BillReply = await ask(
                self.nats,
                message,
                BillQuery(group_by="attempt"),
                timeout_s=30,
                pool=self.pool,
                team=team,
                user="auditor",
            )
            if bill.ledger_seq != self.books.seq:
                return [f"the bill is at {bill.ledger_seq}, the ledger at {self.books.seq}"]
            billed = {row.key: row.milli_us for row in bill.rows if row.milli_us}
            due = {attempt: used for attempt, used in self.books.usage[team].items() if used}
            total += bill.total_milli_us
            if billed != due:
                out.append(f"bill of team {team}: {_different(billed, due)}")
        if not out and total != self.books.report.milli_us:
            out.append(f"billed {total}, the ledger's integral is {self.books.report.milli_us}")
        return out

    async def _processes(self) -> list[str]:
        left = processes_of_jobs(self.cluster.state_dir)
        return [f"processes of jobs are left: {left}"] if left else []

    async def _read_rejections(self) -> None:
        for message in await stored(self.js, EVENTS, subjects.event("rejected")):
            rejected = JobRejected.model_validate_json(message.data)
            self.books.rejected[rejected.job_id] = rejected

    async def read_letters(self) -> list[Letter]:
        """All dead letters."""
        self.books.letters = [_letter(message) for message in await stored(self.js, DEAD, "baton.dead.>")]
        return self.books.letters


@asynccontextmanager
async def auditor(cluster: LocalStack) -> AsyncIterator[Auditor]:
    """An auditor with the services' credential."""
    nats = await connect(cluster.address(), name="auditor")
    audit = Auditor(cluster, nats)
    try:
        yield audit
    finally:
        await audit.close()
        await close(nats)


async def books_agree(
    cluster: LocalStack,
    ends: Mapping[str, JobState] | None = None,
    *,
    audit: Auditor | None = None,
    deadline_s: float = DEADLINE_S,
    letters: Callable[[Letter], bool] | None = a_race,
) -> Books:
    """Waits until all work has come to rest and all books say the same; returns them.

    Args:
        ends: how these jobs must have ended, by id.
        audit: one that goes on from the record to which it has read; None: the whole ledger is read.
        letters: which dead letters are all right; None: all.

    Raises AssertionError at once for what can never be right again (a violation, a job that ended twice or wrongly),
    and after `deadline_s` naming all that is still missing.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    async with auditor(cluster) if audit is None else nullcontext(audit) as audit:
        while missing := await _missing(audit, ends or {}):
            assert loop.time() < deadline, f"the books do not agree after {deadline_s:g} s:\n  " + "\n  ".join(missing)
            await asyncio.sleep(0.2)
        found = await audit.read_letters()
        bad = [letter for letter in found if letters is not None and not letters(letter)]
        assert not bad, f"{len(bad)} unexpected dead letters: {_some(bad)}"
        return audit.books


async def _missing(audit: Auditor, ends: Mapping[str, JobState]) -> list[str]:
    try:
        return await audit.missing(ends)
    except _AWAY as error:
        return [f"{type(error).__name__}: {error}"]


def processes_of_jobs(state_dir: Path) -> list[str]:
    """Live processes that an agent of the cluster at `state_dir` started for jobs, whatever became of their parents."""
    home = str(state_dir).encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue  # it has ended meanwhile, or is another user's
        if b"BATON_PART=" in environment and home in environment:
            found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()!r}"[:120] if entry.exists() else entry.name)
    return found


def _letter(message: Msg) -> Letter:
    headers = message.headers or {}
    place = (headers["Baton-Dead-Stream"], int(headers["Baton-Dead-Seq"]))
    return Letter(headers["Baton-Dead-Origin"], headers["Baton-Dead-Subject"], headers["Baton-Dead-Reason"], place)


def _job_of(message: Msg) -> str:
    return (message.headers or {}).get("ce-correlationid", "")


def _other(known: Mapping[str, JobState], job: str, end: JobState) -> bool:
    return job in known and known[job] is not end


def _some(items: object) -> str:
    listed = list(items)  # type: ignore[call-overload]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(str(item) for item in listed[:_SHOWN]) + more


def _different(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
    return _some(f"{key}: {str(found.get(key))[:300]} instead of {str(wanted.get(key))[:300]}" for key in keys)
