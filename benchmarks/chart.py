"""Small charts as SVG text, without a plotting library: light ground, direct labels, readable in print."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

INK, GRID, PAPER = "#222", "#e4e4e4", "#fff"
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d6a9f", "#c77f1a", "#7a7a7a", "#9ab8c9", "#333")
_FONT = 'font-family="Helvetica, Arial, sans-serif"'


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Marks:
    """One mark per row: `values[i]` belongs to the i-th row; None leaves it out."""

    name: str
    values: Sequence[float | None]
    strong: bool = False


def page(width: float, height: float, title: str, panels: Sequence[str]) -> str:
    """Panels (SVG fragments with their own offsets) under a title."""
    head = f'<text x="24" y="30" {_FONT} font-size="17" font-weight="bold" fill="{INK}">{escape(title)}</text>'
    body = "\n".join(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}">\n<rect width="100%" height="100%" fill="{PAPER}"/>\n{head}\n{body}\n</svg>\n'
    )


def log_log(
    x: float, y: float, width: float, height: float, caption: str, *, axes: tuple[str, str], lines: Sequence[Line]
) -> str:
    """Lines on two logarithmic axes; each is named at its right end."""
    xs = [p[0] for line in lines for p in line.points]
    ys = [p[1] for line in lines for p in line.points if p[1] > 0]
    x_low, x_high = math.log10(min(xs)) - 0.05, math.log10(max(xs)) + 0.05
    y_low, y_high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9)
    left, right, top, bottom = x + 72, x + width - 150, y + 44, y + height - 46

    def px(v: float) -> float:
        return left + (math.log10(v) - x_low) / (x_high - x_low) * (right - left)

    def py(v: float) -> float:
        return bottom - (math.log10(v) - y_low) / max(1, y_high - y_low) * (bottom - top)

    out = [_text(x + 24, y + 10, caption, size=13, bold=True)]
    for power in range(y_low, y_high + 1):
        out.append(_rule(left, py(10.0**power), right, py(10.0**power)))
        out.append(_text(left - 8, py(10.0**power) + 4, _number(10.0**power), anchor="end"))
    for v in sorted(set(xs)):
        out.append(_rule(px(v), top, px(v), bottom))
        out.append(_text(px(v), bottom + 17, _number(v), anchor="middle"))
    out.append(_text((left + right) / 2, bottom + 36, axes[0], anchor="middle"))
    out.append(_text(x + 24, top - 14, axes[1]))
    ends = _spread([py(line.points[-1][1]) for line in lines], 15)
    for i, line in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{px(a):.1f},{py(b):.1f}" for a, b in line.points if b > 0)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out += [f'<circle cx="{px(a):.1f}" cy="{py(b):.1f}" r="3" fill="{colour}"/>' for a, b in line.points if b > 0]
        out.append(_text(right + 10, ends[i] + 4, line.name, colour=colour))
    return "\n".join(out)


def dots(
    x: float,
    y: float,
    width: float,
    caption: str,
    unit: str,
    *,
    rows: Sequence[str],
    marks: Sequence[Marks],
    log: bool = False,
) -> str:
    """One row per name, one dot per series on an axis that is linear or, with `log`, logarithmic: where differences or ratios
    matter and zero does not."""
    scale: Callable[[float], float] = math.log10 if log else float
    values = [v for m in marks for v in m.values if v is not None]
    low, high = (
        (min(values) / 1.2, max(values) * 1.2) if log else (math.floor(min(values)) - 1, math.ceil(max(values)) + 1)
    )
    left, right, top, step = x + 100, x + width - 20, y + 58, 26
    bottom = top + step * len(rows)

    def px(v: float) -> float:
        return left + (scale(v) - scale(low)) / (scale(high) - scale(low)) * (right - left)

    out = [_text(x + 24, y + 10, caption, size=13, bold=True)]
    at = x + 24
    for i, m in enumerate(marks):
        if all(v is None for v in m.values):
            continue
        colour = COLOURS[i % len(COLOURS)]
        out.append(f'<circle cx="{at:g}" cy="{y + 28:g}" r="{6 if m.strong else 4}" fill="{colour}"/>')
        out.append(_text(at + 10, y + 32, m.name, colour=colour))
        at += 26 + 6.3 * len(m.name)
    for v in _of_decades(low, high) if log else range(int(low), int(high) + 1, max(1, round((high - low) / 6))):
        out.append(_rule(px(v), top - 8, px(v), bottom - 8))
        out.append(_text(px(v), bottom + 10, _number(v), anchor="middle"))
    out.append(_text((left + right) / 2, bottom + 28, unit, anchor="middle"))
    for r, row in enumerate(rows):
        cy = top + step * r + 6
        out.append(_text(left - 10, cy + 4, row, anchor="end"))
        out.append(_rule(left, cy, right, cy))
        for i in reversed(range(len(marks))):
            value = marks[i].values[r]
            if value is not None:
                radius = 6 if marks[i].strong else 4
                out.append(
                    f'<circle cx="{px(value):.1f}" cy="{cy:.1f}" r="{radius}" fill="{COLOURS[i % len(COLOURS)]}"/>'
                )
    return "\n".join(out)


def _of_decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten between both."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [v for power in powers for v in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if low <= v <= high]


def dots_height(rows: int) -> float:
    """Height that `dots` takes for so many rows."""
    return 58 + 26 * rows + 40


def _text(
    x: float, y: float, text: str, *, size: int = 12, bold: bool = False, anchor: str = "start", colour: str = INK
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} font-size="{size}"{weight} text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GRID}"/>'


def _number(v: float) -> str:
    return f"{v:,.0f}" if v >= 1 else f"{v:g}"


def _spread(wanted: list[float], gap: float) -> list[float]:
    """Label heights near `wanted` that do not overlap."""
    placed = dict.fromkeys(range(len(wanted)), 0.0)
    last = -math.inf
    for i in sorted(placed, key=lambda i: wanted[i]):
        last = placed[i] = max(wanted[i], last + gap)
    return [placed[i] for i in range(len(wanted))]
