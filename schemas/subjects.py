"""Every subject and stream name: the one home of their patterns.

    baton.<kind>.<entity>.v1.<what>.<key>[.<key>...]

`kind` is `cmd` (asks one owner), `qry` (question, request-reply), `evt` (fact for a team), `tel` (sample, may be lost),
`in` (a pool's inbox) or `led` (the ledger). Keys are a pool, node, team, user or service, one token each of `A-Z a-z 0-9 - _`.

The broker checks who may use a subject, and does not deliver who did. So the subject says it:

    <team>.<user>             what people ask for, and what is told to all pools' one history
    <pool>.<team>.<user>      what people ask of one pool
    <pool>.<node>             what a node says, or is told
    <pool>                    what a pool's services say
    <service>                 what processes of one service ask each other

A credential may use its own tokens only (`user_may`, `node_may`). Job ids are never in subjects: their number has no
bound. A pattern is written with its keys in braces; `fill` makes it a subject, `anyone` a subscription, `read` takes a
subject apart.
"""

import re
from contextlib import suppress
from functools import cache, lru_cache

OPERATOR = "operator"
"""The reserved team whose credential may ask about every team and set quotas."""

_KNOWN = 4096
"""Subjects that are remembered, of each kind: each job's messages have the same few."""

FINANCE = "_finance"
"""Who may read all bills and the ledger that they are of, and say nothing. No team can be called so."""

REQUESTS = "REQUESTS"
EVENTS = "EVENTS"
TELEMETRY = "TELEMETRY"
DEAD = "DEAD"
INBOX = "INBOX-{pool}"
LEDGER = "LEDGER-{pool}"

COMMAND = "baton.cmd.{entity}.v1.{what}.{team}.{user}"
POOL_COMMAND = "baton.cmd.{entity}.v1.{what}.{pool}.{team}.{user}"
QUESTION = "baton.qry.{entity}.v1.{what}.{team}.{user}"
POOL_QUESTION = "baton.qry.{entity}.v1.{what}.{pool}.{team}.{user}"
PEER_QUESTION = "baton.qry.{entity}.v1.{what}.{service}"
NODE_QUESTION = "baton.qry.node.v1.{what}.{pool}.{node}"
LOG_QUESTION = "baton.qry.log.v1.piece.{pool}.{node}"
"""What history asks the node that has a job's output."""
LEDGER_QUESTION = "baton.qry.ledger.v1.records.{pool}.{team}.{user}"
"""What finance asks and no team may."""
NODE_COMMAND = "baton.cmd.node.v1.{what}.{pool}.{node}"
NODE_SIGNAL = "baton.tel.node.v1.{what}.{pool}.{node}"
INPUT = "baton.in.{entity}.v1.{what}.{pool}"
NODE_INPUT = "baton.in.node.v1.{what}.{pool}.{node}"
OPERATOR_INPUT = "baton.in.operator.v1.{what}.{pool}.{team}.{user}"
EVENT = "baton.evt.{entity}.v1.{what}.{team}"
RECORD = "baton.led.pool.v1.record.{pool}"
SEGMENT = "baton.led.pool.v1.{what}.{pool}.{first}"
DEAD_LETTER = "baton.dead.{origin}"
"""What 0.1.0 writes."""
DEAD_LETTER_OF = "baton.dead.{origin}.{sender}"

_ASKED = ("get", "list", "read", "set", "remove")
_ASKED_OF_POOL = ("read", "get", "list", "explain", "plan", "status")
"""What a person may ask. `desired` is in neither: a node asks it, and a team may be called like a pool."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,63}")
_PLACE = re.compile(r"\{(\w+)\}")


def token(value: str) -> str:
    """`value`, if it is one subject token. Raises ValueError naming it otherwise."""
    if not _TOKEN.fullmatch(value):
        raise ValueError(f"{value!r} cannot be a name: use 1 to 63 letters, digits, '-' or '_'")
    return value


def fill(pattern: str, **keys: str) -> str:
    """`pattern` with these keys in their places; the others stay open.

    Raises ValueError when a value is not one token, or the pattern has no such key.
    """
    for key, value in keys.items():
        place = f"{{{key}}}"
        if place not in pattern:
            raise ValueError(f"{pattern!r} has no key {key!r}")
        pattern = pattern.replace(place, token(value))
    return pattern


def anyone(pattern: str, **keys: str) -> str:
    """What to subscribe to for `pattern`, narrowed to these keys; `*` narrows nothing. Raises as `fill`."""
    return _PLACE.sub("*", fill(pattern, **{key: value for key, value in keys.items() if value != "*"}))


def keys_in(pattern: str) -> tuple[str, ...]:
    """The names of the keys that are open in `pattern`, in order."""
    return tuple(_PLACE.findall(pattern))


def read(pattern: str, subject: str) -> dict[str, str]:
    """The keys that make `pattern` the `subject`. Raises ValueError when none do."""
    found = _expression(pattern).fullmatch(subject)
    if found is None:
        form = pattern.replace("{", "<").replace("}", ">")
        raise ValueError(f"{subject!r} is not a subject of the form {form}")
    return found.groupdict()


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    dotted = pattern.replace(".", r"\.")
    return re.compile(_PLACE.sub(rf"(?P<\1>{_TOKEN.pattern})", dotted))


def stem(subject: str) -> str:
    """What says which message it is: `baton.<kind>.<entity>.v1.<what>`, of a subject or of a pattern."""
    return ".".join(subject.split(".")[:5])


def what_of(subject: str) -> str:
    """The last word of the stem, e.g. "granted". Raises ValueError when there is none."""
    parts = subject.split(".")
    if len(parts) < 5:
        raise ValueError(f"{subject!r} has no <what>: expected baton.<kind>.<entity>.v1.<what>.<key>")
    return parts[4]


# ------------------------------------------------------------------------------------------------- streams and subjects


def inbox_stream(pool: str) -> str:
    return fill(INBOX, pool=pool)


def ledger_stream(pool: str) -> str:
    return fill(LEDGER, pool=pool)


def submit(team: str, user: str) -> str:
    return fill(COMMAND, entity="job", what="submit", team=team, user=user)


def cancel(team: str, user: str) -> str:
    return fill(COMMAND, entity="job", what="cancel", team=team, user=user)


def set_quota(pool: str, user: str) -> str:
    """Operators only: what a team may hold in `pool`."""
    return fill(POOL_COMMAND, entity="quota", what="set", pool=pool, team=OPERATOR, user=user)


@lru_cache(_KNOWN)
def inbox(entity: str, what: str, pool: str) -> str:
    """Where what services say to a pool's placement goes, e.g. `baton.in.clock.v1.tick.main`."""
    return fill(INPUT, entity=entity, what=what, pool=pool)


@lru_cache(_KNOWN)
def node_inbox(what: str, pool: str, node: str = "*") -> str:
    """Where facts about a node go: its own agent's, and telemetry's that it is lost."""
    return anyone(NODE_INPUT, what=what, pool=pool, node=node)


def is_input(subject: str) -> bool:
    """Whether it goes into the inbox of a pool."""
    return subject.startswith("baton.in.")


def is_of_a_node(subject: str) -> bool:
    """Whether a node, or who speaks of one, put it into an inbox."""
    return subject.startswith("baton.in.node.")


def pool_of_input(subject: str) -> str | None:
    """The pool whose inbox has messages of this subject; None when none has."""
    for pattern in (INPUT, NODE_INPUT, OPERATOR_INPUT):
        with suppress(ValueError):
            return read(pattern, subject)["pool"]
    return None


def declare_dead(pool: str, user: str) -> str:
    """Operators only: nothing runs on a node any more."""
    return fill(OPERATOR_INPUT, what="node-dead", pool=pool, team=OPERATOR, user=user)


def lift_quarantine(pool: str, user: str) -> str:
    """Operators only: a device may be used again."""
    return fill(OPERATOR_INPUT, what="quarantine-lifted", pool=pool, team=OPERATOR, user=user)


def cordon_node(pool: str, user: str) -> str:
    """Operators only: a node is taken out of use."""
    return fill(OPERATOR_INPUT, what="node-cordoned", pool=pool, team=OPERATOR, user=user)


def uncordon_node(pool: str, user: str) -> str:
    """Operators only: a node is put into use again."""
    return fill(OPERATOR_INPUT, what="node-uncordoned", pool=pool, team=OPERATOR, user=user)


def apply_queues(pool: str, user: str) -> str:
    """Operators only: who is guaranteed what in `pool`."""
    return fill(OPERATOR_INPUT, what="queues-applied", pool=pool, team=OPERATOR, user=user)


def boost_job(pool: str, user: str, team: str = OPERATOR) -> str:
    """Operators only: a job comes before its class for a time. `team`: whose admin says it, for whom the holder of the keys
    publishes."""
    return fill(OPERATOR_INPUT, what="job-boosted", pool=pool, team=team, user=user)


def apply_prices(pool: str, user: str) -> str:
    """Operators only: what a device costs in `pool`."""
    return fill(OPERATOR_INPUT, what="prices-applied", pool=pool, team=OPERATOR, user=user)


def close_period(pool: str, user: str) -> str:
    """Operators only: a period of bills is closed in `pool`."""
    return fill(OPERATOR_INPUT, what="period-closed", pool=pool, team=OPERATOR, user=user)


def apply_budgets(pool: str, user: str) -> str:
    """Operators only: who may spend how much in `pool`."""
    return fill(OPERATOR_INPUT, what="budgets-applied", pool=pool, team=OPERATOR, user=user)


def top_up_budget(pool: str, user: str) -> str:
    """Operators only: a budget has more in `pool`, until its period ends."""
    return fill(OPERATOR_INPUT, what="budget-topped-up", pool=pool, team=OPERATOR, user=user)


def suspend_team(pool: str, user: str) -> str:
    """Operators only: a team is paused in `pool`."""
    return fill(OPERATOR_INPUT, what="team-suspended", pool=pool, team=OPERATOR, user=user)


def offboard_team(pool: str, user: str) -> str:
    """Operators only: a suspended team has left."""
    return fill(OPERATOR_INPUT, what="team-left", pool=pool, team=OPERATOR, user=user)


_RESUMED = "team-resumed"


def resume_team(pool: str, user: str) -> str:
    """Operators only: a paused team goes on."""
    return fill(OPERATOR_INPUT, what=_RESUMED, pool=pool, team=OPERATOR, user=user)


def is_resume(subject: str) -> bool:
    """Whether an operator says there that a team goes on."""
    return subject.startswith(OPERATOR_INPUT.partition("{")[0] + _RESUMED + ".")


def acted(pool: str, user: str) -> str:
    """Operators only: what was done outside the ledger, for its audit."""
    return fill(OPERATOR_INPUT, what="acted", pool=pool, team=OPERATOR, user=user)


def ledger(pool: str) -> str:
    """The subject of a pool's ledger, until it is rolled for the first time: `segment` has those of its later segments."""
    return fill(RECORD, pool=pool)


def segment(what: str, pool: str, first: int) -> str:
    """What the stream of a ledger's segment has for a subject, by what it is: `record` while it takes records, else `staged`,
    `sealed`, `restoring`. The first segment takes records on `ledger`."""
    return fill(SEGMENT, what=what, pool=pool, first=str(first))


def open_segments(pool: str) -> str:
    """What matches the subject of the open segment, when it is not the first."""
    return anyone(fill(SEGMENT, what="record"), pool=pool)


def segments(pool: str) -> str:
    """All of those of a pool."""
    return anyone(SEGMENT, pool=pool)


@lru_cache(_KNOWN)
def event(what: str, team: str = "*") -> str:
    """Where `team` reads what happened to its jobs, e.g. `baton.evt.job.v1.granted.research`."""
    return anyone(EVENT, entity="job", what=what, team=team)


def team_event(what: str, team: str) -> str:
    """Where `team` reads what was decided about it as a whole, e.g. `baton.evt.team.v1.suspended.research`."""
    return fill(EVENT, entity="team", what=what, team=team)


def events_of(team: str = "*") -> str:
    """All that `team` is told."""
    return anyone(EVENT, team=team)


def heartbeat(pool: str, node: str = "*") -> str:
    """Core NATS request: a node renews its lease; works when a disk is full."""
    return anyone(NODE_SIGNAL, what="heartbeat", pool=pool, node=node)


def sample(pool: str, node: str = "*") -> str:
    return anyone(NODE_SIGNAL, what="sample", pool=pool, node=node)


def desired(pool: str, node: str = "*") -> str:
    """Core NATS: all that should run on a node now, for agents that read no changes (0.1.0)."""
    return anyone(NODE_COMMAND, what="desired", pool=pool, node=node)


def changed(pool: str, node: str = "*") -> str:
    """Core NATS: what has changed of what should run on a node. A lost one is noticed at the next, or by asking."""
    return anyone(NODE_COMMAND, what="changed", pool=pool, node=node)


def node_of(subject: str) -> str:
    """The node that a signal (heartbeat, sample) comes from. Raises ValueError for any other subject."""
    return read(NODE_SIGNAL, subject)["node"]


def dead(origin: str, sender: str = "*") -> str:
    """Where `origin` (a service) lays messages of `sender` that cannot be processed; by default, of all."""
    return anyone(DEAD_LETTER_OF, origin=origin, sender=sender)


def services_alone(subject: str) -> bool:
    """Whether nobody but services writes there (events, dead letters): what two of them find out has one id."""
    return subject.startswith(("baton.evt.", "baton.dead."))


def sender_of(subject: str) -> str:
    """Who spoke on that subject: a team, or a node; `-` where the subject does not say. Whatever a sender chose itself (its
    user's name, say) may be no token: the broker has checked the team and the node, and nothing else."""
    parts = subject.split(".")
    for pattern, key in ((COMMAND, "team"), (POOL_COMMAND, "team"), (NODE_INPUT, "node"), (NODE_SIGNAL, "node")):
        form = pattern.split(".")
        if len(form) == len(parts) and all(f == p or f[0] == "{" for f, p in zip(form, parts, strict=True)):
            said = parts[form.index(f"{{{key}}}")]
            return said if _TOKEN.fullmatch(said) else "-"
    return "-"


# --------------------------------------------------------------------------------------------------------- credentials


def is_question(pattern: str) -> bool:
    """Whether somebody answers, and may answer that it cannot (`QueryFailed`)."""
    return pattern.startswith("baton.qry.")


NODE_SECRETS = fill(NODE_QUESTION, what="secrets")
"""What a node asks and nobody else may: the answer is sealed to whoever asks."""


COMMANDS_QUESTIONS_INPUTS = ("baton.cmd.>", "baton.qry.>", "baton.in.>")
"""What operators may send, and of which teams and nodes may send some."""
SIGNALS = "baton.tel.>"
"""What nodes send beside these."""


def operator_may() -> list[str]:
    """What an operator may publish, but for `operator_may_not`: commands for any team, questions, dead letters again, the
    administration of streams. Never the ledger: only placement writes it. Archived segments may be put back, which no subject
    of the ledger reaches."""
    everything = [*COMMANDS_QUESTIONS_INPUTS, anyone(fill(SEGMENT, what="restoring"))]
    kept = [
        "$KV.baton-cursors.ledger-format.*",
        "$KV.baton-readers.>",
    ]  # `baton ledger readers`, `baton ledger upgrade`
    return [*everything, "$JS.API.>", "$JS.ACK.>", "$JS.FC.>", "$O.>", *kept, f"_INBOX_{OPERATOR}.>"]


def operator_may_not() -> list[str]:
    """What is among that, and an operator may not publish: no operator reads a secret."""
    return [anyone(NODE_SECRETS)]


def reply_prefix(team: str, user: str) -> str:
    """Where a person's answers arrive, so that nobody else can read them."""
    return f"_INBOX_{token(team)}.{token(user)}"


def node_reply_prefix(pool: str, node: str) -> str:
    """Where a node's answers arrive. Not where people's do: a team may be called like a pool."""
    return f"_NODE_{token(pool)}.{token(node)}"


def service_inbox(service: str) -> str:
    """Where a service's answers arrive."""
    return f"_INBOX.{token(service)}"


def user_may(team: str, user: str = "*") -> tuple[list[str], list[str]]:
    """(publish, subscribe) patterns of a person's credential: own commands and questions, the team's events; no more.

    With the user `*` it is a credential of the whole team: whoever holds it is trusted to say which user asks. A user's has the
    commands that there are and no wildcard: what waits of one subject is bounded, and words that it invents would be subjects.
    """
    own = {"team": token(team), "user": user}
    commands = [anyone(COMMAND, entity="job", **own)] if user == "*" else [submit(team, user), cancel(team, user)]
    return (
        [
            *commands,
            *(anyone(QUESTION, what=what, **own) for what in _ASKED),
            *(anyone(POOL_QUESTION, what=what, **own) for what in _ASKED_OF_POOL),
        ],
        [events_of(team), f"_INBOX_{team}.>" if user == "*" else f"{reply_prefix(team, user)}.>"],
    )


def admin_may(team: str, user: str = "*") -> tuple[list[str], list[str]]:
    """The same of a user who manages the users of its own team."""
    publish, subscribe = user_may(team, user)
    return [*publish, anyone(QUESTION, entity="team", what="manage", team=token(team), user=user)], subscribe


def finance_may(user: str = "*") -> tuple[list[str], list[str]]:
    """(publish, subscribe) patterns of who reads bills: questions about money, and the ledger in parts; no command, no input of
    a pool, no stream."""
    own = {"team": FINANCE, "user": user}
    asked = (("bill", "get"), ("use", "list"), ("budgets", "list"), ("ledger", "records"))
    return (
        [anyone(POOL_QUESTION, entity=entity, what=what, **own) for entity, what in asked],
        [f"_INBOX_{FINANCE}.>" if user == "*" else f"{reply_prefix(FINANCE, user)}.>"],
    )


def node_may(pool: str, node: str = "*") -> tuple[list[str], list[str]]:
    """(publish, subscribe) patterns of a node's credential: what it saw, its lease, its samples, its desired state.

    With the node `*` it is the credential of an agent that stands for every node of the pool: a simulated fleet.
    """
    own = {"pool": token(pool), "node": node}
    return (
        [anyone(NODE_INPUT, **own), anyone(NODE_SIGNAL, **own), anyone(NODE_QUESTION, **own)],
        [anyone(NODE_COMMAND, **own), f"_NODE_{pool}.>" if node == "*" else f"{node_reply_prefix(pool, node)}.>"],
    )


def log_readers_may(name: str, *, whole_pool: bool = False) -> tuple[list[str], list[str]]:
    """(publish, subscribe) patterns of the second credential of an agent: it hears what history asks of its node's logs, and
    may answer that (the broker's `allow_responses`); nothing else. `name`: the credential's, `<pool>.<node>`, or `<pool>`
    with `whole_pool`."""
    stem_ = LOG_QUESTION.removesuffix("{pool}.{node}")
    return [], [f"{stem_}{name}.*" if whole_pool else f"{stem_}{name}"]
