"""Ledgers for tests of bills, with prices at any moment; and ledgers as files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libs.core.billing.wall import HOUR_US, month_us
from libs.ledger.chain import encode
from libs.ledger.export import FileStart, LedgerFileWriter
from libs.ledger.tail import Stored
from schemas import inbox
from schemas.ledger import LedgerRecord
from schemas.prices import ContractRate, ListRate, RateBook, RateTier, Term
from tests.core.builders import World, job, node

POOL = "test"
NOVEMBER, DECEMBER = month_us(2026, 11)
"""Both the start of their month: [NOVEMBER, DECEMBER) is a month of 720 hours."""

FIRST = RateBook(
    version=1,
    currency="USD",
    prices=(
        ListRate(device="H100", micros=2_990_000, from_us=0, to_us=NOVEMBER + 5 * HOUR_US // 2),
        ListRate(device="H100", micros=3_333_333, from_us=NOVEMBER + 5 * HOUR_US // 2),
        ListRate(device="H100", priority_class="batch", term=Term.SPOT, micros=1_000_001, from_us=0),
    ),
    contracts=(
        ContractRate(
            team="blue", contract="c-1", device="H100", term=Term.RESERVATION, from_us=0,
            tiers=(RateTier(above_hours=0, micros=2_500_000),),
        ),
    ),
)  # fmt: skip
SECOND = FIRST.model_copy(
    update={
        "version": 2,
        "prices": (
            ListRate(device="H100", micros=2_000_001, from_us=0),
            *FIRST.prices[2:],
        ),
        "contracts": (
            *FIRST.contracts,
            ContractRate(
                team="research", contract="c-2", device="H100", from_us=NOVEMBER,
                tiers=(RateTier(above_hours=0, micros=1_500_000), RateTier(above_hours=7, micros=999_999)),
            ),
        ),
    }
)  # fmt: skip


def ask(w: World, name: str, devices: int, kind: str = "H100", **more: Any) -> str:
    return w.submit(job(name, devices, types=(kind,), submitted_us=w.now_us, **more))


def priced_world() -> World:
    """Two teams, a gang, a share, a device without a price, a price that changes within an hour, and a book that changes the
    past, in November and again in December."""
    w = World()
    w.now_us = NOVEMBER - 2 * HOUR_US
    w.send(
        *(
            inbox.NodeRegistered(incarnation=1, inventory=n, lease_s=10)
            for n in (node("n0"), node("a0", 2, model="A100"))
        )
    )
    w.send(inbox.ApplyPrices(book=FIRST, reason="the year begins", user="olga"))
    w.started(gang := ask(w, "gang", 2))
    w.started(share := ask(w, "share", 1, team="blue", share_milli=333))
    w.started(odd := ask(w, "odd", 1, "A100"))
    w.send(after_us=9 * HOUR_US // 2 + 123_457)
    w.released(gang)
    w.released(odd)
    w.send(inbox.ApplyPrices(book=SECOND, reason="a better contract", user="olga"), after_us=HOUR_US // 3)
    w.started(late := ask(w, "late", 3))
    w.send(after_us=3 * HOUR_US)
    w.released(late)
    w.released(share)
    return w


def over_the_month() -> World:
    """And a job that runs over the end of November, while it is closed."""
    w = priced_world()
    w.started(long := ask(w, "long", 1))
    while w.now_us < DECEMBER + HOUR_US:
        w.send(after_us=9 * HOUR_US)
    w.long = long  # type: ignore[attr-defined]
    return w


def filed(records: Sequence[LedgerRecord], path: Path) -> Path:
    """The records as a chain in a file, as `baton ledger export` writes it."""
    with LedgerFileWriter(path, FileStart(POOL)) as out:
        for number, record in enumerate(records, start=1):
            chained = record.model_copy(update={"pool": POOL, "prev_seq": out.head.seq, "prev_hash": out.head.hash})
            out.add(Stored(number, "", {}, encode(chained)[0], record.t_us))
        out.finish()
    return path
