"""Hours of use in a backup: MongoDB alone has them, so they are copied, month by month, and put back."""

import json
from pathlib import Path

from libs.adapters.mongo.use import UseStore
from libs.core.billing.use_hours import WHOLE, UseHour
from libs.core.billing.used import DeviceUseSums
from libs.core.billing.wall import HOUR_US, month_us
from services.quota_billing.use_files import copy_use, is_whole, take_in_use

NOVEMBER, DECEMBER = (month_us(2026, month)[0] // HOUR_US for month in (11, 12))


def hour(team: str, at: int, units: int = 7) -> UseHour:
    return UseHour(team, at, {WHOLE: {("ana", "job-1"): DeviceUseSums(units, 5)}})


async def test_hours_are_copied_by_month_and_come_back_as_they_were(tmp_path: Path, mongo_url: str, pool: str) -> None:
    there, again = f"{mongo_url}/{pool}", f"{mongo_url}/{pool}-again"
    now_us, folder, home = (DECEMBER + 50) * HOUR_US, tmp_path / "backup", tmp_path / "home"
    store = UseStore(there, pool)
    kept = [hour("blue", NOVEMBER), hour("red", DECEMBER - 1), hour("red", DECEMBER)]
    await store.save(kept, DECEMBER)
    first = await copy_use(there, [pool, "empty"], folder, [], now_us)
    assert [(one["of"], one["over"]) for one in first] == [(f"{pool}-2026-11", True), (f"{pool}-2026-12", False)]

    await store.save([hour("red", NOVEMBER), hour("red", DECEMBER + 1)], DECEMBER)
    second = await copy_use(there, [pool, "empty"], folder, first, now_us + 1000)
    assert all(is_whole(folder, one) for one in first), "until the new manifest is written, the old one is true"
    assert second[0] == first[0], "of a month that is over nothing is read again"
    assert [json.loads(line)["team"] for line in (folder / second[1]["file"]).open()] == ["red", "red"]
    (folder / first[0]["file"]).write_text("cut short")
    third = await copy_use(there, [pool], folder, second, now_us + 2000)
    assert len((folder / third[0]["file"]).read_text().splitlines()) == 3, "but a damaged file is written again"

    (home / "use").mkdir(parents=True)
    for one in third:
        (home / one["file"]).write_bytes((folder / one["file"]).read_bytes())
    assert [await take_in_use(again, home) for _ in range(2)] == [5, 0]
    found = await UseStore(again, pool).hours(None, 0, DECEMBER + 9, limit=99)
    assert found == await store.hours(None, 0, DECEMBER + 9, limit=99)
    assert all(one in found for one in kept)
