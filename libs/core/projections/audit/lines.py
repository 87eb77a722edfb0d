"""One line for each command, and for each action of an operator, that a ledger tells of.

What is proven and what is only said differs by field: `actor` is what the subject of the command said, which the broker's
credentials prove; times `t_us` and `wall_us` are the record's; `claimed` is the sender's own word.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from libs.core.state.budgets import millionths_text
from libs.core.state.moments import text_of
from schemas import ledger as led
from schemas.attempts import Cause
from schemas.jobs import JobState
from schemas.subjects import OPERATOR, OPERATOR_INPUT, read


@dataclass(frozen=True, slots=True)
class AuditLine:
    """`seq` is the record's place, `t_us` ledger time and `wall_us` the broker's clock, both in microseconds. `actor` is
    `<team>.<user>`, `teams` whom it is about. `kind` is what was asked: submit, cancel, quota.set, team.revoke..., `target`
    of what, `digest` of its body. `outcome`: accepted, refused, done, failed, unfinished. `source`: the command by stream
    and sequence, or the operator's book and line."""

    seq: int
    t_us: int
    wall_us: int | None
    actor: str
    kind: str
    target: str
    outcome: str
    reason: str = ""
    source: str = ""
    digest: str = ""
    policy: str = ""
    teams: tuple[str, ...] = ()
    count: int = 1
    """Of refusals that came too fast: how many this line stands for."""
    claimed: dict[str, Any] = field(default_factory=dict)


_TEAM_ACTIONS = "team."


class AuditLines:
    """Folds records into lines. Knows the team of each job that has not ended (about 150 bytes each)."""

    def __init__(self) -> None:
        self._team: dict[str, str] = {}
        """Job -> its team."""

    def of(self, record: led.LedgerRecord, seq: int) -> Iterator[AuditLine]:
        """The lines of the valid record at `seq`, in its order."""
        for event in record.events:
            make = _LINES.get(type(event))
            if make is not None:
                for said in make(self, event):
                    yield AuditLine(seq=seq, t_us=record.t_us, wall_us=record.wall_us, **said)
            if isinstance(event, led.JobFinished):
                self._team.pop(event.job_id, None)

    def _queued(self, e: led.JobQueued) -> Iterator[dict[str, Any]]:
        self._team[e.job_id] = e.team
        yield _by(e.team, e.user) | {
            "kind": "submit", "target": e.job_id, "outcome": "accepted", "source": e.cause, "digest": e.spec_hash,
            "policy": e.policy,
        }  # fmt: skip

    def _stopping(self, e: led.AttemptStopping) -> Iterator[dict[str, Any]]:
        if e.cause is Cause.CANCELLED:
            yield self._cancelled(e.job_id, e.user, e.reason)

    def _finished(self, e: led.JobFinished) -> Iterator[dict[str, Any]]:
        """A job that waited is ended by its cancel; of one that ran the cancel was told before."""
        if e.state is JobState.CANCELLED and e.user:
            yield self._cancelled(e.job_id, e.user, e.reason)

    def _cancelled(self, job_id: str, user: str, reason: str) -> dict[str, Any]:
        team = self._team.get(job_id, "")
        return _by(team, user) | {"kind": "cancel", "target": job_id, "outcome": "accepted", "reason": reason}

    def _quota(self, e: led.QuotaSet) -> Iterator[dict[str, Any]]:
        actor = _by(OPERATOR, e.user) if e.user else {"actor": "(the teams' file)"}
        yield actor | {
            "kind": "quota.set", "target": e.team, "outcome": "accepted", "reason": e.reason, "source": e.cause,
            "policy": e.policy, "teams": (e.team,),
        }  # fmt: skip

    def _queues(self, e: led.QueuesApplied) -> Iterator[dict[str, Any]]:
        yield _operator("queues.apply", f"version {e.version}", e.user, e.reason)

    def _boosted(self, e: led.JobBoosted | led.BoostEnded) -> Iterator[dict[str, Any]]:
        if e.user or isinstance(e, led.JobBoosted):
            kind, team = "job.boost" if isinstance(e, led.JobBoosted) else "job.boost-end", self._team.get(e.job_id, "")
            by = _by(e.team, e.user) if e.team else {}
            yield _operator(kind, e.job_id, e.user, e.reason) | by | {"teams": (team,) if team else ()}

    def _prices(self, e: led.PricesApplied) -> Iterator[dict[str, Any]]:
        yield _operator("prices.apply", f"version {e.book.version}", e.user, e.reason)

    def _closed(self, e: led.PeriodClosed) -> Iterator[dict[str, Any]]:
        yield _operator("bill.close", f"{text_of(e.period.from_us)} to {text_of(e.period.to_us)}", e.user, e.reason)

    def _budgets(self, e: led.BudgetsApplied) -> Iterator[dict[str, Any]]:
        yield _operator("budgets.apply", f"version {e.budgets.version}", e.user, e.reason)

    def _topped_up(self, e: led.BudgetToppedUp) -> Iterator[dict[str, Any]]:
        yield _operator("budget.top-up", f"{e.budget} by {millionths_text(e.amount)}", e.user, e.reason)

    def _paused(self, e: led.TeamSuspended | led.TeamLeft | led.TeamResumed) -> Iterator[dict[str, Any]]:
        yield _operator(_OF_TEAM[type(e)], e.team, e.user, e.reason) | {"teams": (e.team,)}

    def _dead(self, e: led.NodeDeclaredDead) -> Iterator[dict[str, Any]]:
        yield _operator("node.declare-dead", e.node, e.user, e.fenced_by)

    def _cordoned(self, e: led.NodeCordoned | led.NodeUncordoned) -> Iterator[dict[str, Any]]:
        if e.user:
            kind = "node.cordon" if isinstance(e, led.NodeCordoned) else "node.uncordon"
            yield _operator(kind, e.node, e.user, e.reason)

    def _returned(self, e: led.DeviceReturned) -> Iterator[dict[str, Any]]:
        if e.user:
            yield _operator("node.release", f"{e.node}/{e.device}", e.user, e.reason)

    def _rejected(self, e: led.InputRejected) -> Iterator[dict[str, Any]]:
        """Of a person's command: a team's, which admission had let pass, or an operator's."""
        asked, source = e.request, f"INBOX:{e.inbox_seq}"
        if asked is not None:
            yield _by(asked.team, asked.user) | {
                "kind": asked.what, "target": asked.job_id, "outcome": "refused", "reason": e.reason, "source": source,
            }  # fmt: skip
            return
        try:
            keys = read(OPERATOR_INPUT, e.subject)
        except ValueError:
            return
        yield _operator(_SAID.get(keys["what"], keys["what"]), "", keys["user"], e.reason) | {
            **_by(keys["team"], keys["user"]), "outcome": "refused", "source": source,
        }  # fmt: skip

    def _acted(self, e: led.OperatorActed) -> Iterator[dict[str, Any]]:
        a = e.action
        of = a.target.partition(".")[0] if a.what.startswith(_TEAM_ACTIONS) else e.team
        yield _operator(a.what, a.target, e.user, a.reason) | (_by(e.team, e.user) if e.team else {}) | {
            "outcome": a.outcome.value,
            "source": f"{a.book}:{a.number}",
            "digest": a.digest,
            "teams": (of,) if of else (),
            "claimed": {"at_us": a.at_us, "host": a.host, "login": a.login, "tool": a.tool, "detail": a.detail},
        }  # fmt: skip

    def _refused(self, e: led.CommandRefused) -> Iterator[dict[str, Any]]:
        c = e.command
        kind = f"quota.{c.what}" if c.service == "quota_billing" else c.what
        said = _by(c.team, c.user) | {"kind": kind, "target": "", "outcome": "refused"}
        if c.more:
            many = f"{c.more} more, too many to be told one by one"
            yield said | {"reason": many, "digest": c.more_digest, "count": c.more, "source": c.service}
        yield said | {"reason": c.reason, "source": c.cause, "digest": c.digest, "policy": c.policy}


_OF_TEAM: dict[type, str] = {
    led.TeamSuspended: "team.suspend",
    led.TeamLeft: "team.left",
    led.TeamResumed: "team.resume",
}

_SAID = {
    "node-dead": "node.declare-dead",
    "quarantine-lifted": "node.release",
    "node-cordoned": "node.cordon",
    "node-uncordoned": "node.uncordon",
    "queues-applied": "queues.apply",
    "job-boosted": "job.boost",
    "prices-applied": "prices.apply",
    "period-closed": "bill.close",
    "budgets-applied": "budgets.apply",
    "budget-topped-up": "budget.top-up",
    "team-suspended": "team.suspend",
    "team-left": "team.left",
    "team-resumed": "team.resume",
    "acted": "audit.tell",
}

_LINES: dict[type, Callable[[AuditLines, Any], Iterator[dict[str, Any]]]] = {
    led.JobQueued: AuditLines._queued,
    led.AttemptStopping: AuditLines._stopping,
    led.JobFinished: AuditLines._finished,
    led.QuotaSet: AuditLines._quota,
    led.QueuesApplied: AuditLines._queues,
    led.JobBoosted: AuditLines._boosted,
    led.BoostEnded: AuditLines._boosted,
    led.PricesApplied: AuditLines._prices,
    led.PeriodClosed: AuditLines._closed,
    led.BudgetsApplied: AuditLines._budgets,
    led.BudgetToppedUp: AuditLines._topped_up,
    led.TeamSuspended: AuditLines._paused,
    led.TeamLeft: AuditLines._paused,
    led.TeamResumed: AuditLines._paused,
    led.NodeDeclaredDead: AuditLines._dead,
    led.DeviceReturned: AuditLines._returned,
    led.NodeCordoned: AuditLines._cordoned,
    led.NodeUncordoned: AuditLines._cordoned,
    led.InputRejected: AuditLines._rejected,
    led.OperatorActed: AuditLines._acted,
    led.CommandRefused: AuditLines._refused,
}


def _by(team: str, user: str) -> dict[str, Any]:
    return {"actor": f"{team}.{user}" if user else team, "teams": (team,) if team and team != OPERATOR else ()}


def _operator(kind: str, target: str, user: str, reason: str) -> dict[str, Any]:
    return _by(OPERATOR, user) | {"kind": kind, "target": target, "outcome": "accepted", "reason": reason}
