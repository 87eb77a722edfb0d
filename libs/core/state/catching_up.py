"""Whether what is decided now lies so far in the past that nothing may begin with it. Pure.

A decision is of the time at which its inputs were stored. Where the ledger's writer was away while all others ran on, its inbox
holds minutes of inputs and ticks. Decided with their old times, a device that is free, or that an old input frees, would be
granted minutes ago, and the time until the node hears of it, which is now, be billed. So the writer first catches up:

    at most `STEP_US` behind the newest stored input    it decides the present
    more                                                nothing begins until what was stored by now is decided: a round
    in a round, with the newest that is known           it decides the present again
    at the end of a round, at most half as far behind   another round
    at the end of a round, more than half               it is overloaded and not catching up: it decides all in the next round

With the first three lines alone, a writer whose lag stays at ten seconds would never grant again. As each round has to halve
the lag, nothing waits for longer than twice the time that the writer lay behind when it began.
"""

from dataclasses import dataclass, replace

from libs.core.state.clock import STEP_US


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """Where a writer is with it. All times are the broker's."""

    until_us: int = 0
    """The round ends with what was stored then; 0: there is none."""
    behind_us: int = 0
    """How much it lay behind when the round began."""
    waits: bool = False
    """Nothing may begin now."""

    def decides(self, input_us: int, newest_us: int) -> "CatchingUp":
        """At a decision whose last input was stored at `input_us`. The newest that is known of was stored at `newest_us`."""
        behind_us = newest_us - input_us
        if behind_us <= (0 if self.until_us else STEP_US):
            return CatchingUp()
        if not self.until_us:
            return CatchingUp(newest_us, behind_us, waits=True)
        if input_us < self.until_us:
            return self
        return replace(self, until_us=newest_us, behind_us=behind_us, waits=2 * behind_us <= self.behind_us)
