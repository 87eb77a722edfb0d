"""`baton ledger used`: what jobs held and what their devices did, from the ledger and the stored samples (an hour)."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from libs.cli.exits import Ended, Exit
from libs.cli.options import ArchiveFolder, Output, Url
from libs.cli.output import Column, Format, document, hint, show
from libs.cli.session import run
from libs.client import Baton
from schemas.subjects import OPERATOR

_UNIT_US_PER_DEVICE_S = 7e9
_COLUMNS = [
    Column("OF", lambda r: r["of"]),
    Column("TEAM", lambda r: r["team"]),
    Column("ALLOCATED", lambda r: _device_s(r["allocated_unit_us"]), right=True),
    Column("USED", lambda r: _device_s(r["used_unit_us"]), right=True),
    Column("WASTED", lambda r: _device_s(r["wasted_unit_us"]), right=True),
    Column("UNKNOWN", lambda r: _device_s(r["unknown_unit_us"]), right=True),
    Column("KWH", lambda r: "-" if r["energy_j"] is None else f"{r['energy_j'] / 3.6e6:.3f}", right=True),
]


class UsedGrouping(StrEnum):
    """The grouping of rows."""

    TEAM = "team"
    USER = "user"
    JOB = "job"


def used_by(
    by: Annotated[UsedGrouping, typer.Option("--by", help="What is summed: team, user or job.")] = UsedGrouping.TEAM,
    archive: ArchiveFolder = None,
    *,
    pool: Annotated[str | None, typer.Option("--pool", help="Whose ledger (BATON_POOL).")] = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Device-seconds that were allocated, used, wasted and not known, of the hour of which samples are kept."""
    from libs.ledger.used import UsedStory, used_lately

    async def work(baton: Baton) -> UsedStory:
        return await used_lately(baton.nats.jetstream(), baton.place.pool, archive)

    story = run(work, OPERATOR, url, pool=pool)
    if not story.report.ok:
        hint(f"violated: {story.report.violations[0]}; run `baton ledger verify` for the rest")
        raise Ended(Exit.FAILED)
    rows = _rows(story.jobs, by)
    if output in (Format.JSON, Format.YAML):
        document({"from_us": story.from_us, "to_us": story.to_us, "rows": rows}, output)
    else:
        show(rows, _COLUMNS)
        hint(f"device-seconds of {(story.to_us - story.from_us) / 1e6:.0f} s, up to record {story.report.last_seq}")


def _rows(jobs: Any, by: UsedGrouping) -> list[dict[str, Any]]:
    from libs.core.billing.used import DeviceUseSums

    sums: dict[tuple[str, str], DeviceUseSums] = {}
    for whose, used in jobs.items():
        name = {UsedGrouping.TEAM: whose.team, UsedGrouping.USER: whose.user or "-", UsedGrouping.JOB: whose.job_id}[by]
        sums.setdefault((name, whose.team), DeviceUseSums()).add(used)
    return [
        {
            "of": name, "team": team, "allocated_unit_us": one.allocated_unit_us, "used_unit_us": one.used_unit_us,
            "wasted_unit_us": one.wasted_unit_us, "unknown_unit_us": one.unknown_unit_us,
            "energy_j": one.energy_nj // 1_000_000_000 if one.energy_known_us else None,
        }
        for (name, team), one in sorted(sums.items())
    ]  # fmt: skip


def _device_s(unit_us: int) -> str:
    return f"{unit_us / _UNIT_US_PER_DEVICE_S:.3f}"
