"""Every message once: its CloudEvents type, model, subject, stream, who sends it and who reads it.

`schemas/generate.py` writes JSON Schema and AsyncAPI from this list; `libs/bus/table.py` takes from it which subjects
each stream keeps.
"""

import re
from dataclasses import dataclass

from schemas import (
    billing,
    explanations,
    inbox,
    jobs,
    ledger,
    nodes,
    pool_status,
    proofs,
    queries,
    queue_status,
    requests,
    secrets,
    subjects,
    team_management,
    use,
)
from schemas.base import Fact, Strict

Model = type[Fact] | type[Strict]
"""A message's pydantic class (named here because `Message.type` hides the builtin inside the class)."""

Reply = type[Fact]


@dataclass(frozen=True, slots=True)
class Message:
    """One entry. `subject` is a pattern of `schemas.subjects`, with its keys in braces; `stream` is "" for core NATS.

    `reply` is the model of the answer to a request; `note` says what it is about where several types share a model.
    """

    type: str
    model: Model
    subject: str
    stream: str
    producer: str
    consumers: tuple[str, ...]
    reply: Reply | None = None
    note: str = ""

    @property
    def about(self) -> str:
        """One sentence for people: its own note, or the first of the model's docstring."""
        return self.note or sentence(self.model)

    @property
    def reply_type(self) -> str:
        """The type that names the answer's schema, e.g. `io.baton.job.get.reply.v1`; "" where nobody answers."""
        return f"{self.type.removesuffix('.v1').removesuffix('.query')}.reply.v1" if self.reply else ""


def sentence(model: Model) -> str:
    """The first sentence of a model's docstring, on one line."""
    text = " ".join((model.__doc__ or "").split())
    return re.split(r"(?<=[.?])\s", text, maxsplit=1)[0]


def _command(what: str, model: type[Strict]) -> Message:
    subject = subjects.fill(subjects.COMMAND, entity="job", what=what)
    return Message(f"io.baton.job.{what}.v1", model, subject, subjects.REQUESTS, "teams", ("admission",))


def _inbox(entity: str, what: str, model: type[Fact], producer: str) -> Message:
    """What services say to a pool's placement, and what is said of one node."""
    if entity == "node":
        subject = subjects.fill(subjects.NODE_INPUT, what=what)
    else:
        subject = subjects.fill(subjects.INPUT, entity=entity, what=what)
    return Message(f"io.baton.{entity}.{what}.v1", model, subject, subjects.INBOX, producer, ("placement",))


def _of_operator(what: str, model: type[Fact]) -> Message:
    """What an operator says to a pool's placement: it is in the ledger, and no service has to hear it first."""
    subject = subjects.fill(subjects.OPERATOR_INPUT, what=what)
    return Message(f"io.baton.operator.{what}.v1", model, subject, subjects.INBOX, "operators", ("placement",))


def _event(what: str, model: type[Fact], producer: str, note: str = "") -> Message:
    subject = subjects.fill(subjects.EVENT, entity="job", what=what)
    return Message(f"io.baton.job.{what}.v1", model, subject, subjects.EVENTS, producer, ("teams",), note=note)


def _team_event(what: str, note: str) -> Message:
    subject = subjects.fill(subjects.EVENT, entity="team", what=what)
    return Message(
        f"io.baton.team.{what}.v1", jobs.TeamEvent, subject, subjects.EVENTS, "history", ("teams",), note=note
    )


def _query(
    entity: str,
    what: str,
    model: Model,
    owner: str,
    reply: Reply,
    note: str = "",
    *,
    of_pool: bool = True,
    asker: str = "teams",
) -> Message:
    """A question of people. `of_pool`: another pool's owner would answer otherwise."""
    pattern = subjects.POOL_QUESTION if of_pool else subjects.QUESTION
    subject = subjects.fill(pattern, entity=entity, what=what)
    return Message(f"io.baton.{entity}.{what}.query.v1", model, subject, "", asker, (owner,), reply, note)


def _of_node(what: str, model: Model, reply: Reply, owner: str = "placement") -> Message:
    """A question of a node's agent about its node."""
    subject = subjects.fill(subjects.NODE_QUESTION, what=what)
    return Message(f"io.baton.node.{what}.query.v1", model, subject, "", "agent", (owner,), reply)


JOB_EVENTS = (
    "queued", "granted", "starting", "running", "checkpointed", "progress", "promised", "boosted", "boost-ended",
    "preempting", "stopping", "requeued", "succeeded", "failed", "cancelled",
)  # fmt: skip

_TOLD = {
    "queued": "The job was admitted and waits.",
    "granted": "The job's whole gang got its devices; an attempt and its bill begin.",
    "starting": "A node's part of the gang runs; others are still to come.",
    "running": "Every part of the attempt runs.",
    "checkpointed": "The job saved its work and can resume from there.",
    "progress": "How far the attempt is, and how long it still takes: when that changed by much, and now and then.",
    "promised": "A gang that waits is told when it starts; later than before only for a cause.",
    "boosted": "An operator raised the job above its class for a time.",
    "boost-ended": "The job's time above its class is over.",
    "preempting": "The attempt must save its work and give way to a job of a higher class.",
    "stopping": "The attempt is being ended everywhere.",
    "requeued": "The job waits again, with its age kept, and resumes from its checkpoint.",
    "succeeded": "The job ended well; nothing follows.",
    "failed": "The job ended without success and has no retry left; nothing follows.",
    "cancelled": "The job was ended by its team; nothing follows.",
}

_OF_TEAMS = {
    "suspended": "An operator paused the team: it submits nothing and is granted nothing until it is resumed.",
    "resumed": "The team goes on; its waiting jobs have kept their age.",
    "budget-warning": "So much of a budget that counts the team is spent that its soft limit is reached.",
    "budget-spent": "A budget that counts the team is spent: nothing is granted beyond it, and what runs ends or overdraws it.",
}

CATALOG: tuple[Message, ...] = (
    _command("submit", requests.SubmitJob),
    _command("cancel", requests.CancelJob),
    Message(
        "io.baton.quota.set.v1",
        billing.SetQuota,
        subjects.fill(subjects.POOL_COMMAND, entity="quota", what="set"),
        subjects.REQUESTS,
        "operators",
        ("quota_billing",),
    ),
    _inbox("job", "admitted", inbox.JobAdmitted, "admission"),
    _inbox("job", "cancel-requested", inbox.CancelRequested, "admission"),
    _inbox("node", "registered", inbox.NodeRegistered, "agent"),
    _inbox("node", "observed", inbox.NodeObserved, "agent"),
    _inbox("node", "lost", inbox.NodeLost, "leases"),
    _inbox("node", "silent", inbox.NodeSilent, "leases"),
    _inbox("node", "heard", inbox.NodeHeardAgain, "leases"),
    _of_operator("node-dead", inbox.NodeDead),
    _inbox("node", "quarantine", inbox.NodeQuarantine, "agent"),
    _of_operator("quarantine-lifted", inbox.QuarantineLifted),
    _of_operator("node-cordoned", inbox.CordonNode),
    _of_operator("node-uncordoned", inbox.UncordonNode),
    _of_operator("queues-applied", inbox.ApplyQueues),
    _of_operator("job-boosted", inbox.BoostJob),
    _of_operator("prices-applied", inbox.ApplyPrices),
    _of_operator("period-closed", inbox.ClosePeriod),
    _of_operator("budgets-applied", inbox.ApplyBudgets),
    _of_operator("budget-topped-up", inbox.TopUpBudget),
    _of_operator("team-suspended", inbox.SuspendTeam),
    _of_operator("team-left", inbox.OffboardTeam),
    _of_operator("team-resumed", inbox.ResumeTeam),
    _of_operator("acted", inbox.ActionTold),
    _inbox("job", "refused", inbox.RefusalTold, "admission"),
    _inbox("quota", "refused", inbox.RefusalTold, "quota_billing"),
    _inbox("secret", "changed", inbox.SecretChanged, "vault"),
    _inbox("ledger", "summed", inbox.SumProposed, "history"),
    _inbox("lease", "granter", inbox.GranterClaimed, "leases"),
    _inbox("node", "board-cut", inbox.BoardCut, "agent"),
    _inbox("clock", "tick", inbox.Tick, "leases"),
    _inbox("quota", "changed", inbox.QuotaChanged, "quota_billing"),
    _inbox("preemption", "planned", inbox.PreemptionPlanned, "preemption"),
    Message(
        "io.baton.ledger.record.v1",
        ledger.LedgerRecord,
        subjects.RECORD,
        subjects.LEDGER,
        "placement",
        ("admission", "preemption", "quota_billing", "telemetry", "leases", "history", "queries", "vault"),
    ),
    Message(
        "io.baton.node.desired.v1",
        nodes.DesiredState,
        subjects.fill(subjects.NODE_COMMAND, what="desired"),
        "",
        "placement",
        ("agent",),
    ),
    Message(
        "io.baton.node.changed.v1",
        nodes.NodeChanged,
        subjects.fill(subjects.NODE_COMMAND, what="changed"),
        "",
        "placement",
        ("agent",),
    ),
    Message(
        "io.baton.node.heartbeat.v1",
        nodes.Heartbeat,
        subjects.fill(subjects.NODE_SIGNAL, what="heartbeat"),
        "",
        "agent",
        ("leases", "telemetry"),
        nodes.LeaseGranted,
    ),
    Message(
        "io.baton.node.sample.v1",
        nodes.NodeSampled,
        subjects.fill(subjects.NODE_SIGNAL, what="sample"),
        subjects.TELEMETRY,
        "agent",
        ("telemetry", "quota_billing"),
    ),
    _event("rejected", jobs.JobRejected, "admission"),
    *(_event(what, jobs.JobEvent, "history", _TOLD[what]) for what in JOB_EVENTS),
    *(_team_event(what, note) for what, note in _OF_TEAMS.items()),
    _query("job", "get", queries.JobGet, "history", queries.JobDocument, of_pool=False),
    _query("job", "list", queries.JobListQuery, "history", queries.JobList, of_pool=False),
    _query("event", "list", queries.EventListQuery, "history", queries.EventList, of_pool=False),
    _query("job", "explain", explanations.ExplainQuery, "queries", explanations.Explanation),
    _query("job", "plan", explanations.PlanQuery, "queries", explanations.PlanReply),
    _query("queue", "list", queue_status.QueueListQuery, "queries", queue_status.QueueList),
    _query("queues", "list", queue_status.QueuesQuery, "queries", queue_status.QueuesReply),
    _query("budgets", "list", queue_status.BudgetsQuery, "queries", queue_status.BudgetsReply),
    _query(
        "pool",
        "status",
        pool_status.PoolStatusQuery,
        "queries",
        pool_status.PoolStatus,
        "A pool's figures at a glance.",
    ),
    _of_node("desired", nodes.DesiredQuery, nodes.DesiredReply),
    _of_node("state", nodes.NodeStateQuery, nodes.NodeState),
    _of_node("specs", nodes.NodeSpecsQuery, nodes.NodeSpecs),
    _of_node("left", nodes.TeamsLeftQuery, nodes.TeamsLeft),
    _of_node("secrets", secrets.NodeSecretsQuery, secrets.NodeSecrets, "vault"),
    _query("secret", "set", secrets.SecretSet, "vault", secrets.SecretInfo, of_pool=False),
    _query("secret", "list", secrets.SecretListQuery, "vault", secrets.SecretList, of_pool=False),
    _query("secret", "remove", secrets.SecretRemove, "vault", secrets.SecretRemoved, of_pool=False),
    _query("secret", "rekey", secrets.SecretRekey, "vault", secrets.SecretRekeyed, of_pool=False, asker="operators"),
    _query("node", "list", pool_status.NodeListQuery, "telemetry", pool_status.NodeList),
    _query("device", "list", pool_status.DeviceListQuery, "telemetry", pool_status.DeviceList),
    _query("bill", "get", billing.BillQuery, "quota_billing", billing.BillReply),
    _query(
        "use",
        "list",
        use.UseQuery,
        "quota_billing",
        use.UseReply,
        "What a team's jobs held against what their devices did; the operator is told all teams'.",
    ),
    _query(
        "quota",
        "list",
        pool_status.PoolStatusQuery,
        "quota_billing",
        billing.QuotaSnapshot,
        "A team's quota and use; the operator is told all teams'.",
    ),
    Message(
        "io.baton.team.manage.query.v1",
        team_management.ManageTeam,
        subjects.fill(subjects.QUESTION, entity="team", what="manage"),
        "",
        "operators",
        ("keys",),
        team_management.TeamManaged,
        "Of users by an admin of their team, whose role alone may ask it.",
    ),
    _query(
        "ledger",
        "records",
        proofs.LedgerRead,
        "quota_billing",
        proofs.LedgerPart,
        "Of finance, whose role alone may ask it.",
        asker="operators",
    ),
    _query("audit", "read", proofs.AuditRead, "history", proofs.AuditPart),
    _query("log", "read", queries.LogQuery, "history", queries.LogPiece, of_pool=False),
    Message(
        "io.baton.log.piece.query.v1",
        queries.NodeLogQuery,
        subjects.LOG_QUESTION,
        "",
        "history",
        ("agent",),
        queries.LogPiece,
    ),
    Message(
        "io.baton.admission.pools.query.v1",
        queries.AdmissionPoolsQuery,
        subjects.fill(subjects.PEER_QUESTION, entity="admission", what="pools"),
        "",
        "admission",
        ("admission",),
        queries.AdmissionPools,
    ),
)

BY_TYPE: dict[str, Message] = {m.type: m for m in CATALOG}
TYPE_OF: dict[type, str] = {m.model: m.type for m in reversed(CATALOG)}
"""The type of each model that has one type; `JobEvent` and queries are looked up by subject instead."""
