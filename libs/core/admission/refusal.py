"""What an objection to a request is made of: a cause from a closed list, and a reason that names the fix."""

from dataclasses import dataclass
from enum import StrEnum

from schemas.jobs import Reason


class RefusalCause(StrEnum):
    """Why a request was refused. Also the metric's label."""

    MALFORMED = "malformed"
    TOO_OLD = "too-old"
    CLIENT_KEY = "client-key"
    CLASS = "class"
    GRACE = "grace"
    TIME_LIMIT = "time-limit"
    POOL = "pool"
    ENVIRONMENT = "environment"
    COMMAND = "command"
    MODEL = "model"
    TYPE = "type"
    PROFILE = "mig-profile"
    MEMORY = "memory"
    RUNTIME = "runtime"
    PRECISION = "precision"
    CPU = "cpu"
    HOST_MEMORY = "host-memory"
    LABELS = "labels"
    SIMULATION = "simulation"
    TOPOLOGY = "topology"
    CAPACITY = "capacity"
    QUOTA = "quota"
    LIMIT = "limit"
    SUSPENDED = "suspended"
    SECRET = "secret"


@dataclass(frozen=True, slots=True)
class Refusal:
    why: RefusalCause
    reason: Reason


_WORDS = 1024


def refuse(why: RefusalCause, path: str, value: object, problem: str, fix: str) -> Refusal:
    """An objection to the field at `path`; the value is shortened to 200 characters, the words to 1,024: names are as long as
    who offers them likes."""
    return Refusal(why, Reason(field=path, value=str(value)[:200], problem=problem[:_WORDS], fix=fix[:_WORDS]))
