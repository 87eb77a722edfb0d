"""What a decision changed that may help a job that waits: one function per kind of ledger event.

What fits only becomes more by what is noted here: by devices, processors, power or a place among spread peers given back,
nodes that came, limits raised or less in use. Whatever only takes (a grant, a node that left) is no help, with one
exception: where a gang keeps devices moves with what is free and which nodes there are, so that is noted as `moved`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from libs.core.placement.context import SpreadKey, spread_key
from libs.core.state.model import QueueKey, State
from schemas import ledger as led


@dataclass(slots=True)
class Changes:
    """Since the last cycle. Names are resolved by whoever looks (`libs.core.scheduling.backlog`), on the state as it is
    then."""

    devices: set[str] = field(default_factory=set)
    """Given back, wholly or in part, or kept for nobody any more."""
    nodes: set[str] = field(default_factory=set)
    """Where processors, host memory or power may have been given back with them."""
    joined: set[str] = field(default_factory=set)
    """Nodes that offer their devices anew."""
    teams: set[str] = field(default_factory=set)
    """They hold less, or their limit changed."""
    peers: set[SpreadKey] = field(default_factory=set)
    """Spread peers of which one is gone from somewhere."""
    fronts: set[QueueKey] = field(default_factory=set)
    """Queues into which a job came back, or which one left: another may be at the front."""
    held: set[QueueKey] = field(default_factory=set)
    """Queues of jobs for which devices are held now (they may also use reserved ones), or are no more."""
    queued: set[str] = field(default_factory=set)
    """Jobs that came; by id, because they are noted before they are in the state."""
    moved: bool = False
    """Devices came or went."""
    anything: bool = False
    """It is not known what."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)

    def clear(self) -> None:
        """Nothing has changed."""
        self.__init__()  # type: ignore[misc]

    def note(self, state: State, event: led.LedgerEvent) -> None:
        """Notes what `event` will change; `state` is as before it."""
        NOTED.get(type(event), _anything)(self, state, event)


def _nothing(changes: Changes, state: State, event: led.LedgerEvent) -> None:
    """It frees nothing and takes nobody out of a queue."""


def _anything(changes: Changes, state: State, event: led.LedgerEvent) -> None:
    """It is not known whom it helps."""
    changes.anything = True


def _devices_came(changes: Changes, state: State, event: led.NodeJoined | led.BoardCutDone) -> None:
    changes.joined.add(event.inventory.node)
    changes.moved = True


def _devices_went(changes: Changes, state: State, event: led.NodeLeft | led.BoardRecut) -> None:
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
    led.NodeLeft: _devices_went,
    led.QuotaSet: _limit_set,
    led.JobQueued: _job_queued,
    led.JobGranted: _nothing,  # the cycle that granted it knows
    led.AttemptStarting: _nothing,
    led.AttemptRunning: _nothing,
    led.AttemptCheckpointed: _nothing,
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
    led.BoardRecutWithdrawn: _nothing,  # its instances stay out of placement until the node has answered
}
"""By kind of event. A test walks the catalogue; a kind that is missing here may help everybody."""
