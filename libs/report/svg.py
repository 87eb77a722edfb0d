"""The drawn part of the page: allocation, queue and devices, on one time axis. Strings of SVG and HTML; no I/O.

Each SVG is as wide as the page lets it be: x is milliseconds and stretched, y is pixels, strokes do not scale. Text is
HTML placed by per cent, so that it keeps its size on narrow pages.
"""

from collections.abc import Sequence
from html import escape

from libs.report.facts import Facts
from libs.report.figures import allocation, queue_length
from libs.report.picture import Bar, Drawn, Picture, name_of, name_px
from schemas.resources import WHOLE_MILLI

HELD_PX, QUEUE_PX = 92, 44
_BADGE_PCT = 2.8
_NARROW_PX = 620
"""Width of the picture on narrow pages; names that do not fit there are left out there."""
_TICKS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)

Moment = tuple[int, float, bool]
"""A step of the story: its number, seconds since the start, and whether it is ok."""


def plot(facts: Facts, picture: Picture, classes: Sequence[str], moments: Sequence[Moment]) -> str:
    """The whole figure: charts, picture, axis."""
    ticks = _ticks(picture)
    capacity = sum(seat.accelerator for seat in facts.seats.values())
    peak, waiting = _queue(facts, picture)
    return "\n".join(
        [
            _row("moments", "", _badges(picture, moments)),
            _row("held", _title(f"Devices held, of {capacity}"), _held(facts, picture, capacity, ticks, moments)),
            _row("gap", "", ""),
            _row(
                "queue",
                _title(f"Jobs waiting, {peak} at most"),
                _svg(picture, QUEUE_PX, waiting + _guides(picture, QUEUE_PX, moments)),
            ),
            _row("axis", "", _axis(picture, ticks)),
            _row("fleet", _labels(picture), _fleet(facts, picture, classes, ticks, moments)),
            _row("axis", "", _axis(picture, ticks)),
        ]
    )


def _row(kind: str, side: str, area: str) -> str:
    return f'<div class="side">{side}</div><div class="area {kind}">{area}</div>'


def _title(text: str) -> str:
    return f'<div class="title">{escape(text)}</div>'


def _svg(picture: Picture, height: float, body: str, label: str = "") -> str:
    role = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    box = f"0 0 {picture.width} {_n(height)}"
    return f'<svg viewBox="{box}" preserveAspectRatio="none" {role}>{body}</svg>'


# ------------------------------------------------------------------------------------------------------------- charts


def _held(facts: Facts, picture: Picture, capacity: int, ticks: Sequence[int], moments: Sequence[Moment]) -> str:
    """Stacked areas, one per team; the top of the chart is the whole fleet."""
    curves = allocation(facts)
    times = sorted({picture.x(t) for steps in curves.values() for t, _ in steps} | {0, picture.width})
    scale = (HELD_PX - 2) / max(1, capacity * WHOLE_MILLI)
    base = [0.0] * len(times)
    areas = []
    for team, steps in enumerate(curves.values()):
        values = _sampled([(picture.x(t), v) for t, v in steps], times)
        top = [b + v for b, v in zip(base, values, strict=True)]
        areas.append(f'<path class="t{team} c1 stack" d="{_area(times, base, top, scale)}"/>')
        base = top
    body = _grid(HELD_PX, ticks) + "".join(areas)
    body += f'<path class="ceiling" d="M0 1H{picture.width}"/>' + _guides(picture, HELD_PX, moments)
    return _svg(picture, HELD_PX, body, "Devices held over time, stacked by team")


def _queue(facts: Facts, picture: Picture) -> tuple[int, str]:
    """The highest number of waiting jobs, and the area."""
    steps = [(picture.x(t), v) for t, v in queue_length(facts)]
    peak = max((v for _, v in steps), default=0)
    times = sorted({t for t, _ in steps} | {0, picture.width})
    values = _sampled(steps, times)
    area = _area(times, [0.0] * len(times), values, (QUEUE_PX - 2) / max(1, peak), QUEUE_PX)
    return peak, f'<path class="waiting" d="{area}"/><path class="grid" d="M0 {QUEUE_PX}H{picture.width}"/>'


def _sampled(steps: Sequence[tuple[int, int]], times: Sequence[int]) -> list[float]:
    """The step function's value from each of `times` on (both ascending)."""
    values: list[float] = []
    level = i = 0
    for t in times:
        while i < len(steps) and steps[i][0] <= t:
            level = steps[i][1]
            i += 1
        values.append(level)
    return values


def _area(
    times: Sequence[int], base: Sequence[float], top: Sequence[float], scale: float, height: int = HELD_PX
) -> str:
    """A closed path between two step functions."""
    forth, back = [], []
    for i, t in enumerate(times):
        if i and top[i] == top[i - 1] and base[i] == base[i - 1] and i + 1 < len(times):
            continue
        forth.append(f"H{t}V{_n(height - top[i] * scale)}")
        back.append(f"V{_n(height - base[i] * scale)}H{t}")
    first = _n(height - base[0] * scale)
    return f"M{times[0]} {first}{''.join(forth)}{''.join(reversed(back))}Z"


# -------------------------------------------------------------------------------------------------------------- fleet


def _fleet(
    facts: Facts, picture: Picture, classes: Sequence[str], ticks: Sequence[int], moments: Sequence[Moment]
) -> str:
    teams = {team: i for i, team in enumerate(facts.teams)}
    bands = "".join(f"M0 {_n(b.y)}H{picture.width}v{_n(b.height)}H0z" for b in picture.nodes)
    body = [f'<path class="band" d="{bands}"/>', _grid(picture.height, ticks)]
    for i, drawn in enumerate(picture.drawn):
        job = drawn.attempt.job
        look = f"t{teams[job.team]} c{_tone(classes, job.spec.priority_class)}"
        body.append(f'<path class="a {look}" data-a="{i}" d="{_path(drawn.blocks)}"/>')
    yielding = _path([block for drawn in picture.drawn for block in drawn.yielding])
    dots = "".join(f"M{x} {_n(y)}h0" for x, y in picture.checkpoints)
    body.append(f'<path class="yielding" d="{yielding}"/><path class="waits" d="{_path(picture.waits)}"/>')
    body.append(f'<path class="dots" d="{dots}"/><path class="dots inner" d="{dots}"/>')
    body.append(_guides(picture, picture.height, moments))
    label = f"{len(picture.rows)} devices over {picture.width / 1000:.0f} s, {len(picture.drawn)} attempts"
    names = "".join(_name(picture, drawn, teams, classes) for drawn in picture.drawn if drawn.labelled)
    return _svg(picture, picture.height, "".join(body), label) + names


def _name(picture: Picture, drawn: Drawn, teams: dict[str, int], classes: Sequence[str]) -> str:
    block, job = drawn.labelled, drawn.attempt.job
    assert block is not None
    left, width = 100 * block.x / picture.width, 100 * block.width / picture.width
    look = f"t{teams[job.team]} c{_tone(classes, job.spec.priority_class)}"
    text = name_of(drawn.attempt)
    short = "" if name_px(text) <= width / 100 * _NARROW_PX else " short"
    style = f"left:{left:.2f}%;width:{width:.2f}%;top:{_n(block.y)}px"
    return f'<div class="name {look}{short}" style="{style}">{escape(text)}</div>'


def _labels(picture: Picture) -> str:
    """Names of leaves and nodes, beside their rows."""
    leaves = [f'<span class="leaf" style="top:{_n(b.y + 8)}px">{escape(b.name)}</span>' for b in picture.leaves]
    nodes = [
        f'<span class="node" style="top:{_n(b.y + b.height / 2)}px">{escape(_short(b.name))}</span>'
        for b in picture.nodes
        if b.height >= 10
    ]
    return "".join(leaves + nodes)


def _short(name: str) -> str:
    return name if len(name) <= 11 else name[:10] + "…"


def _tone(classes: Sequence[str], name: str) -> int:
    """0 is the strongest colour, for the highest class."""
    return min(classes.index(name), 2)


# --------------------------------------------------------------------------------------------------------------- time


def _ticks(picture: Picture) -> list[int]:
    """Round moments, ms, about eight of them."""
    wanted = picture.width / 1000 / 8
    step_s = next((s for s in _TICKS if s >= wanted), _TICKS[-1] * max(1, round(wanted / _TICKS[-1])))
    return list(range(0, picture.width + 1, step_s * 1000))


def _axis(picture: Picture, ticks: Sequence[int]) -> str:
    return "".join(f'<span style="left:{100 * t / picture.width:.3f}%">{_clock(t // 1000)}</span>' for t in ticks)


def _clock(s: int) -> str:
    if s < 120:
        return f"{s} s"
    return f"{s // 60}:{s % 60:02d} min" if s < 7200 else f"{s // 3600}:{s % 3600 // 60:02d} h"


def _grid(height: float, ticks: Sequence[int]) -> str:
    lines = "".join(f"M{t} 0V{_n(height)}" for t in ticks)
    return f'<path class="grid" d="{lines}"/>'


def _guides(picture: Picture, height: float, moments: Sequence[Moment]) -> str:
    lines = "".join(f"M{round(s * 1000)} 0V{_n(height)}" for _, s, _ in moments if 0 <= s * 1000 <= picture.width)
    return f'<path class="moment" d="{lines}"/>' if lines else ""


def _badges(picture: Picture, moments: Sequence[Moment]) -> str:
    """Numbers above the picture; those that would lie upon each other move aside."""
    ordered = sorted(moments, key=lambda m: m[1])
    places, last = [], -100.0
    for _, s, _ in ordered:
        last = max(100_000 * s / picture.width, last + _BADGE_PCT)
        places.append(last)
    limit = 100.0
    for i in range(len(places) - 1, -1, -1):
        places[i] = limit = min(places[i], limit)
        limit -= _BADGE_PCT
    out = []
    for (number, _, ok), left in zip(ordered, places, strict=True):
        failed = "" if ok else " failed"
        out.append(f'<a class="badge{failed}" style="left:{left:.2f}%" href="#step-{number}">{number}</a>')
    return "".join(out)


def _path(blocks: Sequence[Bar]) -> str:
    return "".join(f"M{b.x} {_n(b.y)}h{b.width}v{_n(b.height)}h-{b.width}z" for b in blocks)


def _n(value: float) -> str:
    """A number as short as it can be written, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
