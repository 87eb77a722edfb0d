"""Which time limit a job gets that says none, and the longest that it may ask for: of its class and of its team's queue the
shorter, as Slurm has DefaultTime and MaxTime of a partition beside those of a QOS."""

from collections.abc import Iterator
from typing import NamedTuple

from libs.core.admission.priority_class import PriorityClass
from libs.core.admission.refusal import Refusal, RefusalCause, refuse
from libs.core.state.queue_tree import QueueTree
from schemas.jobs import JobSpec


class TimeLimits(NamedTuple):
    """Seconds; None: there is none."""

    default_s: int | None
    longest_s: int | None
    longest_of: str
    """Who says the longest, in words."""

    def of(self, job: JobSpec) -> float:
        """The limit with which a job runs, s; 0: none."""
        return job.time_limit_s or self.default_s or 0

    def refusals(self, job: JobSpec) -> Iterator[Refusal]:
        """Of a job that asks for more."""
        if self.longest_s is not None and job.time_limit_s > self.longest_s:
            yield refuse(
                RefusalCause.TIME_LIMIT,
                "job.time_limit_s",
                f"{job.time_limit_s:g}",
                f"{self.longest_of} lets a job run for {self.longest_s} s",
                f"use at most {self.longest_s}, and save checkpoints to go on in a new job",
            )


def time_limits(team: str, priority_class: PriorityClass, tree: QueueTree) -> TimeLimits:
    """Those that hold for a team's jobs of a class. Without a default the longest is the default, too."""
    of_class, of_queue = priority_class.longest_time_limit_s, tree.longest_time_limit_s(team)
    longest_s = _shorter(of_class, of_queue)
    by_class = longest_s == of_class
    default_s = _shorter(priority_class.default_time_limit_s, tree.default_time_limit_s(team))
    return TimeLimits(
        _shorter(default_s, longest_s),
        longest_s,
        f"class {priority_class.name}" if by_class else f"the queue of team {team}",
    )


def _shorter(one: int | None, other: int | None) -> int | None:
    return other if one is None or (other is not None and other < one) else one
