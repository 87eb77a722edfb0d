"""What can go wrong for a client, each with what happened, why, and what to do. The CLI maps them to exit codes."""

from collections.abc import Sequence
from datetime import UTC, datetime

from schemas.jobs import Reason
from schemas.queries import JobDocument


class ClientError(Exception):
    """The common root: `what` happened, `why`, and the `fix`; `reasons` say why field by field, where that is known."""

    def __init__(self, what: str, why: str = "", fix: str = "", *, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(". ".join(part for part in (what, why, fix) if part))
        self.what, self.why, self.fix = what, why, fix
        self.reasons = tuple(reasons)

    @property
    def causes(self) -> tuple[str, ...]:
        """One text for each reason; without reasons, `why` as it is."""
        return tuple(map(_text, self.reasons)) or ((self.why,) if self.why else ())


class Unreachable(ClientError):
    """NATS cannot be reached, or the service that owns the answer stays silent."""


class Denied(ClientError):
    """The credential does not allow this subject."""


class NeedsOperator(Denied):
    """Only an operator may, and the credential is somebody else's."""

    def __init__(self, why: str) -> None:
        fix = "set BATON_NATS_CREDS to an operator's, or ask an operator to do it"
        super().__init__("refused: needs an operator's credential", why, fix)


class NotFound(ClientError):
    """No such job, node or log; another team's looks exactly like one that does not exist."""


class HasEnded(NotFound):
    """The job neither waits nor runs any more; `document` is all that history has of it."""

    def __init__(self, document: JobDocument) -> None:
        at_us, number = document.finished_us, len(document.attempts)
        at = "" if at_us is None else f" at {datetime.fromtimestamp(at_us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        tried = "" if not number else f", after {number} attempt{'' if number == 1 else 's'}"
        super().__init__(
            f"{document.job_id} has ended: {document.state.value}{at}{tried}",
            document.reason,
            f"`baton describe job {document.job_id}` has its history, `baton logs` what it wrote while its node keeps that",
        )
        self.document = document


class Failed(ClientError):
    """The owner of the answer could not give it: its own store is down, or it has a bug."""


class TimedOut(ClientError):
    """What was waited for has not happened yet. Nothing was undone."""


class Invalid(ClientError):
    """The request is wrong as it stands; `reasons` name every field that is."""


class Rejected(ClientError):
    """Admission refused the job; `reasons` are all of them."""

    def __init__(self, job_id: str, reasons: Sequence[Reason], text: str = "") -> None:
        super().__init__(f"{job_id} was rejected", "; ".join(map(_text, reasons)) or text, reasons=reasons)
        self.job_id = job_id


class NotCancelled(ClientError):
    """Admission refused the cancel, and the job is as it was; `reasons` say why."""

    def __init__(self, job_id: str, reasons: Sequence[Reason]) -> None:
        super().__init__(f"{job_id} cannot be cancelled", "; ".join(map(_text, reasons)), reasons=reasons)
        self.job_id = job_id


class Busy(ClientError):
    """There is no room for the request now. Nothing is wrong with it: send it again after `retry_after_s`."""

    def __init__(self, why: str, retry_after_s: float, kept: str = "") -> None:
        """`kept`: what has become of it, when it need not be sent again."""
        again = f"send it again in {retry_after_s:g} s, with the same key"
        super().__init__("Baton is busy", why, f"{kept}, or {again}" if kept else again)
        self.retry_after_s = retry_after_s


class Parked(Busy):
    """The request is stored, and decided once there is room. To send it again as well harms nothing."""

    def __init__(self, job_id: str, why: str, retry_after_s: float) -> None:
        super().__init__(why, retry_after_s, f"{job_id} is stored and decided once there is room: see `baton wait`")
        self.job_id = job_id


class Conflict(Rejected):
    """The client key names another job already: the same key with the same body is the same job, with another it is
    refused."""


def _text(r: Reason) -> str:
    where = f"{r.field}{f' = {r.value}' if r.value else ''}: " if r.field else ""
    return f"{where}{r.problem} ({r.fix})"
