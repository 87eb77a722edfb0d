"""The orders that a queue may have within a class, as one number per job: the lower comes first.

| rule | the number | gives way within its class |
|---|---|---|
| `fifo` | none: age alone | no |
| `fair-share` | none: what the team holds, then age | no |
| `least-attained` | the level of attained service (Tiresias, NSDI 2019, with many levels) | yes |
| `shortest-remaining` | remaining service where it is known (SRSF), else the learned price of an end (`learned`) | yes |

Service is device-seconds, so a gang of eight counts eight times. `shortest-remaining` is the default of the simulator. A
job that reports its progress is looked at first: until it has run for `look_s` it counts with what is left of that, because
its rate is known then. What a job declares or reports orders it among the jobs of its own team only where teams compete
(the share of the team stands before this number).
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from libs.core.scheduling.precedence.learned import Floats, Ints, Learned, cells_of, width_class


class OrderRule(StrEnum):
    FIFO = "fifo"
    FAIR_SHARE = "fair-share"
    LEAST_ATTAINED = "least-attained"
    SHORTEST_REMAINING = "shortest-remaining"


EXCHANGING = (OrderRule.LEAST_ATTAINED, OrderRule.SHORTEST_REMAINING)
"""Jobs of one class and team give way to each other."""
CODES = {rule: code for code, rule in enumerate(EXCHANGING, 1)}
"""As columns of numbers have it; 0: none of them."""

DEFAULT_RULE = OrderRule.SHORTEST_REMAINING


@dataclass(frozen=True, slots=True)
class OrderKnobs:
    """What an operator may set of a rule that preempts within its class."""

    look_s: float = 60.0
    """How long a job that reports its progress runs before its rate counts."""
    ahead: float = 1.05
    """A job gives way only to one whose number is smaller by this factor: else two of a kind take turns."""
    loss_s: float = 30.0
    """What a preemption costs each device, s: lost work and restart. The number of who gives way must exceed the other's by
    `loss_worth` times what is lost."""
    loss_worth: float = 1.0
    min_run_s: float = 60.0
    """A job runs so long before it gives way within its class."""
    move_run_s: float = 600.0
    """... and so long before it is moved for a gang that stands behind it: it loses a twentieth of its time at the most."""
    age_s: float = 30 * 86_400.0
    """A job that has waited so long in one stretch comes before all of its class, the oldest first."""
    slice_s: float = 600.0
    """... and keeps its devices at least so long then."""
    in_turn: float = 1.5
    """A gang comes before all when it has waited this many times as long as all that stood there when it came takes on all
    devices: about what it had waited in order of age. Then it keeps its devices for its turn. 0: no gang does."""
    in_turn_least_s: float = 3600.0
    """... and after no less than this: who finds the pool idle is as any other."""
    in_turn_most_s: float = 2 * 86_400.0
    """... if that was no more than this. In a standing overload nobody can have its turn in time, and the short ones would
    wait with the long ones."""
    in_turn_ends: int = 30
    """... and if so many jobs have ended by then, or it is known how long all take: of fewer nobody knows what stands there."""
    own_turn: float = 1.0
    """... and after no less than this many times as long as it runs itself, by what is known of it or learned."""
    turn_most_s: float = 5400.0
    """... if all devices would do what is left of it within this (twice this where it is known); and for so much service it
    keeps its devices: so much may one turn delay all others."""
    turn_worth: float = 2.0
    """... and not before it has waited this part of what its turn makes all others wait together: one by two."""
    promise_margin: float = 1.1
    """What is promised, by what is expected."""
    lead_s: float = 30.0
    """So long before its promise, and at most a twentieth of what it will have waited, a gang falls due: also those give way to
    it then that have not run their minimum."""


LEVEL_FIRST_S, LEVEL_GROWTH, LEVELS = 0.3 * 3600, 3.0, 16
_LEVEL_EDGES: Floats = LEVEL_FIRST_S * LEVEL_GROWTH ** np.arange(LEVELS - 1, dtype=np.float64)


def numbers(
    rule: OrderRule, learned: Learned, widths: Ints, attained_s: Floats, total_s: Floats, looked_at: Floats
) -> Floats:
    """The number of each job, all arrays of shape (n,). `total_s`: NaN where nobody knows; `looked_at`: device-seconds up to
    which a job is looked at (0: it is not)."""
    if rule is OrderRule.LEAST_ATTAINED:
        levels: Floats = np.searchsorted(_LEVEL_EDGES, attained_s, side="right").astype(np.float64)
        return LEVEL_FIRST_S * LEVEL_GROWTH**levels
    if rule is not OrderRule.SHORTEST_REMAINING:
        return np.zeros(len(widths))
    prices = learned.price[classes_of(widths), cells_of(attained_s)]
    known = ~np.isnan(total_s)
    result: Floats = np.where(known, np.maximum(0.0, np.where(known, total_s, 0.0) - attained_s), prices)
    looks = (attained_s < looked_at) & ~known
    result[looks] = np.minimum(result, looked_at - attained_s)[looks]
    return result


def classes_of(widths: Ints) -> Ints:
    """The class of each width."""
    result: Ints = _CLASSES[np.minimum(widths, len(_CLASSES) - 1)]
    return result


def next_edges(rule: OrderRule, attained_s: Floats, edges: Floats) -> Floats:
    """The attained service at which each job's number may change next."""
    limits = _LEVEL_EDGES if rule is OrderRule.LEAST_ATTAINED else edges
    at = np.searchsorted(limits, attained_s + 1e-6, side="right")
    result: Floats = np.where(at < len(limits), limits[np.minimum(at, len(limits) - 1)], np.inf)
    return result


_CLASSES: Ints = np.array([width_class(n) for n in range(1, 2050)], dtype=np.int64)
_CLASSES = np.concatenate([_CLASSES[:1], _CLASSES])
