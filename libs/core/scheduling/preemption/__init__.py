"""Who gives way to whom. Pure: plans over a state; the caller publishes them, and placement checks them again."""

from libs.core.scheduling.preemption.victims import VictimChoice, choice_for, choices, cost_device_s, plans

__all__ = ["VictimChoice", "choice_for", "choices", "cost_device_s", "plans"]
