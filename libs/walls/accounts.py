"""Publish and subscribe permissions, as accounts of the NATS server. Pure.

    account                     what is in it
    $SYS                        the broker's own; only the holder of the keys publishes there, to push changed accounts and
                                to ask what each has sent
    $baton                      JetStream, services, operators: the core
    <team>                      one for each team, with nothing but its own subjects of the core, imported
    $finance                    may read all bills and change nothing: the same, with questions alone
    @<pool>.<node>, @<pool>     the same for each node, or for an agent that stands for all nodes of a pool

A message that a team or a node publishes on an imported subject reaches the core; the reply subject that it chose does not.
The broker replaces it by one of its own and routes the answer back, so a reply, and JetStream's acknowledgement, can only
arrive inside the account of the asker. A subject that an account does not import does not exist for it, whatever its users'
permissions say.

Within an account each credential has a *role*, a scoped signing key (`libs.walls.claims`): the permissions of the role are in
the account's claim. `NAME` in a role's subjects is the credential's own name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libs.bus.json_checks import MAX_BYTES
from libs.bus.queries import ANSWER_S
from libs.walls import roles
from libs.walls.claims import NO_LIMIT
from schemas import subjects
from schemas.subjects import OPERATOR

SYSTEM, CORE, FINANCE = "$SYS", "$baton", "$finance"
SERVICES = "services"
"""The role that may do everything in the core: of whoever administers it, of tests, and of no service."""
PROVISION = "provision"
TEAM, USER, ADMIN = "team", "user", "admin"
READER = "reader"
"""The one role of `$finance`."""
NODE, LOGS, POOL_LOGS = "node", "logs", "pool-logs"
CLAIMS, HEALTH = "claims", "health"
CLAIMS_UPDATE, STATZ, CONNZ = "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.ACCOUNT.PING.STATZ", "$SYS.REQ.SERVER.PING.CONNZ"
"""What the holder of the keys asks the broker: to take a claim, what accounts have sent, and who is connected."""
RESERVED = (OPERATOR, SERVICES)
"""What no team may be called."""

NAME = "{{name()}}"

TEAM_CONNECTIONS = 256
TEAM_SUBSCRIPTIONS = 8
"""Of each connection (the broker cuts off one that makes more). It copies an answer for each that hears it, so both together
bound what one question of a team costs: decisions 0067, 0124. Our client has five at the most, however many wait by it."""
FINANCE_CONNECTIONS, FINANCE_BYTES = 32, 16 * 1024
"""Questions about money are short."""
NODE_CONNECTIONS = 64
"""An agent has one; a new one may come before the broker has noticed that the old one is gone."""
NODE_SUBSCRIPTIONS, POOL_SUBSCRIPTIONS = 256, 20_000
"""An agent has two for each of its nodes, and a few."""
LOGS_SUBSCRIPTIONS = 16
"""Of each connection by a node's second credential: an agent has one. A question for logs is copied for each."""


@dataclass(frozen=True, slots=True)
class AccountRole:
    """What the credentials of one kind may do; None allows all. `responds`: one answer to each request that they may hear,
    wherever it goes."""

    publish: Sequence[str] | None = None
    subscribe: Sequence[str] | None = None
    responds: bool = False
    never: Sequence[str] = ()
    """Of what it may publish, this it may not."""
    subscriptions: int = NO_LIMIT
    """Of each connection; its account may bound them, too."""

    def template(self) -> dict[str, Any]:
        """As a scoped signing key has it."""
        found: dict[str, Any] = {"subs": self.subscriptions, "data": NO_LIMIT, "payload": NO_LIMIT}
        for verb, allowed in (("pub", self.publish), ("sub", self.subscribe)):
            if allowed is not None:  # an empty list would allow everything
                found[verb] = {"allow": list(allowed)} if allowed else {"deny": [">"]}
        if self.never:
            found["pub"]["deny"] = list(self.never)
        if self.responds:
            found["resp"] = {"max": 1, "ttl": 0}
        return found


def core_roles(pools: Sequence[str] = ()) -> dict[str, AccountRole]:
    """Of the account `$baton`; `pools` are those that are known by name."""
    return {
        SERVICES: AccountRole(),
        **{service: _of_service(service, pools) for service in roles.SERVICES},
        PROVISION: AccountRole(subjects.operator_may(), never=subjects.operator_may_not()),
        OPERATOR: AccountRole(subjects.operator_may(), never=subjects.operator_may_not()),
        LOGS: AccountRole(*subjects.log_readers_may(NAME), responds=True, subscriptions=LOGS_SUBSCRIPTIONS),
        POOL_LOGS: AccountRole(*subjects.log_readers_may(NAME, whole_pool=True), responds=True),
    }


def _of_service(service: str, pools: Sequence[str]) -> AccountRole:
    never = roles.service_may_not(service, pools)
    return AccountRole(roles.service_may(service), roles.service_hears(service), never=never)


def node_roles(pool: str, node: str = "*") -> dict[str, AccountRole]:
    """Of a node's account."""
    return {NODE: AccountRole(*subjects.node_may(pool, node))}


def finance_roles() -> dict[str, AccountRole]:
    """Of the account `$finance`, whose credentials are called `_finance.<user>`."""
    publish, subscribe = subjects.finance_may("USER")
    keys = f"{subjects.FINANCE}.USER"
    return {READER: AccountRole(_named(publish, keys), _named(subscribe, keys))}


def team_roles(team: str) -> dict[str, AccountRole]:
    """Of a team's account: of the whole team, and of one user, or admin, whose credential is called `<team>.<user>`."""
    whole, user, admin = subjects.user_may(team), subjects.user_may(team, "USER"), subjects.admin_may(team, "USER")
    return {
        ADMIN: AccountRole(_named(admin[0], f"{team}.USER"), _named(admin[1], f"{team}.USER")),
        TEAM: AccountRole(*whole),
        USER: AccountRole(_named(user[0], f"{team}.USER"), _named(user[1], f"{team}.USER")),
    }


def system_roles() -> dict[str, AccountRole]:
    """Told of changed accounts, and asked what each has sent and who is connected (`libs.walls.floods`); asked whether a server
    is well, by who started it."""
    asked = [CLAIMS_UPDATE, "$SYS.REQ.CLAIMS.LOOKUP", STATZ, CONNZ]
    return {
        CLAIMS: AccountRole(asked, ["_INBOX.>"]),
        HEALTH: AccountRole(["$SYS.REQ.SERVER.*.HEALTHZ"], ["_INBOX.health.*"]),
    }


def _named(patterns: Sequence[str], keys: str) -> list[str]:
    """The patterns with the credential's name in the place of the keys that they were made for."""
    return [pattern.replace(keys, NAME) for pattern in patterns]


# ----------------------------------------------------------------------------------------------------- claims of accounts


def core_account(keys: Mapping[str, str], revoked: Mapping[str, int], pools: Sequence[str] = ()) -> dict[str, Any]:
    """The claim of `$baton`; `keys` has the public signing key of each role, `revoked` is as `team_account` has it, `pools` are
    those that have nodes with credentials."""
    unbounded = {"mem_storage": NO_LIMIT, "disk_storage": NO_LIMIT, "streams": NO_LIMIT, "consumer": NO_LIMIT}
    exports: list[dict[str, Any]] = []
    ledger = subjects.stem(subjects.LEDGER_QUESTION)
    exports += [_export(asked) for asked in shared(subjects.finance_may())[0] if subjects.stem(asked) == ledger]
    for asked, told in (shared(subjects.admin_may(_ANY)), shared(subjects.node_may(_ANY))):
        exports += [_export(subject) for subject in asked]
        exports += [{"name": subject, "subject": subject, "type": "stream"} for subject in told]
    limits = {**_limits(connections=NO_LIMIT, subscriptions=NO_LIMIT, payload=NO_LIMIT), **unbounded}
    limits |= {"exports": NO_LIMIT, "wildcards": True}
    return _account(core_roles(pools), keys, exports=exports, limits=limits, revocations=dict(revoked))


def _export(subject: str) -> dict[str, Any]:
    """A node's question may be answered by several messages (`libs.bus.asking.ask_all`), all others by one."""
    several = subject == subjects.anyone(subjects.NODE_QUESTION)
    made = {"name": subject, "subject": subject, "type": "service", "response_threshold": ANSWER_S * 1_000_000_000}
    return {**made, "response_type": "Stream"} if several else made


def team_account(
    team: str, keys: Mapping[str, str], core: str, revoked: Mapping[str, int], *, out: bool = False
) -> dict[str, Any]:
    """The claim of a team's account: its own subjects of the account `core` (a public key), and nothing of its own.

    `revoked`: public key of a user, or `*` for all -> what it was issued with until then is void, s. `out`: nobody of it may be
    connected now.
    """
    connections = 0 if out else TEAM_CONNECTIONS
    limits = _limits(connections=connections, subscriptions=TEAM_SUBSCRIPTIONS, payload=MAX_BYTES + HEADER_BYTES)
    return _guest(team_roles(team), keys, shared(subjects.admin_may(team)), core, revoked, limits)


def finance_account(
    keys: Mapping[str, str], core: str, revoked: Mapping[str, int], *, out: bool = False
) -> dict[str, Any]:
    """The same of who reads bills."""
    connections = 0 if out else FINANCE_CONNECTIONS
    limits = _limits(connections=connections, subscriptions=TEAM_SUBSCRIPTIONS, payload=FINANCE_BYTES + HEADER_BYTES)
    return _guest(finance_roles(), keys, shared(subjects.finance_may()), core, revoked, limits)


def node_account(
    pool: str, node: str, keys: Mapping[str, str], core: str, revoked: Mapping[str, int]
) -> dict[str, Any]:
    """The same for a node, or with the node `*` for all nodes of a pool, whose one heartbeat names each."""
    most, payload = (POOL_SUBSCRIPTIONS, NO_LIMIT) if node == "*" else (NODE_SUBSCRIPTIONS, MAX_BYTES + HEADER_BYTES)
    limits = _limits(connections=NODE_CONNECTIONS, subscriptions=most, payload=payload)
    return _guest(node_roles(pool, node), keys, shared(subjects.node_may(pool, node)), core, revoked, limits)


def _guest(
    own_roles: Mapping[str, AccountRole],
    keys: Mapping[str, str],
    own: tuple[list[str], list[str]],
    core: str,
    revoked: Mapping[str, int],
    limits: dict[str, Any],
) -> dict[str, Any]:
    imports = [
        {"name": subject, "subject": subject, "type": type_, "account": core}
        for subjects_, type_ in zip(own, ("service", "stream"), strict=True)
        for subject in subjects_
    ]
    return _account(
        own_roles, keys, imports=imports, limits={**limits, "imports": len(imports)}, revocations=dict(revoked)
    )


HEADER_BYTES = 64 * 1024
"""The broker counts headers, too; a body may have all of `MAX_BYTES`."""


def system_account(keys: Mapping[str, str]) -> dict[str, Any]:
    """The claim of `$SYS`."""
    return _account(
        system_roles(), keys, limits=_limits(connections=NO_LIMIT, subscriptions=NO_LIMIT, payload=NO_LIMIT)
    )


_ANY = "ANYONE"
"""Stands for every team and pool where the core exports."""


def shared(may: tuple[list[str], list[str]]) -> tuple[list[str], list[str]]:
    """(asked, told): what is imported from the core, to publish on and to hear. It follows from what somebody may do at all:
    every subject but the own replies."""
    asked, told = ([_everybody(s) for s in patterns if s.startswith("baton.")] for patterns in may)
    return asked, told


def _everybody(subject: str) -> str:
    return ".".join("*" if part == _ANY else part for part in subject.split("."))


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


def _account(named: Mapping[str, AccountRole], keys: Mapping[str, str], **claims: Any) -> dict[str, Any]:
    scopes = [
        {"kind": "user_scope", "key": keys[name], "role": name, "template": role.template()}
        for name, role in named.items()
    ]
    return {"type": "account", "signing_keys": scopes, **claims}
