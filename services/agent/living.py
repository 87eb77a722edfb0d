"""The interface of a node's current life, for the parts that handle one aspect of it (boards, quarantine)."""

from collections.abc import Callable
from typing import Protocol


class LivingNode(Protocol):
    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def dying(self) -> bool:
        """Its life is ending: its observations are no longer reported."""
        ...
