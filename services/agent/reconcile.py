"""Computes the actions for a desired state, as a value. Pure: the node (`services.agent.node`) executes them.

Rules that keep two attempts off one device:
- A state for another incarnation, or older than one already followed, is ignored.
- A part is started once. While it is in the desired state it is remembered as held or ended; once it is no longer, only
an older state could bring it back.
- A part is refused if its epoch on one of its devices is not newer than any seen there, if it would overfill a device
that is still occupied, or if something else uses the device.
- Nothing starts without a valid lease, the node's and its own. That is no reason to refuse: the next state asks again.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import IntEnum

from schemas import nodes
from schemas.attempts import Category, KnownByAgent
from schemas.nodes import DesiredPart, DesiredState
from schemas.resources import WHOLE_MILLI

Key = tuple[str, int]
"""(job id, attempt)."""


class Phase(IntEnum):
    """Stage of a part here. It only advances."""

    RUNNING = 0
    SAVING = 1
    STOPPING = 2
    ENDED = 3


@dataclass(slots=True)
class HeldPart:
    """A part known here: its share of each device, and its phase."""

    milli: Mapping[str, int]
    phase: Phase = Phase.RUNNING


@dataclass(slots=True)
class Running:
    """An agent's view of one node. `parts`: every part of the last followed state, and those being ended; `epochs`: the
    newest epoch started or refused on each device."""

    node: str
    incarnation: int
    devices: Set[str]
    simulated: bool = False
    ledger_seq: int = -1
    parts: dict[Key, HeldPart] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Device -> what else still uses it."""


@dataclass(frozen=True, slots=True)
class Start:
    part: DesiredPart


@dataclass(frozen=True, slots=True)
class Save:
    """Ask for a checkpoint, then stop. The grace is in the job's spec."""

    key: Key


@dataclass(frozen=True, slots=True)
class Stop:
    key: Key


@dataclass(frozen=True, slots=True)
class Refuse:
    """`category` is set when the reason is permanent."""

    part: DesiredPart
    reason: str
    category: KnownByAgent | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """The desired state shows that placement knows this part's end."""

    key: Key


NodeAction = Start | Save | Stop | Refuse | Forget


def concerns(desired: DesiredState, view: Running) -> bool:
    """Whether the state is for this life of the node and not older than one already followed."""
    return (
        desired.node == view.node and desired.incarnation == view.incarnation and desired.ledger_seq >= view.ledger_seq
    )


def plan(
    desired: DesiredState,
    view: Running,
    lease_valid: bool = True,
    lease_left: Callable[[DesiredPart], bool] = lambda part: True,
) -> list[NodeAction]:
    """The actions that bring the node from `view` to `desired`; stops come before starts. Changes nothing.

    `lease_left`: whether a part's lease, which may be shorter than its node's, is still running. The state must concern
    the view (`concerns`).
    """
    assert concerns(desired, view), "a state of another life, or an older one"
    wanted = {(part.job_id, part.attempt): part for part in desired.parts}
    ends = [_toward_end(key, held, wanted.get(key)) for key, held in view.parts.items()]
    actions: list[NodeAction] = [action for action in ends if action is not None]
    occupied = _occupied(view.parts.values())
    waits_for: set[str] = set()
    for key, part in wanted.items():  # in the order of their grants
        if key in view.parts:
            continue
        if refused := _refusal(part, view, occupied):
            actions.append(refused)
        elif not lease_left(part) or not waits_for.isdisjoint(rank.device for rank in part.ranks):
            waits_for.update(rank.device for rank in part.ranks)  # a later grant here would make it look stale
        elif lease_valid:
            actions.append(Start(part))
            for rank in part.ranks:
                occupied[rank.device] = occupied.get(rank.device, 0) + rank.milli
    return actions


def follow(view: Running, desired: DesiredState, actions: Iterable[NodeAction]) -> None:
    """Records in `view` that `actions` (of `plan`) were executed and `desired` was followed. Changes nothing else."""
    view.ledger_seq = desired.ledger_seq
    for action in actions:
        match action:
            case Start(part):
                enter(view, part, Phase.RUNNING)
            case Refuse(part):
                enter(view, part, Phase.ENDED)
            case Save(key):
                view.parts[key].phase = Phase.SAVING
            case Stop(key):
                view.parts[key].phase = Phase.STOPPING
            case Forget(key):
                del view.parts[key]


def _toward_end(key: Key, held: HeldPart, part: DesiredPart | None) -> NodeAction | None:
    if held.phase is Phase.ENDED:
        return Forget(key) if part is None else None
    if part is None or part.action is nodes.Action.STOP:
        return Stop(key) if held.phase < Phase.STOPPING else None
    if part.action is nodes.Action.CHECKPOINT and held.phase is Phase.RUNNING:
        return Save(key)
    return None


def _occupied(parts: Iterable[HeldPart]) -> dict[str, int]:
    occupied: dict[str, int] = {}
    for held in parts:
        if held.phase is not Phase.ENDED:
            for device, milli in held.milli.items():
                occupied[device] = occupied.get(device, 0) + milli
    return occupied


def _refusal(part: DesiredPart, view: Running, occupied: Mapping[str, int]) -> Refuse | None:
    """Why this unknown part must not start, or None."""
    if part.action is not nodes.Action.RUN:
        return Refuse(part, f"asked to {part.action.value} what never started on this node")
    if part.spec.simulation is not None and not view.simulated:
        reason = "simulation is set, but the devices of this node are real: give a command, or use a simulated fleet"
        return Refuse(part, reason, Category.USER_ERROR)
    for rank in part.ranks:
        if rank.device not in view.devices:
            return Refuse(part, f"device {rank.device} is not on this node", Category.HARDWARE)
        if rank.device in view.quarantined:
            reason = f"device {rank.device} is in quarantine: {view.quarantined[rank.device]} still uses it"
            return Refuse(part, reason, Category.HARDWARE)
        newest = view.epochs.get(rank.device, 0)
        if rank.epoch <= newest:
            return Refuse(part, f"epoch {rank.epoch} of device {rank.device} is stale: {newest} was seen")
        if occupied.get(rank.device, 0) + rank.milli > WHOLE_MILLI:
            held = occupied[rank.device]
            return Refuse(part, f"device {rank.device} is still occupied here: {held} of {WHOLE_MILLI} milli")
    return None


def enter(view: Running, part: DesiredPart, phase: Phase) -> None:
    """Adds a part to the view, with its share and epoch of each device."""
    milli: dict[str, int] = {}
    for rank in part.ranks:
        milli[rank.device] = milli.get(rank.device, 0) + rank.milli
        view.epochs[rank.device] = max(view.epochs.get(rank.device, 0), rank.epoch)
    view.parts[part.job_id, part.attempt] = HeldPart(milli, phase)
