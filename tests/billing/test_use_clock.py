"""What is told of use, and kept in memory for it, when the broker's clock is set."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from libs.core.billing.use_hours import SLOT_US, UseHour
from libs.core.billing.used import Reading
from libs.core.billing.wall import HOUR_US
from services.quota_billing.use import UseKeeper

START_US = 500_000 * HOUR_US


class Store:
    """As `UseStore`, in memory."""

    def __init__(self) -> None:
        self.slot = 0

    async def prepare(self) -> None: ...

    async def settled(self) -> int:
        return self.slot

    async def hours(self, *_: object, **__: object) -> list[UseHour]:
        return []

    async def save(self, hours: Iterable[UseHour], settled: int) -> None:
        self.slot = settled

    async def forget(self, hour: int) -> None: ...


class Keeper(UseKeeper):
    """Of one device that is sampled every 15 s. `now_us`: what the broker's clock shows."""

    def __init__(self, store: Store) -> None:
        self.now_us = START_US
        self.samples_come = True
        meter = SimpleNamespace(
            wall_us=0,
            recent_postings=lambda: (),
            open_postings=lambda until_us: (),
            forget_postings=lambda before_us: None,
        )
        follower: Any = SimpleNamespace(projection=meter, still=self._still)
        super().__init__(follower, None, store, every_s=1, keep_days=90)  # type: ignore[arg-type]

    @asynccontextmanager
    async def _still(self) -> AsyncIterator[None]:
        yield

    async def _read(self) -> None:
        if not self.samples_come:
            return
        self._sampled_us = self.now_us
        self._readings.setdefault(("n0", "gpu0"), []).append(Reading(self.now_us, 10.0, 100))

    def run_for(self, hours: float) -> int:
        """How many readings it has kept at the most."""
        most = 0
        for _ in range(int(hours * 240)):
            self.now_us += HOUR_US // 240
            asyncio.run(self.turn())
            most = max(most, sum(map(len, self._readings.values())))
        return most


@pytest.mark.parametrize("restart", [False, True])
def test_use_is_told_on_when_the_brokers_clock_was_set_forward_and_back(restart: bool) -> None:
    """It kept every sample, and told nothing, for the three hours until the clock showed again what it had shown. Where the
    service began anew meanwhile it did so still."""
    store = Store()
    keeper = Keeper(store)
    usual = keeper.run_for(1)
    keeper.now_us += 3 * HOUR_US
    keeper.run_for(0.5)
    now_us = keeper.now_us - 3 * HOUR_US
    keeper = Keeper(store) if restart else keeper
    keeper.now_us = now_us
    assert keeper.run_for(1) <= usual + 1
    assert 0 < keeper.now_us // SLOT_US - store.slot <= 2 * HOUR_US // SLOT_US, "it is told"


def test_who_begins_anew_and_finds_no_sample_takes_the_time_that_is_settled_for_the_past() -> None:
    """Those by which it was settled are gone by then, and the ledger may have been quiet for longer."""
    store = Store()
    Keeper(store).run_for(1)
    settled, keeper = store.slot, Keeper(store)
    keeper._follower.projection.wall_us = START_US - HOUR_US
    keeper.samples_come = False
    asyncio.run(keeper.turn())
    assert store.slot == settled
