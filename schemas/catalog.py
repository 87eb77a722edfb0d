"""Every message once: its CloudEvents type, model, subject, stream, who sends it and who reads it.

`schemas/generate.py` writes JSON Schema and AsyncAPI from this list; `libs/bus` provisions streams by it.
"""

from dataclasses import dataclass

from schemas import billing, inbox, jobs, ledger, nodes, queries, subjects
from schemas.base import Fact, Strict


@dataclass(frozen=True, slots=True)
class Message:
    """One entry. `subject` has `{team}`, `{pool}`, `{node}` for its keys; `stream` is "" for core NATS."""

    type: str
    model: type[Fact] | type[Strict]
    subject: str
    stream: str
    producer: str
    consumers: tuple[str, ...]
    reply: type[Fact] | None = None


def _command(what: str, model: type[Strict]) -> Message:
    return Message(
        f"io.baton.job.{what}.v1",
        model,
        f"baton.cmd.job.v1.{what}.{{team}}",
        subjects.REQUESTS,
        "teams",
        ("admission",),
    )


def _inbox(entity: str, what: str, model: type[Fact], producer: str) -> Message:
    subject = f"baton.in.{entity}.v1.{what}.{{pool}}"
    return Message(f"io.baton.{entity}.{what}.v1", model, subject, "INBOX-{pool}", producer, ("placement",))


def _event(what: str, model: type[Fact], producer: str) -> Message:
    subject = f"baton.evt.job.v1.{what}.{{team}}"
    return Message(f"io.baton.job.{what}.v1", model, subject, subjects.EVENTS, producer, ("teams",))


def _query(entity: str, what: str, model: type[Strict] | type[Fact], owner: str, reply: type[Fact]) -> Message:
    subject = f"baton.qry.{entity}.v1.{what}.{{team}}"
    return Message(f"io.baton.{entity}.{what}.query.v1", model, subject, "", "teams", (owner,), reply)


JOB_EVENTS = (
    "queued", "granted", "starting", "running", "checkpointed", "preempting", "stopping", "requeued",
    "succeeded", "failed", "cancelled",
)  # fmt: skip

CATALOG: tuple[Message, ...] = (
    _command("submit", jobs.SubmitJob),
    _command("cancel", jobs.CancelJob),
    Message(
        "io.baton.quota.set.v1",
        billing.SetQuota,
        "baton.cmd.quota.v1.set.{team}",
        subjects.REQUESTS,
        "operators",
        ("quota_billing",),
    ),
    _inbox("job", "admitted", inbox.JobAdmitted, "admission"),
    _inbox("job", "cancel-requested", inbox.CancelRequested, "admission"),
    _inbox("node", "registered", inbox.NodeRegistered, "agent"),
    _inbox("node", "observed", inbox.NodeObserved, "agent"),
    _inbox("node", "lost", inbox.NodeLost, "telemetry"),
    _inbox("clock", "tick", inbox.Tick, "telemetry"),
    _inbox("quota", "changed", inbox.QuotaChanged, "quota_billing"),
    _inbox("preemption", "planned", inbox.PreemptionPlanned, "preemption"),
    Message(
        "io.baton.ledger.record.v1",
        ledger.LedgerRecord,
        "baton.led.pool.v1.record.{pool}",
        "LEDGER-{pool}",
        "placement",
        ("admission", "preemption", "quota_billing", "telemetry", "history"),
    ),
    Message(
        "io.baton.node.desired.v1",
        nodes.DesiredState,
        "baton.cmd.node.v1.desired.{pool}.{node}",
        "",
        "placement",
        ("agent",),
    ),
    Message(
        "io.baton.node.heartbeat.v1",
        nodes.Heartbeat,
        "baton.tel.node.v1.heartbeat.{pool}.{node}",
        "",
        "agent",
        ("telemetry",),
        nodes.LeaseGranted,
    ),
    Message(
        "io.baton.node.sample.v1",
        nodes.NodeSampled,
        "baton.tel.node.v1.sample.{pool}.{node}",
        subjects.TELEMETRY,
        "agent",
        ("telemetry",),
    ),
    _event("rejected", jobs.JobRejected, "admission"),
    *(_event(what, jobs.JobEvent, "history") for what in JOB_EVENTS),
    _query("job", "get", queries.JobGet, "history", queries.JobDocument),
    _query("job", "list", queries.JobListQuery, "history", queries.JobList),
    _query("event", "list", queries.EventListQuery, "history", queries.EventList),
    _query("job", "explain", queries.ExplainQuery, "placement", queries.Explanation),
    _query("queue", "list", queries.QueueListQuery, "placement", queries.QueueList),
    _query("pool", "status", queries.PoolStatusQuery, "placement", queries.PoolStatus),
    Message(
        "io.baton.node.desired.query.v1",
        nodes.DesiredQuery,
        "baton.qry.node.v1.desired.{pool}",
        "",
        "agent",
        ("placement",),
        nodes.DesiredReply,
    ),
    _query("node", "list", queries.NodeListQuery, "telemetry", queries.NodeList),
    _query("device", "list", queries.DeviceListQuery, "telemetry", queries.DeviceList),
    _query("bill", "get", billing.BillQuery, "quota_billing", billing.BillReply),
    _query("quota", "list", queries.PoolStatusQuery, "quota_billing", billing.QuotaSnapshot),
    _query("log", "read", queries.LogQuery, "agent", queries.LogPiece),
)

BY_TYPE: dict[str, Message] = {m.type: m for m in CATALOG}
TYPE_OF: dict[type, str] = {m.model: m.type for m in reversed(CATALOG)}
"""The type of each model that has one type; `JobEvent` and queries are looked up by subject instead."""
