"""Which devices are kept free for which job, so that large gangs do not starve behind small jobs.

A gang whose reservation is due (`order.is_due`) and that does not fit keeps the devices where it will fit
soonest from the jobs behind it in the order. `Policy.reservations` gangs at a time, the first in the order. None is kept for a
gang that waits for its team's limit, nor for one for which devices are held already.

**A job of one device** is kept one after the same wait, where smaller jobs would take it piece by piece: some device that it
could use is taken in part, or of the node of a free one are processors or memory (`parted`). It comes no earlier for that: the
device is kept from those behind it in the order.

**With devices go processors and memory** (`host`): as much as the job needs of each node. Who wants none of them runs on the
node's other devices.

**Backfill.** What is kept is open to a job that has ended, as its time limit says, by the start that the gang was promised
(`promises`): EASY backfill (Lifka, "The ANL/IBM SP Scheduling System", 1995), with as many reservations at once as the policy
says (Jackson et al., "Core Algorithms of the Maui Scheduler", 2001). Where a gang was promised nothing, it is open to none. Of
the jobs of a queue (which have limits of one class) only the first is looked at.

**A gang that waits for its own team.** If it would not fit even if the jobs of all other teams had ended, it keeps devices from
jobs of its own team only: what a team leaves idle for as long as it likes, others may use.

Devices that are held for a job are never reserved, and such a job may not use what is reserved for a gang ahead of it: else
it would start there, and its victims would have stopped for nothing. For the same reason nobody is kept what the held devices
need of their nodes.

All of it is pure. `Reservations` says which devices are closed to a job in one cycle, and shows them in `View.blocked`; what
is kept of nodes is not free in the view. The ledger remembers nothing of it but what it told for the accounts; the next cycle
decides again where a gang will fit soonest.

The caller decides the order of the gangs, and whether they fit. The cycle calls `Reservations.keep` job
by job as it goes; `kept` and `keep_ahead` do the same for all gangs ahead of one job, for explain and the dry run.
"""

from libs.core.scheduling.reservation.keep import Closed, KeptDevices, KeptRows, Reservations, keep_ahead, kept
from libs.core.scheduling.reservation.parted import PartedDevices, is_kept_for
from libs.core.scheduling.reservation.soonest import reserve

__all__ = [
    "Closed",
    "KeptDevices",
    "KeptRows",
    "PartedDevices",
    "Reservations",
    "is_kept_for",
    "keep_ahead",
    "kept",
    "reserve",
]
