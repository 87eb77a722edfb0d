"""One request: load what is known of the pools, judge, return the messages that follow. Nothing here waits.

A job goes to one pool's inbox (`libs.core.admission.routing`), and so does its cancel: to the pool that has the job. A
cancel of a job that no pool has heard of goes to the pool that it names, or the first one, which lays it aside with the reason;
if admission does not serve the pool that it names, it is refused.

Whatever can be read of a request that cannot be processed is answered: its team hears every reason. Only what belongs to
no team, or is no JSON at all, is laid aside as a dead letter (and the team hears of that, too, when there is one).

A rejection names a job only when it is that job's end. Refused cancels, and a second request under the key of an admitted
job, are answered without a job id, or whoever follows the running job would take the answer for its end; their sender
knows the answer by its client key and correlation id.
"""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from pydantic import TypeAdapter, ValidationError

from libs.bus.messages import MAX_BYTES, Malformed, Outgoing, decode_bare, outgoing
from libs.bus.settle import Received, dead_letter
from libs.core.admission.evaluate import Admitted, NotAdmitted
from libs.core.admission.intake import LEAST_WAIT_S, Intake, OverLimit
from libs.core.admission.refusal import RefusalCause
from libs.core.admission.routing import Pools, home_of, oldest_us, route
from libs.core.state.by_job import RecentByJob
from libs.ledger.inputs import MAX_INPUT_BYTES
from schemas import ids, subjects
from schemas.base import Name
from schemas.envelope import Envelope
from schemas.inbox import CancelRequested, JobAdmitted
from schemas.jobs import JobRejected, Reason
from schemas.requests import CancelJob, SubmitJob

ORIGIN = "admission"
RETRY_AFTER_S = LEAST_WAIT_S

_REASONS = 32
REJECTED_TYPE = "io.baton.job.rejected.v1"
_REMEMBERED = 50_000
_team = TypeAdapter(Name)
COMMANDS = subjects.fill(subjects.COMMAND, entity="job")


class AdmissionResult(StrEnum):
    """What became of a request. Also the metric's label."""

    ADMITTED = "admitted"
    REPEATED = "repeated"
    REJECTED = "rejected"
    CANCELLED = "cancel-forwarded"
    DEAD = "dead-letter"
    BUSY = "busy"
    LIMITED = "limited"


@dataclass(frozen=True, slots=True)
class Handled:
    """The messages that follow, and for metrics what was decided and why. `job`: which nobody had heard of before."""

    result: AdmissionResult
    out: list[Outgoing]
    whys: tuple[RefusalCause, ...] = ()
    job: str = ""


class Recent(RecentByJob[str]):
    """The jobs admitted last, each with its pool: they exist a moment before the ledger, and with it the context, says
    so. Those for which there was no room are not among them (`put_off`): they do not exist, and when their requests come again
    they may be refused by name, but they are not counted twice."""

    def __init__(self, limit: int = _REMEMBERED) -> None:
        super().__init__(limit)
        self._put_off: RecentByJob[None] = RecentByJob(limit)

    def add(self, job_id: str, pool: str) -> None:
        self[job_id] = pool

    def shown(self, job_id: str) -> None:
        """The ledger has it, and so has the context."""
        self.pop(job_id, None)

    def put_off(self, job_id: str) -> None:
        """A job that was added is not sent after all."""
        self.pop(job_id, None)
        self._put_off[job_id] = None

    def is_counted(self, job_id: str) -> bool:
        """Whether a request for it was judged before, and put off."""
        return job_id in self._put_off


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request on its way: the message, who sends it, and what it is judged by."""

    received: Received
    what: str
    team: str
    user: str
    pools: Pools
    recent: Recent
    intake: Intake
    answered: Container[str]
    policy: str

    @property
    def first_pool(self) -> str:
        return next(iter(self.pools))

    @property
    def cause(self) -> str:
        return self.received.cause


def handle(
    received: Received,
    pools: Pools,
    recent: Recent | None = None,
    intake: Intake | None = None,
    answered: Container[str] = (),
    policy: str = "",
) -> Handled:
    """A message of `baton.cmd.job.v1.*.<team>.<user>`. `pools` are those of the settings, in their order; `recent` and
    `intake` are what the caller keeps from one request to the next, `answered` what is known to be answered
    (`services/admission/answered.py`), `policy` the version of the files that decide."""
    if ids.answer_id(received.cause, received.time_us) in answered:
        return Handled(AdmissionResult.REPEATED, [])
    try:
        keys = subjects.read(COMMANDS, received.subject)
    except ValueError as e:
        return Handled(AdmissionResult.DEAD, [dead_letter(ORIGIN, received, str(e))], (RefusalCause.MALFORMED,))
    team = keys["team"]
    try:
        _team.validate_python(team)
    except ValidationError:
        reason = f"{team!r} is not a team's name: use lower-case letters, digits and hyphens"
        return Handled(AdmissionResult.DEAD, [dead_letter(ORIGIN, received, reason)], (RefusalCause.MALFORMED,))
    recent = Recent() if recent is None else recent
    asked = _Asked(received, keys["what"], team, keys["user"], pools, recent, intake or Intake(), answered, policy)
    try:
        return _cancel(asked) if asked.what == "cancel" else _submit(asked)
    except Malformed as e:
        return _malformed(asked, e)


def _submit(asked: _Asked) -> Handled:
    received = asked.received
    envelope, request = decode_bare(SubmitJob, received.subject, received.headers, received.payload)
    if ids.rejection_id(asked.team, request.client_key, received.time_us, REJECTED_TYPE) in asked.answered:
        return Handled(AdmissionResult.REPEATED, [])  # its team was told, and the pool may be another by now
    job = ids.job_id(asked.team, request.client_key)
    is_new = home_of(job, asked.pools, asked.recent) is None
    is_limited = is_new and not asked.recent.is_counted(job)
    if is_limited:
        fleets = [pool.fleet for pool in asked.pools.values()]
        over = asked.intake.submit(
            asked.team, len(received.payload), sum(fleet.open_jobs(asked.team) for fleet in fleets), received.time_us,
            open_bytes=sum(fleet.open_bytes(asked.team) for fleet in fleets),
        )  # fmt: skip
        if over is not None:
            return _limited(asked, over, request.client_key)
    routed = route(request, asked.team, asked.pools, asked.recent, received.time_us)
    outcome = routed.verdict
    if isinstance(outcome, NotAdmitted):
        reasons = [refusal.reason for refusal in outcome.refusals]
        job_id = _unless_taken(outcome.job_id, asked)
        rejected = _rejected(asked, job_id, request.client_key, reasons, routed.pool, envelope)
        return Handled(AdmissionResult.REJECTED, [rejected], tuple(refusal.why for refusal in outcome.refusals))
    if not isinstance(outcome, Admitted):
        return Handled(AdmissionResult.REPEATED, [])
    if is_limited:
        known, of_class = asked.pools[routed.pool].fleet, outcome.priority_class
        kind = known.kind_of(
            asked.team, asked.user, outcome.job,
            network=of_class.network, priority=of_class.priority, preempts=of_class.preempts,
        )  # fmt: skip
        if (over := asked.intake.kind(asked.team, kind, known.open_kinds(asked.team))) is not None:
            return _limited(asked, over, request.client_key)
    admitted = JobAdmitted(
        job_id=outcome.job_id,
        team=asked.team,
        spec=outcome.job,
        spec_hash=outcome.spec_hash,
        client_key=request.client_key,
        priority=outcome.priority_class.priority,
        preempts=outcome.priority_class.preempts,
        latency=outcome.priority_class.latency,
        lease_s=outcome.priority_class.lease_s,
        network=outcome.priority_class.network,
        longest_grace_s=outcome.priority_class.longest_grace_s,
        submitted_us=received.time_us,
        user=asked.user,
        cause=asked.cause,
        policy=asked.policy,
    )
    message = outgoing(
        admitted,
        subject=subjects.inbox("job", "admitted", routed.pool),
        type="io.baton.job.admitted.v1",
        id=ids.answer_id(asked.cause, asked.received.time_us),
        source=_source(routed.pool),
        cause=asked.cause,
        correlation=envelope.correlationid or outcome.job_id,
        traceparent=envelope.traceparent,
    )
    if len(message.payload) > MAX_INPUT_BYTES:
        job_id = _unless_taken(outcome.job_id, asked)
        rejected = _rejected(asked, job_id, request.client_key, (_too_large(message),), routed.pool, envelope)
        return Handled(AdmissionResult.REJECTED, [rejected], (RefusalCause.LIMIT,))
    asked.recent.add(outcome.job_id, routed.pool)
    asked.intake.admitted(asked.team, outcome.job_id)
    return Handled(AdmissionResult.ADMITTED, [message], job=job if is_new else "")


def _too_large(message: Outgoing) -> Reason:
    return Reason(
        field="job",
        value=f"{len(message.payload)} bytes",
        problem=f"with what it leaves to defaults it is larger than {MAX_INPUT_BYTES} bytes",
        fix="send a reference to large data, not the data, or fewer tasks",
    )


def _cancel(asked: _Asked) -> Handled:
    received = asked.received
    envelope, request = decode_bare(CancelJob, received.subject, received.headers, received.payload)
    job_id = request.job_id
    owner = next(filter(None, (pool.fleet.owner(job_id) for pool in asked.pools.values())), None)
    own = job_id in asked.recent if owner is None else owner == asked.team
    if (over := asked.intake.cancel(asked.team, job_id, own, received.time_us)) is not None:
        return _limited(asked, over)
    home = home_of(job_id, asked.pools, asked.recent)
    if home is None and request.pool is not None and request.pool not in asked.pools:
        rejected = _rejected(asked, "", "", (_closed(request.pool, asked.pools),), envelope=envelope)
        return Handled(AdmissionResult.REJECTED, [rejected], (RefusalCause.POOL,))
    pool = home or request.pool or asked.first_pool
    message = outgoing(
        CancelRequested(
            job_id=request.job_id,
            team=asked.team,
            reason=request.reason,
            user=asked.user,
            requested_us=received.time_us,
        ),
        subject=subjects.inbox("job", "cancel-requested", pool),
        type="io.baton.job.cancel-requested.v1",
        id=ids.answer_id(asked.cause, asked.received.time_us),
        source=_source(pool),
        cause=asked.cause,
        correlation=envelope.correlationid or request.job_id,
        traceparent=envelope.traceparent,
    )
    return Handled(AdmissionResult.CANCELLED, [message])


def _closed(pool: str, pools: Pools) -> Reason:
    return Reason(
        field="pool",
        value=pool,
        problem=f"it is closed: nothing of it goes on, or can be ended (in use: {', '.join(pools)})",
        fix="ask an operator to open it again, with admission started for it, then cancel again",
    )


def _limited(asked: _Asked, over: OverLimit, client_key: str = "") -> Handled:
    """Told to whoever sent it. It names the job only when it is its end: a request that may come again names none."""
    again = "" if over.wait_s is None else f"; send it again in {over.wait_s:.0f} s, with the same key"
    reason = Reason(field=over.field, value=over.value[:200], problem=over.limit, fix=f"{over.fix}{again}")
    job_id = _unless_taken(ids.job_id(asked.team, client_key), asked) if client_key and over.wait_s is None else ""
    rejected = _rejected(asked, job_id, client_key, (reason,), retry_after_s=over.wait_s)
    return Handled(AdmissionResult.LIMITED, [rejected], (RefusalCause.LIMIT,))


def _malformed(asked: _Asked, error: Malformed) -> Handled:
    """Answered to whoever sent it; a dead letter besides when it says neither a client key nor a job id."""
    received = asked.received
    key, job = _said(received.payload, "client_key"), _said(received.payload, "job_id")
    job_id = _unless_taken(ids.job_id(asked.team, key), asked) if key and asked.what == "submit" else ""
    rejected = _rejected(asked, job_id, key, error.reasons)
    if key or job:
        return Handled(AdmissionResult.REJECTED, [rejected], (RefusalCause.MALFORMED,))
    return Handled(
        AdmissionResult.DEAD, [dead_letter(ORIGIN, received, str(error)), rejected], (RefusalCause.MALFORMED,)
    )


def _unless_taken(job_id: str, asked: _Asked) -> str:
    """The id, or "" when a job has it already, or may have had it: the request is older than what is remembered."""
    old = asked.received.time_us < oldest_us(asked.pools)
    return "" if old or home_of(job_id, asked.pools, asked.recent) is not None else job_id


def _rejected(
    asked: _Asked,
    job_id: str,
    client_key: str,
    reasons: Sequence[Reason],
    pool: str = "",
    envelope: Envelope | None = None,
    *,
    retry_after_s: float | None = None,
) -> Outgoing:
    received = asked.received
    shown = tuple(reasons[:_REASONS])
    if len(reasons) > _REASONS:
        more = f"and {len(reasons) - _REASONS} more reasons"
        shown += (Reason(field="", value="", problem=more, fix="put these right first, then send it again"),)
    rejected = JobRejected(
        job_id=job_id,
        team=asked.team,
        user=asked.user,
        client_key=client_key,
        reasons=shown,
        at_us=received.time_us,
        stored_us=received.time_us,
        retry_after_s=retry_after_s,
    )
    return told(
        rejected,
        what=asked.what,
        source=_source(pool or asked.first_pool),
        cause=asked.cause,
        correlation=(envelope.correlationid if envelope else _correlation(received)) or job_id,
        traceparent=envelope.traceparent if envelope else "",
    )


def told(
    rejected: JobRejected, *, what: str, source: str, cause: str, correlation: str = "", traceparent: str = ""
) -> Outgoing:
    """A refusal, as its team hears it; `what` was asked for, by the request `cause`."""
    named = rejected.client_key and what == "submit"
    return outgoing(
        rejected,
        subject=subjects.event("rejected", rejected.team),
        type=REJECTED_TYPE,
        id=ids.rejection_id(rejected.team, rejected.client_key, rejected.stored_us, REJECTED_TYPE) if named else "",
        source=source,
        cause=cause,
        correlation=correlation,
        traceparent=traceparent,
    )


def busy_answer(received: Received, pool: str, why: str) -> list[Outgoing]:
    """What the team is told of a request that was read and for which there is no room in `pool` now: no job's end."""
    try:
        keys = subjects.read(COMMANDS, received.subject)
    except ValueError:
        return []
    reason = Reason(
        field="pool",
        value=pool,
        problem=f"it is busy: {why}",
        fix=f"nothing is wrong with the request: send it again in {RETRY_AFTER_S:g} s, with the same key",
    )
    rejected = JobRejected(
        job_id="",
        team=keys["team"],
        user=keys["user"],
        client_key=_said(received.payload, "client_key"),
        reasons=(reason,),
        at_us=received.time_us,
        stored_us=received.time_us,
        retry_after_s=RETRY_AFTER_S,
    )
    return [
        outgoing(
            rejected,
            subject=subjects.event("rejected", keys["team"]),
            type=REJECTED_TYPE,
            source=_source(pool),
            cause=received.cause,
            correlation=_correlation(received),
        )
    ]


def _said(payload: bytes, field: str) -> str:
    """A short text member of a JSON object (or of its `data`), however wrong the rest is; "" when there is none."""
    if len(payload) > MAX_BYTES:
        return ""
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        return ""
    if isinstance(body, dict) and isinstance(body.get("data"), dict):
        body = body["data"]
    value = body.get(field) if isinstance(body, dict) else None
    if not isinstance(value, str) or not 0 < len(value) <= 256 or any(0xD800 <= ord(c) < 0xE000 for c in value):
        return ""
    return value


def _correlation(received: Received) -> str:
    """What a message that cannot be read says of itself in its headers."""
    return unquote(received.headers.get("ce-correlationid", ""))[:256]


def _source(pool: str) -> str:
    return f"/baton/{pool}/admission"
