"""How much more a team may hold: one rule for every comparison with a limit.

`room` says how large a request of a shape may be now, on which device models, or which limit is reached;
`exceeded` judges a placement that is there already. A team may have a limit on all accelerators, on device types and on MIG
profiles; each counts what its key names (`libs.core.accelerators.kinds.weight`): a 1g slice of seven is a seventh of a board,
a share is its share, a CPU is no accelerator. A request must be within all of them, and gets everything or nothing.

All of it is pure. `Tally` counts what teams hold while a plan is made; it reads a state and changes only itself.

The caller decides where the request goes (`Room.request` carries the caps that `find` keeps to) and who is told what
(`Reached.text`). A limit that is lowered evicts nobody.
"""

from libs.core.scheduling.limits.rule import OVER_LIMIT, LimitsUse, Reached, Room, exceeded, room, room_within
from libs.core.scheduling.limits.tally import Tally

__all__ = ["OVER_LIMIT", "LimitsUse", "Reached", "Room", "Tally", "exceeded", "room", "room_within"]
