"""The ledger told per job: documents (what a job is now, and was) and events (what its team is told).

    document' = advance(document, events of one record, t_us, seq)        seq makes a repeated record change nothing
    events    = Feed.apply(record, seq)                                   the same event at the same place, always

A document holds a bounded part of a job's past; the ledger has all of it. What is kept: the last `KEEP_ATTEMPTS`
attempts, the devices of the last `KEEP_DEVICES` of them (of wide gangs fewer: `MOST_DEVICES`), the last `KEEP_EVENTS` events.
Where checkpoints are stored, in a job's own words, is kept of the same attempts, and of the last `KEEP_REFERENCES` events that
say it; of older ones their steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel

from libs.core.projections.hosts import even_places
from libs.core.state import lifecycle, parts
from libs.core.state.budgets import millionths_text
from libs.core.state.by_job import ByJob
from schemas import ledger as led
from schemas.base import of_known
from schemas.jobs import Checkpoint, JobEvent, JobRejected, JobState, Reason, TeamEvent
from schemas.queries import AttemptDocument, JobDocument

KEEP_ATTEMPTS = 200
KEEP_DEVICES = 20
MOST_DEVICES = 20_000
"""Of these attempts together, some 1 MB; the last one's are kept however many they are. MongoDB takes no document of more than
16 MB, and what it refuses is tried for ever, so that no other job's would be written; and each change writes the whole anew."""
KEEP_EVENTS = 200
KEEP_REFERENCES = 20

JobLedgerEvent = (
    led.JobQueued
    | led.JobBoosted
    | led.BoostEnded
    | led.JobGranted
    | led.AttemptStarting
    | led.AttemptRunning
    | led.AttemptCheckpointed
    | led.AttemptProgress
    | led.GangPromised
    | led.AttemptPreempting
    | led.AttemptStopping
    | led.DevicesFreed
    | led.AttemptClosed
    | led.JobRequeued
    | led.JobFinished
)
"""The ledger events that change a job's document."""

_OF_JOBS: frozenset[type] = frozenset(get_args(JobLedgerEvent))
_HANDLED = led.kinds_of(get_args(JobLedgerEvent))
_IGNORED = frozenset({
    "node.joined", "node.left", "quota.set", "devices.held", "hold.released", "board.recut", "board.cut",
    "board.recut-withdrawn", "input.rejected", "plan.declined", "clock.jumped", "segment.sealed",
        "team.suspended", "team.left", "team.resumed", "queues.applied", "prices.applied", "period.closed", "budgets.applied",
        "budget.topped-up", "budget.period-began", "budget.holds-renewed", "budget.reached",
        "lease.granter", "node.silent", "node.heard", "node.declared-dead", "device.quarantined", "device.returned",
        "node.cordoned", "node.uncordoned", "devices.reserved", "devices.fragmented",
        "operator.acted", "command.refused", "ledger.summed",
})  # fmt: skip
"""They are about nodes, teams, boards and plans; no job's document says anything of them."""

_WHAT: dict[type, str] = {
    led.JobQueued: "queued",
    led.JobBoosted: "boosted",
    led.BoostEnded: "boost-ended",
    led.JobGranted: "granted",
    led.AttemptStarting: "starting",
    led.AttemptRunning: "running",
    led.AttemptCheckpointed: "checkpointed",
    led.AttemptProgress: "progress",
    led.GangPromised: "promised",
    led.AttemptPreempting: "preempting",
    led.AttemptStopping: "stopping",
    led.JobRequeued: "requeued",
}


_OF_TEAMS = frozenset({"input.rejected", "team.suspended", "team.resumed", "budget.reached"})
"""They are news for a team, and change no job."""


M = TypeVar("M", bound=BaseModel)


class UnknownJob(LookupError):
    """An event of a job that was never queued, as far as this fold knows: its stored state lacks a part."""


@dataclass(frozen=True, slots=True)
class JobStory:
    """A job's document and its last events, oldest first. `granted` events carry no devices here: `tell` adds them."""

    document: JobDocument
    events: tuple[JobEvent, ...]


def job_events(record: led.LedgerRecord) -> dict[str, list[JobLedgerEvent]]:
    """The record's events by job, each in order."""
    out: dict[str, list[JobLedgerEvent]] = {}
    for event in record.events:
        if type(event) in _OF_JOBS:
            out.setdefault(event.job_id, []).append(event)  # type: ignore[union-attr, arg-type]
    return out


def advance(story: JobStory | None, events: Sequence[JobLedgerEvent], t_us: int, seq: int, pool: str = "") -> JobStory:
    """A job after its events of the record at `seq` of `pool`; a record that it has seen already changes nothing.

    Raises UnknownJob when there is no document and the first event does not begin one.
    """
    if story is not None and story.document.seq >= seq:
        return story
    document = story.document if story else None
    told = list(story.events) if story else []
    for event in events:
        document = apply(document, event, t_us, seq, pool)
        about = _About(document.team, document.name, document.state, _attempt_of(document))
        if (news := _told(event, t_us, about)) is not None:
            if news.what == "progress":  # only the last: they would push out what happened
                told = [old for old in told if old.what != "progress"]
            told.append(_with(news, {"nodes": (), "devices": ()}) if news.what == "granted" else news)
            if news.checkpoint is not None:
                _shorten_the_oldest(told)
    assert document is not None
    return JobStory(document, tuple(told[-KEEP_EVENTS:]))


def apply(document: JobDocument | None, event: JobLedgerEvent, t_us: int, seq: int, pool: str = "") -> JobDocument:
    """The job's document after one event, decided at `t_us` in the record at `seq`. Raises UnknownJob."""
    if isinstance(event, led.JobQueued):
        return JobDocument(
            job_id=event.job_id, team=event.team, name=event.spec.name, client_key=event.client_key,
            priority_class=event.spec.priority_class, priority=event.priority, state=JobState.QUEUED,
            devices=event.spec.resources.devices, submitted_us=event.submitted_us, queued_us=t_us, spec=event.spec,
            spec_hash=event.spec_hash, seq=seq, user=event.user, pool=pool,
        )  # fmt: skip
    if document is None:
        raise UnknownJob(f"record {seq} has {event.kind} of {event.job_id}, whose document is missing")
    change: dict[str, Any] = {"seq": seq, "state": _state_after(event, document.state)}
    match event:
        case led.JobBoosted() | led.BoostEnded():
            change["priority"] = event.priority
        case led.JobGranted():
            change |= {"reason": "", "promise": None, "attempts": _begun(document.attempts, event, t_us)}
        case led.AttemptRunning():
            change["attempts"] = _changed(document, event.attempt, running_us=t_us)
        case led.AttemptCheckpointed():
            change["attempts"] = _changed(document, event.attempt, checkpoint=event.checkpoint)
        case led.GangPromised():
            change |= {"promise": event.promise, "promised_us": document.promised_us or event.promise.start_us}
        case led.AttemptProgress():
            change["attempts"] = _changed(document, event.attempt, progress=event.progress, progress_us=t_us)
        case led.AttemptPreempting():
            change |= {"reason": event.reason, "preemptions": document.preemptions + 1}
            change["attempts"] = _changed(document, event.attempt, preemption_cost_device_s=event.cost_device_s)
        case led.AttemptStopping() | led.JobRequeued():
            change["reason"] = event.reason
        case led.DevicesFreed():
            last = document.attempts[-1] if document.attempts else None
            if event.exit_code is not None and last is not None and not last.exit_code:  # the first failure counts
                change["attempts"] = _changed(document, event.attempt, exit_code=event.exit_code)
        case led.AttemptClosed():
            change["attempts"] = _changed(
                document,
                event.attempt,
                closed_us=t_us,
                outcome=event.outcome.value,
                category=event.category.value if event.category else "",
            )
        case led.JobFinished():
            change |= {"reason": event.reason, "finished_us": t_us}
    return _with(document, change)


def tell(story: JobStory) -> list[JobEvent]:
    """The story's events as the team's feed had them, oldest first, with the devices that the document still has."""
    attempts = {a.attempt: a for a in story.document.attempts}
    out = []
    for event in story.events:
        attempt = attempts.get(event.attempt) if event.what == "granted" else None
        filled = {"nodes": attempt.nodes, "devices": attempt.devices} if attempt else {}
        out.append(_with(event, filled))
    return out


class JobChanges:
    """What each record changes, by job: the projection of whoever keeps documents. Its state, with its place in the
    ledger, is the documents themselves; in memory it has none."""

    version: ClassVar[int] = 1
    handled: ClassVar = _HANDLED
    ignored: ClassVar = _IGNORED

    def apply(self, record: led.LedgerRecord, seq: int) -> dict[str, list[JobLedgerEvent]]:
        """`job_events` of the valid record."""
        return job_events(record)

    def skip(self, seq: int) -> None:
        """A void record: no job changes."""

    def dump(self) -> tuple[bytes, ...]:
        return ()

    @classmethod
    def load(cls, dumped: Iterable[bytes]) -> "JobChanges":
        return cls()


# ------------------------------------------------------------------------------------------------------------- feed


@dataclass(frozen=True, slots=True)
class _About:
    """What the feed must know of a job to tell its next event."""

    team: str
    name: str
    state: JobState
    attempt: int


def _packed(about: _About) -> _About | str:
    waits = about.state is JobState.QUEUED and not about.attempt
    return f"{about.team} {about.name}" if waits else about


def _unpacked(about: _About | str | None) -> _About | None:
    if isinstance(about, str):
        team, _, name = about.partition(" ")  # a team has none in it
        return _About(team, name, JobState.QUEUED, 0)
    return about


class Feed:
    """Folds records into the events that teams are told. Knows unfinished jobs only (120 bytes of one that waits)."""

    version: ClassVar[int] = 2
    """Of the layout of `dump`."""
    handled: ClassVar = _HANDLED | _OF_TEAMS
    ignored: ClassVar = _IGNORED - _OF_TEAMS

    def __init__(self) -> None:
        self._jobs: ByJob[_About | str] = ByJob()
        """A job that only waits as the names of its team and itself, with a space between."""
        self._last: dict[str, tuple[int, int | None]] = {}
        """Team -> number and time of its last event; None: a snapshot of an earlier release does not say when."""

    def apply(self, record: led.LedgerRecord, seq: int) -> list[JobEvent | JobRejected | TeamEvent]:
        """What the valid record at `seq` tells teams, in its order: their jobs' events, and requests that placement refused.
        Raises UnknownJob when an earlier record is missing."""
        out: list[JobEvent | JobRejected | TeamEvent] = []
        for event in record.events:
            if type(event) in _OF_JOBS:
                if (told := self._one(event, record)) is not None:  # type: ignore[arg-type]
                    out.append(told)
            elif isinstance(event, led.InputRejected):
                if (refused := _refused(event, record.t_us)) is not None:
                    out.append(refused)
            elif isinstance(event, led.TeamSuspended | led.TeamResumed):
                what = "suspended" if isinstance(event, led.TeamSuspended) else "resumed"
                at_us, pool = record.t_us, record.pool
                out.append(TeamEvent(team=event.team, what=what, reason=event.reason, at_us=at_us, pool=pool))
            elif isinstance(event, led.BudgetReached):
                out += _spent(event, record)
        return out

    def skip(self, seq: int) -> None:
        """A void record: nobody is told anything."""

    def _one(self, event: JobLedgerEvent, record: led.LedgerRecord) -> JobEvent | None:
        about = _unpacked(self._jobs.get(event.job_id))
        if isinstance(event, led.JobQueued):
            about = _About(event.team, event.spec.name, JobState.QUEUED, 0)
        elif about is None:
            raise UnknownJob(f"{event.kind} of {event.job_id}, which was never queued")
        attempt = event.attempt if isinstance(event, led.JobGranted) else about.attempt
        about = _About(about.team, about.name, _state_after(event, about.state), attempt)
        if about.state.terminal:
            self._jobs.pop(event.job_id, None)
        else:
            self._jobs[event.job_id] = _packed(about)
        # Numbers are the ledger's: whoever folds it gives the same, so a gap in them is an event that was dropped.
        number, previous_us = self._last.get(about.team, (0, None))
        told = _told(event, record.t_us, about, pool=record.pool, number=number + 1, previous_us=previous_us)
        if told is not None:
            self._last[about.team] = number + 1, record.t_us
        return told

    def dump(self) -> Iterator[bytes]:
        """Parts for a snapshot; the feed must not change before the last one is taken."""
        known = ((job, _unpacked(about)) for job, about in self._jobs.items())
        jobs = ((job, a.team, a.name, a.state.value, a.attempt) for job, a in known if a is not None)
        return parts.write({}, {"jobs": jobs, "numbers": ((team, *last) for team, last in self._last.items())})

    @classmethod
    def load(cls, dumped: Iterable[bytes]) -> "Feed":
        """The inverse of `dump`, of parts that this `version` wrote."""
        feed = cls()
        _, tables = parts.read(dumped)
        for table, rows in tables:
            if table == "numbers":
                feed._last.update((row[0], (row[1], row[2] if len(row) > 2 else None)) for row in rows)
            else:
                feed._jobs.fill(
                    (job, _packed(_About(team, name, JobState(state), at))) for job, team, name, state, at in rows
                )
        return feed


def _spent(event: led.BudgetReached, record: led.LedgerRecord) -> Iterator[TeamEvent]:
    whose, name, unit, period = event.budget.split(":")
    spent, limit = millionths_text(event.spent), millionths_text(event.limit)
    reason = (
        f"the budget of {whose} {name}, {unit} a {period}: {spent} are spent, and its {event.level} limit is {limit}"
    )
    what = "budget-warning" if event.level == "soft" else "budget-spent"
    for team in event.teams:
        yield TeamEvent(team=team, what=what, reason=reason, at_us=record.t_us, pool=record.pool)


def _refused(event: led.InputRejected, t_us: int) -> JobRejected | None:
    """A submit that admission let pass and placement could not queue, e.g. because another body with its key came first.
    It names the job only if it is that job's end."""
    asked = event.request
    if asked is None or asked.what != "submit":
        return None
    fix = "look at the job that has the key, or submit it under a new one" if asked.known else "submit it again"
    why = Reason(field="client_key", value=asked.client_key[:200], problem=event.reason, fix=fix)
    return JobRejected(
        job_id="" if asked.known else asked.job_id,
        team=asked.team,
        user=asked.user,
        client_key=asked.client_key,
        reasons=(why,),
        at_us=t_us,
        stored_us=asked.stored_us,
    )


def _told(event: JobLedgerEvent, t_us: int, job: _About, **numbered: Any) -> JobEvent | None:
    """The team's news of an event, `job` being as it is afterwards; None for what is accounting only."""
    what = job.state.value if isinstance(event, led.JobFinished) else _WHAT.get(type(event))
    if what is None:
        return None
    news: dict[str, Any] = {}
    match event:
        case led.JobQueued() | led.AttemptRunning():
            pass  # most events come to their case at once
        case led.JobGranted():
            news = {"nodes": _nodes(event), "devices": tuple(c.device for c in event.claims)}
            news["checkpoint"] = event.resume
        case led.AttemptStarting():
            news = {"nodes": (event.node,)}
        case led.AttemptCheckpointed():
            news = {"checkpoint": event.checkpoint}
        case led.GangPromised():
            news = {"promise": event.promise}
        case led.AttemptProgress():
            news = {"progress": event.progress}
        case led.JobBoosted():
            moment = datetime.fromtimestamp(event.until_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            news = {"reason": f"priority {event.priority} until {moment}: {event.reason}"}
        case led.AttemptPreempting() | led.AttemptStopping() | led.BoostEnded():
            news = {"reason": event.reason}
        case led.JobRequeued():
            news = {"reason": event.reason, "checkpoint": event.resume}
        case led.JobFinished():
            news = {"reason": event.reason, "exit_code": event.exit_code}
    about = {
        "job_id": event.job_id, "team": job.team, "name": job.name, "what": what, "state": job.state,
        "attempt": job.attempt, "at_us": t_us,
    }  # fmt: skip
    return of_known(JobEvent, {**_NO_NEWS, **about, **news, **numbered})


_NO_NEWS = {name: field.default for name, field in JobEvent.model_fields.items()}


def _with(model: M, change: dict[str, Any]) -> M:
    """A copy in which some fields are others."""
    return of_known(type(model), {**model.__dict__, **change})


def _state_after(event: JobLedgerEvent, state: JobState) -> JobState:
    return lifecycle.leads_to(event) or state


def _nodes(event: led.JobGranted) -> tuple[str, ...]:
    return tuple(dict.fromkeys(c.node for c in event.claims))


def _places(event: led.JobGranted) -> tuple[int, ...]:
    nodes = {node: place for place, node in enumerate(_nodes(event))}
    places = tuple(nodes[c.node] for c in event.claims)
    return () if places == even_places(len(places), len(nodes)) else places


def _attempt_of(document: JobDocument) -> int:
    return document.attempts[-1].attempt if document.attempts else 0


def _begun(
    attempts: tuple[AttemptDocument, ...], event: led.JobGranted, t_us: int
) -> tuple[AttemptDocument, ...]:  # fmt: skip
    """The attempts with a new one, within the bounds of what a document keeps."""
    new = AttemptDocument(
        attempt=event.attempt, granted_us=t_us, nodes=_nodes(event), devices=tuple(c.device for c in event.claims),
        milli=tuple(c.milli for c in event.claims), places=_places(event), resume=event.resume, span=event.span,
    )  # fmt: skip
    kept = [*attempts[-(KEEP_ATTEMPTS - 1) :], new]
    bare, total = {"nodes": (), "devices": (), "milli": (), "places": ()}, len(new.devices)
    for back in range(2, min(len(kept), KEEP_DEVICES) + 1):
        total += len(kept[-back].devices)
        if kept[-back].devices and total > MOST_DEVICES:
            kept[-back] = _with(kept[-back], bare)
    if len(kept) > KEEP_DEVICES:
        old = kept[-KEEP_DEVICES - 1]
        steps = {"resume": _step_alone(old.resume), "checkpoint": _step_alone(old.checkpoint)}
        kept[-KEEP_DEVICES - 1] = _with(old, bare | steps)
    return tuple(kept)


def _shorten_the_oldest(told: list[JobEvent]) -> None:
    """Of events that say where a checkpoint is stored, `KEEP_REFERENCES` stay as they are."""
    saying = (at for at in range(len(told) - 1, -1, -1) if (of := told[at].checkpoint) is not None and of.reference)
    if (oldest := next(islice(saying, KEEP_REFERENCES, None), None)) is not None:
        told[oldest] = _with(told[oldest], {"checkpoint": _step_alone(told[oldest].checkpoint)})


def _step_alone(checkpoint: Checkpoint | None) -> Checkpoint | None:
    return None if checkpoint is None else _with(checkpoint, {"reference": ""})


def _changed(document: JobDocument, attempt: int, **change: Any) -> tuple[AttemptDocument, ...]:
    """The document's attempts with the last one changed. Raises UnknownJob when that is not `attempt`."""
    if _attempt_of(document) != attempt:
        raise UnknownJob(f"{document.job_id}: an event of attempt {attempt}, the last known is {_attempt_of(document)}")
    return (*document.attempts[:-1], _with(document.attempts[-1], change))
