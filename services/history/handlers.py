"""History's answers. A job of another team is not found, exactly like one that does not exist."""

from collections.abc import Mapping, Sequence

from libs.adapters.mongo.store import MAX_REPLY_BYTES, JobStore
from libs.bus.queries import NothingFound
from libs.core.projections.history import JobStory, tell
from schemas.base import Fact
from schemas.jobs import JobEvent
from schemas.queries import EventList, EventListQuery, EventsLost, JobDocument, JobGet, JobList, JobListQuery
from schemas.subjects import OPERATOR
from services.history.events import EventLog


async def get_job(store: JobStore, query: JobGet, team: str, log: EventLog | None = None) -> JobDocument:
    """A job that was refused has no document: NotFound says why it was refused."""
    try:
        return (await _story_of(store, query.job_id, team)).document
    except NothingFound:
        rejected = await log.rejection(query.job_id, _owner(team)) if log is not None else None
        if rejected is None:
            raise
        raise NothingFound(f"no job {query.job_id}: it was rejected ({rejected.reason})") from None


async def document_of(store: JobStore, job_id: str, team: str) -> JobDocument:
    """Raises NothingFound."""
    return (await _story_of(store, job_id, team)).document


async def list_jobs(store: JobStore, query: JobListQuery, team: str) -> JobList:
    """Newest first; the last one's `submitted_us` is the next page's `before_us`."""
    jobs = await store.jobs(
        None if team == OPERATOR else team,
        states=query.states,
        name=query.name,
        before_us=query.before_us,
        limit=query.limit,
    )
    return JobList(jobs=tuple(jobs[: _fitting(jobs)]))


async def list_events(store: JobStore, log: EventLog, query: EventListQuery, team: str) -> EventList:
    """One job's events from its document; a team's from the stream that told them. With `after_us`, or `seen` alone, the
    first ones after that; else the last ones."""
    by_number = query.after_us is None and query.job_id is None and team != OPERATOR and bool(query.seen)
    if query.job_id is None:
        seen = query.seen if by_number else None
        events = await log.read(_owner(team), after_us=query.after_us, limit=query.limit, seen=seen)
    else:
        try:
            events = tell(await _story_of(store, query.job_id, team))
        except NothingFound:
            rejected = await log.rejection(query.job_id, _owner(team))
            if rejected is None:
                raise
            events = [rejected]
    if query.after_us is None and not by_number:
        events = events[-query.limit :]
        events = events[len(events) - _fitting(events[::-1]) :]
        return EventList(events=tuple(events))  # the last ones follow on nothing
    events = [event for event in events if event.at_us > (query.after_us or 0)][: query.limit]
    fitting = _fitting(events)
    events, more = events[:fitting], fitting < len(events)
    if query.job_id is not None:
        return EventList(events=tuple(events), more=more)
    # An operator's are of all teams, each with numbers of its own: there is nothing to have `seen`.
    seen = (query.seen or {}) if team != OPERATOR else {}
    lost = lost_of(events, {(team, pool): number for pool, number in seen.items()}, query.after_us)
    named = [one if team == OPERATOR else one.model_copy(update={"team": ""}) for one in lost]
    return EventList(events=tuple(events), lost=tuple(named), more=more)


def lost_of(
    events: Sequence[JobEvent], seen: Mapping[tuple[str, str], int], after_us: int | None
) -> tuple[EventsLost, ...]:
    """The gaps in the numbers of `events`, which are the first ones after `after_us`, from those that were `seen` (of a team
    in a pool) on. Of others a gap shows in the event behind it: the one before that happened after `after_us`, too, and is
    not here. Events from before there were numbers leave that open."""
    last, gaps = dict(seen), []
    whole = after_us == 0 and all(event.number or event.what == "rejected" for event in events)
    for event in events:
        if not event.number:
            continue
        key = event.team, event.pool
        dropped = after_us is not None and event.previous_us is not None and event.previous_us > after_us
        before = last.get(key, 0 if whole or dropped else event.number - 1)
        if event.number > before + 1:
            gaps.append(
                EventsLost(
                    pool=event.pool, first=before + 1, last=event.number - 1, before_us=event.at_us, team=event.team
                )
            )
        last[key] = max(before, event.number)
    return tuple(gaps)


async def _story_of(store: JobStore, job_id: str, team: str) -> JobStory:
    story = await store.story(job_id, _owner(team))
    if story is None:
        raise NothingFound(
            f"no job {job_id} is known; check the id and the team, or try again if you have just submitted it"
        )
    return story


def _owner(team: str) -> str | None:
    return None if team == OPERATOR else team


def _fitting(items: Sequence[JobDocument | JobEvent] | Sequence[Fact]) -> int:
    """How many of `items`, from the first, fit into one answer; at least one."""
    total = 0
    for count, item in enumerate(items):
        total += len(item.model_dump_json()) + 1
        if total > MAX_REPLY_BYTES:
            return max(1, count)
    return len(items)
