"""Kinds of jobs: those of a kind ask for the same, in one class, so placement has one queue for all of them that wait. What a
cycle costs grows with the kinds that wait, not with the jobs; so how many kinds a team may have is limited (`IntakeLimits`)."""

from functools import lru_cache
from hashlib import blake2b

from libs.core.state.shape import Shape, shape_of
from schemas.jobs import JobSpec, Network

_CACHED = 4096
_MASK = 0x7FFFFFFF
"""A number of 31 bits lies in a row for nothing more. Two kinds in some thousands that are taken for one do no harm."""


def kind_of(spec: JobSpec, network: Network, priority: int, preempts: bool, user: str) -> int:
    """The job's kind; the same in each process. `user`: where the users of a team have queues of their own
    (`QueueTree.by_user`), else empty."""
    return _kind_of(shape_of(spec, network), priority, preempts, user)


@lru_cache(maxsize=_CACHED)
def _kind_of(shape: Shape, priority: int, preempts: bool, user: str) -> int:
    said = repr((shape, priority, preempts, user)).encode()
    return int.from_bytes(blake2b(said, digest_size=4).digest(), "big") & _MASK
