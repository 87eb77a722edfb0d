"""A command that is refused has a line in the ledger, beside its dead letter: both are stored before it is settled."""

from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError

from libs.bus.dead import dead_letter
from libs.bus.messages import Malformed, Outgoing, outgoing
from libs.bus.settle import Received
from libs.core.admission.refusals import Refusals
from schemas import subjects
from schemas.audit import RefusedCommand
from schemas.ids import content_hash
from schemas.inbox import RefusalTold

ORIGIN = "quota_billing"
_TYPE = "io.baton.quota.refused.v1"


class RefusedQuotas:
    """Of one process. `decide` is what follows from a command; where it raises Malformed, that is told as well."""

    def __init__(self, pool: str, policy: str, decide: Callable[[Received], list[Outgoing]]) -> None:
        self._pool, self._policy, self._decide = pool, policy, decide
        self._refusals = Refusals()
        """Who floods us with bad commands fills no ledger: see there."""

    def __call__(self, received: Received) -> list[Outgoing]:
        """What follows, or dead letter and line. Raises what `decide` raises, but for Malformed of a command whose sender its
        subject tells."""
        try:
            return self._decide(received)
        except Malformed as error:
            command = self._command(received, str(error))
            if command is None:
                raise
            line = self._refusals.note(command, received.time_us)
            letter = dead_letter(ORIGIN, received, str(error))
            return [letter] if line is None else [letter, self._told(line)]

    def _command(self, received: Received, why: str) -> RefusedCommand | None:
        with suppress(ValueError, ValidationError):
            keys = subjects.read(subjects.POOL_COMMAND, received.subject)
            return RefusedCommand(
                service="quota_billing",
                what=keys["what"],
                team=keys["team"],
                user=keys["user"],
                cause=received.cause,
                stored_us=received.time_us,
                digest=content_hash(received.payload),
                reason=why[:512],
                policy=self._policy,
            )
        return None

    def _told(self, line: RefusedCommand) -> Outgoing:
        return outgoing(
            RefusalTold(command=line),
            subject=subjects.inbox("quota", "refused", self._pool),
            type=_TYPE,
            source=f"/baton/{self._pool}/{ORIGIN}",
            cause=line.cause,
        )
