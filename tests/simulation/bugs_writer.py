"""Bugs of the writer and of its decisions."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from libs.bus import settle
from libs.bus.in_progress import FreezeDetector
from libs.bus.trim import Trimmer
from libs.core.scheduling.reactions import _REACTIONS, agents, attempts, requests
from libs.core.state import fold
from libs.core.state.clock import LedgerClock
from libs.core.state.early_cancels import EarlyCancels
from libs.ledger import chain, writer
from libs.ledger.append import AppendOutcome
from libs.ledger.poison import PoisonInputs
from libs.ledger.readers import FormatGate
from libs.simulation.dst.stream import Stream
from schemas import ids, inbox, ledger
from schemas.ids import answer_id
from schemas.jobs import JobState
from services.admission import handlers, one_answer
from services.admission.answered import Answered
from services.admission.one_answer import AnswerOnce, _Places
from services.agent import node as agent_node
from tests.simulation.bug import bug, set_on


def _react(stack: ExitStack, message: type, reaction: Any) -> None:
    stack.enter_context(patch.dict(_REACTIONS, {message: reaction}))


@bug("an append that was refused is taken for done", findings=(17,))
def unclear_is_failed(stack: ExitStack) -> None:
    real = writer.append

    async def append(*args: Any) -> AppendOutcome:
        outcome = await real(*args)
        return AppendOutcome.COMMITTED if outcome is AppendOutcome.REFUSED else outcome

    set_on(stack, writer, "append", append)


@bug(
    "an append without a clear answer is taken for nothing, and the writer goes on with its state", "losses", "segments"
)
def unclear_is_nothing(stack: ExitStack) -> None:
    real = writer.append

    async def append(*args: Any) -> AppendOutcome:
        outcome = await real(*args)
        return AppendOutcome.SKIPPED if outcome is AppendOutcome.UNCLEAR else outcome

    set_on(stack, writer, "append", append)


@bug("a record does not say up to which input it decides")
def offset_not_in_record(stack: ExitStack) -> None:
    real = fold.apply_record

    def apply_record(state: Any, record: ledger.LedgerRecord) -> None:
        before = state.inbox_seq
        real(state, record)
        state.inbox_seq = before

    set_on(stack, fold, "apply_record", apply_record)


@bug("the broker compares no sequence, and readers do not check the chain", findings=(17,))
def no_compare_and_no_chain(stack: ExitStack) -> None:
    no_compare(stack)
    set_on(stack, chain, "continues", lambda head, record: True)


@bug(
    "the broker compares no sequence",
    harmless="the chain holds (the row above takes both away)",
    findings=(17,),
)
def no_compare(stack: ExitStack) -> None:
    real = Stream.store

    def store(self: Stream, subject: str, headers: Any, data: bytes, time_us: int) -> Any:
        kept = {k: v for k, v in (headers or {}).items() if k != "Nats-Expected-Last-Sequence"}
        return real(self, subject, kept, data, time_us)

    set_on(stack, Stream, "store", store)


@bug("what follows a commit may end the writer: a node with more than two parts cannot be told", findings=(1,))
def tell_ends_the_writer(stack: ExitStack) -> None:
    async def call(self: Any, hook: Any) -> None:
        await hook
        if any(len(jobs) > 2 for jobs in self.decider.state.on_node.values()):
            raise ValueError("too much for one message")

    set_on(stack, writer.LedgerWriter, "_call", call)


@bug("a repeated release counts again", aim="said again", findings=(12,))
def no_duplicate_check(stack: ExitStack) -> None:
    def node_observed(d: Any, m: inbox.NodeObserved) -> None:
        for seen in m.observations:
            job = d.state.jobs.get(seen.job_id)
            attempt = job.current if job is not None else None
            if attempt is not None and m.node in attempt.parts:
                agents._OBSERVE[type(seen)](d, m.node, job, attempt, seen)

    _react(stack, inbox.NodeObserved, node_observed)


@bug(
    "what a node of an earlier life saw counts",
    harmless="an attempt of an earlier life has ended with it",
    findings=(7,),
)
def earlier_life_counts(stack: ExitStack) -> None:
    real = agents.node_observed

    def node_observed(d: Any, m: inbox.NodeObserved) -> None:
        known = d.state.fleet.nodes.get(m.node)
        if known is not None and known.up:
            m = m.model_copy(update={"incarnation": known.incarnation})
        real(d, m)

    _react(stack, inbox.NodeObserved, node_observed)


@bug("a cancel that came before its job is forgotten", "requests", findings=(14,))
def early_cancel_forgotten(stack: ExitStack) -> None:
    set_on(stack, EarlyCancels, "of", lambda self, job_id, team: None)


@bug("ledger time follows the broker's clock wherever it is set", "leases", findings=(10,))
def time_follows_the_broker(stack: ExitStack) -> None:
    def tick(self: LedgerClock, wall_us: int, readings: Any) -> Any:
        after = replace(self, t_us=max(self.t_us, wall_us), wall_us=wall_us)
        return after._marked(after.t_us, readings), None

    set_on(stack, LedgerClock, "tick", tick)
    set_on(
        stack, LedgerClock, "input", lambda self, wall_us: replace(self, t_us=max(self.t_us, wall_us), wall_us=wall_us)
    )


@bug("newer kinds of events are written while an older reader lives", "leases", findings=(5,))
def newest_format_at_once(stack: ExitStack) -> None:
    async def older(self: Any) -> dict[str, int]:
        return {}

    set_on(stack, FormatGate, "_older", older)


@bug(
    "a node whose class lease has ended is granted anew, and its agent starts what it must kill",
    "leases",
    findings=(4,),
)
def start_with_ended_lease(stack: ExitStack) -> None:
    set_on(stack, agent_node.NodeRunner, "_lease_left", lambda self, part: True)


@bug("a job is queued again when the first part of its gang is gone", findings=(8,))
def requeue_before_release(stack: ExitStack) -> None:
    real = attempts.close_if_gone

    def close_if_gone(d: Any, job: Any, attempt: Any) -> None:
        for part in attempt.parts.values():
            part.freed = True
        attempt.unfreed = 0
        real(d, job, attempt)

    for module in (attempts, agents):
        set_on(stack, module, "close_if_gone", close_if_gone)


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


@bug("the same request twice is two jobs' worth of events", findings=(13,))
def submit_not_deduplicated(stack: ExitStack) -> None:
    real = requests.job_admitted

    def job_admitted(d: Any, m: inbox.JobAdmitted) -> None:
        if m.job_id in d.state.jobs or d.state.finished.knows(m.job_id, d.t_us):
            d.state.jobs.pop(m.job_id, None)
        real(d, m)

    _react(stack, inbox.JobAdmitted, job_admitted)


@bug("of two admissions that judge a request differently each stores its answer", aim="two minds", findings=(13,))
def both_answer(stack: ExitStack) -> None:
    async def nobody_was_before(self: AnswerOnce, items: Any, acks: Any) -> Any:
        return _Places()

    set_on(stack, AnswerOnce, "_places", nobody_was_before)
    set_on(stack, Answered, "__contains__", lambda self, id_: False)


@bug(
    "an admission that stood still stores what it had decided, though another was given the request meanwhile",
    aim="stricter meanwhile",
    harmless="a refusal takes the request's place in the inbox (the row below takes both away)",
    findings=(13,),
)
def late_answer_stored(stack: ExitStack) -> None:
    @asynccontextmanager
    async def hold(messages: Any, standstill: Any) -> AsyncIterator[Any]:
        yield lambda: True

    set_on(stack, settle, "keep_in_progress", hold)
    set_on(stack, FreezeDetector, "ran_since", lambda self, began_s: True)


@bug(
    "... and a refusal does not take the request's place in the inbox, so that both answers are stored",
    aim="stricter meanwhile",
    findings=(13,),
)
def late_answer_beside_another(stack: ExitStack) -> None:
    late_answer_stored(stack)
    own = SimpleNamespace(answer_id=lambda cause, time_us: ids.answer_id(f"refused:{cause}", time_us))
    set_on(stack, one_answer, "ids", own)


@bug("an error in a decision ends the writer", findings=(11,))
def error_ends_the_writer(stack: ExitStack) -> None:
    real = requests.cancel_requested

    def cancel_requested(d: Any, m: inbox.CancelRequested) -> None:
        real(d, m)
        raise ValueError("nobody thought of this, in the midst of a decision")

    def blame(self: PoisonInputs, error: Exception, stored: Any) -> bool:
        raise error

    _react(stack, inbox.CancelRequested, cancel_requested)
    set_on(stack, PoisonInputs, "blame", blame)


@bug("the second body of a key hides behind the first one", "requests", findings=(13,))
def second_body_hidden(stack: ExitStack) -> None:
    real = handlers.outgoing

    def outgoing(model: Any, **named: Any) -> Any:
        if isinstance(model, inbox.JobAdmitted):
            named |= {"cause": model.job_id, "id": answer_id(model.job_id, 0)}
        return real(model, **named)

    set_on(stack, handlers, "outgoing", outgoing)


@bug("requests are trimmed before they are answered", "requests", "room", findings=(2,))
def trimmed_too_early(stack: ExitStack) -> None:
    async def turn(self: Trimmer, now: float) -> bool:
        info = await self._js.stream_info(self.stream)
        await self._js.purge_stream(self.stream, seq=info.state.last_seq + 1, subject=self._subject or None)
        return True

    set_on(stack, Trimmer, "turn", turn)
