"""What a node's agent says: its life begins, what became of the parts it runs, a board that it has repartitioned."""

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from libs.core.scheduling.progress import believed
from libs.core.scheduling.reactions.attempts import (
    after_loss,
    close_if_gone,
    free,
    release_holds_of,
    stop,
    stop_at_limit,
    vacate,
)
from libs.core.scheduling.reactions.cordons import take_out
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.scheduling.reactions.inventories import refuse_inventory
from libs.core.scheduling.reactions.quarantine import follow
from libs.core.state import lifecycle
from libs.core.state.attempt import Attempt
from libs.core.state.job import Job
from schemas import inbox, ledger
from schemas.attempts import Category, Cause, Evidence
from schemas.jobs import unusable
from schemas.resources import Inventory

MOST_AHEAD = 2**32
"""By so much a life's number may be above the last one's and the time in seconds, which agents count by: a clock may be a
century ahead, and a node that makes numbers up never comes near the last one there is (2^63 - 1), after which it could not
begin another life."""


def node_registered(d: Decision, m: inbox.NodeRegistered) -> None:
    name = m.inventory.node
    known = d.state.fleet.nodes.get(name)
    if known is not None and m.incarnation <= known.incarnation:
        if m.incarnation == known.incarnation and known.up:
            return  # what it says of quarantines may be old by now
        raise InputRefused(
            f"node {name}: incarnation {m.incarnation} is not newer than {known.incarnation}; restart its agent"
        )
    highest = max(d.t_us // 1_000_000, known.incarnation if known is not None else 0) + MOST_AHEAD
    if m.incarnation > highest:
        raise InputRefused(
            f"node {name}: incarnation {m.incarnation} is above {highest}, the most that may come next: see what its clock "
            "says, remove incarnations.json of its agent's state folder, and restart the agent"
        )
    refuse_inventory(d, m.inventory)
    if why := d.nodes.begins(name, d.t_us):
        raise InputRefused(why)
    vacate(d, name, Evidence.NEW_INCARNATION, f"node {name} started anew")
    d.emit(ledger.NodeJoined(incarnation=m.incarnation, inventory=m.inventory))
    follow(d, name, m.incarnation, m.quarantine)


def node_observed(d: Decision, m: inbox.NodeObserved) -> None:
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up or known.incarnation != m.incarnation:
        raise InputRefused(f"node {m.node}, incarnation {m.incarnation}, is not up: what it saw no longer counts")
    for seen, following in zip_longest(m.observations, m.observations[1:]):
        job = d.state.jobs.get(seen.job_id)
        attempt = job.current if job is not None else None
        if job is None or attempt is None or attempt.number != seen.attempt or m.node not in attempt.parts:
            continue  # it has ended since: a repeated or late report
        if not attempt.parts[m.node].freed:
            if isinstance(seen, inbox.CheckpointTaken):
                released = isinstance(following, inbox.Released) and following.job_id == seen.job_id
                _checkpointed(d, m.node, job, attempt, seen, last_word=released)
            else:
                _OBSERVE[type(seen)](d, m.node, job, attempt, seen)
            d.may_end_here()
    for told in m.progress:
        _progressed(d, m.node, told)


def _started(d: Decision, node: str, job: Job, attempt: Attempt, seen: inbox.Started) -> None:
    if attempt.parts[node].started or not lifecycle.allows(ledger.AttemptRunning, *job.states):
        return
    if attempt.unstarted == 1:
        d.emit(ledger.AttemptRunning(job_id=job.id, attempt=attempt.number))
    else:
        d.emit(ledger.AttemptStarting(job_id=job.id, attempt=attempt.number, node=node))


CHECKPOINT_LEAST_US = 5_000_000
"""Between two checkpoints of an attempt that runs. Agents tell them half as often."""
_ENDING_LEAST_US = 1_000_000
"""The same once its end was decided; the first since then counts at once, and so does one that is told with its release."""


def _checkpointed(
    d: Decision, node: str, job: Job, attempt: Attempt, seen: inbox.CheckpointTaken, *, last_word: bool = False
) -> None:
    if unusable(seen.checkpoint) or not _speaks(node, attempt):
        return  # an agent of 0.1.0 believed it, or the node lies: agents tell rank 0's word
    last = job.resume
    if last is not None and (seen.checkpoint == last or seen.checkpoint.step < last.step):
        return
    if attempt.checkpoint is not None and not last_word:
        answers = attempt.ended_us > attempt.checkpoint_us  # the first since its end was decided
        least_us = _ENDING_LEAST_US if attempt.ended_us else CHECKPOINT_LEAST_US
        if not answers and d.t_us < attempt.checkpoint_us + least_us:
            return
    d.emit(ledger.AttemptCheckpointed(job_id=job.id, attempt=attempt.number, checkpoint=seen.checkpoint))


def _speaks(node: str, attempt: Attempt) -> bool:
    """Whether the node speaks for the whole job: rank 0 is there."""
    return attempt.claims[0].node == node


PROGRESS_LEAST_US = 10_000_000
"""An attempt's progress is told this often at the most, whatever its agent says."""


def _progressed(d: Decision, node: str, seen: inbox.ProgressSeen) -> None:
    """What cannot be is told once, and nothing after it."""
    job = d.state.jobs.get(seen.job_id)
    attempt = job.current if job is not None else None
    if job is None or attempt is None or attempt.number != seen.attempt or not _speaks(node, attempt):
        return
    last, new = attempt.progress, believed(attempt.progress, seen.progress)
    if last is not None:
        too_soon = new.doubt is None and d.t_us < attempt.progress_us + PROGRESS_LEAST_US
        if too_soon or last.doubt is not None:
            return
    event = ledger.AttemptProgress(job_id=job.id, attempt=attempt.number, progress=new)
    if d.may(event) and lifecycle.allows(ledger.AttemptProgress, *job.states):
        d.emit(event)
        d.may_end_here()


def _released(d: Decision, node: str, job: Job, attempt: Attempt, seen: inbox.Released) -> None:
    if seen.over_limit and attempt.cause is None and (end_us := d.state.limited.get(job.id)) is not None:
        if d.t_us < end_us:
            return  # ledger time is behind, which the next tick ends: the node says it again
        stop_at_limit(d, job)
    if seen.own_exit and seen.exit_code == 0:
        d.failing.well(node, attempt)
    elif seen.port_held:
        d.failing.forget(job, attempt)
    elif seen.own_exit and attempt.cause is None:
        take_out(d, node, d.failing.failed(d.state, node, job, attempt, d.t_us))
    free(d, node, job, attempt, Evidence.RELEASED, seen.reason, told=seen)
    if attempt.cause is None and not (seen.own_exit and seen.exit_code == 0):
        if seen.own_exit:
            attempt_failed = f"its part on {node} exited with {seen.exit_code}"
            stop(d, job, Cause.PART_FAILED, f"{attempt_failed}: {seen.reason}" if seen.reason else attempt_failed)
        else:
            stop(d, job, Cause.PART_LOST, seen.reason or f"node {node} stopped it by itself")
    close_if_gone(d, job, attempt)


def _refused(d: Decision, node: str, job: Job, attempt: Attempt, seen: inbox.Refused) -> None:
    if attempt.cause is None and seen.category is Category.HARDWARE:  # else it is a reason that passes
        take_out(d, node, d.failing.failed(d.state, node, job, attempt, d.t_us))
    free(d, node, job, attempt, Evidence.REFUSED, seen.reason, told=seen)
    after_loss(d, job, attempt, Cause.PART_REFUSED, f"node {node} refused it: {seen.reason}")


def board_cut(d: Decision, m: inbox.BoardCut) -> None:
    """The first report of the repartition that is under way counts; repeated and older ones say nothing new."""
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up or known.incarnation != m.incarnation:
        raise InputRefused(
            f"node {m.node}, incarnation {m.incarnation}, is not up: what it repartitioned no longer counts"
        )
    asked = d.state.repartitions.get(m.board)
    if asked is None or asked.node != m.node or asked.recut.number != m.number:
        if m.number <= d.state.repartition_number.get(m.board, 0):
            return
        raise InputRefused(f"node {m.node} was not asked for repartition {m.number} of board {m.board}")
    if m.inventory.node != m.node:
        raise InputRefused(f"node {m.node} reports a repartition with the inventory of {m.inventory.node}")
    inventory = _around_what_is_held(d, m)
    refuse_inventory(d, inventory)
    gone = {device.id for device in known.inventory.devices} - {device.id for device in inventory.devices}
    d.emit(
        ledger.BoardCutDone(
            node=m.node,
            incarnation=m.incarnation,
            board=m.board,
            number=m.number,
            ok=m.ok,
            reason=m.reason,
            inventory=inventory,
        )
    )
    release_holds_of(d, gone)


def _around_what_is_held(d: Decision, m: inbox.BoardCut) -> Inventory:
    """What the node offers now. What jobs hold there is what it was, whatever the node says: by that it was granted and is
    billed, and its free memory cannot be measured under a job. Raises InputRefused where it is gone."""
    before = {device.id: device for device in d.state.fleet.nodes[m.node].inventory.devices}
    offered = {device.id: device for device in m.inventory.devices}
    for job_id in d.state.on_node.get(m.node, {}):
        attempt = d.state.jobs[job_id].current
        assert attempt is not None
        for name in (claim.device for claim in attempt.parts[m.node].claims):
            if name not in offered:
                raise InputRefused(f"node {m.node} reports a repartition without {name}, which {job_id} holds")
            offered[name] = before[name].model_copy(update={"index": offered[name].index})
    return m.inventory.model_copy(update={"devices": tuple(offered.values())})


_OBSERVE: dict[type, Callable[[Decision, str, Job, Attempt, Any], None]] = {
    inbox.Started: _started,
    inbox.Released: _released,
    inbox.Refused: _refused,
}
