"""Which changes of a decision may help a waiting job: one function per kind of ledger event.

A job that did not fit can fit later only because of what is noted here: devices, processors, power or a place among spread
peers that were given back, nodes that joined, limits that were raised or are less in use. An event that only takes something
(a grant, a node that left) helps nobody, with two exceptions: a node that is gone no longer counts against its leaf's power
limit; and the place of a gang's reservation depends on what is free and on which nodes there are, so such an event is noted as
`moved`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from libs.core.placement.context import SpreadKey, spread_key
from libs.core.state.job import QueueKey
from libs.core.state.model import State
from schemas import ledger as led


@dataclass(slots=True)
class Changes:
    """What changed since the last cycle. The sets hold names: the reader (`libs.core.scheduling.backlog`) looks them up in
    the state of its time."""

    devices: set[str] = field(default_factory=set)
    """Devices that were given back, wholly or in part, or that are no longer held for a job."""
    nodes: set[str] = field(default_factory=set)
    """Nodes on which processors, host memory or power may have been given back."""
    joined: set[str] = field(default_factory=set)
    """Nodes that joined, or joined again."""
    teams: set[str] = field(default_factory=set)
    """Teams that hold less than before, or whose limit changed."""
    peers: set[SpreadKey] = field(default_factory=set)
    """Spread keys of which a job has left a node."""
    fronts: set[QueueKey] = field(default_factory=set)
    """Queues that a job has left or come back to: their front job may be another now."""
    held: set[QueueKey] = field(default_factory=set)
    """Queues of jobs for which devices are held since, or no longer. Such a job no longer blocks its queue."""
    queued: set[str] = field(default_factory=set)
    """Ids of jobs that were queued. By id, because they are noted before they are in the state."""
    moved: bool = False
    """Free devices or nodes changed, so reservations may belong elsewhere."""
    order: bool = False
    """Jobs that wait may stand in another order; nothing was freed by it."""
    anything: bool = False
    """Something changed and it is not known what: every queue is tried again."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)

    def clear(self) -> None:
        """Forgets all changes: a cycle has taken them in."""
        self.__init__()  # type: ignore[misc]

    def note(self, state: State, event: led.LedgerEvent) -> None:
        """Notes what `event` will change; `state` is as before it."""
        NOTED.get(type(event), _anything)(self, state, event)


def _nothing(changes: Changes, state: State, event: led.LedgerEvent) -> None:
    """For events that free nothing and take no job out of a queue."""


def _anything(changes: Changes, state: State, event: led.LedgerEvent) -> None:
    """For events of which it is not known whom they help."""
    changes.anything = True


def _devices_came(changes: Changes, state: State, event: led.NodeJoined | led.BoardCutDone) -> None:
    """A node that says another power limit of its leaf, or stands elsewhere, leaves power to those who stay there."""
    changes.joined.add(event.inventory.node)
    changes.moved = True
    known, now = state.fleet.nodes.get(event.inventory.node), event.inventory
    if known is not None:
        before = known.inventory
        changes.anything = changes.anything or (
            (before.rack_power_w, before.position) != (now.rack_power_w, now.position)
        )


def _node_left(changes: Changes, state: State, event: led.NodeLeft) -> None:
    """What it said of its leaf's power holds no longer, which may help whoever waits for that leaf."""
    changes.moved = True
    changes.anything = changes.anything or bool(state.fleet.rack_w[state.fleet.node_names.find(event.node)])


def _devices_went(
    changes: Changes, state: State, event: led.BoardRecut | led.DeviceQuarantined | led.NodeCordoned
) -> None:
    changes.moved = True


def _promised(changes: Changes, state: State, event: led.GangPromised) -> None:
    """What is kept for the gang is open to jobs that end before its start."""
    changes.moved = True


def _limit_set(changes: Changes, state: State, event: led.QuotaSet) -> None:
    changes.teams.add(event.team)


def _job_queued(changes: Changes, state: State, event: led.JobQueued) -> None:
    changes.queued.add(event.job_id)


def _front_changed(changes: Changes, state: State, event: led.JobRequeued | led.JobFinished) -> None:
    changes.fronts.add(state.jobs[event.job_id].queue)


def _devices_held(changes: Changes, state: State, event: led.DevicesHeld) -> None:
    changes.held.add(state.jobs[event.job_id].queue)


def _devices_freed(changes: Changes, state: State, event: led.DevicesFreed) -> None:
    job = state.jobs[event.job_id]
    changes.anything = changes.anything or state.fleet.node_names.find(event.node) in state.fleet.full
    changes.devices.update(event.devices)
    changes.nodes.add(event.node)
    changes.teams.add(job.team)
    if job.shape.spread[0]:
        changes.peers.add(spread_key(job))


def _hold_released(changes: Changes, state: State, event: led.HoldReleased) -> None:
    devices, fleet, job = state.holds.get(event.job_id, ()), state.fleet, state.jobs.get(event.job_id)
    changes.devices.update(devices)
    changes.nodes.update(fleet.node_names.names[int(fleet.node[fleet.row(device)])] for device in devices)
    if job is not None:
        changes.teams.add(job.team)
        changes.held.add(job.queue)
        if job.shape.spread[0]:
            changes.peers.add(spread_key(job))


NOTED: dict[type, Callable[[Changes, State, Any], None]] = {
    led.NodeJoined: _devices_came,
    led.NodeLeft: _node_left,
    led.QuotaSet: _limit_set,
    led.QueuesApplied: _anything,
    led.PricesApplied: _anything,  # budgets of money cover more, or less
    led.PeriodClosed: _nothing,
    led.BudgetsApplied: _anything,
    led.BudgetToppedUp: _anything,
    led.BudgetPeriodBegan: _anything,
    led.BudgetHoldsRenewed: _nothing,
    led.BudgetReached: _nothing,
    led.TeamSuspended: _anything,
    led.TeamLeft: _nothing,
    led.TeamResumed: _anything,
    led.JobQueued: _job_queued,
    led.JobBoosted: _anything,
    led.BoostEnded: _anything,
    led.JobGranted: _nothing,  # the cycle that granted it knows
    led.AttemptStarting: _nothing,
    led.AttemptRunning: _nothing,
    led.AttemptCheckpointed: _nothing,
    led.GangPromised: _promised,
    led.AttemptProgress: _nothing,  # of one that runs
    led.AttemptPreempting: _nothing,  # its devices are freed by what their nodes see
    led.AttemptStopping: _nothing,
    led.DevicesFreed: _devices_freed,
    led.AttemptClosed: _nothing,
    led.JobRequeued: _front_changed,
    led.JobFinished: _front_changed,
    led.DevicesHeld: _devices_held,
    led.HoldReleased: _hold_released,
    led.BoardRecut: _devices_went,
    led.BoardCutDone: _devices_came,
    led.InputRejected: _nothing,
    led.PlanDeclined: _nothing,
    led.ClockJumped: _nothing,
    led.SegmentSealed: _nothing,
    led.GranterNamed: _nothing,
    led.NodeSilence: _nothing,
    led.NodeHeard: _anything,
    led.NodeDeclaredDead: _nothing,
    led.DeviceQuarantined: _devices_went,
    led.DeviceReturned: _anything,
    led.NodeCordoned: _devices_went,
    led.NodeUncordoned: _anything,
    led.DevicesReserved: _nothing,  # the cycle that reserved them knows
    led.DevicesFragmented: _nothing,
    led.OperatorActed: _nothing,
    led.CommandRefused: _nothing,
    led.LedgerSummed: _nothing,
    led.BoardRecutWithdrawn: _nothing,  # its instances stay out of placement until the node has answered
}
"""By kind of event. A test walks the catalogue; a kind that is missing here may help everybody."""
