"""What giving way costs: the work since the last checkpoint, on all devices of the gang, and a restart.

All devices of the gang redo its work since the checkpoint, also those that the beneficiary does not need.
"""

from libs.core.state.job import Job

RESTART_S = 30.0
"""What a restart costs a gang besides lost work, s per device: start, load of the checkpoint, warm-up."""

ClassCosts = tuple[int, ...]
"""What a set of victims costs, thousandths of device-seconds per class, highest class first.

Tuples compare class by class from the highest down, which is the order that victims are chosen in. Whole numbers, so that
sums do not depend on their order.
"""


def cost_device_s(job: Job, t_us: int) -> float:
    """What preempting `job` at `t_us` throws away, device-seconds. It is above 0, because a restart always costs."""
    attempt = job.current
    assert attempt is not None
    since_us = attempt.checkpoint_us or attempt.running_us or t_us
    return sum(c.milli for c in attempt.claims) / 1000 * ((t_us - since_us) / 1e6 + RESTART_S)


def in_thousandths(cost_s: float) -> int:
    """A cost in device-seconds as `ClassCosts` counts it; at least 1, so that no victim is free."""
    return max(1, round(cost_s * 1000))
