"""Bugs that are planted on purpose, one at a time: the simulation must find each, or it proves too little.

`python -m tests.simulation.planted` looks for the first seed that finds each, writes it to found.json and the table into
docs/reliability.md; `--limit N` bounds the seeds for one, `--only NAME` measures one again.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from libs.adapters.mongo.store import JobStore
from libs.bus import settle
from libs.bus.excused import Excused
from libs.core.billing import metering
from libs.core.projections import node_health
from libs.core.projections.granter import Granter
from libs.core.scheduling.reactions import _REACTIONS, agents, attempts, requests
from libs.core.state import fold
from libs.core.state.clock import LedgerClock
from libs.core.state.early_cancels import EarlyCancels
from libs.ledger import chain, follower, reader, snapshots, tail, writer
from libs.ledger.append import AppendOutcome
from libs.ledger.readers import FormatGate
from libs.ledger.snapshots import SnapshotStore
from libs.simulation.dst import agents as sim_agents
from libs.simulation.dst import cheap
from libs.simulation.dst.agents import SimPart, SimState
from libs.simulation.dst.machine import Machine
from libs.simulation.dst.run import SeedResult, run
from libs.simulation.dst.stream import Stream
from schemas import inbox, ledger
from schemas.jobs import JobState
from services.agent import node as agent_node
from services.agent import reconcile
from services.agent.lease import Lease
from services.agent.reports import Reports
from services.agent.wanted import Wanted
from services.history import documents, feed
from services.leases.grants import Grants
from services.placement import projector
from services.preemption import app as preemption
from services.quota_billing import quotas

FOUND = Path(__file__).with_name("found.json")
PAGE = Path(__file__).parents[2] / "docs/reliability.md"
BEGIN, END = "<!-- planted: begin -->", "<!-- planted: end -->"

SAMPLE = 10
"""Of so many seeds it is counted how many find a bug."""

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """`what` is wrong; `plant` makes it so for as long as the stack is open. `harmless`: a defence behind it holds."""

    what: str
    plant: Plant
    harmless: bool = False


BUGS: dict[str, Bug] = {}


def bug(what: str, *, harmless: bool = False) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        BUGS[plant.__name__.replace("_", "-")] = Bug(what, plant, harmless)
        return plant

    return register


def _set(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.enter_context(patch.object(owner, name, value))


def _react(stack: ExitStack, message: type, reaction: Any) -> None:
    stack.enter_context(patch.dict(_REACTIONS, {message: reaction}))


# ---------------------------------------------------------------------------------------------------------- the writer


@bug("an append without a clear answer is taken for failed, and the writer goes on with its state")
def unclear_is_failed(stack: ExitStack) -> None:
    real = writer.append

    async def append(*args: Any) -> AppendOutcome:
        outcome = await real(*args)
        return AppendOutcome.COMMITTED if outcome is AppendOutcome.REFUSED else outcome

    _set(stack, writer, "append", append)


@bug("a record does not say up to which input it decides")
def offset_not_in_record(stack: ExitStack) -> None:
    real = fold.apply_record

    def apply_record(state: Any, record: ledger.LedgerRecord) -> None:
        before = state.inbox_seq
        real(state, record)
        state.inbox_seq = before

    _set(stack, fold, "apply_record", apply_record)


@bug("the broker compares no sequence, and readers do not check the chain")
def no_compare_and_no_chain(stack: ExitStack) -> None:
    no_compare(stack)
    _set(stack, chain, "continues", lambda head, record: True)


@bug("the broker compares no sequence (the chain holds: the second writer's records are void)", harmless=True)
def no_compare(stack: ExitStack) -> None:
    real = Stream.store

    def store(self: Stream, subject: str, headers: Any, data: bytes, time_us: int) -> Any:
        kept = {k: v for k, v in (headers or {}).items() if k != "Nats-Expected-Last-Sequence"}
        return real(self, subject, kept, data, time_us)

    _set(stack, Stream, "store", store)


@bug("what follows a commit may end the writer: a node with more than two parts cannot be told")
def tell_ends_the_writer(stack: ExitStack) -> None:
    async def call(self: Any, hook: Any) -> None:
        await hook
        if any(len(jobs) > 2 for jobs in self.decider.state.on_node.values()):
            raise ValueError("too much for one message")

    _set(stack, writer.LedgerWriter, "_call", call)


# ------------------------------------------------------------------------------------------------------- the decisions


@bug("a repeated release counts again")
def no_duplicate_check(stack: ExitStack) -> None:
    def node_observed(d: Any, m: inbox.NodeObserved) -> None:
        for seen in m.observations:
            job = d.state.jobs.get(seen.job_id)
            attempt = job.current if job is not None else None
            if attempt is not None and m.node in attempt.parts:
                agents._OBSERVE[type(seen)](d, m.node, job, attempt, seen)

    _react(stack, inbox.NodeObserved, node_observed)


@bug("what a node of an earlier life saw counts (attempts are told by their number, too)", harmless=True)
def earlier_life_counts(stack: ExitStack) -> None:
    real = agents.node_observed

    def node_observed(d: Any, m: inbox.NodeObserved) -> None:
        known = d.state.fleet.nodes.get(m.node)
        if known is not None and known.up:
            m = m.model_copy(update={"incarnation": known.incarnation})
        real(d, m)

    _react(stack, inbox.NodeObserved, node_observed)


@bug("a cancel that came before its job is forgotten")
def early_cancel_forgotten(stack: ExitStack) -> None:
    _set(stack, EarlyCancels, "of", lambda self, job_id, team, submitted_us: None)


@bug("ledger time follows the broker's clock wherever it is set")
def time_follows_the_broker(stack: ExitStack) -> None:
    def tick(self: LedgerClock, wall_us: int, readings: Any) -> Any:
        after = replace(self, t_us=max(self.t_us, wall_us), wall_us=wall_us)
        return after._marked(after.t_us, readings), None

    _set(stack, LedgerClock, "tick", tick)
    _set(
        stack, LedgerClock, "input", lambda self, wall_us: replace(self, t_us=max(self.t_us, wall_us), wall_us=wall_us)
    )


@bug("newer kinds of events are written while an older reader lives")
def newest_format_at_once(stack: ExitStack) -> None:
    async def older(self: Any) -> list[str]:
        return []

    _set(stack, FormatGate, "_older", older)


@bug("a node whose class lease has ended is granted anew at once, and its agent starts what it must kill")
def start_with_ended_lease(stack: ExitStack) -> None:
    _set(stack, agent_node.NodeRunner, "_lease_left", lambda self, part: True)


@bug("a job is queued again when the first part of its gang is gone")
def requeue_before_release(stack: ExitStack) -> None:
    real = attempts.close_if_gone

    def close_if_gone(d: Any, job: Any, attempt: Any) -> None:
        freed = [part for part in attempt.parts.values() if not part.freed]
        for part in freed:
            part.freed = True
        real(d, job, attempt)

    for module in (attempts, agents):
        _set(stack, module, "close_if_gone", close_if_gone)


@bug("a cancelled job is over before its nodes have said so")
def cancel_ends_at_once(stack: ExitStack) -> None:
    real = requests.cancel_requested

    def cancel_requested(d: Any, m: inbox.CancelRequested) -> None:
        job = d.state.jobs.get(m.job_id)
        if job is not None and job.current is not None:
            d.emit(ledger.JobFinished(job_id=job.id, state=JobState.CANCELLED, reason=m.reason, user=m.user))
        else:
            real(d, m)

    _react(stack, inbox.CancelRequested, cancel_requested)


@bug("the same request twice is two jobs' worth of events")
def submit_not_deduplicated(stack: ExitStack) -> None:
    real = requests.job_admitted

    def job_admitted(d: Any, m: inbox.JobAdmitted) -> None:
        if m.job_id in d.state.jobs or d.state.finished.knows(m.job_id, d.t_us):
            d.state.jobs.pop(m.job_id, None)
        real(d, m)

    _react(stack, inbox.JobAdmitted, job_admitted)


# ---------------------------------------------------------------------------------------------------------- the leases


@bug("a node is given up after half of its lease")
def lost_too_early(stack: ExitStack) -> None:
    _set(stack, node_health.Terms, "patience", lambda self, lease_s: lease_s * 0.5)


@bug("a successor does not wait out the leases that its predecessor granted")
def successor_does_not_wait(stack: ExitStack) -> None:
    def named(self: Granter, right: Any, now: float) -> None:
        self.right = right

    _set(stack, Granter, "named", named)


@bug("while the ledger may name no granter, one that is deaf reports all nodes lost")
def deaf_granter_reports(stack: ExitStack) -> None:
    real = Grants.reports

    def reports(self: Grants, at: float) -> Any:
        with patch.object(Grants, "may_grant", lambda *_: True):
            yield from real(self, at)

    _set(stack, Grants, "reports", reports)


@bug("a restarted telemetry does not wait out the leases that it cannot know of")
def telemetry_forgets_its_start(stack: ExitStack) -> None:
    real = node_health.overdue

    def overdue(now: float, last_seen: Any, up: Any, started_at: float, terms: Any) -> Any:
        return real(now, last_seen, {n: (i, 0.0) for n, (i, _) in up.items()}, 0.0, terms)

    _set(stack, node_health, "overdue", overdue)


@bug("a lease counts from when its renewal was received")
def lease_from_receipt(stack: ExitStack) -> None:
    real = Lease.renew
    _set(stack, Lease, "renew", lambda self, sent, now: real(self, now + 2.0, now))


@bug("a lease that has ended revives")
def lease_revives(stack: ExitStack) -> None:
    def check(self: Lease, now: float) -> bool:
        return False

    _set(stack, Lease, "check", check)


@bug("work is started without a lease")
def start_without_lease(stack: ExitStack) -> None:
    real = agent_node.plan
    _set(stack, agent_node, "plan", lambda desired, view, lease_valid=True, lease_left=None: real(desired, view))
    _set(stack, Lease, "valid", lambda self, now: True)
    _set(stack, Lease, "check", lambda self, now: False)


@bug("nobody but the agent ends work when the lease ends")
def no_keeper(stack: ExitStack) -> None:
    _set(stack, Machine, "_look", lambda self, life: None)


@bug("a new life of a node has the number of the last one")
def incarnation_not_raised(stack: ExitStack) -> None:
    def next_incarnations(self: SimState, nodes: Any, above: Any = None) -> dict[str, int]:
        self._machine.incarnation = max(1, self._machine.incarnation)
        return dict.fromkeys(nodes, self._machine.incarnation)

    _set(stack, SimState, "next_incarnations", next_incarnations)


@bug("a node's new life does not go above the one that the pool knows")
def incarnation_not_above(stack: ExitStack) -> None:
    real = SimState.next_incarnations
    _set(stack, SimState, "next_incarnations", lambda self, nodes, above=None: real(self, nodes))


@bug("an older desired state is followed as well as a newer one (its grants have older epochs)", harmless=True)
def stale_desired_followed(stack: ExitStack) -> None:
    def concerns(desired: Any, view: Any) -> bool:
        return bool(desired.node == view.node)

    def take_change(self: Wanted, change: Any) -> bool:
        self.seq = change.ledger_seq - 1
        return real(self, change.model_copy(update={"since": self.seq}))

    real = Wanted.take_change
    _set(stack, agent_node, "concerns", concerns)
    _set(stack, reconcile, "concerns", concerns)
    _set(stack, Wanted, "take_change", take_change)


@bug("an older desired state is followed, and epochs are not compared")
def stale_desired_and_epochs(stack: ExitStack) -> None:
    stale_desired_followed(stack)
    real = reconcile._refusal

    def refusal(part: Any, view: Any, occupied: Any) -> Any:
        return real(part, replace(view, epochs={}), occupied)

    _set(stack, reconcile, "_refusal", refusal)


@bug("a release is told before the processes are gone")
def released_too_early(stack: ExitStack) -> None:
    real = SimPart.stop

    def stop(self: SimPart) -> None:
        report, over = self._report, self._over
        real(self)
        if not over and self._process.alive:
            report(
                inbox.Released(
                    job_id=self._part.job_id, attempt=self._part.attempt, exit_code=143, reason="", own_exit=False
                )
            )

    _set(stack, SimPart, "stop", stop)
    _set(stack, SimPart, "save", stop)
    _set(stack, sim_agents, "STOP_S", 3.0)


@bug("the next agent's reports look like repeats of the one's before it")
def report_ids_repeat(stack: ExitStack) -> None:
    real = Reports.__init__

    def init(self: Reports, *args: Any, **named: Any) -> None:
        real(self, *args, **named)
        self._run = ""

    _set(stack, Reports, "__init__", init)


@bug("a report that was not stored at once is dropped")
def report_dropped(stack: ExitStack) -> None:
    async def store(self: Reports, batch: Any) -> None:
        try:
            async with asyncio.timeout(0.5):
                await self._publish(batch)
        except Exception:
            return

    _set(stack, Reports, "_store", store)
    _set(stack, agent_node.NodeRunner, "repeat", lambda self, older_than_s: None)


# -------------------------------------------------------------------------------------------------- readers and effects


@bug("a reader does not notice a lost delivery")
def lost_delivery_unnoticed(stack: ExitStack) -> None:
    real = tail._status

    def status(consumer: Any, headers: dict[str, str]) -> None:
        real(consumer, {k: v for k, v in headers.items() if k != "Nats-Last-Consumer"})

    _set(stack, tail, "_status", status)


@bug("a broker that is away when a reader starts ends its service")
def broker_away_ends_reader(stack: ExitStack) -> None:
    async def patiently(self: Any, ask: Any) -> Any:
        return await ask()

    _set(stack, follower.Follower, "_patiently", patiently)


@bug("a request is acknowledged before what follows from it is stored")
def ack_before_store(stack: ExitStack) -> None:
    real = settle._Shell._decided

    async def decided(self: Any, case: Any, deliveries: int) -> Any:
        case = await real(self, case, deliveries)
        if case.outcome == "decided":
            await case.msg.ack()
        return case

    async def settled(case: Any) -> None:
        if not case.msg.is_acked:
            await settles(case)

    settles = settle._settle
    _set(stack, settle._Shell, "_decided", decided)
    _set(stack, settle, "_settle", settled)


@bug("deliveries that reached no decision count: good requests become dead letters while nothing can be stored")
def undecided_deliveries_count(stack: ExitStack) -> None:
    _set(stack, Excused, "counted", lambda self, received: received.deliveries)
    _set(stack, settle, "CRASH_DELIVERIES", 3)


@bug("the feed moves its cursor before teams are told")
def cursor_before_events(stack: ExitStack) -> None:
    real, publish = feed.FeedLoop._surely, feed.failpoint

    async def surely(self: Any, what: str, work: Any) -> Any:
        if what.startswith("store"):
            mark = {"seq": self.follower.head.seq, "hash": self.follower.head.hash, "position": self.follower.position}
            await real(self, "move", partial(self._cursors.move, f"{feed.NAME}-{self._pool}", mark))
            publish("feed.stored")
        return await real(self, what, work)

    _set(stack, feed.FeedLoop, "_surely", surely)


@bug("a repeated event has another id")
def event_ids_differ(stack: ExitStack) -> None:
    real, numbers = feed.outgoing, count()
    _set(stack, feed, "outgoing", lambda event, **named: real(event, **named | {"key": str(next(numbers))}))


@bug("documents are written without looking whether MongoDB is still the one that was written")
def checkpoint_not_compared(stack: ExitStack) -> None:
    async def move_checkpoint(self: Any, name: str, before: Any, after: Any) -> bool:
        await self._checkpoints.replace_one({"_id": name}, {"_id": name, **asdict(after)}, upsert=True)
        return True

    async def after(self: Any, steps: Any) -> None:
        if steps:
            await real(self, steps)

    real = documents.Documents._after
    _set(stack, JobStore, "move_checkpoint", move_checkpoint)
    _set(stack, documents.Documents, "_after", after)


@bug("a snapshot says that it holds more records than it does")
def snapshot_ahead(stack: ExitStack) -> None:
    real = SnapshotStore.put

    async def put(self: Any, name: str, version: int, head: Any, position: int, packed: bytes) -> None:
        stored = self.held.get(name) if hasattr(self, "held") else None
        self.held = {**getattr(self, "held", {}), name: packed}
        await real(self, name, version, head, position, stored if stored is not None else packed)

    _set(stack, SnapshotStore, "put", put)


@bug("a snapshot that cannot be read ends its reader")
def bad_snapshot_ends_reader(stack: ExitStack) -> None:
    class Unread(RuntimeError):
        pass

    real = snapshots._read

    async def read(store: Any, key: str) -> bytes:
        try:
            return await real(store, key)
        except snapshots.BadSnapshot as error:
            raise Unread(str(error)) from error

    _set(stack, snapshots, "_read", read)


@bug("a snapshot that another process replaced while it was looked at is taken for the one before")
def snapshot_replaced(stack: ExitStack) -> None:
    real = snapshots._read

    async def read(store: Any, slot: Any) -> bytes:
        described = (await store.get_info(slot.object)).description or ""
        return await real(store, replace(slot, described=described))

    _set(stack, snapshots, "_read", read)


@bug("a reader of some kinds of events does not notice where a segment ends")
def seal_unnoticed(stack: ExitStack) -> None:
    def seals(self: Any, entry: Any, payload: bytes) -> bool:
        return any(isinstance(event, ledger.SegmentSealed) for event in entry.record.events)

    _set(stack, reader.LedgerReader, "_seals", seals)


@bug("a plan of preemption that cannot be stored ends its service")
def plan_unstored_ends(stack: ExitStack) -> None:
    _set(stack, preemption, "AWAY", ())


@bug("an agent that comes back forgets what it finds running")
def adopted_parts_forgotten(stack: ExitStack) -> None:
    real = agent_node.NodeRunner.adopt
    _set(stack, agent_node.NodeRunner, "adopt", lambda self, life: real(self, replace(life, parts=())))


@bug("quotas of a file do not wait for a broker that is away")
def quotas_do_not_wait(stack: ExitStack) -> None:
    _set(stack, quotas, "patiently", lambda ask, away: ask())


@bug("the projector does not look at where Redis stands")
def redis_not_compared(stack: ExitStack) -> None:
    async def check(self: Any, follower: Any) -> None:
        """Never again."""

    async def refresh(self: Any, follower: Any) -> None:
        self._stale = False

    _set(stack, projector.Projector, "_check", check)
    _set(stack, projector.Projector, "_refresh", refresh)


@bug("a bill counts whole milliseconds")
def bill_rounds(stack: ExitStack) -> None:
    real = metering.Meter.apply

    def apply(self: Any, record: ledger.LedgerRecord, seq: int) -> None:
        real(self, record.model_copy(update={"t_us": record.t_us // 1000 * 1000}), seq)

    _set(stack, metering.Meter, "apply", apply)


# ------------------------------------------------------------------------------------------------------------ measuring


@contextmanager
def planted(name: str) -> Iterator[None]:
    cheap.install()
    with ExitStack() as stack:
        BUGS[name].plant(stack)
        yield


def finds(name: str, seed: int) -> SeedResult:
    """The seed, with the bug in it."""
    with planted(name):
        return run(seed, to_first=True)


def measure(name: str, limit: int) -> tuple[str, dict[str, Any]]:
    """How many of the first `SAMPLE` seeds find it; the first one that does, of `limit`, and how."""
    found, first, how = 0, None, ""
    limit = min(limit, SAMPLE) if BUGS[name].harmless else limit
    for seed in range(limit):
        if seed >= SAMPLE and first is not None:
            break
        outcome = finds(name, seed)
        if outcome.violations:
            found += seed < SAMPLE
            if first is None:
                first, how = seed, outcome.violations[0].partition("\n")[0][:160]
    return name, {"seed": first, "of_sample": found, "limit": limit, "how": how}


def table(found: dict[str, Any]) -> str:
    rows = [
        f"| planted bug | first seed that finds it | of the first {SAMPLE} | what is violated |",
        "|---|---|---|---|",
    ]
    for name, one in BUGS.items():
        if name not in found:
            rows.append(f"| {one.what} | not measured | | |")
            continue
        row = found[name]
        seed = row["seed"] if row["seed"] is not None else f"none of {row['limit']}"
        how = row["how"].split(":")[0] if row["how"] else ("a defence behind it holds" if one.harmless else "")
        rows.append(f"| {one.what} | {seed} | {row['of_sample']} | {how} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--only", action="append")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    names = [] if options.table else options.only or list(BUGS)
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        for name, measured in pool.imap_unordered(partial(measure, limit=options.limit), names):
            found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
            found[name] = measured
            print(f"{name}: {measured['seed']}, {measured['of_sample']} of {SAMPLE}, {measured['how']}", flush=True)
            FOUND.write_text(json.dumps({n: found[n] for n in BUGS if n in found}, indent=1) + "\n")
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table(found)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
