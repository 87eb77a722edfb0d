"""Uses: each claim of an attempt, from its grant until it is freed. A fold of the ledger."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from libs.core.billing.unbillable import Unbillable
from libs.core.billing.usage_rows import billed_model
from libs.core.state.clock import Calendar
from schemas import ledger as led
from schemas.resources import Claim

RecordsFromFirst = Callable[[], Iterable[tuple[int, led.LedgerRecord]]]


Straight = tuple[tuple[int, int, int], ...]
"""A span in pieces without a jump of the wall clock: (start, end, wall time of the start)."""


class DeviceUse(NamedTuple):
    """One claim of one attempt, from its grant until it was freed, in ledger time and record numbers.

    `device_kind`: its name in the price book."""

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
    straight: Straight


class Uses:
    """Folds records into uses."""

    handled = led.kinds_of(
        (led.NodeJoined, led.BoardCutDone, led.JobQueued, led.JobGranted, led.DevicesFreed, led.JobFinished)
    )

    def __init__(self) -> None:
        self.calendar = Calendar()
        self._kinds: dict[str, str] = {}
        self._jobs: dict[str, tuple[str, str, str]] = {}
        self._held: dict[str, _OpenGrant] = {}

    def apply(self, seq: int, record: led.LedgerRecord) -> list[DeviceUse]:
        """Uses that ended with this record. Raises Unbillable for what no valid ledger contains."""
        self.calendar.hear(record)
        found: list[DeviceUse] = []
        for event in record.events:
            if isinstance(event, led.DevicesFreed):
                found += self._freed(event, seq, record.t_us)
            elif isinstance(event, led.JobGranted):
                self._held[event.job_id] = _OpenGrant(event, record.t_us, seq, event.claims)
            elif isinstance(event, led.JobQueued):
                self._jobs[event.job_id] = (event.team, event.user, event.spec.priority_class)
            elif isinstance(event, led.JobFinished):
                self._jobs.pop(event.job_id, None)
                self._held.pop(event.job_id, None)
            elif isinstance(event, led.NodeJoined | led.BoardCutDone):
                self._kinds.update((d.id, billed_model(d)) for d in event.inventory.devices)
        return found

    def open(self, until_us: int) -> list[DeviceUse]:
        """Open claims as uses that end at `until_us`. For forecasts, never for a bill."""
        return [
            self._use(held, claim, until_us, 0, self._straight(held.since_us, until_us))
            for held in self._held.values()
            for claim in held.claims
        ]

    def _freed(self, event: led.DevicesFreed, seq: int, t_us: int) -> Iterator[DeviceUse]:
        held = self._held.get(event.job_id)
        if held is None or held.grant.attempt != event.attempt:
            raise Unbillable(f"{event.job_id}.{event.attempt} frees devices and holds none")
        gone, straight, left = set(event.devices), self._straight(held.since_us, t_us), list[Claim]()
        for claim in held.claims:
            if claim.node == event.node and claim.device in gone:
                yield self._use(held, claim, t_us, seq, straight)
            else:
                left.append(claim)
        self._held[event.job_id] = held._replace(claims=tuple(left))

    def _straight(self, since: int, until: int) -> Straight:
        return tuple(self.calendar.straight(since, until))

    def _use(self, held: "_OpenGrant", claim: Claim, until: int, to_seq: int, straight: Straight) -> DeviceUse:
        job_id, attempt = held.grant.job_id, held.grant.attempt
        team, user, klass = self._jobs[job_id]
        return DeviceUse(
            team, user, job_id, attempt, klass, claim.node, claim.device, self._kinds[claim.device], claim.milli,
            held.since_us, until, held.seq, to_seq, straight,
        )  # fmt: skip


class _OpenGrant(NamedTuple):
    """A grant with its open claims."""

    grant: led.JobGranted
    since_us: int
    seq: int
    claims: tuple[Claim, ...]
