"""How much more a team may hold: one rule for every comparison with a limit.

`room` says how large a request of a shape may be now, on which device models, or which limit is reached;
`exceeded` judges a placement that is there already. A team may have a limit on all accelerators, on device types and on MIG
profiles; each counts what its key names (`libs.core.accelerators.kinds.weight`): a 1g slice of seven is a seventh of a board,
a share is its share, a CPU is no accelerator. A request must be within all of them, and gets everything or nothing.

All of it is pure. `Tally` counts what teams hold while a plan is made; it reads a state and changes only itself.

The caller decides where the request goes (`Room.request` carries the caps that `find` keeps to) and who is told what
(`Reached.text`). A limit that is lowered evicts nobody.

A team may be under budgets as well (`budget_headroom`): a grant takes a hold, for its whole time limit or for one renewal, and
the hold must be covered by what is available of every budget that counts the team. A request is as large as that allows.
"""

from libs.core.scheduling.limits.budget_headroom import BudgetHeadroom, BudgetShort, headrooms_of, hold_of, prices_of
from libs.core.scheduling.limits.rule import (
    OVER_BUDGET,
    OVER_LIMIT,
    KeptUse,
    LimitsUse,
    Reached,
    Room,
    exceeded,
    room,
    room_within,
)
from libs.core.scheduling.limits.tally import Tally

__all__ = [
    "OVER_BUDGET",
    "OVER_LIMIT",
    "BudgetHeadroom",
    "BudgetShort",
    "KeptUse",
    "LimitsUse",
    "Reached",
    "Room",
    "Tally",
    "exceeded",
    "headrooms_of",
    "hold_of",
    "prices_of",
    "room",
    "room_within",
]
