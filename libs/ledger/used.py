"""Reads the inputs of `libs.core.billing.used`: the ledger's postings, and the broker's samples."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from nats.js import JetStreamContext

from libs.core.billing.accounts import Posting
from libs.core.billing.used import DeviceUseSums, Reading, UsedBy, reading_of, used
from libs.core.projections.verify import Verification
from libs.ledger.audited import AuditedLedger
from libs.ledger.samples import SampleAllowance, told_by
from libs.ledger.tail import Tail
from libs.ledger.verify import verify
from schemas.subjects import TELEMETRY


class UsedStory(NamedTuple):
    """`jobs` from the first stored sample to the last record or sample, by the broker's clock."""

    from_us: int
    to_us: int
    jobs: dict[UsedBy, DeviceUseSums]
    report: Verification


async def used_lately(js: JetStreamContext, pool: str, archive: Path | None = None) -> UsedStory:
    """Allocated and used capacity since the broker's first stored sample. Samples that are unreadable, or sent by
    another node than they name, are ignored. Raises what `verify` raises."""
    readings, first_us, last_us = await readings_lately(js, pool)
    postings: list[Posting] = []

    def keep(posting: Posting) -> None:
        if posting.attempt and posting.wall_end_us > first_us:
            postings.append(posting)

    audited = AuditedLedger(keep)
    report = await verify(js, pool, archive, audited=audited)
    for posting in audited.accounts.open(audited.accounts.t_us):
        keep(posting)
    to_us = max([last_us, *(p.wall_end_us for p in postings)]) if first_us else 0
    return UsedStory(first_us, to_us, used(postings, readings, first_us, to_us), report)


async def readings_lately(js: JetStreamContext, pool: str) -> tuple[dict[tuple[str, str], list[Reading]], int, int]:
    """Readings by device, and the broker's times of the first and last sample; 0 if there are none."""
    readings: defaultdict[tuple[str, str], list[Reading]] = defaultdict(list)
    state = (await js.stream_info(TELEMETRY)).state
    first_us = last_us = 0
    tail, allowance = Tail(js, TELEMETRY, state.first_seq - 1), SampleAllowance()
    try:
        position = state.first_seq - 1
        while position < state.last_seq:
            found = await tail.messages(min(256, state.last_seq - position), 1.0)
            if not found:
                break  # the rest was dropped meanwhile
            position = found[-1].seq
            for at_us, sample in told_by(found, pool, allowance):
                first_us, last_us = first_us or at_us, at_us
                for one in sample.devices:
                    readings[sample.node, one.device].append(reading_of(at_us, one))
    finally:
        await tail.close()
    return dict(readings), first_us, last_us
