"""Geometry of the picture devices x time: what is drawn where, in milliseconds and pixels. Pure; no HTML here.

The SVG is stretched in x only, so x is milliseconds since the window's start and y is pixels. One attempt is one path:
neighbouring devices of a gang make one block, and a gang on several nodes is several blocks of the same path.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from libs.report.facts import AttemptFacts, DeviceSlot, Facts, Hold
from libs.report.figures import Window, end_of
from schemas.resources import WHOLE_MILLI

MAX_ROWS = 640
"""Devices that are drawn; a larger fleet shows its first ones and says so."""
MAX_ATTEMPTS = 6000
"""Attempts that are drawn: those with the most device-time, so that the page stays below 3 MB."""
_NODE_GAP, _LEAF_GAP, _TOP = 3, 24, 2
_WIDE_PX, _LABEL_PX = 1230, 13
"""An attempt carries its name on its first block that holds it, if the picture is as wide and the block as high."""


@dataclass(frozen=True, slots=True)
class PictureRow:
    """One device: its upper edge and its height, px."""

    seat: DeviceSlot
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Band:
    """A node's or a leaf's rows, px."""

    name: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle: ms and px."""

    x: int
    y: float
    width: int
    height: float


@dataclass(frozen=True, slots=True)
class Drawn:
    """One attempt. `yielding` is the part of its blocks between the request to save and the freeing."""

    attempt: AttemptFacts
    blocks: tuple[Bar, ...]
    yielding: tuple[Bar, ...] = ()
    labelled: Bar | None = None


@dataclass(slots=True)
class Picture:
    """All that the page draws of the fleet."""

    span: Window
    rows: dict[str, PictureRow] = field(default_factory=dict)
    nodes: list[Band] = field(default_factory=list)
    leaves: list[Band] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    checkpoints: list[tuple[int, float]] = field(default_factory=list)
    waits: list[Bar] = field(default_factory=list)
    """Of each beneficiary of a preemption: from its submit to its grant, on the devices that it got."""
    height: float = 0
    left_out: str = ""

    def x(self, t_us: int) -> int:
        """Milliseconds since the window's start, within it."""
        return max(0, min(self.width, (t_us - self.span.start_us) // 1000))

    @property
    def width(self) -> int:
        return max(1, self.span.length_us // 1000)


def draw(facts: Facts, span: Window) -> Picture:
    """The picture of all attempts within `span`."""
    picture = Picture(span)
    seats = facts.ordered_devices()
    _lay_out(picture, seats[:MAX_ROWS])
    attempts = facts.attempts()
    kept = sorted(attempts, key=lambda a: -len(a.holds) * (end_of(a, facts.last_us) - a.granted_us))[:MAX_ATTEMPTS]
    for attempt in sorted(kept, key=lambda a: (a.granted_us, a.job.id)):
        if (drawn := _drawn(picture, attempt, facts.last_us)) is not None:
            picture.drawn.append(drawn)
            picture.checkpoints += _checkpoints(picture, drawn)
    beneficiaries = {attempt.beneficiary for attempt in attempts if attempt.beneficiary}
    for job_id in sorted(beneficiaries & facts.jobs.keys()):
        job = facts.jobs[job_id]
        if job.attempts:
            picture.waits += _wait(picture, job.attempts[0])
    picture.left_out = "; ".join(
        text
        for text in (
            f"{len(seats) - MAX_ROWS:,} devices more are not drawn" if len(seats) > MAX_ROWS else "",
            f"{len(attempts) - MAX_ATTEMPTS:,} shorter attempts are not drawn" if len(attempts) > MAX_ATTEMPTS else "",
        )
        if text
    )
    return picture


def name_of(attempt: AttemptFacts) -> str:
    """What is written on its block."""
    again = f" · attempt {attempt.number}" if len(attempt.job.attempts) > 1 else ""
    return attempt.job.spec.name + again


def name_px(name: str) -> float:
    """About how wide it is on the page."""
    return 14 + 6.3 * len(name)


def _lay_out(picture: Picture, seats: Sequence[DeviceSlot]) -> None:
    height = 7.0 if len(seats) <= 200 else 3.0
    y: float = _TOP
    leaf = node = None
    for seat in seats:
        group = seat.leaf if seat.accelerator else "CPU"
        if group != leaf:
            y += _LEAF_GAP
            picture.leaves.append(Band(group, y - _LEAF_GAP, _LEAF_GAP))
        elif seat.node != node:
            y += _NODE_GAP
        own = height if seat.accelerator else 2 * height
        if group != leaf or seat.node != node:
            picture.nodes.append(Band(seat.node, y, 0))
        picture.rows[seat.id] = PictureRow(seat, y, own)
        y += own
        band = picture.nodes[-1]
        picture.nodes[-1] = Band(band.name, band.y, y - band.y)
        leaf, node = group, seat.node
    picture.height = y + _TOP


def _drawn(picture: Picture, attempt: AttemptFacts, now_us: int) -> Drawn | None:
    blocks = _blocks(picture, attempt.holds, attempt.granted_us, lambda node: end_of(attempt, now_us, node))
    if not blocks:
        return None
    yielding: list[Bar] = []
    if attempt.preempting_us:
        start = max(attempt.granted_us, attempt.preempting_us)
        yielding = _blocks(picture, attempt.holds, start, lambda node: end_of(attempt, now_us, node))
    needed = name_px(name_of(attempt)) * picture.width / _WIDE_PX
    labelled = next((b for b in blocks if b.width >= needed and b.height >= _LABEL_PX), None)
    return Drawn(attempt, tuple(blocks), tuple(yielding), labelled)


def _blocks(picture: Picture, holds: Iterable[Hold], start_us: int, end: Callable[[str], int]) -> list[Bar]:
    """Rectangles of `holds`; whole devices that are neighbours on a node become one."""
    blocks: list[Bar] = []
    x = picture.x(start_us)
    ordered = sorted((h for h in holds if h.device in picture.rows), key=lambda h: picture.rows[h.device].y)
    for hold in ordered:
        row = picture.rows[hold.device]
        y = row.y + row.height * hold.offset / WHOLE_MILLI
        height = row.height * hold.milli / WHOLE_MILLI
        width = max(1, picture.x(end(hold.node)) - x)
        last = blocks[-1] if blocks else None
        if last is not None and abs(last.y + last.height - y) < 0.01 and last.width == width:
            blocks[-1] = Bar(x, last.y, width, last.height + height)
        else:
            blocks.append(Bar(x, y, width, height))
    return blocks


def _wait(picture: Picture, first: AttemptFacts) -> list[Bar]:
    return _blocks(picture, first.holds, first.job.submitted_us, lambda _: first.granted_us)


def _checkpoints(picture: Picture, drawn: Drawn) -> list[tuple[int, float]]:
    """A dot in the middle of the attempt's first block for each checkpoint that it acknowledged."""
    block = drawn.blocks[0]
    return [(picture.x(t_us), block.y + block.height / 2) for t_us, _ in drawn.attempt.checkpoints]
