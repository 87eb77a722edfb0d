"""Records a refused quota command in the ledger beside its dead letter. Both are stored before the command is
acknowledged."""

from collections.abc import Callable

from libs.bus.dead import dead_letter
from libs.bus.messages import Malformed, Outgoing
from libs.bus.settle import Received
from libs.core.admission.refusals import Refusals
from libs.service.refused import refusal_told, refused_command
from schemas import subjects

ORIGIN = "quota_billing"


class RefusedQuotas:
    """Wraps `decide`, one per process. If `decide` raises Malformed, the refusal is recorded as well."""

    def __init__(self, pool: str, policy: str, decide: Callable[[Received], list[Outgoing]]) -> None:
        self._pool, self._policy, self._decide = pool, policy, decide
        self._refusals = Refusals()
        """Limits refusals, so that a flood of bad commands cannot fill the ledger (see the class)."""

    def __call__(self, received: Received) -> list[Outgoing]:
        """The result of `decide`, or a dead letter and a refusal in the ledger. Raises what `decide` raises, except
        Malformed for a command whose subject names its sender."""
        try:
            return self._decide(received)
        except Malformed as error:
            command = refused_command(
                received, subjects.POOL_COMMAND, service="quota_billing", reason=str(error), policy=self._policy
            )
            if command is None:
                raise
            line = self._refusals.note(command, received.time_us)
            letter = dead_letter(ORIGIN, received, str(error))
            return [letter] if line is None else [letter, refusal_told(line, self._pool, "quota")]
