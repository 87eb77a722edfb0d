"""Whether a waiting job waits for a limit on preemption: others would give way to it, and are spared for now."""

from libs.core.scheduling.policy import Policy
from libs.core.scheduling.preemption import EVERYBODY, choice_for
from libs.core.scheduling.preemption_guard import PreemptionGuard
from libs.core.state.job import Job
from libs.core.state.model import State, running


def kept_back(state: State, job: Job, policy: Policy) -> str:
    """Which limit, in words that name no job of others; "": none. Costs two plans of preemption, where a limit holds now."""
    if not job.preempts and not len(state.tree):
        return ""
    guard = PreemptionGuard(state, state.t_us)
    full: set[str] = set()
    if not guard.next_change_us(running(state)) or choice_for(state, job, state.t_us, policy, full=full) is not None:
        return ""
    choice = choice_for(state, job, state.t_us, policy, PreemptionGuard(state, state.t_us, lifted=True))
    if choice is None:
        return ""
    lent = choice.takes_back is not None
    last = max(choice.victims, key=lambda victim: guard.until_us(victim, lent=lent, evens=choice.evens))
    if guard.until_us(last, lent=lent, evens=choice.evens):
        why = guard.text(last, lent=lent, evens=choice.evens)
        return f"others would give way to it, and one of them is spared for now: {why}"
    if not guard.together(len(choice.victims), job.team):
        return f"others would give way to it, and too many did lately: {guard.pool_text(len(choice.victims), job.team)}"
    if not full.isdisjoint((job.team, EVERYBODY)):
        return f"others would give way to it, and too many did lately for a job before it, which goes first: {guard.rate_text}"
    return ""
