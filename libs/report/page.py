"""The report as one HTML page that needs nothing else: no other file, no network, no framework. Strings only."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from libs.report import accounts, svg
from libs.report.accounts import AccountCurves
from libs.report.document import Report, Step, TeamFigures
from libs.report.facts import AttemptFacts, Facts
from libs.report.figures import end_of, window
from libs.report.picture import Picture, draw

_ASSETS = Path(__file__).parent / "assets"
_HUES = (("#3f6ea8", "#6694cf"), ("#c9822f", "#e0a355"), ("#3a8f72", "#5cba99"), ("#94527f", "#c583b0"),
         ("#7a7f2e", "#b3b95a"), ("#5d6470", "#98a0ad"))  # fmt: skip
"""Light and dark colour of each team; the seventh team begins again."""
_MIX = (100, 66, 40)
"""How much of its team's colour the highest, the second and every lower class keeps, per cent."""


def page(facts: Facts, report: Report, curves: AccountCurves | None = None) -> str:
    """The whole document, with the picture of `facts`, the numbers of `report`, and where capacity was over time."""
    picture = draw(facts, window(facts))
    classes = classes_of(facts)
    moments = [(i, s.at_s, s.ok) for i, s in enumerate(report.steps, 1) if s.at_s is not None]
    parts = {
        "title": escape(report.title),
        "css": _asset("page.css"),
        "palette": _palette(facts),
        "lead": _lead(report),
        "tiles": "\n".join(_tiles(report)),
        "legend": _legend(facts, picture, classes),
        "height": f"{picture.height:.0f}",
        "plot": svg.plot(facts, picture, classes, moments),
        "caption": _caption(picture, bool(moments)),
        "story": _story(report.steps),
        "teams": _teams(report, facts),
        "accounts": accounts.figure(report, curves),
        "problems": _problems(report),
        "notes": _notes(report),
        "footer": _footer(report),
        "data": _data(facts, picture, classes),
        "js": _asset("page.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], _asset("page.html"))


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8").strip()


def classes_of(facts: Facts) -> list[str]:
    """Priority classes that occur, highest first."""
    highest: dict[str, int] = {}
    for job in facts.jobs.values():
        name = job.spec.priority_class
        highest[name] = max(job.priority, highest.get(name, job.priority))
    return sorted(highest, key=lambda name: (-highest[name], name))


def _palette(facts: Facts) -> str:
    light = "".join(f".t{i}{{--team:{_HUES[i % len(_HUES)][0]}}}" for i in range(len(facts.teams)))
    dark = "".join(f".t{i}{{--team:{_HUES[i % len(_HUES)][1]}}}" for i in range(len(facts.teams)))
    tones = "".join(
        f".c{i}{{--fill:color-mix(in oklab,var(--team) {mix}%,var(--paper));--on:{'var(--paper)' if i == 0 else 'var(--ink)'}}}"
        for i, mix in enumerate(_MIX)
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n{tones}"


# --------------------------------------------------------------------------------------------------------------- parts


def _lead(report: Report) -> str:
    devices = ", ".join(f"{count:,} {escape(model)}" for model, count in report.devices.items())
    nodes = f"{report.nodes} node{'s' * (report.nodes != 1)}"
    return (
        f"{report.jobs:,} jobs of {len(report.teams)} teams on {nodes} ({devices}) in {report.window_s:.0f} seconds: "
        f"{report.attempts:,} grants, {report.gangs:,} of them gangs of up to {report.widest_gang} devices."
    )


def _tiles(report: Report) -> Iterable[str]:
    wait, latency = report.queue_wait_s, report.scheduling_latency_ms
    accelerators = sum(count for model, count in report.devices.items() if model != "CPU")
    done = report.by_state.get("succeeded", 0)
    others = ", ".join(f"{count} {state}" for state, count in report.by_state.items() if state != "succeeded")
    seconds = sum(team.device_seconds for team in report.teams)
    good = "good" if report.ledger.verified else "bad"
    yield _tile(
        "Utilisation",
        f"{report.utilization:.1%}",
        f"of {accelerators} accelerators; peak {report.utilization_peak:.0%}",
    )
    yield _tile("Jobs succeeded", f"{done:,}", others or "all of them")
    yield _tile("Queue wait", _seconds(wait.p50), f"median; p99 {_plain(wait.p99)}, longest {_plain(wait.max)}")
    yield _tile(
        "Scheduling latency",
        f"{latency.p50:.0f} <small>ms</small>",
        f"median of {latency.count}; p99 {latency.p99:.0f} ms",
    )
    yield _tile(
        "Preemption rate",
        f"{report.preemption_rate:.2%}",
        f"{report.preempted} of {report.attempts:,} attempts, {report.preemption_cost_device_s:,.0f} device-seconds lost",
    )
    yield _tile("Device-seconds", f"{seconds:,.0f}", "billed, shares as shares")
    yield _tile(
        "Cost",
        _money(report, report.bill.total_cost_micros),
        "bill equals the integral" if report.bill.equal else "bill differs from the ledger",
    )
    yield _tile(
        "Ledger", "verified" if report.ledger.verified else "broken",
        f"{report.ledger.records:,} records, {len(report.ledger.violations)} violations", good,
    )  # fmt: skip


def _tile(name: str, value: str, more: str, look: str = "") -> str:
    return (
        f'<div class="tile {look}"><div class="name">{escape(name)}</div><div class="value">{value}</div>'
        f'<div class="more">{escape(more)}</div></div>'
    )


def _legend(facts: Facts, picture: Picture, classes: Sequence[str]) -> str:
    seen = sorted({(facts.teams.index(j.team), classes.index(j.spec.priority_class)) for j in facts.jobs.values()})
    keys = [
        f'<span class="who t{team} c{min(klass, 2)}" data-team="{team}" data-klass="{klass}"><i class="swatch"></i>'
        f"{escape(facts.teams[team])} · {escape(classes[klass])}</span>"
        for team, klass in seen
    ]
    if picture.checkpoints:
        keys.append('<span><i class="swatch dot"></i>checkpoint</span>')
    if any(drawn.yielding for drawn in picture.drawn):
        keys.append('<span><i class="swatch yield"></i>saving, then yielding</span>')
    if picture.waits:
        keys.append('<span><i class="swatch wait"></i>waiting for these devices</span>')
    return "".join(keys)


def _caption(picture: Picture, story: bool) -> str:
    text = "A row is a device, a block an attempt; a gang is one block on each of its nodes. Point at one to see the whole job."
    if story:
        text += " The numbers above are the steps of the story below."
    return escape(text + (f" ({picture.left_out}.)" if picture.left_out else ""))


def _story(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    items = []
    for number, step in enumerate(steps, 1):
        mark = '<span class="mark ok">✓</span>' if step.ok else '<span class="mark no-ok">✗</span>'
        at = f"{step.at_s:.1f} s" if step.at_s is not None else ""
        expected = "" if step.ok else f"<br>expected: {escape(step.expected)}"
        items.append(
            f'<li id="step-{number}"><span class="no">{number}</span><span class="what">{mark}{escape(step.name)}</span>'
            f'<span class="at">{at}</span><span class="seen">{escape(step.observed)}{expected}</span></li>'
        )
    good = sum(step.ok for step in steps)
    return f'<section class="story"><h2>The story, {good} of {len(steps)} checks passed</h2><ol>{"".join(items)}</ol></section>'


def _teams(report: Report, facts: Facts) -> str:
    head = (
        "Team", "Jobs", "Succeeded", "Attempts", "Preempted", "Wait p50", "Wait p99", "Device-seconds", "Of the capacity",
        "Cost",
    )  # fmt: skip
    rows = "".join(_team_row(report, team, facts.teams.index(team.team)) for team in report.teams)
    total = [
        "All", report.jobs, report.by_state.get("succeeded", 0), report.attempts, report.preempted,
        _plain(report.queue_wait_s.p50), _plain(report.queue_wait_s.p99), f"{sum(t.device_seconds for t in report.teams):,.1f}",
        f'{report.utilization:.1%}<span class="meter"></span>', _money(report, report.bill.total_cost_micros),
    ]  # fmt: skip
    foot = "".join(f"<td>{cell}</td>" for cell in total)
    return (
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>"
        f"<tbody>{rows}</tbody><tfoot><tr>{foot}</tr></tfoot></table>"
    )


def _team_row(report: Report, team: TeamFigures, index: int) -> str:
    largest = max((t.share_of_capacity for t in report.teams), default=0) or 1
    meter = (
        f'<span class="meter t{index} c0"><i style="width:{100 * team.share_of_capacity / largest:.0f}%"></i></span>'
    )
    cells = [
        f'<i class="swatch t{index} c0"></i>{escape(team.team)}', team.jobs, team.by_state.get("succeeded", 0), team.attempts,
        team.preempted, _plain(team.queue_wait_s.p50), _plain(team.queue_wait_s.p99), f"{team.device_seconds:,.1f}",
        f"{team.share_of_capacity:.1%}{meter}", _money(report, team.cost_micros),
    ]  # fmt: skip
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _problems(report: Report) -> str:
    if report.ledger.verified:
        return ""
    shown = "\n".join(report.ledger.violations[:50])
    return f"<section><h2>Violations of the ledger</h2><pre>{escape(shown)}</pre></section>"


def _notes(report: Report) -> str:
    notes = {
        "Utilisation": "accelerator-seconds held of accelerator-seconds offered, from the first grant to the last freeing.",
        "Queue wait": "from the moment the broker stored the submit to the moment it stored the job's first grant.",
        "Scheduling latency": "the same span, for jobs that fitted at once: their grant is in the record that queued them.",
        "Preemption rate": "attempts that ended by preemption, of all attempts.",
        "Device-seconds, cost": "as quota_billing bills them: from grant to freeing, times the share, each row rounded once.",
        "Accounts": (
            "capacity units (7,000 a device) x microseconds of ledger time over the whole ledger; every unit is in exactly one "
            "account at every microsecond, so they sum to what existed (docs/billing.md)."
        ),
        "Ledger": (
            f"every record read again by a checker with books of its own ({report.ledger.events:,} events, "
            f"{report.ledger.attempts:,} attempts, {report.ledger.void} void records); its integral is compared with the bill."
        ),
    }
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in notes.items())


def _footer(report: Report) -> str:
    ledger = f"Pool {escape(report.pool)}, ledger up to record {report.ledger.last_seq:,}."
    return f"{ledger} The same numbers for programs: <code>report.json</code>."


# ---------------------------------------------------------------------------------------------------------- tooltips


def _data(facts: Facts, picture: Picture, classes: Sequence[str]) -> str:
    """What tooltips say, as JSON that cannot end its script element."""
    jobs = {job_id: i for i, job_id in enumerate(facts.jobs)}
    attempts = [_tip(facts, picture, d.attempt, jobs, classes) for d in picture.drawn]
    data = {"teams": facts.teams, "classes": list(classes), "attempts": attempts}
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _tip(
    facts: Facts, picture: Picture, attempt: AttemptFacts, jobs: dict[str, int], classes: Sequence[str]
) -> dict[str, Any]:
    job = attempt.job
    begins = [job.submitted_us, *job.requeued_us][min(attempt.number, len(job.requeued_us) + 1) - 1]
    notes = []
    if attempt.resume is not None:
        notes.append(f"resumed from step {attempt.resume.step:,}")
    if attempt.checkpoints:
        count = len(attempt.checkpoints)
        notes.append(f"{count} checkpoint{'s' * (count != 1)}, last at step {attempt.checkpoints[-1][1].step:,}")
    if attempt.beneficiary in facts.jobs:
        notes.append(f"gave way to {facts.jobs[attempt.beneficiary].spec.name}")
    return {
        "job": jobs[job.id],
        "name": job.spec.name,
        "team": facts.teams.index(job.team),
        "klass": classes.index(job.spec.priority_class),
        "number": attempt.number,
        "devices": len(attempt.holds),
        "share": attempt.holds[0].milli,
        "from": picture.x(attempt.granted_us),
        "to": picture.x(end_of(attempt, facts.last_us)),
        "wait": max(0, attempt.granted_us - begins) // 1000,
        "outcome": attempt.outcome or "",
        "nodes": ", ".join(attempt.nodes[:6]) + (" …" if len(attempt.nodes) > 6 else ""),
        "note": "; ".join(notes),
    }


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} <small>ms</small>" if value < 1 else f"{value:.1f} <small>s</small>"


def _plain(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _money(report: Report, micros: int) -> str:
    return f"{micros / 1e6:,.2f} <small>{escape(report.bill.currency)}</small>"
