"""How long jobs run, learned from those that ran: the expected service until one more job ends.

Service is device-seconds. It is cut into cells, each `GROWTH` times as wide as the one before. Of each cell two counts are
kept: how many jobs got so far (at risk), and how many ended in it. Their quotient is the cell's hazard; jobs that still run
or wait count as at risk in the cells that they have passed (the product-limit estimator of Kaplan and Meier, 1958, for
censored lives). Widths are counted apart and lean on all jobs together where there are few of a width.

From the hazards follows the Gittins index (Gittins 1979; Aalto, Ayesta and Righter 2009 for service times): of a job that
has got a, the largest quotient over all further shares d of P(it ends within d) and E(service it takes of d). Here its
inverse is used, the *expected price* of an end in device-seconds, because it compares with a known remaining service.
Serving the cheapest first is optimal for the mean flow time of one server with unknown sizes from one distribution.

Before anything has ended, a few imagined jobs of a heavy-tailed distribution stand in: the order is least attained service
then. They are outweighed by the first dozens of ends.
"""

import base64
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_NUMBERS = "<f8"

FIRST_S = 60.0
"""Width of the first cell, device-seconds."""
GROWTH = 1.3
CELLS = 74
WIDTHS = 12
"""Classes of gang width: 1, 2, 3-4, 5-8, ..., above 1024."""
EDGES: Floats = FIRST_S * GROWTH ** np.arange(CELLS, dtype=np.float64)
"""Upper ends of the cells; the last one has none in fact."""
_EDGES: Final = EDGES.tolist()
_SIZES: Floats = np.diff(EDGES, prepend=0.0)
_PRIOR_JOBS = 4.0
_PRIOR_HAZARD: Floats = np.array([0.6] + [0.13] * (CELLS - 1))
"""The first cell reaches down to 0, over many factors of `GROWTH`."""
_LONGEST_S = 86_400.0
"""Of one that nobody has seen yet, device-seconds."""
_POOLED_JOBS = 10.0
"""A width's own counts weigh as much as the pool's once so many of its jobs were at risk in a cell."""


def cell_of(service_s: float) -> int:
    """The cell that a service falls into."""
    return min(bisect_right(_EDGES, service_s), CELLS - 1)


def cells_of(service_s: Floats) -> npt.NDArray[np.int64]:
    """`cell_of` of many, shape (n,)."""
    return np.minimum(np.searchsorted(EDGES, service_s, side="right"), CELLS - 1)


def width_class(devices: int) -> int:
    return min(WIDTHS - 1, max(0, devices - 1).bit_length())


class Learned:
    """Counts of ended jobs, and what follows from them as of the last `relearn`."""

    def __init__(self) -> None:
        self._ended = np.zeros((WIDTHS, CELLS))
        self._passed = np.zeros((WIDTHS, CELLS))
        """Ended jobs that were at risk in a cell."""
        self.count = 0
        self._learned_at = 0
        self._hazard: Floats = np.zeros((WIDTHS, CELLS))
        self._longest: Ints = np.zeros(WIDTHS, dtype=np.int64)
        """The last cell that a job of each width got to."""
        self._tables: dict[str, Floats] = {}
        """Of `TABLES`, those that somebody has asked for since the last `relearn`: most readers ask for none."""
        self._packed: dict[str, str] = {}
        self.relearn(np.zeros(0, dtype=np.int64), np.zeros(0))

    @property
    def price(self) -> Floats:
        """Expected device-seconds until one end, of a job of this width in this cell."""
        return self.table("price")

    @property
    def median(self) -> Floats:
        """Device-seconds that half of the jobs of this width that got to this cell take in all."""
        return self.table("median")

    @property
    def late(self) -> Floats:
        """... that nine of ten of them take at the most."""
        return self.table("late")

    @property
    def rest(self) -> Floats:
        """Mean of the device-seconds that a job of this width that got to this cell still takes."""
        return self.table("rest")

    def table(self, name: str) -> Floats:
        """One of `TABLES`, shape (WIDTHS, CELLS)."""
        found = self._tables.get(name)
        if found is None:
            rows = zip(self._hazard, self._longest.tolist(), strict=True)
            found = self._tables[name] = np.stack([_row(name, hazard.tobytes(), last) for hazard, last in rows])
        return found

    def packed(self, name: str) -> str:
        """One of `TABLES` as text: made once, however often it is dumped before the next `relearn`."""
        found = self._packed.get(name)
        if found is None:
            found = self._packed[name] = pack(self.table(name))
        return found

    def restore(self, tables: Mapping[str, Floats]) -> None:
        """All of `TABLES`, as they were dumped."""
        self._tables, self._packed = {name: tables[name] for name in TABLES}, {}

    def ended(self, devices: int, service_s: float) -> None:
        """A job ended by itself after this service."""
        width, cell = width_class(devices), cell_of(service_s)
        self._ended[width, cell] += 1
        self._passed[width, : cell + 1] += 1
        self.count += 1

    def foretold(self, devices: int) -> tuple[float, float]:
        """P50 and P90 of the service of a job of this width that has not begun, device-seconds."""
        width = width_class(devices)
        return float(self.median[width, 0]), float(self.late[width, 0])

    @property
    def due(self) -> bool:
        """A tenth more jobs have ended than when prices were worked out."""
        return self.count >= self._learned_at + max(4, self._learned_at // 10)

    def relearn(self, widths: npt.NDArray[np.int64], attained_s: Floats) -> None:
        """Works prices out again. The arrays are of the jobs that have not ended: width class and service so far."""
        risk = self._passed.copy()
        cells = cells_of(attained_s)
        reached = np.zeros((WIDTHS, CELLS))
        np.add.at(reached, (widths, cells), 1)
        risk[:, :-1] += np.cumsum(reached[:, ::-1], axis=1)[:, ::-1][:, 1:]  # they passed the cells before theirs
        pooled = (self._ended.sum(axis=0) + _PRIOR_JOBS * _PRIOR_HAZARD) / (risk.sum(axis=0) + _PRIOR_JOBS)
        hazard = (self._ended + _POOLED_JOBS * pooled) / (risk + _POOLED_JOBS)
        self._hazard = np.clip(hazard, 1e-9, 1 - 1e-9)
        self._longest = _longest(risk, self._ended)
        self._tables, self._packed = {}, {}
        self._learned_at = self.count


def pack(table: Floats) -> str:
    """Some thousands of numbers, exactly, in a twentieth of the time that decimals take."""
    return base64.b64encode(table.astype(_NUMBERS).tobytes()).decode()


def unpack(text: str) -> Floats:
    """The inverse of `pack`, of a table of shape (WIDTHS, CELLS)."""
    return np.frombuffer(base64.b64decode(text), dtype=_NUMBERS).reshape(WIDTHS, CELLS).astype(np.float64)


@lru_cache(maxsize=256)
def _row(name: str, hazard: bytes, last: int) -> Floats:
    """Of one width. Widths of which few ended have the same hazards, so most rows of a table are alike."""
    return TABLES[name](np.frombuffer(hazard), last)


def _quantiles(hazard: Floats, left: float) -> Floats:
    """For each cell the end of the first later one (or itself) by which but this part of those that
    began it have ended."""
    alive = np.concatenate([[1.0], np.cumprod(1 - hazard)])
    ends = np.searchsorted(-alive[1:], -alive[:-1] * left, side="left")
    result: Floats = EDGES[np.minimum(ends, CELLS - 1)]
    return result


def _longest(risk: Floats, ended: Floats) -> Ints:
    """The last cell that a job of each width got to; of all widths where few of one came."""
    seen = risk + ended > 0
    last: Ints = np.where(seen.any(axis=1), CELLS - 1 - np.argmax(seen[:, ::-1], axis=1), 0)
    return np.where(risk[:, 0] + ended[:, 0] >= _POOLED_JOBS, last, max(int(last.max()), cell_of(_LONGEST_S)))


def _rests(hazard: Floats, last: int) -> Floats:
    """For each cell the mean service that is still taken by those that began it. Nobody is imagined to get beyond `last`
    (Efron's correction of the tail, 1967): a heavy tail has no mean."""
    ends = np.where(np.arange(CELLS) < last, hazard, 1.0)
    result, behind = np.zeros(CELLS), 0.0
    for cell in range(CELLS - 1, -1, -1):
        behind = _SIZES[cell] * (1 - ends[cell] / 2) + (1 - ends[cell]) * behind
        result[cell] = behind
    return result


def _prices(hazard: Floats) -> Floats:
    """For each cell the least, over all later cells, of expected service up to the end of that cell by the chance of an end
    there."""
    alive = np.concatenate([[1.0], np.cumprod(1 - hazard)])
    served = np.concatenate([[0.0], np.cumsum(alive[:-1] * _SIZES * (1 - hazard / 2))])
    begin, until = np.arange(CELLS)[:, None], np.arange(1, CELLS + 1)[None, :]
    ends = np.maximum(alive[begin] - alive[until], 1e-12 * alive[begin])
    quotient = np.where(until > begin, (served[until] - served[begin]) / ends, np.inf)
    best: Floats = quotient.min(axis=1)
    return best


TABLES: Final[Mapping[str, Callable[[Floats, int], Floats]]] = {
    "price": lambda hazard, last: _prices(hazard),
    "median": lambda hazard, last: _quantiles(hazard, 0.5),
    "late": lambda hazard, last: _quantiles(hazard, 0.1),
    "rest": _rests,
}
"""What follows from the hazards of a width, and from the last cell that one of it got to."""
