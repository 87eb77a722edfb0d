"""Access rights in the stores: a Redis user for each service that uses Redis, and each service's URL.

compose.yaml has the same rules; `tests/architecture/test_compose.py` compares them.
"""

from collections.abc import Iterable, Mapping

from libs.embedded import ValkeyUser

_READS = ("+hmget", "+hgetall")
_WRITES = (
    "+fcall", "+function|load", "+hget", "+hset", "+hdel", "+hincrby", "+del", "+exists", "+rename", "+expire", "+persist",
)  # fmt: skip
"""What `libs/adapters/redis/functions.lua` calls: a function runs with its caller's rights."""

REDIS_RIGHTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "placement": ("~", (*_READS, *_WRITES)),
    "telemetry": ("%R~", _READS),
}
"""Service -> its access to its pool's keys, and its commands. Other services use no Redis."""

MONGO_SERVICES = frozenset({"history", "quota_billing"})
"""Services that use MongoDB: each has its own collections, and in compose a user restricted to them."""


def rules(service: str, pool: str) -> tuple[str, ...]:
    """The ACL rules of a service's Redis user."""
    kind, commands = REDIS_RIGHTS[service]
    return (f"{kind}baton:{{{pool}}}:*", *commands)


def redis_user(service: str, pool: str) -> str:
    return f"{service}.{pool}"


def redis_users(pools: Iterable[str]) -> tuple[ValkeyUser, ...]:
    """The Redis users of every pool's services."""
    return tuple(ValkeyUser(redis_user(s, pool), rules(s, pool)) for pool in pools for s in REDIS_RIGHTS)
