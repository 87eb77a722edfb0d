"""A team's lines: its own part of each record, as JSON whose bytes are hashed, each hash over the one before it.

A line holds nothing of another team, and all that a bill is made of: the team's events, the kinds of the devices that it was
granted, and how the wall clock stood to ledger time. Fields with their default value are left out, so that a field that a later
version adds changes no line of before. These bytes are for good: `tests/core/test_proofs.py` has some of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from schemas import ledger as led
from schemas.ids import JOB_ID_DIGITS, JOB_ID_PREFIX

NOBODY = JOB_ID_PREFIX + "0" * JOB_ID_DIGITS
"""In place of another team's job."""

_FIELDS_OF_OTHERS: Mapping[type, frozenset[str]] = {
    led.QuotaSet: frozenset({"user", "cause"}),
    led.TeamSuspended: frozenset({"user"}),
    led.TeamLeft: frozenset({"user"}),
    led.JobBoosted: frozenset({"user"}),
    led.BoostEnded: frozenset({"user"}),
    led.TeamResumed: frozenset({"user"}),
    led.AttemptPreempting: frozenset({"beneficiary", "plan_id"}),
    led.InputRejected: frozenset({"inbox_seq", "subject"}),
}
"""Left out of a team's lines: operators' names, other teams' jobs, and places in queues that all share."""

_IN_PLACE: Mapping[type, Mapping[str, Any]] = {
    led.AttemptPreempting: {"beneficiary": NOBODY, "plan_id": ""},
    led.InputRejected: {"inbox_seq": 1, "subject": ""},
}
"""What stands there when such an event is read again."""

OF_JOBS: tuple[type, ...] = (
    led.JobQueued, led.JobBoosted, led.BoostEnded, led.JobGranted, led.AttemptStarting, led.AttemptRunning,
    led.AttemptCheckpointed,
    led.AttemptProgress, led.GangPromised, led.AttemptPreempting, led.AttemptStopping, led.DevicesFreed, led.AttemptClosed,
    led.JobRequeued, led.JobFinished,
)  # fmt: skip
"""Of the team whose job it is. Holds are left out: they are of devices that are others' still, and cost nothing."""

OF_TEAMS: Mapping[type, Callable[[Any], str]] = {
    led.QuotaSet: lambda e: e.team,
    led.TeamSuspended: lambda e: e.team,
    led.TeamLeft: lambda e: e.team,
    led.TeamResumed: lambda e: e.team,
    led.InputRejected: lambda e: e.request.team if e.request is not None else "",
    led.CommandRefused: lambda e: e.command.team,
}
"""These say themselves whose they are; "": nobody's."""


@dataclass(frozen=True, slots=True)
class TeamLine:
    """One line as it is kept: `head` is the hash over it and all before it, `count` how many these are, `before` the
    head before it."""

    team: str
    seq: int
    t_us: int
    count: int
    text: str
    head: str
    before: str


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """A line, read: what of the record at `seq` is the team's. `calendar`: pieces of the ledger's calendar that are new."""

    team: str
    number: int
    seq: int
    t_us: int
    wall_us: int | None
    events: tuple[Any, ...]
    models: Mapping[str, str]
    calendar: tuple[tuple[int, int], ...]


def first_head(pool: str, team: str) -> bytes:
    """What a team's first line follows."""
    return sha256(f"baton lines of {team} in {pool}".encode()).digest()


def next_head(before: bytes, text: str) -> bytes:
    """The hash over a line and those before it."""
    return sha256(before + text.encode()).digest()


def write(
    record: led.LedgerRecord,
    seq: int,
    team: str,
    number: int,
    events: Iterable[Any],
    *,
    models: Mapping[str, str],
    calendar: Sequence[Sequence[int]],
) -> str:
    """The `number`th line of `team`, of the record at `seq`, as JSON without spaces. `models`: device -> billed as what."""
    about: dict[str, Any] = {"team": team, "n": number, "seq": seq, "t_us": record.t_us}
    if record.wall_us is not None:
        about["wall_us"] = record.wall_us
    if models:
        about["models"] = dict(sorted(models.items()))
    if calendar:
        about["calendar"] = calendar
    head = json.dumps(about, separators=(",", ":"))
    return f'{head[:-1]},"events":[{",".join(map(_event, events))}]}}'


def _event(event: Any) -> str:
    said: str = event.model_dump_json(exclude_defaults=True, exclude=_FIELDS_OF_OTHERS.get(type(event)))
    return f'{{"kind":"{event.kind}"' + (f",{said[1:]}" if said != "{}" else "}")


def read(text: str) -> OwnRecord:
    """The inverse of `write`. Raises ValueError when it is no line; kinds that this version does not know are passed over."""
    try:
        said = json.loads(text)
        events = tuple(_read_event(e) for e in said["events"] if e["kind"] in led.EVENT_KINDS)
        calendar = tuple((int(since), int(add)) for since, add in said.get("calendar", ()))
        models = {str(device): str(model) for device, model in said.get("models", {}).items()}
        return OwnRecord(
            str(said["team"]), int(said["n"]), int(said["seq"]), int(said["t_us"]), said.get("wall_us"), events, models,
            calendar,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a line of a team: {error!r}") from None


def _read_event(said: dict[str, Any]) -> Any:
    kind = led.EVENT_KINDS[said["kind"]]
    return kind.model_validate(dict(_IN_PLACE.get(kind, {})) | said)
