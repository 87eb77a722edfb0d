"""Which devices are kept free for which gang, so that large gangs do not starve behind small jobs.

A gang whose reservation is due (`order.is_due`) and that does not fit keeps the devices where it will fit
soonest from every job behind it in the order; backfill goes on elsewhere. `Policy.reservations` gangs at a time, the first
in the order. None is kept for a gang that waits for its team's limit, nor for one for which devices are held already.
Devices that are held for a job are never reserved, and such a job may not use what is reserved for a gang ahead of it: else
it would start there, and its victims would have stopped for nothing.

All of it is pure. `Reservations` marks devices in `View.blocked`, which belongs to one cycle. The ledger remembers nothing
of it; the next cycle decides again where a gang will fit soonest.

The caller decides the order of the gangs, and whether they fit. The cycle calls `Reservations.keep` job
by job as it goes; `kept` and `keep_ahead` do the same for all gangs ahead of one job, for explain and the dry run.
"""

from libs.core.scheduling.reservation.keep import KeptRows, Reservations, keep_ahead, kept, reserve

__all__ = ["KeptRows", "Reservations", "keep_ahead", "kept", "reserve"]
