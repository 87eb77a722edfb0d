"""What a seed must have come to when it is at rest: one ledger, and everybody telling the same of it."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from libs.core.projections.history import Feed, JobStory, advance, job_events
from libs.core.projections.hot_state import HotState
from libs.core.projections.verify import Checker
from libs.core.state.formats import FIRST, FORMAT_OF
from libs.ledger.chain import GENESIS, Head, judge
from libs.ledger.segments import SegmentState, name_of
from libs.simulation.dst.scenario import POOL, Asked
from libs.simulation.dst.stream import StoredMessage
from libs.simulation.dst.world import World
from schemas import ledger as led
from schemas import subjects
from schemas.attempts import Cause
from schemas.ids import attempt_id
from schemas.jobs import JobRejected, JobState, TeamEvent
from schemas.subjects import DEAD, EVENTS, ledger_stream

QUIET_S = 36.0
"""An archive must have been made behind this: what readers declared after the last fault counts by then."""


@dataclass(slots=True)
class SimBooks:
    """The ledger folded by the simulation, record by record as it grows."""

    world: World
    checker: Checker = field(default_factory=Checker)
    hot: HotState = field(default_factory=HotState)
    feed: Feed = field(default_factory=Feed)
    stories: dict[str, JobStory] = field(default_factory=dict)
    ended: dict[str, JobState] = field(default_factory=dict)
    billed: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    head: Head = GENESIS
    position: int = 0
    voids: int = 0
    quotas: dict[str, int | None] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)
    """Jobs of which a cancel was decided while they waited or ran: none of them begins once more."""
    _inbox_to: int = 0
    _open: dict[str, tuple[str, int, dict[str, int]]] = field(default_factory=dict)
    _nodes: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    _rejected: dict[str, JobRejected] = field(default_factory=dict)
    _refused: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    """(team, client key) -> the requests of it that were refused for good, by when they were stored."""
    _no: set[str] = field(default_factory=set)
    _yes: set[str] = field(default_factory=set)
    """Requests by their causes: refused for good by an admission, and queued."""
    _secrets: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Lines of the audit that vault told, by what was done and target."""
    _audited_from: float | None = None
    """Since when the ledger's format has a word for them, s."""
    _stream: str = ledger_stream(POOL)
    _sealed: bool = False
    _events_to: int = 0
    _due: dict[bytes, str] = field(default_factory=dict)
    """What teams are to be told by the ledger: event -> its subject."""
    _facts: Counter[bytes] = field(default_factory=Counter)
    """How many facts of the ledger have the same words."""
    _events: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    """What they were told, and how often."""

    def follow(self) -> None:
        """Reads what is new in the ledger."""
        while (kept := self._next()) is not None:
            entry = judge(self.head, POOL, kept.seq, kept.data, kept.time_us)
            self.checker.step(entry.seq, entry.record, entry.valid)
            self.position = entry.seq
            if entry.valid:
                self.head = entry.head
                self._sealed = any(isinstance(event, led.SegmentSealed) for event in entry.record.events)
                self._fold(entry.record, entry.seq)
            else:
                self.voids += 1

    def catch_up(self) -> None:
        """Reads what is new in the broker's streams."""
        self.follow()
        events = self.world.disk.streams[EVENTS]
        for kept in events.after(self._events_to, ()):
            self._events_to = kept.seq
            what = subjects.what_of(kept.subject)
            self._events[kept.subject, kept.data] += 1
            if what == "rejected":
                rejected = JobRejected.model_validate_json(kept.data)
                self._rejected[rejected.job_id] = rejected
                if rejected.retry_after_s is None:
                    self._refused[rejected.team, rejected.client_key].add(rejected.stored_us)
                    self._no.add((kept.headers or {}).get("ce-causationid", ""))

    def _next(self) -> StoredMessage | None:
        """The message behind `position`. Behind a seal it is in the next segment, once that takes records."""
        if self._sealed:
            name = name_of(POOL, self.position + 1)
            stream = self.world.disk.streams.get(name)
            if stream is None or subjects.what_of(stream.config["subjects"][0]) == SegmentState.STAGED:
                return None
            self._stream, self._sealed = name, False
            self.world.sometimes("the ledger went on in another segment")
        return self.world.disk.streams[self._stream].messages.get(self.position + 1)

    def _hear_cancels(self, upto: int) -> None:
        """Those that are decided by a record which has come so far in the inbox."""
        for kept in self.world.disk.streams[subjects.inbox_stream(POOL)].after(self._inbox_to, (_CANCELS,)):
            if kept.seq > upto:
                break
            job = json.loads(kept.data)["job_id"]
            if job in self.stories and job not in self.ended:
                self._cancelled.add(job)
        self._inbox_to = upto

    def _fold(self, record: led.LedgerRecord, seq: int) -> None:
        for event in record.events:
            if isinstance(event, led.JobGranted) and event.job_id in self._cancelled:
                self.world.violated("I3", f"{event.job_id} begins once more after its cancel")
            elif isinstance(event, led.InputRejected) and _STOPPED in event.reason:
                self.world.sometimes("a job was cancelled while it was being stopped")
        self._hear_cancels(record.inbox_seq)
        self.hot.apply(record, seq)
        if self._audited_from is None and (record.format or FIRST) >= FORMAT_OF["operator.acted"]:
            self._audited_from = self.world.loop.now
        for told in self.feed.apply(record, seq):
            if not isinstance(told, JobRejected):
                of_team = isinstance(told, TeamEvent)
                subject = subjects.team_event(told.what, told.team) if of_team else subjects.event(told.what, told.team)
                payload = told.model_dump_json().encode()
                self._due[payload], self._facts[payload] = subject, self._facts[payload] + 1
        for job, events in job_events(record).items():
            self.stories[job] = advance(self.stories.get(job), events, record.t_us, seq, record.pool)
        for event in record.events:
            match event:
                case led.JobGranted():
                    self._nodes[event.job_id, event.attempt] = {claim.node for claim in event.claims}
                    milli = {c.device: c.milli for c in event.claims}
                    self._open[event.job_id] = (attempt_id(event.job_id, event.attempt), record.t_us, milli)
                case led.AttemptPreempting(reason=reason) if reason.startswith("reclaim"):
                    self.world.sometimes("what a queue lent came back")
                case led.AttemptPreempting(reason=reason) if "much less is left" in reason:
                    self.world.sometimes("a job gave way within its class")
                case led.AttemptPreempting(reason=reason) if "devices elsewhere" in reason:
                    self.world.sometimes("a job was moved")
                case led.AttemptProgress():
                    self.world.sometimes("a job told how far it is")
                case led.AttemptStopping(cause=Cause.BUDGET_SPENT):
                    self.world.sometimes("a budget was spent while jobs ran")
                case led.JobQueued():
                    self._yes.add(event.cause)
                case led.OperatorActed(action=action):
                    self._secrets[action.what, action.target] += 1
                case led.QuotaSet():
                    self.quotas[event.team] = event.limit_milli
                case led.NodeDeclaredDead():
                    self.world.sometimes("a node was declared dead")
                case led.DevicesFreed():
                    self.world.truth.freed(event.job_id, event.attempt, event.node, event.evidence.value)
                    attempt, opened_us, milli = self._open[event.job_id]
                    used = sum(milli[device] for device in event.devices) * (record.t_us - opened_us)
                    team = self.billed[self.stories[event.job_id].document.team]
                    team[attempt] = team.get(attempt, 0) + used
                case led.JobFinished():
                    if event.job_id in self.ended:
                        self.world.violated("I3", f"{event.job_id} ends twice")
                    self.ended[event.job_id] = event.state

    # ---------------------------------------------------------------------------------------------------------- at rest

    def unfinished(self, jobs: list[Asked]) -> list[str]:
        """Accepted jobs that have not come to an end, and work that is left."""
        self.catch_up()
        out = []
        for job in jobs:
            # A refusal names no job when a copy that was admitted before may be stored: then each request must have one.
            told = job.id not in self.stories and self._answers(job) >= 1 + (job.twin_at is not None)
            refused = job.id in self._rejected or told
            story = self.stories.get(job.id)
            # Admitted before any node had come, and larger than all that came: it waits for more of them.
            asked = job.spec.resources
            there = sum(row["model"] in asked.types for row in self.hot.devices.values())
            waits = story is not None and not story.document.attempts and asked.devices > there
            if job.stored and job.id not in self.ended and not refused and not waits:
                where = "not in the ledger" if story is None else story.document.state.value
                out.append(f"{job.id} ({job.key}, {where})")
            elif not job.stored:
                out.append(f"{job.key} was not stored")
            if job.twin_at is not None and self._answers(job) < 2:
                out.append(f"{job.id} ({job.key}) was sent with two bodies, and one was not answered")
        # an operator's last word of each team is that it has none
        out += [f"team {team} has a quota of {limit}" for team, limit in self.quotas.items() if limit is not None]
        archive = self.world.archive
        if archive is not None and (
            archive.wanted or archive.done_at < archive.undisturbed_until or archive.done_at < QUIET_S
        ):
            out.append(
                f"the ledger was last archived at {archive.done_at:.1f} s, {archive.wanted and 'and is to be restored'}"
            )
        if self.world.secrets.waiting:
            out.append(f"{self.world.secrets.waiting} teams could not tell vault all their secrets")
        if self._audited_from is not None:
            out += self.world.secrets.unaudited(self._secrets, self._audited_from)
        for name, machine in self.world.machines.items():
            row = self.hot.nodes.get(name)
            if row is None or row["status"] != "up" or row["incarnation"] != machine.incarnation:
                out.append(
                    f"node {name} is not up in life {machine.incarnation}: {row and (row['status'], row['incarnation'])}"
                )
        out += [f"{name} is held" for name, row in self.hot.devices.items() if row["milli_used"] or row["jobs"]]
        out += [
            f"{process.key} runs on {m.name}" for m in self.world.machines.values() for process in m.running.values()
        ]
        return out

    def _answers(self, job: Asked) -> int:
        """Requests of a key that were answered: one that is a job, and those that were refused."""
        return int(job.id in self.stories) + len(self._refused[job.team, job.key])

    def behind(self) -> list[str]:
        """Projections that do not show the ledger's present yet."""
        out = []
        hashes = self.world.redis.hashes
        meta = hashes.get(f"baton:{{{POOL}}}:meta", {})
        if (int(meta.get("seq", 0)), meta.get("hash", "")) != (self.position, self.head.hash):
            out.append(f"Redis stands at {meta.get('seq')}, the ledger at {self.position}")
        else:
            for name in ("nodes", "devices", "teams", "jobs"):
                rows = {key: json.loads(row) for key, row in hashes.get(f"baton:{{{POOL}}}:{name}", {}).items()}
                if rows != getattr(self.hot, name):
                    out.append(f"Redis: table {name} is not the fold")
        documents = self.world.mongo.collections.get("jobs", {})
        for job, story in self.stories.items():
            found = documents.get(job)
            if found is None or found["document"] != story.document.model_dump_json():
                out.append(f"MongoDB: the document of {job} is not the fold")
                break
        untold = [payload for payload, subject in self._due.items() if (subject, payload) not in self._events]
        if untold:
            out.append(f"{len(untold)} events were not told, the first: {untold[0].decode()[:200]}")
        return out

    def settle(self, jobs: list[Asked]) -> None:
        """The last look: what is wrong now is wrong for good."""
        world = self.world
        report = self.checker.finish()
        for violation in report.violations:
            world.violated("ledger", violation)
        for job in jobs:
            if job.twin_at is not None and (answers := self._answers(job)) != 2:
                world.violated("I4", f"{job.id} was sent with two bodies, and has {answers} answers")
            # a broker whose clock was set has forgotten ids: what its client sends again it stores as another request
            both = job.id in self.ended and job.id in self._rejected and not world.offset_of("broker")
            if job.twin_at is None and both:
                world.violated("I4", f"{job.id} is both in the ledger and refused")
        for cause in sorted(self._yes & self._no) if not world.offset_of("broker") else ():
            world.violated("I4", f"request {cause} is both in the ledger and refused")
        for (subject, payload), times in self._events.items():
            # in one moment a team may be suspended, go on, and be suspended again with the same words
            often = times != max(1, self._facts[payload])
            if often and not world.offset_of("broker"):  # whose clock was set forgets the ids that it has
                world.violated("told", f"{times} times: {subject} {payload.decode()[:200]}")
            if subjects.what_of(subject) != "rejected" and payload not in self._due:
                world.violated("told", f"what the ledger does not say: {subject} {payload.decode()[:200]}")
        for state, job in ((self.ended.get(job.id), job) for job in jobs):
            if state is not None and not self._plausible(job, state):
                world.violated("end", f"{job.id} ({job.spec.name}) ended as {state.value}")
            elif state is JobState.SUCCEEDED and (unfinished := self._unfinished_parts(job.id)):
                world.violated("end", f"{job.id} has succeeded, and its parts ended elsewhere with {unfinished}")
        world.secrets.look()
        if world.archive is not None:
            world.archive.look()
        self._letters({job.id: job for job in jobs})

    def _unfinished_parts(self, job: str) -> dict[str, int | None]:
        """Of its last attempt: the nodes on which its processes did not end by themselves and well, with their exit codes."""
        attempts = self.stories[job].document.attempts
        last = attempts[-1]
        codes = {node: self.world.truth.ended.get((job, last.attempt, node)) for node in self._nodes[job, last.attempt]}
        return {node: code for node, code in codes.items() if code != 0}

    def _plausible(self, job: Asked, state: JobState) -> bool:
        secrets = self.world.secrets
        if job.spec.secrets and state is JobState.FAILED and secrets.may_fail(job.team, job.spec, job.at):
            return True
        if job.spec.secrets and state is not JobState.CANCELLED and secrets.must_fail(job.team, job.spec):
            return state is JobState.FAILED
        return _plausible(job, state)

    def _letters(self, jobs: Mapping[str, Asked]) -> None:
        twins = {job.id for job in jobs.values() if job.twin_at is not None}
        for kept in self.world.disk.streams[DEAD].messages.values():
            headers = kept.headers or {}
            subject, reason = headers["Baton-Dead-Subject"], headers["Baton-Dead-Reason"]
            if subjects.stem(subject) == _CANCEL and _STOPPED in reason:
                continue  # it ends as soon as it has stopped (`_fold`)
            if subjects.stem(subject) == _CANCEL and "no job" in reason:
                if (job_id := json.loads(kept.data)["job_id"]) not in twins:  # a second body may come after the cancel
                    self._early(jobs[job_id])
            elif subjects.stem(subject) == _ADMITTED and "with another body" in reason:
                if (taken := json.loads(kept.data)["job_id"]) not in twins:
                    self.world.violated("dead", f"nobody sent another body for {taken}: {reason}")
            elif not explained(subject, reason):
                self.world.violated("dead", f"a dead letter that nothing explains: {subject}: {reason}")

    def _early(self, job: Asked) -> None:
        """A cancel came to placement before its job, whose submit an admission had taken and died with: so it ends the job as
        soon as that comes, unless its submit was refused. A refusal names no job when the broker may have stored a copy that
        was admitted before; then no job may be there. After the broker's clock was set the order of the two is not known."""
        refused = job.id in self._rejected or (job.id not in self.stories and self._refused[job.team, job.key])
        as_told = self.ended.get(job.id) is JobState.CANCELLED or refused
        if not as_told and not self.world.offset_of("broker"):
            self.world.violated("dead", f"the cancel of {job.id} is a dead letter, and the job went on")


_PLANNED = subjects.stem(subjects.inbox("preemption", "planned", POOL))
_ADMITTED = subjects.stem(subjects.inbox("job", "admitted", POOL))
_CANCELS = subjects.inbox("job", "cancel-requested", POOL)
_STOPPED = "is being stopped already"
_CANCEL = subjects.stem(subjects.inbox("job", "cancel-requested", POOL))
_OBSERVED = subjects.stem(subjects.node_inbox("observed", POOL))
_REGISTERED = subjects.stem(subjects.node_inbox("registered", POOL))
_REPARTITIONED = subjects.stem(subjects.node_inbox("board-cut", POOL))
_QUEUES = subjects.stem(subjects.apply_queues(POOL, "op"))
_BUDGETS = subjects.stem(subjects.apply_budgets(POOL, "op"))
_TOLD_BY_OPERATORS = {
    subjects.stem(subjects.boost_job(POOL, "op")): ("no such job", "is not boosted", "boosts.most", "a class above"),
    subjects.stem(subjects.suspend_team(POOL, "op")): (),
    subjects.stem(subjects.offboard_team(POOL, "op")): ("is not suspended", "when all its jobs have ended"),
    subjects.stem(subjects.declare_dead(POOL, "op")): ("is not up", "is not silent", "is in life"),
    subjects.stem(subjects.resume_team(POOL, "op")): ("is not suspended",),
    subjects.stem(subjects.apply_prices(POOL, "op")): ("is not above", "device"),
    subjects.stem(subjects.top_up_budget(POOL, "op")): ("there is no budget", "no hard limit"),
}
"""What they say -> what is in the answer where it came too late, or too early."""
_QUARANTINE = subjects.stem(subjects.node_inbox("quarantine", POOL))


def explained(subject: str, reason: str) -> bool:
    """Whether a dead letter tells of an ordinary race: a plan that came too late, an earlier life of a node, older queues,
    an operator's word that something else was quicker than."""
    match subjects.stem(subject):
        case s if s == _PLANNED:
            return True
        case s if s == _REPARTITIONED and "was not asked for" in reason:  # it had answered, and its answer came again
            return True
        case s if s in (_OBSERVED, _REPARTITIONED, _QUARANTINE):
            return "is not up" in reason
        case s if s == _BUDGETS:
            return "is not above" in reason or "knows no budgets" in reason
        case s if s == _QUEUES:  # the older file came later, or an older reader reads along
            return "is not above" in reason or "knows no queues" in reason
        case s if s in _TOLD_BY_OPERATORS:
            return any(why in reason for why in (*_TOLD_BY_OPERATORS[s], "a reader of this ledger is of a release"))
        case s if s == _ADMITTED:
            return "is suspended" in reason or "was resumed" in reason
        case s:
            return s == _REGISTERED and "is not newer" in reason


def _plausible(job: Asked, state: JobState) -> bool:
    if state is JobState.CANCELLED:
        return job.cancel_at is not None
    if job.spec.time_limit_s or (job.spec.simulation is not None and job.spec.simulation.exit_code):
        return state is JobState.FAILED
    return state is JobState.SUCCEEDED
