"""Every subject and stream name, spelt once.

    baton.<kind>.<entity>.v1.<what>[.<key>...]

`kind` is `cmd` (asks one owner), `qry` (question, request-reply), `evt` (fact for a team), `tel` (sample, may be lost),
`in` (a pool's inbox) or `led` (the ledger). Keys are a team, pool or node, one token each of `A-Z a-z 0-9 - _`.
Job ids are never in subjects: their number has no bound. So a team's credentials are a few patterns, see `team_may`.
"""

import re

OPERATOR = "operator"
"""The reserved team whose credential may ask about every team and set quotas."""

REQUESTS = "REQUESTS"
EVENTS = "EVENTS"
TELEMETRY = "TELEMETRY"
DEAD = "DEAD"

QUESTIONS = ("get", "list", "explain", "plan", "status", "read")
"""What a team may ask. `desired` is not among them: its key is a pool, and a team may be called like a pool."""

SUBMIT = "baton.cmd.job.v1.submit"
CANCEL = "baton.cmd.job.v1.cancel"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,63}")


def token(value: str) -> str:
    """`value`, if it is one subject token. Raises ValueError naming it otherwise."""
    if not _TOKEN.fullmatch(value):
        raise ValueError(f"{value!r} cannot be a subject token: use 1 to 63 letters, digits, '-' or '_'")
    return value


def _key(value: str) -> str:
    """One token, or `*` for every key (subscribers only)."""
    return value if value == "*" else token(value)


def inbox_stream(pool: str) -> str:
    return f"INBOX-{token(pool)}"


def ledger_stream(pool: str) -> str:
    return f"LEDGER-{token(pool)}"


def submit(team: str) -> str:
    return f"{SUBMIT}.{token(team)}"


def cancel(team: str) -> str:
    return f"{CANCEL}.{token(team)}"


def inbox(entity: str, what: str, pool: str) -> str:
    """Where facts and requests for a pool's placement go, e.g. `baton.in.node.v1.observed.main`."""
    return f"baton.in.{entity}.v1.{what}.{token(pool)}"


def ledger(pool: str) -> str:
    """The one subject of a pool's ledger."""
    return f"baton.led.pool.v1.record.{token(pool)}"


def event(what: str, team: str) -> str:
    """Where `team` reads what happened to its jobs, e.g. `baton.evt.job.v1.granted.research`."""
    return f"baton.evt.job.v1.{what}.{token(team)}"


def events_of(team: str) -> str:
    return f"baton.evt.*.v1.*.{token(team)}"


def heartbeat(pool: str, node: str = "*") -> str:
    """Core NATS request: a node renews its lease; works when a disk is full."""
    return f"baton.tel.node.v1.heartbeat.{_key(pool)}.{_key(node)}"


def sample(pool: str, node: str = "*") -> str:
    return f"baton.tel.node.v1.sample.{_key(pool)}.{_key(node)}"


def desired(pool: str, node: str = "*") -> str:
    """Core NATS: what should run on a node now. State, not an event: a lost one is repaired by the next."""
    return f"baton.cmd.node.v1.desired.{_key(pool)}.{_key(node)}"


def query(entity: str, what: str, key: str = "*") -> str:
    """A question to the service that owns the answer, e.g. `baton.qry.job.v1.get.research`."""
    return f"baton.qry.{entity}.v1.{what}.{_key(key)}"


def dead(origin: str) -> str:
    """Where `origin` (a service) lays messages that cannot be processed."""
    return f"baton.dead.{token(origin)}"


def key_of(subject: str, index: int = 5) -> str:
    """The first key of a subject (its team or pool). Raises ValueError when there is none."""
    parts = subject.split(".")
    if len(parts) <= index:
        raise ValueError(f"{subject!r} has no key: expected baton.<kind>.<entity>.v1.<what>.<key>")
    return parts[index]


def team_may(team: str) -> tuple[list[str], list[str]]:
    """(publish, subscribe) subject patterns of a team's credential: its own commands, questions, events; no more.

    Replies arrive under the team's own inbox prefix, so that no team can read another's answers.
    """
    return (
        [f"baton.cmd.job.v1.*.{token(team)}", *(f"baton.qry.*.v1.{what}.{team}" for what in QUESTIONS)],
        [events_of(team), f"_INBOX_{team}.>"],
    )
