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
    node.cordoned           refused: the node stays in use
    devices.reserved        left out: what is kept for a gang is idle in the accounts
    devices.fragmented      left out: what is idle is not split
    attempt.progress        left out: jobs are ordered as if none told how far it is
    gang.promised           left out: a gang waits as it did, and is told nothing
    operator.acted          left out, and command.refused: the operator's book and the team's answer have them
    ledger.summed           left out: teams have their lines, and nothing to check them by
    job.boosted             refused: the job keeps its place
    prices.applied          refused: prices stay those of the file; one with credits is refused before the fourth format
    period.closed           refused: the period stays open
    budgets.applied         refused, and with it all that is told of budgets
    disk-limit              `user-error`, as the agent says beside it
    team.left               refused: nodes keep the team's files
    a back-off              left out of job.requeued: a job that was lost again, or failed again, runs again at once
    what is not credited    left out: it is credited
    a gang's own delay      left out of gang.promised and job.granted: it is credited
    what counts for no rate left out: who gives way for its own team counts as for others
    for whom a board is cut left out: cuts count for no team
"""

from collections.abc import Mapping
from types import MappingProxyType

from schemas.ledger import EVENT_KINDS

KINDS: tuple[frozenset[str], ...] = (
    frozenset({  # release 0.1.0, whose readers do not declare what they understand
        "node.joined", "node.left", "quota.set", "job.queued", "job.granted", "attempt.running", "attempt.starting",
        "attempt.checkpointed", "attempt.preempting", "attempt.stopping", "devices.freed", "attempt.closed", "job.requeued",
        "job.finished", "devices.held", "hold.released", "board.recut", "board.cut", "input.rejected",
    }),
    frozenset({
        "attempt.progress", "board.recut-withdrawn", "budget.holds-renewed", "budget.period-began", "budget.reached",
        "budget.topped-up", "budgets.applied", "clock.jumped", "command.refused", "device.quarantined", "device.returned",
        "gang.promised", "job.boost-ended", "job.boosted", "lease.granter", "ledger.summed", "node.declared-dead", "node.heard",
        "node.silent", "operator.acted", "period.closed", "plan.declined", "prices.applied", "queues.applied", "segment.sealed",
        "team.resumed", "team.suspended",
    }),
    frozenset(),  # no kinds: rules that came while records of the second format were written (below)
    frozenset({"devices.reserved", "node.cordoned", "node.uncordoned"}),
    frozenset({"devices.fragmented"}),
    frozenset(),  # no kinds: jobs that fail wait, too
    frozenset({"team.left"}),
    frozenset(),  # no kinds: what a team can bring about by itself is not credited
    frozenset(),  # no kinds: nor a start that its own jobs put off
    frozenset(),  # no kinds: what gives way for its own team keeps no other team from making others give way
    frozenset(),  # no kinds: boards are cut for a job, and its team has so many cuts
)  # fmt: skip
"""What each format has brought, from the first on. A list is never changed: somewhere a reader runs that declares this format
and knows just these. A new kind begins the next list, however soon that comes. So does a rule by which the checker would find
fault with what an older writer decided; such a list may be empty."""

FIRST = 1
"""Release 0.1.0."""

_LISTED = MappingProxyType({kind: number for number, kinds in enumerate(KINDS, FIRST) for kind in kinds})
FORMAT_OF: Mapping[str, int] = MappingProxyType({kind: _LISTED.get(kind, len(KINDS) + 1) for kind in EVENT_KINDS})
"""Kind of event -> the format in which it came. One that is in no list comes after all that are."""
NEWEST = max(len(KINDS), *FORMAT_OF.values())
"""What this code reads and, when it may, writes."""

DISK_LIMIT = 2
"""From this format on, `devices.freed` and `attempt.closed` may have the category of that name; before, `user-error`."""
BACK_OFF = 2
"""From this format on, `job.requeued` may say that its job must wait: it was lost several times in a row."""
BACK_OFF_FAILURES = 6
"""From this format on, also because it failed."""
CREDITED = 4
"""From this format on, a price book may say what bills give back."""
UNCREDITED = 8
"""From this format on, `devices.freed` and `attempt.preempting` may say that nothing is credited for them: a reader that does
not know it credits it, and its bills would differ."""
OWN_DELAY = 9
"""From this format on, `gang.promised` names the jobs of the gang's team that are expected to run on, and `job.granted` says
since when only others of its team kept it waiting: nothing is credited for that."""
OWN_UNCOUNTED = 10
"""From this format on, `attempt.preempting` says of a job that gives way for its own team that it does not count for the rates
of preemption: a checker that does not know it would find that more gave way than may."""
CUTS_COUNTED = 11
"""From this format on, `board.recut` names the job that the board is cut for, and a team has no more cuts than
`libs.core.state.unused_cuts` says. A release of before that writes on names none, and none of it counts."""
COUNTS_ONCE = 3
"""From this format on, what is kept for a job is its own at a limit only once those that give way for it are gone. Before, it
was its own at once (0.1.0 grants other devices than those that were kept as soon as they are free), or either."""
PREEMPTION_LIMITED = 3
"""From this format on, jobs give way no more often than the defaults of `schemas.queues.PreemptionLimits` say, where no limits
are applied. Before, there were none but those that were."""


def may_emit(kind: str, allowed: int) -> bool:
    """Whether an event of this kind may be written while the pool's format is `allowed`. Raises KeyError for no kind."""
    return FORMAT_OF[kind] <= allowed
