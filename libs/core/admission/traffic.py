"""Limits on the traffic between the broker and a team, from an operator's file, and defaults for everybody. Pure.

Counted are messages, not requests: all that a team publishes, whatever becomes of it, and all that it receives, each copy of
an answer or an event by itself. An honest team stays far below; one that goes beyond is disconnected for a while
(`libs.walls.floods`).
"""

from typing import Final

from pydantic import Field

from schemas.base import Strict

AT_ONCE_S: Final = 5.0
"""So many seconds' worth may come at once."""
_MIB = 1024 * 1024


class TrafficLimits(Strict):
    """Of a team's connections together; null: no such limit."""

    said_per_s: float | None = Field(default=5_000, ge=1, le=1e9, description="messages that it says")
    said_bytes_per_s: float | None = Field(default=32 * _MIB, ge=1, le=1e12)
    heard_per_s: float | None = Field(default=100_000, ge=1, le=1e9, description="messages that it hears, each copy")
    heard_bytes_per_s: float | None = Field(default=128 * _MIB, ge=1, le=1e12)

    def but(self, own: "TrafficLimits") -> "TrafficLimits":
        """These, with what `own` says in its place."""
        return self.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


EVERYBODYS: Final = TrafficLimits()
"""What a broker on two processors can carry for a team beside others. Who submits as fast as a team may says 1,000 a second."""
