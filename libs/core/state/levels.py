"""The levels of topology in order: the one home of what is nearer than what.

Devices are grouped from the NVLink island on. A job may also name `device`, which keeps its devices as near as its node does.
"""

from schemas.resources import Level

LEVELS: tuple[Level, ...] = tuple(level for level in Level if level is not Level.DEVICE)
"""The levels at which devices are grouped, nearest first."""
NODE_LEVELS = LEVELS[LEVELS.index(Level.NODE) :]
"""Those whose groups are made of whole nodes."""


def grouped(level: Level) -> Level:
    """The level at which the devices of a job that names `level` are grouped."""
    return Level.NODE if level is Level.DEVICE else level


def distance(level: Level) -> int:
    """How far `level` is, in levels from the nearest: of two the one with the larger number is wider."""
    return LEVELS.index(grouped(level))


def up_to(level: Level) -> tuple[Level, ...]:
    """`level` and all nearer ones, nearest first."""
    return LEVELS[: distance(level) + 1]


def beyond(level: Level) -> tuple[Level, ...]:
    """All that are wider than `level`, nearest first."""
    return LEVELS[distance(level) + 1 :]
