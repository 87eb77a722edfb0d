"""Random ledgers, written event by event without any scheduler: what a pool may live through, at any instant.

Nodes join, leave, fall silent, are heard again, lost, declared dead; boards are repartitioned; devices break; jobs are granted
parts of devices, later than promised (for their own team's jobs or others) or in time, save, give way, are freed by every kind
of evidence; devices are reserved for gangs, nodes are taken out of use; the queues change; the wall clock is set; the control
plane is down for a while. Only what the accounts read is made; the checker would ask for more (`tests/core/lives.py` has whole
lives).
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from schemas import ledger as led
from schemas.attempts import Category, Cause, Evidence, Outcome
from schemas.jobs import Checkpoint, JobState, PromiseCause, StartPromise
from schemas.queues import Queue
from schemas.resources import Claim, Device, DeviceKind, Inventory, MigBoard, MigPlace, Recut
from tests.core.builders import job

STEPS_US = (0, 1, 7, 999, 1_000_003, 61_000_000, 3_600_000_001, 86_400_000_000)
CUTS = ((), ("1g.10gb",) * 7, ("3g.40gb", "4g.40gb"), ("1g.10gb", "2g.20gb", "3g.40gb"), ("7g.80gb",), ("3g.40gb",))
ENDS = (
    (Outcome.LOST, None), (Outcome.LOST, Category.NODE_LOST), (Outcome.LOST, Category.HARDWARE),
    (Outcome.SUCCEEDED, Category.SUCCESS), (Outcome.FAILED, Category.USER_ERROR),
)  # fmt: skip
T0_US = 1_798_761_500_000_000  # minutes before a new year


class RandomLedger:
    """The pool as its ledger says it. `records` is that ledger."""

    verbs: tuple[str, ...]

    def __init__(self, seed: int, steps: int = 40, start_us: int = T0_US) -> None:
        self.random = Random(seed)
        self.records: list[led.LedgerRecord] = []
        self.t_us, self.jump_us, self.number = start_us, 0, 0
        self.nodes: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.holds: dict[str, tuple[str, ...]] = {}
        self.quarantine: dict[str, tuple[str, int]] = {}
        self.out: set[str] = set()
        for name in ("a", "b", "m"):
            self._write(list(self._join(name)))
        for _ in range(steps):
            events: list[Any] = []
            for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
                verb = self.random.choice(self.verbs)
                events += getattr(self, f"_{verb}")()
            self._write(events)

    def _write(self, events: list[Any]) -> None:
        if self.random.random() < 0.1:
            self.jump_us = self.random.choice((0, 3_600_000_000, -3_600_000_000, 1_000_000, 123_456_789))
        self.records.append(
            led.LedgerRecord(
                pool="test", prev_seq=len(self.records), prev_hash="", inbox_seq=0, t_us=self.t_us,
                wall_us=self.t_us + self.jump_us, writer="random", events=tuple(events),
            )
        )  # fmt: skip
        self.t_us += self.random.choice(STEPS_US) * self.random.choice((1, 1, 1, 3))

    # ------------------------------------------------------------------------------------------------ what may happen

    def _joins(self) -> Iterator[Any]:
        yield from self._join(self.random.choice(("a", "b", "m", "c")))

    def _join(self, name: str) -> Iterator[Any]:
        known = self.nodes.get(name)
        if known is not None and known["up"]:
            yield from self._vacate(name, Evidence.NEW_INCARNATION)
        cut = self.random.choice(CUTS)
        count = self.random.randint(1, 3)
        self.nodes[name] = {
            "up": True, "silent": False, "incarnation": known["incarnation"] + 1 if known else 1, "asked": None,
            "cut": cut if name == "m" else None, "count": count, "number": known["number"] if known else 0,
        }  # fmt: skip
        inventory = self._inventory(name)
        offered = {device.id for device in inventory.devices}
        self.quarantine = {d: q for d, q in self.quarantine.items() if q[0] != name or d in offered}
        yield led.NodeJoined(incarnation=self.nodes[name]["incarnation"], inventory=inventory)

    def _leave(self) -> Iterator[Any]:
        for name in self._pick_nodes():
            how = self.random.choice((Evidence.LEASE_ENDED, Evidence.NODE_LEFT))
            yield from self._vacate(name, how)
            self.nodes[name]["up"] = False
            yield led.NodeLeft(node=name, incarnation=self.nodes[name]["incarnation"], reason=f"gone: {how.value}")

    def _vacate(self, name: str, how: Evidence) -> Iterator[Any]:
        yield from self._let_go_on(name)
        for job_id in [j for j, known in self.jobs.items() if known["parts"].get(name)]:
            yield from self._free(job_id, name, how)

    def _fall_silent(self) -> Iterator[Any]:
        for name in self._pick_nodes():
            node = self.nodes[name]
            silent_s = self.random.choice((0.0, 0.000001, 6.5, 90.0, 100_000.0))
            yield led.NodeSilence(node=name, incarnation=node["incarnation"], silent_s=silent_s)
            yield from self._let_go_on(name)
            node["silent"] = True
            for job_id in [j for j, known in self.jobs.items() if known["parts"].get(name)]:
                if self.random.random() < 0.3:
                    yield from self._free(job_id, name, Evidence.LEASE_ENDED, silent_s)

    def _be_heard(self) -> Iterator[Any]:
        for name in [n for n, node in self.nodes.items() if node["up"] and node["silent"]][:1]:
            self.nodes[name]["silent"] = False
            yield led.NodeHeard(node=name, incarnation=self.nodes[name]["incarnation"])

    def _queue(self) -> Iterator[Any]:
        self.number += 1
        team = self.random.choice(("red", "blue"))
        asked = job(f"j{self.number}", team=team)
        self.jobs[asked.job_id] = {"parts": {}, "attempt": 0}
        yield led.JobQueued(
            job_id=asked.job_id, team=team, spec=asked.spec, spec_hash="h", client_key="k", priority=0, preempts=True,
            submitted_us=1, user=self.random.choice(("", "ana")),
        )  # fmt: skip

    def _grant(self) -> Iterator[Any]:
        waiting = [j for j, known in self.jobs.items() if not known["parts"]]
        free = [(d, left) for d in self._usable() if (left := self._left(d)) > 0]
        if not waiting or not free:
            return
        job_id = self.random.choice(waiting)
        mine = self.holds.get(job_id, ())
        elsewhere = {d for j, held in self.holds.items() if j != job_id for d in held}
        free = [(d, left) for d, left in free if d not in elsewhere and (not mine or d in mine)]
        chosen = self.random.sample(free, min(len(free), self.random.randint(1, 3)))
        if not chosen:
            return
        if mine:
            yield from self._let_go(job_id)
        known = self.jobs[job_id]
        known["attempt"] += 1
        claims = []
        for device, left in chosen:
            whole = ":" in device or self.random.random() < 0.5
            milli = left if whole else self.random.randint(1, left)
            if ":" in device and left < 1000:
                continue
            known["parts"].setdefault(self._node_of(device), {})[device] = milli
            self.number += 1
            claims.append(
                Claim(device=device, node=self._node_of(device), milli=milli, memory_mib=0, epoch=self.number)
            )
        if claims:
            own_us = None if self.number % 3 else max(0, self.t_us - STEPS_US[self.number % len(STEPS_US)])
            yield led.JobGranted(job_id=job_id, attempt=known["attempt"], claims=tuple(claims), own_delay_us=own_us)
        else:
            known["attempt"] -= 1

    def _release(self) -> Iterator[Any]:
        if runs := self._runs():
            job_id = self.random.choice(runs)
            name = self.random.choice(sorted(self.jobs[job_id]["parts"]))
            yield from self._free(job_id, name, self.random.choice((Evidence.RELEASED, Evidence.REFUSED)))

    def _runs(self) -> list[str]:
        return [j for j, known in self.jobs.items() if known["parts"]]

    def _save(self) -> Iterator[Any]:
        for job_id in self.random.sample(runs := self._runs(), min(len(runs), 1)):
            self.number += 1
            saved = Checkpoint(step=self.number, reference="s3://it")
            yield led.AttemptCheckpointed(job_id=job_id, attempt=self.jobs[job_id]["attempt"], checkpoint=saved)

    def _preempt(self) -> Iterator[Any]:
        runs = [j for j in self._runs() if not self.jobs[j].get("told")]
        for job_id in self.random.sample(runs, min(len(runs), 2)):
            self.number += 1
            self.jobs[job_id]["told"] = True
            yield led.AttemptPreempting(
                job_id=job_id, attempt=self.jobs[job_id]["attempt"], beneficiary=job_id, plan_id=f"p{self.number}",
                reason="for another",
            )  # fmt: skip

    def _stop(self) -> Iterator[Any]:
        for job_id in self.random.sample(runs := self._runs(), min(len(runs), 1)):
            attempt = self.jobs[job_id]["attempt"]
            yield led.AttemptStopping(job_id=job_id, attempt=attempt, cause=Cause.PART_LOST, reason="a part")

    def _promise(self) -> Iterator[Any]:
        waiting = [j for j, known in self.jobs.items() if not known["parts"]]
        for job_id in self.random.sample(waiting, min(len(waiting), 2)):
            start_us = self.t_us + self.random.choice(STEPS_US)
            cause = self.random.choice((None, *PromiseCause))
            promise = StartPromise(start_us=start_us, p50_us=start_us, p90_us=start_us, cause=cause)
            yield led.GangPromised(job_id=job_id, promise=promise)

    def _free(self, job_id: str, name: str, how: Evidence, silent_s: float | None = None) -> Iterator[Any]:
        known = self.jobs[job_id]
        devices = tuple(known["parts"].pop(name))
        yield led.DevicesFreed(
            job_id=job_id,
            attempt=known["attempt"],
            node=name,
            devices=devices,
            evidence=how,
            silent_s=silent_s,
            reason="so",
        )
        if not known["parts"]:
            gave_way = known.pop("told", False)
            outcome, category = (Outcome.PREEMPTED, Category.PREEMPTED) if gave_way else self.random.choice(ENDS)
            yield led.AttemptClosed(job_id=job_id, attempt=known["attempt"], outcome=outcome, category=category)
            if self.random.random() < 0.5:
                del self.jobs[job_id]
                yield led.JobFinished(job_id=job_id, state=JobState.FAILED)
            else:
                yield led.JobRequeued(job_id=job_id, reason="again")

    def _hold(self) -> Iterator[Any]:
        waiting = [j for j, known in self.jobs.items() if not known["parts"] and j not in self.holds]
        taken = {d for held in self.holds.values() for d in held}
        usable = [d for d in self._usable() if d not in taken]
        if waiting and usable:
            job_id = self.random.choice(waiting)
            self.holds[job_id] = tuple(self.random.sample(usable, min(len(usable), 2)))
            yield led.DevicesHeld(job_id=job_id, devices=self.holds[job_id])

    def _reserve(self) -> Iterator[Any]:
        waiting = [j for j, known in self.jobs.items() if not known["parts"]]
        if waiting:
            devices = self._devices()
            some = tuple(self.random.sample(devices, self.random.randint(0, min(4, len(devices)))))
            yield led.DevicesReserved(gang=self.random.choice(waiting), devices=some)

    def _cordon(self) -> Iterator[Any]:
        inside = sorted(self.nodes.keys() - self.out)
        if inside:
            name = self.random.choice(inside)
            self.out.add(name)
            yield led.NodeCordoned(node=name, user="olga", reason=f"a fan of {name}")
            yield from self._let_go_on(name)

    def _uncordon(self) -> Iterator[Any]:
        for name in sorted(self.out)[:1]:
            self.out.remove(name)
            yield led.NodeUncordoned(node=name, user="olga")

    def _unhold(self) -> Iterator[Any]:
        for job_id in list(self.holds)[:1]:
            yield from self._let_go(job_id)

    def _let_go(self, job_id: str) -> Iterator[Any]:
        del self.holds[job_id]
        yield led.HoldReleased(job_id=job_id)

    def _let_go_on(self, name: str) -> Iterator[Any]:
        for job_id in [j for j, held in self.holds.items() if any(self._node_of(d) == name for d in held)]:
            yield from self._let_go(job_id)

    def _break(self) -> Iterator[Any]:
        sound = [d for d in self._devices() if d not in self.quarantine and self._node(d)["up"]]
        if sound:
            device = self.random.choice(sound)
            self.number += 1
            name = self._node_of(device)
            self.quarantine[device] = (name, self.number)
            yield led.DeviceQuarantined(
                node=name, incarnation=self._node(device)["incarnation"], device=device, users=f"python {self.number}",
                since_us=self.number,
            )  # fmt: skip

    def _mend(self) -> Iterator[Any]:
        for device in list(self.quarantine)[:1]:
            name, since_us = self.quarantine.pop(device)
            yield led.DeviceReturned(node=name, device=device, since_us=since_us)

    def _recut(self) -> Iterator[Any]:
        node = self.nodes["m"]
        if not node["up"] or node["silent"]:
            return
        if node["asked"] is not None:
            if self.random.random() < 0.3:
                yield led.BoardRecutWithdrawn(
                    node="m", incarnation=node["incarnation"], board="m-board", number=node["number"], reason="late"
                )
                return
            keep = [p for p in self._instances() if p not in node["asked"]]
            room = 7 - sum(int(p.partition(":")[2][0]) for p in keep)
            node["cut"] = (
                *(p.partition(":")[2].partition("/")[0] for p in keep),
                *("1g.10gb",) * self.random.randint(0, room),
            )
            node["kept"], node["asked"] = keep, None
            inventory = self._inventory("m")
            offered = {device.id for device in inventory.devices}
            self.quarantine = {d: q for d, q in self.quarantine.items() if q[0] != "m" or d in offered}
            yield led.BoardCutDone(
                node="m",
                incarnation=node["incarnation"],
                board="m-board",
                number=node["number"],
                ok=True,
                inventory=inventory,
            )
            return
        held = {d for devices in self.holds.values() for d in devices}
        idle = tuple(
            d for d in self._instances() if self._left(d) == 1000 and d not in held and d not in self.quarantine
        )
        node["number"] += 1
        node["asked"] = idle
        recut = Recut(
            board="m-board", number=node["number"], destroy=idle, create=(MigPlace(profile="1g.10gb", start=0),)
        )
        yield led.BoardRecut(node="m", incarnation=node["incarnation"], recut=recut)

    def _queues(self) -> Iterator[Any]:
        self.number += 1
        tree = (Queue(name="lab"), Queue(name="red", parent=self.random.choice(("", "lab"))))
        yield led.QueuesApplied(version=self.number, queues=tree)

    # --------------------------------------------------------------------------------------------------------- helpers

    def _pick_nodes(self) -> list[str]:
        up = [name for name, node in self.nodes.items() if node["up"]]
        return [self.random.choice(up)] if up else []

    def _instances(self) -> list[str]:
        node = self.nodes["m"]
        kept = node.get("kept", [])
        new = node["cut"][len(kept) :]
        return [*kept, *(f"m{node['number']}.{node['incarnation']}.{i}:{profile}" for i, profile in enumerate(new))]

    def _inventory(self, name: str) -> Inventory:
        node = self.nodes[name]
        devices = tuple(Device(id=f"{name}-{i}", index=i, model="H100", memory_mib=80) for i in range(node["count"]))
        if node["cut"] is None:
            return Inventory(node=name, devices=devices)
        if "kept" not in node:
            node["kept"] = []
        instances = tuple(
            Device(
                id=d,
                index=9,
                kind=DeviceKind.MIG,
                model="H100",
                memory_mib=10,
                mig_profile=d.partition(":")[2],
                parent="m-board",
            )
            for d in self._instances()
        )
        node["kept"] = [d.id for d in instances]
        board = MigBoard(id="m-board", index=9, model="H100", memory_mib=80, profiles=(), dynamic=True)
        return Inventory(node=name, devices=(*devices, *instances), boards=(board,))

    def _devices(self) -> list[str]:
        return [d for name in self.nodes for d in self._on(name)]

    def _on(self, name: str) -> list[str]:
        node = self.nodes[name]
        return [f"{name}-{i}" for i in range(node["count"])] + (self._instances() if node["cut"] is not None else [])

    def _usable(self) -> list[str]:
        going = self.nodes["m"]["asked"] or ()
        return [
            d for name, node in self.nodes.items() if node["up"] and not node["silent"] and name not in self.out
            for d in self._on(name) if d not in self.quarantine and d not in going
        ]  # fmt: skip

    def _node_of(self, device: str) -> str:
        return device[0]

    def _node(self, device: str) -> dict[str, Any]:
        return self.nodes[self._node_of(device)]

    def _left(self, device: str) -> int:
        return 1000 - sum(part.get(device, 0) for known in self.jobs.values() for part in known["parts"].values())


RandomLedger.verbs = (
    "joins", "leave", "fall_silent", "fall_silent", "be_heard", "queue", "queue", "queue", "grant", "grant", "grant", "grant",
    "release", "release", "hold", "hold", "unhold", "break", "mend", "recut", "recut", "queues",
    "reserve", "reserve", "cordon", "uncordon", "save", "preempt", "stop", "promise",
)  # fmt: skip
