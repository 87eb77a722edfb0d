"""One node of the agent: follows its desired state, holds its parts, and keeps their ends until placement shows them.

A node has many lives. Each begins with a new incarnation and an empty view, and ends when its lease ends or placement
no longer knows it. Everything running is killed in between, so the registration that begins a life is evidence that
nothing of an earlier one is left.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libs.adapters.devices import DeviceLayer
from libs.ports.host import failpoint
from libs.service.tasks import essential
from schemas.attempts import Category
from schemas.inbox import (
    BoardCut,
    CheckpointTaken,
    NodeQuarantine,
    NodeRegistered,
    Refused,
    Released,
    SeenOfPart,
    Started,
)
from schemas.nodes import DesiredPart, DesiredState
from schemas.resources import DeviceKind, Inventory
from services.agent.boards import NodeBoards
from services.agent.lease import Lease, why_ended
from services.agent.overtime import GRACE_S, Overtime
from services.agent.part_leases import PartLeases
from services.agent.quarantine import DeviceQuarantine, KeptQuarantine
from services.agent.reconcile import (
    Forget,
    Key,
    Phase,
    Refuse,
    Running,
    Save,
    Start,
    Stop,
    concerns,
    enter,
    follow,
    plan,
)
from services.agent.running_part import RunningPart
from services.agent.unconfirmed import Unconfirmed

log = logging.getLogger("baton.agent")


ReportOf = Callable[[str, int, SeenOfPart | NodeRegistered | BoardCut | NodeQuarantine], None]
MakePart = Callable[["NodeRunner", DesiredPart, Callable[[SeenOfPart], None]], RunningPart]
AdoptPart = Callable[["NodeRunner", DesiredPart, Mapping[str, Any], Callable[[SeenOfPart], None]], RunningPart]


REFUSED_AT_ONCE = 16
REFUSED_EVERY_S = 0.5
"""Refusals by broken devices: this many are reported at once, then one per interval."""


@dataclass(frozen=True, slots=True)
class EarlierLife:
    """A life of the node that an earlier agent began and the keeper has held since, so it may continue.

    Args:
        until: when its lease ends, on the lease's clock; None when no lease ends its work.
        note: what that agent stored with `NodeRunner.memory`.
        parts: what it started, with the keeper's row of each.
    """

    incarnation: int
    until: float | None
    note: Mapping[str, Any]
    parts: Sequence[tuple[DesiredPart, Mapping[str, Any]]]


@dataclass(eq=False, slots=True)
class NodeCounts:
    """Counts since the agent started, for metrics."""

    started: int = 0
    released: int = 0
    failed: int = 0
    refused: int = 0
    checkpoints: int = 0
    lives: int = 0


@dataclass(eq=False, slots=True)
class NodeRunner:
    """`now` is the lease's clock, `make_part` starts a part, `report` passes on observations (node, incarnation,
    observation)."""

    inventory: Inventory
    layer: DeviceLayer
    lease_s: float
    now: Callable[[], float]
    make_part: MakePart
    adopt_part: AdoptPart
    report: ReportOf
    counts: NodeCounts
    view: Running = field(init=False)
    lease: Lease = field(init=False)
    overtime: Overtime = field(init=False)
    known: bool = False
    """Placement's desired state has shown this life."""
    missed: int = 0
    """Consecutive replies of placement that lack this life although it was known."""
    limit_grace_s: float = GRACE_S
    """A part that placement does not stop at its time limit is ended here after this grace."""
    may_start: Callable[[], bool] = lambda: True
    start_blocked: Callable[[str], bool] = lambda job_id: False
    """Whether nothing of this job may begin now."""
    labelled: Callable[[Inventory], Inventory] = lambda inventory: inventory
    """Adds labels that are determined at the start of a life."""
    remember: Callable[["NodeRunner"], None] = lambda node: None
    """Called before anything is started or refused, so that `memory` outlives the agent."""
    parts: dict[Key, RunningPart] = field(default_factory=dict)
    _leases: PartLeases = field(init=False)
    _ending: dict[Key, asyncio.Task[None]] = field(default_factory=dict)
    """Parts being killed because their own lease ended."""
    _unconfirmed: Unconfirmed = field(default_factory=Unconfirmed)
    kept_quarantine: KeptQuarantine = field(default_factory=KeptQuarantine)
    """Quarantined devices of earlier agents on this node."""
    _refusal_at: float = 0.0
    """When the next refusal would be due at one per interval."""
    _registered_at: float = 0.0
    dying: bool = False
    """This life is ending: its parts' reports are dropped."""
    _asked_to_save: bool = False
    _lapsed: bool = False
    """The lease ended and was not renewed since: this life continues for kept work."""
    _leaving: bool = False
    boards: NodeBoards = field(init=False)
    quarantine: DeviceQuarantine = field(init=False)

    def __post_init__(self) -> None:
        self._leases = PartLeases(self.lease_s)
        self.boards = NodeBoards(self)
        self.quarantine = DeviceQuarantine(self, self.kept_quarantine)

    @property
    def name(self) -> str:
        return self.inventory.node

    @property
    def incarnation(self) -> int:
        return self.view.incarnation

    def begin(self, incarnation: int) -> None:
        """Starts a new life: nothing runs, no lease yet; registers with placement."""
        self._empty(incarnation)
        self.counts.lives += 1
        self.quarantine.begin()
        self.register()

    def wait(self) -> None:
        """No life yet, because its incarnation cannot be written to disk: nothing runs, is reported or followed."""
        self._empty(0)
        self.dying = True

    def adopt(self, life: EarlierLife) -> None:
        """Continues a life of an earlier agent: its parts run, its lease holds. Placement need not notice."""
        self._empty(life.incarnation)
        if life.until is not None and life.until > self.now():
            self.lease.deadline = life.until
        self.view.epochs = dict(life.note.get("epochs", {}))
        self.view.ledger_seq = int(life.note.get("ledger_seq", -1))
        for part, row in life.parts:
            enter(self.view, part, Phase.RUNNING)
            key = (part.job_id, part.attempt)
            self._leases.add(part)
            self.overtime.add(part)
            if until := row.get("ends_by"):
                self.overtime.went_on(part, until)
            if row.get("doomed"):
                self._over(key)
                continue
            self.parts[key] = self.adopt_part(self, part, row, self._reporter(key))
            self._tell_keeper(key)
        self.register()
        self.quarantine.tell()

    def memory(self) -> dict[str, Any]:
        """What another agent needs to continue this life, besides its parts: which grants are old."""
        return {"epochs": self.view.epochs, "ledger_seq": self.view.ledger_seq}

    def _empty(self, incarnation: int) -> None:
        self.view = Running(
            node=self.name,
            incarnation=incarnation,
            devices=frozenset(device.id for device in self.inventory.devices),
            simulated=self.inventory.simulated,
            quarantined=self.quarantine.users(),
        )
        self.lease, self.overtime = Lease(self.lease_s), Overtime(self.limit_grace_s, self.lease_s)
        self.known, self.missed, self._asked_to_save, self.dying, self._lapsed = False, 0, False, False, False
        self.parts.clear()
        self._leases.clear()
        for ending in self._ending.values():
            ending.cancel()
        self._ending.clear()
        self._unconfirmed.clear()
        self.boards.begin()

    def register(self) -> None:
        self.inventory = self.labelled(self.inventory)
        self._registered_at = self.now()
        registered = NodeRegistered(
            incarnation=self.incarnation,
            inventory=self.inventory,
            lease_s=self.lease_s,
            quarantine=self.quarantine.to_report(),
        )
        self.report(self.name, self.incarnation, registered)

    def follow(self, desired: DesiredState) -> None:
        """Changes what runs here to match `desired`, as far as possible now."""
        if self.dying or not concerns(desired, self.view):
            return
        self.known, self.missed = True, 0
        for part in desired.parts:
            key = (part.job_id, part.attempt)
            if part.started is not False:
                self._unconfirmed.start_shown(key)
            if part.running and self.overtime.all_run(key, self.now()):
                self._tell_keeper(key)
        self.quarantine.lift(desired.lifted)
        lease_valid = self.lease.valid(self.now()) and self.may_start()
        actions = plan(desired, self.view, lease_valid=lease_valid, lease_left=self._may_begin)
        follow(self.view, desired, actions)
        if any(isinstance(action, Start | Refuse) for action in actions):
            self.remember(self)
        for action in actions:
            match action:
                case Start(part):
                    self._start(part)
                case Save(key):
                    self.parts[key].save()
                case Stop(key):
                    self.parts[key].stop()
                case Refuse(part, reason, category):
                    log.warning("%s refused attempt %d of %s: %s", self.name, part.attempt, part.job_id, reason)
                    self._refuse(
                        (part.job_id, part.attempt),
                        Refused(job_id=part.job_id, attempt=part.attempt, reason=reason[:1024], category=category),
                    )
                case Forget(key):
                    self._unconfirmed.end_shown(key)
        self.boards.follow(desired.recuts, desired.withdrawn)

    def _refuse(self, key: Key, seen: Refused) -> None:
        """Reports a refusal at once, unless a device is broken here: then the part is granted again until placement
        knows."""
        if seen.category is not Category.HARDWARE:
            self._ended(key, seen)
            return
        now, incarnation = self.now(), self.incarnation
        self._refusal_at = max(self._refusal_at, now - REFUSED_AT_ONCE * REFUSED_EVERY_S) + REFUSED_EVERY_S

        def tell() -> None:
            if incarnation == self.incarnation and not self.dying and key in self.view.parts:
                self._ended(key, seen)

        if self._refusal_at <= now:
            tell()
        else:
            asyncio.get_running_loop().call_later(self._refusal_at - now, tell)

    def _start(self, part: DesiredPart) -> None:
        key = (part.job_id, part.attempt)
        failpoint("agent.starting")
        self._leases.add(part)
        self.overtime.add(part)
        made = self.make_part(self, part, self._reporter(key))
        failpoint("agent.started")
        if self.view.parts[key].phase is not Phase.ENDED:
            self.parts[key] = made
            self._tell_keeper(key)

    def _reporter(self, key: Key) -> Callable[[SeenOfPart], None]:
        incarnation = self.incarnation

        def report(seen: SeenOfPart) -> None:
            if incarnation == self.incarnation:
                self._observe(key, seen)

        return report

    def _observe(self, key: Key, seen: SeenOfPart) -> None:
        """Handles a part's report. After the end of its lease reports no longer count: the keeper may have killed it,
        which would look like an exit of its own."""
        if self.dying or (key in self._ending and not isinstance(seen, CheckpointTaken)):
            return
        if isinstance(seen, Released) and not self._leases.is_kept(key):
            now = self.now()
            if self.lease.check(now):
                return
            if self._leases.is_over(key, self.lease, now):
                self._end_lease(key)
                return
        if isinstance(seen, Released) and self._leaving and not seen.own_exit:
            self.parts.pop(key, None)
            return
        if isinstance(seen, Released):
            self._ended(key, seen)
            return
        self.counts.checkpoints += isinstance(seen, CheckpointTaken)
        self.counts.started += isinstance(seen, Started)
        if isinstance(seen, Started):
            self._unconfirmed.started(key, seen, self.now())
            if self.overtime.began(key, self.now()):
                self._tell_keeper(key)
        self.report(self.name, self.incarnation, seen)

    # -------------------------------------------------------------------------------------------------- limits of time

    def end_overtime(self) -> None:
        """Stops parts that are past their time limit and that placement did not stop."""
        for key in self.overtime.to_stop(self.now()):
            if key in self.parts and self.view.parts[key].phase is Phase.RUNNING and not self.dying:
                log.warning("%s: nobody stopped attempt %d of %s at its time limit", self.name, key[1], key[0])
                self.view.parts[key].phase = Phase.STOPPING
                self.parts[key].stop()

    def _tell_keeper(self, key: Key) -> None:
        """Tells the keeper the latest end of the part, once it is known."""
        if key in self.parts and (until := self.overtime.keeper_until(key)) is not None:
            self.parts[key].ends_by(until)

    # ------------------------------------------------------------------------------------------------- leases of parts

    def keeps(self) -> bool:
        """Whether there is kept work, which no lease ends."""
        return any(self._leases.is_kept(key) for key in self.parts)

    def shortest_lease_s(self) -> float:
        """The shortest lease of the node and its running parts, s."""
        return self._leases.shortest_s()

    def end_leases(self) -> None:
        """Starts killing parts whose own lease has ended."""
        now = self.now()
        for key in [
            key for key in self.parts if key not in self._ending and self._leases.is_over(key, self.lease, now)
        ]:
            self._end_lease(key)

    def lapse(self) -> None:
        """The node's lease has ended while it has kept work: everything else ends, nothing starts, and this life
        continues with the next renewal."""
        for key in [key for key in self.parts if key not in self._ending and not self._leases.is_kept(key)]:
            self._end_lease(key)
        self.lease, self._lapsed = Lease(self.lease_s), True

    def outlived(self) -> bool:
        """Whether a new life is due: the lease ended, kept work has ended and is known to placement, and no renewal
        came. None may come any more, if the ledger could not record that the node keeps work and the granter gave it
        up. A new life costs nothing now."""
        return self._lapsed and not (self.parts or self._ending or self._unconfirmed.any_end())

    def _may_begin(self, part: DesiredPart) -> bool:
        return not self.start_blocked(part.job_id) and self._lease_left(part)

    def _lease_left(self, part: DesiredPart) -> bool:
        """Whether the part's lease lasts. Otherwise it would be killed at once, granted again, and use up its tries."""
        return self._leases.lasts(part, self.lease, self.now())

    def _end_lease(self, key: Key) -> None:
        """Kills the part. This is irrevocable, since the granter relies on it."""
        log.warning("%s: the lease of attempt %d of %s has ended", self.name, key[1], key[0])
        self._ending[key] = essential(asyncio.create_task(self._kill(key), name=f"end of {key[0]}.{key[1]}"))

    async def _kill(self, key: Key) -> None:
        if (part := self.parts.get(key)) is not None:
            await part.kill()
        self._over(key)

    def _over(self, key: Key) -> None:
        job_id, attempt = key
        if self.view.parts[key].phase is not Phase.ENDED and not self.dying:
            reason = why_ended(self.name)
            self._ended(key, Released(job_id=job_id, attempt=attempt, exit_code=137, reason=reason, own_exit=False))
        self._ending.pop(key, None)

    def _ended(self, key: Key, seen: Released | Refused) -> None:
        self.counts.refused += isinstance(seen, Refused)
        if isinstance(seen, Released):
            if not seen.own_exit and self.overtime.over(key, self.now()):
                seen = seen.model_copy(update={"over_limit": True})
            self.counts.released += 1
            self.counts.failed += seen.own_exit and seen.exit_code != 0
        self.view.parts[key].phase = Phase.ENDED
        self._leases.forget(key)
        self.overtime.forget(key)
        self._unconfirmed.ended(key, self.parts.pop(key, None), seen, self.now())
        self.report(self.name, self.incarnation, seen)

    def repeat(self, older_than_s: float) -> None:
        """Reports again what placement's state does not show: starts, ends, and this life's registration. Placement
        ignores duplicates."""
        now = self.now()
        if not self.known and now - self._registered_at >= older_than_s:
            self.register()
        for seen in self._unconfirmed.to_repeat(older_than_s, now):
            self.report(self.name, self.incarnation, seen)
        self.boards.repeat(older_than_s)

    def renewed(self, sent: float) -> bool:
        """A heartbeat sent at `sent` was confirmed. Returns whether the lease is valid; an ended one is not revived."""
        self.end_leases()
        valid = self.lease.renew(sent, self.now())
        if valid:
            self._asked_to_save = self._lapsed = False
        return valid

    def save_early(self) -> None:
        """Renewals fail: asks jobs that can save to do so once and continue, in case of a renewal."""
        if not self._asked_to_save:
            self._asked_to_save = True
            for part in self.parts.values():
                part.save_early()

    def leave(self) -> None:
        """Asks all jobs to save and end. Their ends are not reported one by one: the node's farewell covers them, and a
        single end would let the job be granted a node that is about to follow."""
        self._leaving = True
        for part in list(self.parts.values()):
            part.save()

    async def die(self) -> None:
        """Kills all parts, and returns when nothing is left. Their reports are dropped from here on."""
        self.dying = True
        await asyncio.gather(*(part.kill() for part in list(self.parts.values())))
        self.parts.clear()
        await self.boards.settle()

    async def let_go(self) -> None:
        """The agent ends but the work does not: the keeper holds the parts for the next agent."""
        self.dying = True
        await asyncio.gather(*(part.leave() for part in list(self.parts.values())))

    def accelerators(self, devices: Iterable[str]) -> bool:
        """Whether any of these is an accelerator. Processors are shared by all processes."""
        wanted = set(devices)
        return any(d.id in wanted and d.kind is not DeviceKind.CPU for d in self.inventory.devices)

    # ------------------------------------------------------------------------------ what boards and quarantine ask of it

    def may_repartition(self) -> bool:
        """Whether a repartition may begin."""
        return not self._leaving and self.lease.valid(self.now())

    def offer(self, devices: frozenset[str]) -> None:
        """Parts may use these devices from now on."""
        self.view.devices = devices

    def shut(self, users: Mapping[str, str]) -> None:
        """Starts no part on these devices from now on; `users`: device -> who uses it."""
        self.view.quarantined = dict(users)

    def tell(self, seen: BoardCut | NodeQuarantine) -> None:
        """Reports a board's result or the quarantine to placement."""
        self.report(self.name, self.incarnation, seen)

    def busy(self) -> dict[str, int]:
        """Device -> thousandths granted to parts that are not gone yet."""
        out: dict[str, int] = {}
        for held in self.view.parts.values():
            if held.phase is not Phase.ENDED:
                for device, milli in held.milli.items():
                    out[device] = out.get(device, 0) + milli
        return out
