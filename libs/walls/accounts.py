"""Who may say and hear what, as accounts of the bus. Pure.

    account   what is in it
    $SYS      the broker's own affairs; only `baton team` speaks there, to tell of changed accounts
    $baton    JetStream, services, agents, operators: the core
    <team>    one for each team, with nothing but its own subjects of the core, imported

What a team publishes on an imported subject reaches the core; the reply subject that it chose does not. The broker puts one
of its own in its place and brings the first answer back, so a reply, and JetStream's acknowledgement, can only arrive inside
the team's account. A subject that a team does not import is not there for it, whatever its users' permissions say.

Within an account each credential has a *role*, a scoped signing key (`libs.walls.claims`): what the role may do stands in
the account's claim. `NAME` in a role's subjects is the credential's own name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libs.bus.json_checks import MAX_BYTES
from libs.walls.claims import NO_LIMIT
from schemas import subjects
from schemas.subjects import OPERATOR

SYSTEM, CORE = "$SYS", "$baton"
SERVICES = "services"
"""The role that may do everything in the core: of whoever administers it, of tests, and of no service."""
EACH_SERVICE = (
    "placement", "admission", "history", "quota_billing", "telemetry", "leases", "preemption", "queries",
)  # fmt: skip
PROVISION = "provision"
TEAM, USER = "team", "user"
NODE, NODES = "node", "nodes"
CLAIMS = "claims"
RESERVED = (OPERATOR, SERVICES)
"""What no team may be called."""

NAME = "{{name()}}"

TEAM_CONNECTIONS = 512
TEAM_SUBSCRIPTIONS = 20_000
"""Of all connections of a team together."""


@dataclass(frozen=True, slots=True)
class Role:
    """What the credentials of one kind may do; None allows all. `responds`: one answer to each request that they may hear,
    wherever it goes."""

    publish: Sequence[str] | None = None
    subscribe: Sequence[str] | None = None
    responds: bool = False

    def template(self) -> dict[str, Any]:
        """As a scoped signing key has it."""
        found: dict[str, Any] = {"subs": NO_LIMIT, "data": NO_LIMIT, "payload": NO_LIMIT}
        for verb, allowed in (("pub", self.publish), ("sub", self.subscribe)):
            if allowed is not None:  # an empty list would allow everything
                found[verb] = {"allow": list(allowed)} if allowed else {"deny": [">"]}
        if self.responds:
            found["resp"] = {"max": 1, "ttl": 0}
        return found


def core_roles() -> dict[str, Role]:
    """Of the account `$baton`. A node's credential is called `<pool>.<node>`, that of a pool's simulated nodes `<pool>`."""
    node, nodes = subjects.node_may("POOL", "NODE"), subjects.node_may("POOL")
    return {
        SERVICES: Role(),
        **{service: Role() for service in EACH_SERVICE},
        PROVISION: Role(subjects.operator_may()),
        OPERATOR: Role(subjects.operator_may()),
        NODE: Role(_named(node[0], "POOL.NODE"), _named(node[1], "POOL.NODE"), responds=True),
        NODES: Role(_named(nodes[0], "POOL"), _named(nodes[1], "POOL"), responds=True),
    }


def team_roles(team: str) -> dict[str, Role]:
    """Of a team's account: of the whole team, and of one user, whose credential is called `<team>.<user>`."""
    whole, user = subjects.user_may(team), subjects.user_may(team, "USER")
    return {TEAM: Role(*whole), USER: Role(_named(user[0], f"{team}.USER"), _named(user[1], f"{team}.USER"))}


def system_roles() -> dict[str, Role]:
    return {CLAIMS: Role(["$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.LOOKUP"], ["_INBOX.>"])}


def _named(patterns: Sequence[str], keys: str) -> list[str]:
    """The patterns with the credential's name in the place of the keys that they were made for."""
    return [pattern.replace(keys, NAME) for pattern in patterns]


# ----------------------------------------------------------------------------------------------------- claims of accounts


def core_account(keys: Mapping[str, str], revoked: Mapping[str, int]) -> dict[str, Any]:
    """The claim of `$baton`; `keys` has the public signing key of each role, `revoked` is as `team_account` has it."""
    unbounded = {"mem_storage": NO_LIMIT, "disk_storage": NO_LIMIT, "streams": NO_LIMIT, "consumer": NO_LIMIT}
    asked, told = shared("*")
    exports = [
        *({"name": subject, "subject": subject, "type": "service"} for subject in asked),
        *({"name": subject, "subject": subject, "type": "stream"} for subject in told),
    ]
    limits = {**_limits(connections=NO_LIMIT, subscriptions=NO_LIMIT, payload=NO_LIMIT), **unbounded}
    limits |= {"exports": NO_LIMIT, "wildcards": True}
    return _account(core_roles(), keys, exports=exports, limits=limits, revocations=dict(revoked))


def team_account(team: str, keys: Mapping[str, str], core: str, revoked: Mapping[str, int]) -> dict[str, Any]:
    """The claim of a team's account: its own subjects of the account `core` (a public key), and nothing of its own.

    `revoked`: public key of a user, or `*` for all -> what it was issued with until then is void, s.
    """
    asked, told = shared(team)
    imports = [
        *({"name": subject, "subject": subject, "type": "service", "account": core} for subject in asked),
        *({"name": subject, "subject": subject, "type": "stream", "account": core} for subject in told),
    ]
    limits = _limits(connections=TEAM_CONNECTIONS, subscriptions=TEAM_SUBSCRIPTIONS, payload=MAX_BYTES + HEADER_BYTES)
    return _account(
        team_roles(team), keys, imports=imports, limits={**limits, "imports": len(imports)}, revocations=dict(revoked)
    )


HEADER_BYTES = 64 * 1024
"""The broker counts headers, too; a body may have all of `MAX_BYTES`."""


def system_account(keys: Mapping[str, str]) -> dict[str, Any]:
    """The claim of `$SYS`."""
    return _account(
        system_roles(), keys, limits=_limits(connections=NO_LIMIT, subscriptions=NO_LIMIT, payload=NO_LIMIT)
    )


def shared(team: str) -> tuple[list[str], list[str]]:
    """(asked, told): what `team` imports from the core, to publish on and to hear; with `*`, what the core exports.

    It follows from what a team may do at all: every subject but its own reply inbox.
    """
    asked, heard = subjects.user_may("T")
    told = [subject for subject in heard if subject.startswith("baton.")]
    return _of(team, asked), _of(team, told)


def _of(team: str, patterns: Sequence[str]) -> list[str]:
    return [".".join(team if part == "T" else part for part in pattern.split(".")) for pattern in patterns]


def _limits(*, connections: int, subscriptions: int, payload: int) -> dict[str, Any]:
    """No leaf nodes, imports, exports or streams, unless a claim says otherwise."""
    return {
        "subs": subscriptions,
        "data": NO_LIMIT,
        "payload": payload,
        "conn": connections,
        "leaf": 0,
        "imports": 0,
        "exports": 0,
        "wildcards": False,
        "disallow_bearer": True,
    }


def _account(roles: Mapping[str, Role], keys: Mapping[str, str], **claims: Any) -> dict[str, Any]:
    scopes = [
        {"kind": "user_scope", "key": keys[name], "role": name, "template": role.template()}
        for name, role in roles.items()
    ]
    return {"type": "account", "signing_keys": scopes, **claims}
