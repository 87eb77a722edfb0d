"""What can go wrong for a client, each with what happened, why, and what to do. The CLI maps them to exit codes."""

from collections.abc import Sequence

from schemas.jobs import Reason


class ClientError(Exception):
    """The common root: `what` happened, `why`, and the `fix`."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(". ".join(part for part in (what, why, fix) if part))
        self.what, self.why, self.fix = what, why, fix


class Unreachable(ClientError):
    """NATS cannot be reached, or the service that owns the answer stays silent."""


class Denied(ClientError):
    """The credential does not allow this subject."""


class NotFound(ClientError):
    """No such job, node or log; another team's looks exactly like one that does not exist."""


class Failed(ClientError):
    """The owner of the answer could not give it: its own store is down, or it has a bug."""


class TimedOut(ClientError):
    """What was waited for has not happened yet. Nothing was undone."""


class Invalid(ClientError):
    """The request is wrong as it stands; `reasons` name every field that is."""

    def __init__(self, what: str, why: str = "", fix: str = "", *, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(what, why, fix)
        self.reasons = tuple(reasons)


class Rejected(ClientError):
    """Admission refused the job; `reasons` are all of them."""

    def __init__(self, job_id: str, reasons: Sequence[Reason], text: str = "") -> None:
        why = "; ".join(f"{r.field} = {r.value}: {r.problem} ({r.fix})" for r in reasons) or text
        super().__init__(f"{job_id} was rejected", why)
        self.job_id = job_id
        self.reasons = tuple(reasons)


class Conflict(Rejected):
    """The client key names another job already: the same key with the same body is the same job, with another it is
    refused."""
