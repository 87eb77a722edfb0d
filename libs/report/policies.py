"""Several orders of one workload side by side, as one HTML page that needs nothing else. Strings only."""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_COLOURS = ("#3f6ea8", "#c9822f", "#3a8f72", "#94527f", "#7a7f2e", "#5d6470")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 260, 52, 28
_POINTS = 240
_ROWS = (
    ("jobs ended", "ended", 0), ("mean completion time, s", "jct_mean_s", 0), ("p99 completion time, s", "jct_p99_s", 0),
    ("mean queueing time, s", "queueing_mean_s", 0), ("longest wait in one stretch, s", "wait_max_s", 0),
    ("bounded slowdown, mean", "bounded_slowdown_mean", 2), ("devices in use, %", "utilization_pct", 1),
    ("preemptions", "preemptions", 0), ("work lost, device-s", "lost_device_s", 0),
    ("promises kept, %", "promises_kept_pct", 2),
)  # fmt: skip
_CSS = """
:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}body{max-width:56rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}td,th{padding:.3rem .6rem;text-align:right;
border-bottom:1px solid #8884}td:first-child,th:first-child{text-align:left}td.best{font-weight:700}
svg{width:100%;height:auto}text{fill:currentColor;font-size:12px}.grid{stroke:#8884}.line{fill:none;stroke-width:2}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .35em 0 1em}
"""

RunTimes = Sequence[tuple[int, int, float]]
"""Of each job: submitted and ended (-1: not), us, and its run time, s."""


def policies_page(
    title: str, knows: str, figures: Mapping[str, Mapping[str, Any]], runs: Mapping[str, RunTimes]
) -> str:
    """The whole document. `figures`: of each order by its name, as `baton simulate -o json` prints them."""
    names = list(figures)
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    key = "".join(f'<span class="key" style="background:{colours[n]}"></span>{escape(n)}' for n in names)
    queueing = {n: _queueing(runs[n]) for n in names}
    jct = {n: sorted((end - submit) / 1e6 for submit, end, _ in runs[n] if end >= 0) for n in names}
    waiting = {n: _unfinished(runs[n]) for n in names}
    data = json.dumps({n: dict(figures[n]) for n in names}).replace("<", "\\u003c")
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_CSS}</style>',
            f"<h1>{escape(title)}</h1><p>The scheduler was told of run times: {escape(knows)}. {key}</p>",
            _table(names, figures),
            _figure("Completion time: part of the jobs (y) that took at most so long (x, s)", _shares(jct, colours)),
            _figure(
                "Queueing time: part of the jobs (y) that waited at most so long (x, s)", _shares(queueing, colours)
            ),
            _figure("Jobs that are not done (y) over time (x, days)", _lines(waiting, colours)),
            f'<script type="application/json" id="figures">{data}</script></html>',
        ]
    )


def _table(names: Sequence[str], figures: Mapping[str, Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for title, field, digits in _ROWS:
        cells = "".join(f"<td>{figures[name][field]:,.{digits}f}</td>" for name in names)
        rows.append(f"<tr><td>{escape(title)}</td>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _queueing(run: RunTimes) -> list[float]:
    return sorted(max(0.0, (end - submit) / 1e6 - need) for submit, end, need in run if end >= 0)


def _unfinished(run: RunTimes) -> list[tuple[float, float]]:
    """(days, jobs submitted and not ended), at evenly spaced times."""
    came, left = sorted(s for s, _, _ in run), sorted(e for _, e, _ in run if e >= 0)
    last = max(left, default=1)
    times = [last * i // _POINTS for i in range(_POINTS + 1)]
    return [(t / 86_400e6, float(bisect_right(came, t) - bisect_right(left, t))) for t in times]


def _figure(caption: str, body: str) -> str:
    label = escape(caption)
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}"'
    return f"<h2>{label}</h2><svg {box}>{body}</svg>"


def _shares(values: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> str:
    """Cumulative shares over a logarithmic axis that begins at 1 s."""
    top = max((v[-1] for v in values.values() if v), default=1.0)
    decades = max(1, math.ceil(math.log10(max(top, 10.0))))
    ticks = [(d / decades, f"1e{d}") for d in range(decades + 1)]
    series = {
        name: [
            (x / _POINTS, bisect_right(v, 10 ** (x / _POINTS * decades)) / max(1, len(v))) for x in range(_POINTS + 1)
        ]
        for name, v in values.items()
    }
    return _axes(ticks, [(i / 4, f"{25 * i} %") for i in range(5)]) + _drawn(series, colours)


def _lines(values: Mapping[str, Sequence[tuple[float, float]]], colours: Mapping[str, str]) -> str:
    right = max((x for v in values.values() for x, _ in v), default=1.0) or 1.0
    top = max((y for v in values.values() for _, y in v), default=1.0) or 1.0
    series = {name: [(x / right, y / top) for x, y in v] for name, v in values.items()}
    ticks = [(i / 4, f"{right * i / 4:.4g}") for i in range(5)]
    return _axes(ticks, [(i / 4, f"{top * i / 4:.4g}") for i in range(5)]) + _drawn(series, colours)


def _axes(bottom: Sequence[tuple[float, str]], left: Sequence[tuple[float, str]]) -> str:
    parts = []
    for share, text in bottom:
        x, _ = _at(share, 0)
        parts.append(f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="middle">{text}</text>')
    for share, text in left:
        _, y = _at(0, share)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{text}</text>')
    return "".join(parts)


def _drawn(series: Mapping[str, Sequence[tuple[float, float]]], colours: Mapping[str, str]) -> str:
    paths = []
    for name, points in series.items():
        line = " ".join(f"{x},{y}" for x, y in (_at(*point) for point in points))
        paths.append(
            f'<polyline class="line" stroke="{colours[name]}" points="{line}"><title>{escape(name)}</title></polyline>'
        )
    return "".join(paths)


def _at(x: float, y: float) -> tuple[float, float]:
    """Of shares of the plot, from its lower left corner."""
    wide, high = _WIDTH - _LEFT - 12, _HEIGHT - _BOTTOM - 12
    return round(_LEFT + x * wide, 1), round(12 + (1 - y) * high, 1)
