"""Uses: each claim of an attempt, from its grant until it is freed. A fold of the ledger."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from libs.core.billing.unbillable import Unbillable
from libs.core.billing.usage_rows import billed_model
from libs.core.state.clock import Calendar
from schemas import ledger as led
from schemas.resources import Claim

RecordsFromFirst = Callable[[], Iterable[tuple[int, led.LedgerRecord]]]


class DeviceUse(NamedTuple):
    """One claim of one attempt, from its grant until it was freed, in ledger time and in the ledger's records.

    `device_kind`: what the price book knows it by. `straight`: the span in pieces without a jump of the wall's clock, each as
    (start, end, start by the wall)."""

    team: str
    user: str
    job_id: str
    attempt: int
    priority_class: str
    node: str
    device: str
    device_kind: str
    milli: int
    start_us: int
    end_us: int
    from_seq: int
    to_seq: int
    straight: tuple[tuple[int, int, int], ...]


class Uses:
    """Folds records into uses."""

    handled = led.kinds_of(
        (led.NodeJoined, led.BoardCutDone, led.JobQueued, led.JobGranted, led.DevicesFreed, led.JobFinished)
    )

    def __init__(self) -> None:
        self.calendar = Calendar()
        self._kinds: dict[str, str] = {}
        self._jobs: dict[str, tuple[str, str, str]] = {}
        self._held: dict[str, tuple[led.JobGranted, int, int]] = {}

    def apply(self, seq: int, record: led.LedgerRecord) -> list[DeviceUse]:
        """What ended with this record. Raises Unbillable for what no valid ledger says."""
        self.calendar.hear(record)
        found: list[DeviceUse] = []
        for event in record.events:
            if isinstance(event, led.DevicesFreed):
                found += self._freed(event, seq, record.t_us)
            elif isinstance(event, led.JobGranted):
                self._held[event.job_id] = (event, record.t_us, seq)
            elif isinstance(event, led.JobQueued):
                self._jobs[event.job_id] = (event.team, event.user, event.spec.priority_class)
            elif isinstance(event, led.JobFinished):
                self._jobs.pop(event.job_id, None)
                self._held.pop(event.job_id, None)
            elif isinstance(event, led.NodeJoined | led.BoardCutDone):
                self._kinds.update((d.id, billed_model(d)) for d in event.inventory.devices)
        return found

    def open(self, until_us: int) -> list[DeviceUse]:
        """What is held still, as if it ended at `until_us`: for forecasts, never for a bill."""
        return [
            self._use(grant, claim, since, until_us, seq, 0)
            for grant, since, seq in self._held.values()
            for claim in grant.claims
        ]

    def _freed(self, event: led.DevicesFreed, seq: int, t_us: int) -> Iterator[DeviceUse]:
        held = self._held.get(event.job_id)
        if held is None or held[0].attempt != event.attempt:
            raise Unbillable(f"{event.job_id}.{event.attempt} frees devices and holds none")
        grant, since, from_seq = held
        gone = set(event.devices)
        for claim in grant.claims:
            if claim.node == event.node and claim.device in gone:
                yield self._use(grant, claim, since, t_us, from_seq, seq)
        left = tuple(c for c in grant.claims if c.node != event.node or c.device not in gone)
        self._held[event.job_id] = (grant.model_copy(update={"claims": left}), since, from_seq)

    def _use(
        self, grant: led.JobGranted, claim: Claim, since: int, until: int, from_seq: int, to_seq: int
    ) -> DeviceUse:
        team, user, klass = self._jobs[grant.job_id]
        return DeviceUse(
            team, user, grant.job_id, grant.attempt, klass, claim.node, claim.device, self._kinds[claim.device], claim.milli,
            since, until, from_seq, to_seq, tuple(self.calendar.straight(since, until)),
        )  # fmt: skip
