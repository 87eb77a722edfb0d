"""Kinds of jobs: jobs of one kind have the same class and the same request, so placement has one queue for all that wait. The
cost of a cycle grows with the kinds that wait, not with the jobs; so the number of kinds of a team is limited
(`IntakeLimits`)."""

from collections.abc import Collection
from functools import lru_cache
from hashlib import blake2b

from libs.core.state.job import QueueKey

_CACHED = 4096
_MASK = 0x7FFFFFFF
"""A number of 31 bits lies in a row for nothing more. Two kinds in some thousands that are taken for one do no harm."""
_WITH_ROLES = 0x80000000
WITH_ROLES_AS = 16
"""So many kinds one with roles counts for: to see that it does not fit, placement packs it."""


@lru_cache(maxsize=_CACHED)
def kind_of(queue: QueueKey) -> int:
    """The kind of the jobs that would wait in `queue`: the same number in each process."""
    number = int.from_bytes(blake2b(repr(queue).encode(), digest_size=4).digest(), "big") & _MASK
    return number | _WITH_ROLES if queue.shape.roles else number


def counted(kinds: Collection[int]) -> int:
    """For how many kinds these count."""
    return len(kinds) + (WITH_ROLES_AS - 1) * sum(kind > _MASK for kind in kinds)
