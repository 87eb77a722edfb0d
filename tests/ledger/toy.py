"""A decider small enough to see through: devices and jobs that take one each, with the ledger's real events."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from libs.core.state.decided import RecordEnd
from libs.ledger.inputs import InboxItem
from schemas import ids, inbox, ledger
from schemas.jobs import JobSpec
from schemas.resources import Claim

DEVICES = 4


class Impossible(AssertionError):
    """The ledger holds what must never be: an input decided twice, a device granted twice."""


class Toy:
    """State: which job holds which device, who waits, how far the inbox is decided."""

    version: ClassVar[int] = 1

    def __init__(self) -> None:
        self.inbox_seq = 0
        self.t_us = 0
        self.holder: dict[str, str] = {}
        self.waiting: list[str] = []
        self.seen: dict[str, int] = {}  # job -> number of times queued
        self.finished: list[str] = []
        self.rejected: list[int] = []
        self.record_ends: list[RecordEnd] = []
        self.faults: list[Any] = []
        self.jumps: list[Any] = []
        """What it was told of the broker's clock."""

    def apply(self, record: ledger.LedgerRecord, seq: int) -> None:
        if record.inbox_seq < self.inbox_seq and record.events:
            raise Impossible(f"record {seq} decides input {record.inbox_seq} again, after {self.inbox_seq}")
        for event in record.events:
            self._event(event)
        self.inbox_seq, self.t_us = record.inbox_seq, record.t_us

    def decide(
        self, inputs: Sequence[InboxItem], t_us: int, *, behind: bool = False, jumps: Sequence[Any] = ()
    ) -> list[Any]:
        out: list[Any] = []
        self.record_ends = []
        self.jumps += jumps

        def emit(event: Any) -> None:
            self._event(event)
            out.append(event)

        def may_end_here() -> None:
            self.record_ends.append(RecordEnd(len(out), self.inbox_seq))

        for item in inputs:
            if item.seq != self.inbox_seq + 1:
                raise Impossible(f"input {item.seq} after {self.inbox_seq}")
            self.inbox_seq = item.seq
            match None if item.error else item.message:
                case inbox.JobAdmitted() as m if m.job_id not in self.seen:
                    emit(queued(m))
                case inbox.CancelRequested() as m if m.job_id in self.holder.values():
                    device = next(d for d, job in self.holder.items() if job == m.job_id)
                    emit(freed(m.job_id, device))
                case None:
                    emit(ledger.InputRejected(inbox_seq=item.seq, subject=item.subject, reason=item.error))
                case _:
                    pass
            may_end_here()
        free = [d for d in (f"dev-{i}" for i in range(DEVICES)) if d not in self.holder]
        for device, job in zip(free, list(self.waiting) if not behind else (), strict=False):
            emit(granted(job, device))
            may_end_here()
        self.t_us = t_us
        return out

    def _event(self, event: Any) -> None:
        match event:
            case ledger.JobQueued():
                if event.job_id in self.seen:
                    raise Impossible(f"{event.job_id} queued twice")
                self.seen[event.job_id] = 1
                self.waiting.append(event.job_id)
            case ledger.JobGranted():
                device = event.claims[0].device
                if device in self.holder:
                    raise Impossible(f"{device} granted to two jobs")
                self.waiting.remove(event.job_id)
                self.holder[device] = event.job_id
            case ledger.DevicesFreed():
                del self.holder[event.devices[0]]
                self.finished.append(event.job_id)
            case ledger.InputRejected():
                self.rejected.append(event.inbox_seq)

    def dump(self) -> list[bytes]:
        return [json.dumps(vars(self) | {"record_ends": []}).encode()]

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "Toy":
        toy = cls()
        vars(toy).update(json.loads(b"".join(parts)))
        return toy

    @classmethod
    def new(cls) -> "Toy":
        return cls()


def job(number: int) -> str:
    return ids.job_id("research", str(number))


def admitted(number: int, *, name: str = "toy", argument: str = "") -> inbox.JobAdmitted:
    spec = JobSpec.model_validate({"name": name, "command": ["true", argument]})
    return inbox.JobAdmitted(
        job_id=job(number),
        team="research",
        spec=spec,
        spec_hash="0" * 64,
        client_key=str(number),
        priority=0,
        submitted_us=1,
    )


def cancelled(number: int) -> inbox.CancelRequested:
    return inbox.CancelRequested(job_id=job(number), team="research", reason="done")


def queued(m: inbox.JobAdmitted) -> ledger.JobQueued:
    fields = ("job_id", "team", "spec", "spec_hash", "client_key", "priority", "preempts", "submitted_us")
    return ledger.JobQueued(**{name: getattr(m, name) for name in fields})


def granted(job_id: str, device: str) -> ledger.JobGranted:
    claim = Claim(device=device, node="n1", milli=1000, memory_mib=1, epoch=1)
    return ledger.JobGranted(job_id=job_id, attempt=1, claims=(claim,))


def freed(job_id: str, device: str) -> ledger.DevicesFreed:
    return ledger.DevicesFreed(job_id=job_id, attempt=1, node="n1", devices=(device,), evidence="released")
