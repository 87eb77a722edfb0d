"""The chargeback page: what one team paid in one period, on what, and what of it came to nothing. One HTML document that needs
nothing else and can be printed. Strings only.

What is wasted, and what is credited, is told in money at the mean price of its job in the period, rounded half to even. A
credit is not taken off the cost.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from libs.core.billing.charges import Charge
from libs.core.billing.rounding import round_half_even
from libs.core.billing.sealing import Sealing
from libs.core.billing.used import DeviceUseSums, UsedBy
from libs.report.team_story import TeamStory
from schemas.use import UseRow

MOST_JOBS: Final = 50
"""On the page; what the others cost is one line."""
_WIDTH, _HEIGHT = 720, 160
_CSS = """
:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}body{max-width:52rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;margin:.5rem 0 1.5rem}
td,th{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #8884}td:first-child,th:first-child{text-align:left}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:1rem}.tiles b{display:block;font-size:1.4rem}
svg{width:100%;height:auto}rect{fill:#3f6ea8}rect.back,rect.unused{fill:#c9822f}rect.unknown{fill:#8886}text{fill:currentColor;font-size:11px}
footer{color:#888;font-size:.85rem;overflow-wrap:anywhere}
@media print{:root{color-scheme:light}body{margin:0;max-width:none}table,svg{break-inside:avoid}}
"""

Sums = Mapping[str, tuple[int, int]]
"""Key -> (units, millionths)."""


class PageOf(NamedTuple):
    """Whose bill the page shows. `zone`: whose days."""

    team: str
    pool: str
    currency: str
    start: str
    end: str
    zone: ZoneInfo
    closed: bool
    upto_seq: int
    head: str
    story: TeamStory
    people: Mapping[str, str] = {}
    """Of users who are to be named: what they are called."""

    def user(self, user: str) -> str:
        """What is shown of a user."""
        return self.people.get(user, user) or "(unknown)"

    def job(self, job_id: str) -> str:
        """A job as people know it, with its id."""
        label = self.story.jobs.get(job_id)
        return job_id if label is None else f"{label.name} ({job_id})"

    def job_of(self, job_id: str) -> str:
        """The same, with whose it is."""
        label = self.story.jobs.get(job_id)
        return job_id if label is None else f"{self.job(job_id)}, {self.user(label.user)}"


def chargeback_page(of: PageOf, found: Iterable[Charge]) -> str:
    """The whole document. `found`: the team's charges of the period."""
    sealing, lists = Sealing(), Counter[str]()
    device, user, klass, job, ended, day = (dict[str, tuple[int, int]]() for _ in range(6))
    for charge in found:
        use, amount = charge.use, charge.amount
        if not sealing.take(charge):
            continue
        lists["list"] += amount.list_micros
        lists["cost"] += amount.cost_micros
        lists["units"] += amount.units
        lists["corrections"] += amount.cost_micros if charge.correction and not charge.credit else 0
        lists["credits"] += amount.cost_micros if charge.credit else 0
        outcome = of.story.outcomes.get((use.job_id, use.attempt), "still open")
        lists["waste"] += 0 if outcome in ("succeeded", "still open") else amount.cost_micros
        moment = datetime.fromtimestamp(charge.billed_us // 1_000_000, UTC).astimezone(of.zone)
        for sums, key in (
            (device, use.device_kind), (user, of.user(use.user)), (klass, use.priority_class), (job, use.job_id),
            (ended, outcome), (day, moment.strftime("%Y-%m-%d")),
        ):  # fmt: skip
            units, micros = sums.get(key, (0, 0))
            sums[key] = units + amount.units, micros + amount.cost_micros
    title = f"{of.team}: {of.start} to {of.end}"
    unpriced = sum(sealing.unpriced.values())
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_CSS}</style>',
            f"<h1>{escape(title)}</h1>",
            _tiles(
                [
                    ("cost", _money(lists["cost"], of.currency)),
                    ("at list prices", _money(lists["list"], of.currency)),
                    ("device-hours allocated", _hours(lists["units"])),
                    ("of attempts that did not succeed", _money(lists["waste"], of.currency)),
                    ("unused, as far as it is known", _money(_wasted(of.story, job), of.currency)),
                    ("corrections in it", _money(lists["corrections"], of.currency)),
                    ("credits in it", _money(lists["credits"], of.currency)),
                    ("device-hours without a price", _hours(unpriced)),
                ]
            ),
            "<h2>Each day</h2>" + _bars(day, of.currency),
            _table("Devices", device, of.currency),
            _table("How attempts ended", ended, of.currency),
            _table("Users", user, of.currency),
            _table("Classes", klass, of.currency),
            _table("Jobs", {of.job_of(one): sums for one, sums in _largest(job).items()}, of.currency),
            "<h2>Used against allocated</h2><p>Unknown is what no sample of a device covers, and what shares a device. "
            "It is never taken for unused.</p>",
            _used_table("Team", of.story, job, of.currency, lambda whose: whose.team),
            _used_table("Users", of.story, job, of.currency, lambda whose: of.user(whose.user)),
            _used_table(
                "Jobs", of.story, job, of.currency, lambda whose: of.job(whose.job_id) if whose.job_id else None
            ),
            "<h2>Used of what was allocated, each day</h2>" + _trend(of.story.days),
            "<h2>Credits</h2>" + _credits(of.story, job, of.currency),
            f"<footer>Pool {escape(of.pool)}, {'closed' if of.closed else 'not closed yet'}; days of {escape(of.zone.key)}. "
            f"{sealing.rows} rows up to record {of.upto_seq}, {escape(of.head)}; SHA-256 of the rows {sealing.digest}. Each "
            f"row is rounded once, half to even, to a millionth; taxes are left out.</footer></html>",
        ]
    )


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    return '<div class="tiles">' + "".join(f"<div><b>{escape(v)}</b>{escape(n)}</div>" for n, v in tiles) + "</div>"


def _table(title: str, sums: Sums, currency: str) -> str:
    rows = "".join(
        f"<tr><td>{escape(key)}</td><td>{_hours(units)}</td><td>{_money(micros, currency)}</td></tr>"
        for key, (units, micros) in sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    )
    head = f"<tr><th>{escape(title)}</th><th>device-hours</th><th>cost</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _worth(unit_us: int, job: tuple[int, int]) -> int:
    """Millionths, at the mean price of a job, (thousandths of a device x microseconds, millionths)."""
    return round_half_even(job[1] * unit_us, 7 * job[0]) if job[0] else 0


def _wasted(story: TeamStory, jobs: Sums) -> int:
    return sum(_worth(sums.wasted_unit_us, jobs.get(whose.job_id, (0, 0))) for whose, sums in story.used.items())


def _used_table(title: str, story: TeamStory, jobs: Sums, currency: str, key_of: Callable[[UsedBy], str | None]) -> str:
    """The largest, and what the others are together; None: it is in no line."""
    sums: dict[str, DeviceUseSums] = {}
    worth = Counter[str]()
    for whose, one in story.used.items():
        if (key := key_of(whose)) is None:
            continue
        sums.setdefault(key, DeviceUseSums()).add(one)
        worth[key] += _worth(one.wasted_unit_us, jobs.get(whose.job_id, (0, 0)))
    ordered = sorted(sums, key=lambda key: (-sums[key].allocated_unit_us, key))
    shown, rest = ordered[:MOST_JOBS], ordered[MOST_JOBS:]
    if rest:
        others = f"({len(rest)} others)"
        sums[others] = DeviceUseSums()
        for key in rest:
            sums[others].add(sums[key])
            worth[others] += worth[key]
        shown.append(others)
    rows = "".join(
        f"<tr><td>{escape(key)}</td>"
        + "".join(
            f"<td>{_hours_of(unit_us)}</td>"
            for unit_us in (one.allocated_unit_us, one.used_unit_us, one.wasted_unit_us, one.unknown_unit_us)
        )
        + f"<td>{_money(worth[key], currency) if one.known_unit_us else 'unknown'}</td><td>{_energy(one)}</td></tr>"
        for key, one in ((key, sums[key]) for key in shown)
    )
    heads = ("device-hours", "used", "unused", "unknown", "unused, in money", "kWh")
    head = f"<tr><th>{escape(title)}</th>{''.join(f'<th>{name}</th>' for name in heads)}</tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _credits(story: TeamStory, jobs: Sums, currency: str) -> str:
    """By cause and the ledger's words for it."""
    if not story.credits:
        return "<p>None.</p>"
    units, worth, many = Counter[tuple[str, str]](), Counter[tuple[str, str]](), dict[tuple[str, str], set[str]]()
    for one in story.credits:
        key = one.cause.value, one.why
        units[key] += one.unit_us
        worth[key] += _worth(one.unit_us, jobs.get(one.posting.job_id, (0, 0)))
        many.setdefault(key, set()).add(one.posting.job_id)
    rows = "".join(
        f"<tr><td>{escape(key[0])}</td><td>{escape(key[1])}</td><td>{len(many[key])}</td><td>{_hours_of(units[key])}</td>"
        f"<td>{_money(worth[key], currency)}</td></tr>"
        for key in sorted(units, key=lambda key: (-units[key], key))
    )
    heads = ("why", "jobs", "device-hours", "worth")
    head = f"<tr><th>Cause</th>{''.join(f'<th>{name}</th>' for name in heads)}</tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _energy(one: DeviceUseSums) -> str:
    return f"{one.energy_nj / 3.6e15:,.3f}" if one.energy_known_us else "unknown"


def _hours_of(unit_us: int) -> str:
    """Of capacity, 7,000 units a device."""
    return f"{unit_us / 7000 / 3.6e9:,.2f}"


def _largest(jobs: Sums) -> dict[str, tuple[int, int]]:
    ordered = sorted(jobs.items(), key=lambda item: (-item[1][1], item[0]))
    shown, rest = dict(ordered[:MOST_JOBS]), ordered[MOST_JOBS:]
    if rest:
        shown[f"({len(rest)} others)"] = sum(u for _, (u, _) in rest), sum(m for _, (_, m) in rest)
    return shown


def _bars(days: Sums, currency: str) -> str:
    """A bar a day; what is given back is below the line."""
    if not days:
        return "<p>Nothing.</p>"
    costs = [days[day][1] for day in sorted(days)]
    top, bottom = max(0, *costs), min(0, *costs)
    scale = _HEIGHT / max(1, top - bottom)
    step = _WIDTH / len(costs)
    bars = "".join(
        f'<rect x="{number * step:.1f}" y="{(top - max(0, cost)) * scale:.1f}" width="{step * 0.8:.1f}" '
        f'height="{abs(cost) * scale:.1f}"{" class=back" if cost < 0 else ""}>'
        f"<title>{day}: {_money(cost, currency)}</title></rect>"
        for number, (day, cost) in enumerate(zip(sorted(days), costs, strict=True))
    )
    first, last = min(days), max(days)
    text = f'<text x="0" y="{_HEIGHT + 14}">{first}</text><text x="{_WIDTH}" y="{_HEIGHT + 14}" text-anchor="end">{last}</text>'
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 18}" role="img" aria-label="Cost of each day">{bars}{text}</svg>'


def _trend(days: Sequence[UseRow]) -> str:
    """A bar a day of what is kept: used at the bottom, unused above it, unknown at the top."""
    if not days:
        return "<p>Nothing is kept of that time.</p>"
    scale, step = _HEIGHT / max(1, *(day.allocated_unit_us for day in days)), _WIDTH / len(days)
    bars = []
    for number, day in enumerate(days):
        below = 0
        unknown = day.allocated_unit_us - day.known_unit_us
        for kind, unit_us in (
            ("used", day.used_unit_us),
            ("unused", day.known_unit_us - day.used_unit_us),
            ("unknown", unknown),
        ):
            height = max(0, unit_us) * scale
            below += max(0, unit_us)
            bars.append(
                f'<rect class="{kind}" x="{number * step:.1f}" y="{_HEIGHT - below * scale:.1f}" width="{step * 0.8:.1f}" '
                f'height="{height:.1f}"><title>{escape(day.key)}: {_hours_of(unit_us)} device-hours {kind}</title></rect>'
            )
    text = (
        f'<text x="0" y="{_HEIGHT + 14}">{escape(days[0].key)}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 14}" text-anchor="end">{escape(days[-1].key)}</text>'
    )
    label = "Device-hours used, unused and unknown, each day"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 18}" role="img" aria-label="{label}">{"".join(bars)}{text}</svg>'


def _money(micros: int, currency: str) -> str:
    """To a cent, for reading; sums are of exact figures."""
    cents = (abs(micros) + 5_000) // 10_000
    return f"{'-' if micros < 0 and cents else ''}{cents // 100:,}.{cents % 100:02d} {currency}"


def _hours(units: int) -> str:
    return f"{units / 3.6e12:,.2f}"
