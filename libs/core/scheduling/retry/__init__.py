"""What becomes of a job whose attempt has ended: `classify` says what kind of end it was, `decide` whether it runs again.

`POLICY` is the whole of it: a row per category says which budget pays for a further attempt, how the attempt is booked,
and in which state the job ends when nothing pays. `retry.on_failure` is the user's budget, counted per category in
`Job.endings`. A lost node, a device that failed or a refused start cost none: they are bounded by a policy of their own, which
counts them in a row and makes the job wait (`losses`), so that a job cannot go round for ever on a pool that it breaks, or
that is broken. Giving way to others and leaving a node in good order cost nothing. What was decided on purpose (cancelled,
over its time) is never tried again.

Pure: an attempt or its end in, a category or a state out. The caller emits the events (`reactions.attempts`); the fold
counts (`libs.core.state.fold`); agents say what they know beyond the exit code (`schemas.attempts.KnownByAgent`).
"""

from libs.core.scheduling.retry.classify import Ending, classify, ending_of
from libs.core.scheduling.retry.decide import POLICY, Budget, RetryRule, decide, used
from libs.core.scheduling.retry.losses import in_a_row, wait_us, why_it_ends

__all__ = [
    "POLICY", "Budget", "Ending", "RetryRule", "classify", "decide", "ending_of", "in_a_row", "used", "wait_us", "why_it_ends",
]  # fmt: skip
