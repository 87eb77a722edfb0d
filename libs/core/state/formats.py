"""In which format of the ledger each kind of event came, and whether a writer may use it yet. Pure.

A reader that meets a kind which it does not know stops; 0.1.0 stops even at kinds that are marked skippable. So a writer uses
the kinds of a format only once every reader of the pool's ledger understands it (`libs.ledger.readers` finds that out). Until
then each decision falls back to what the format before it could say:

    plan.declined           an input.rejected, with the same text
    board.recut-withdrawn   the repartition stays under way
    clock.jumped            left out: ledger time does not jump either way
    lease.granter           not named: leases are granted by whoever has its ticks stored: of those that
                            are heard, the first by name
    node.silent, .heard     left out: a silent node is given up as a whole, when its longest lease has ended
    node.declared-dead      left out: the reason of node.left says it
    device.quarantined      left out, .returned too: the node refuses what it is granted there
    attempt.progress        left out: jobs are ordered as if none told how far it is
    gang.promised           left out: a gang waits as it did, and is told nothing
    operator.acted          left out, and command.refused: the operator's book and the team's answer have them
    ledger.summed           left out: teams have their lines, and nothing to check them by
    job.boosted             refused: the job keeps its place
    prices.applied          refused: prices stay those of the file
    period.closed           refused: the period stays open
    budgets.applied         refused, and with it all that is told of budgets
    disk-limit              `user-error`, as the agent says beside it
    a back-off              left out of job.requeued: a job that was lost again runs again at once
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from schemas.ledger import EVENT_KINDS

FIRST = 1
"""Release 0.1.0. Its readers do not declare what they understand."""
NEWEST = 2
"""What this code reads and, when it may, writes."""

DISK_LIMIT = 2
"""From this format on, `devices.freed` and `attempt.closed` may have the category of that name; before, `user-error`."""
BACK_OFF = 2
"""From this format on, `job.requeued` may say that its job must wait."""

_FIRST_KINDS = frozenset({
    "node.joined", "node.left", "quota.set", "job.queued", "job.granted", "attempt.running", "attempt.starting",
    "attempt.checkpointed", "attempt.preempting", "attempt.stopping", "devices.freed", "attempt.closed", "job.requeued",
    "job.finished", "devices.held", "hold.released", "board.recut", "board.cut", "input.rejected",
})  # fmt: skip

FORMAT_OF: Mapping[str, int] = MappingProxyType(
    {kind: FIRST if kind in _FIRST_KINDS else NEWEST for kind in EVENT_KINDS}
)
"""Kind of event -> the format in which it came. A later format lists its kinds beside these."""


def may_emit(kind: str, allowed: int) -> bool:
    """Whether an event of this kind may be written while the pool's format is `allowed`. Raises KeyError for no kind."""
    return FORMAT_OF[kind] <= allowed


def understood(formats: Iterable[int]) -> int:
    """The newest format that all of these readers understand; without any, the newest there is."""
    return min(formats, default=NEWEST)
