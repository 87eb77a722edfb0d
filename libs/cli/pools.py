"""The pools of a broker, and the results of commands to several of them.

A pool is *closed* when admission takes no jobs for it and nobody answers for it: `baton up` was started without it, or
its services were removed. Its ledger is still on the broker, so it is a pool. But nobody waits for it, and commands
stored for it are decided when it is opened again. A pool whose services are down but for which admission takes jobs is
not closed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libs.bus import listing
from libs.bus.asking import NoAnswer, NobodyAnswers, QueryError
from libs.bus.asking import ask as ask_once
from libs.cli.exits import code_of
from libs.cli.output import hint
from libs.client import Baton
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.pool_status import PoolStatusQuery
from schemas.queries import AdmissionPools, AdmissionPoolsQuery

_ANSWER_S = 2.0
_STATUS, _SERVED = BY_TYPE["io.baton.pool.status.query.v1"], BY_TYPE["io.baton.admission.pools.query.v1"]


@dataclass(frozen=True, slots=True)
class KnownPools:
    """Pools by name, sorted."""

    in_use: tuple[str, ...]
    closed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldToPools:
    """The result in each pool: decided (by which ledger record; None: no record shows it), stored for a closed pool, or
    neither."""

    decided: Mapping[str, int | None] = field(default_factory=dict)
    stored: tuple[str, ...] = ()
    errors: Mapping[str, Exception] = field(default_factory=dict)

    def for_programs(self) -> list[dict[str, Any]]:
        """A line for each pool."""
        lines: list[dict[str, Any]] = [
            *({"pool": pool, "decided": True, "ledger_seq": seq, "error": ""} for pool, seq in self.decided.items()),
            *({"pool": pool, "decided": False, "ledger_seq": None, "error": CLOSED} for pool in self.stored),
            *({"pool": pool, "decided": False, "ledger_seq": None, "error": _text(e)}
              for pool, e in self.errors.items()),
        ]  # fmt: skip
        return sorted(lines, key=lambda line: str(line["pool"]))

    def check(self) -> None:
        """Reports pools for which it is only stored, then raises the first error."""
        for pool in self.stored:
            hint(f"pool {pool}: {CLOSED}")
        if not self.errors:
            return
        first, *others = self.errors
        if self.decided:
            hint(f"decided in {', '.join(sorted(self.decided))}; not in {', '.join(sorted(self.errors))}")
        for pool in others:
            hint(f"pool {pool}: {_text(self.errors[pool])}")
        raise self.errors[first]


CLOSED = "it is closed: stored, and decided when its services run again"


async def pools_of(baton: Baton) -> KnownPools:
    """The pools with an inbox; operators see streams."""
    prefix = subjects.inbox_stream("x").removesuffix("x")
    names = [str(info["config"]["name"]) for info in await listing.streams(baton.nats.jetstream())]
    there = sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)) or [baton.place.pool]
    served = await _served(baton)
    if served is None:
        return KnownPools(tuple(there))
    others = [pool for pool in there if pool not in served]
    empty = await asyncio.gather(*(_nobody_answers(baton, pool) for pool in others))
    closed = {pool for pool, is_empty in zip(others, empty, strict=True) if is_empty}
    return KnownPools(tuple(pool for pool in there if pool not in closed), tuple(sorted(closed)))


async def _served(baton: Baton) -> tuple[str, ...] | None:
    """The pools for which admission takes jobs; None while it does not answer."""
    try:
        reply: AdmissionPools = await ask_once(
            baton.nats, _SERVED, AdmissionPoolsQuery(), timeout_s=_ANSWER_S, service="admission"
        )
    except NoAnswer:
        return None
    return reply.pools


async def _nobody_answers(baton: Baton, pool: str) -> bool:
    """Whether no process exists that would answer for it; a slow one does."""
    team, user = baton.place.team, baton.place.user
    try:
        await ask_once(baton.nats, _STATUS, PoolStatusQuery(), timeout_s=_ANSWER_S, pool=pool, team=team, user=user)
    except NobodyAnswers:
        return True
    except (NoAnswer, QueryError):
        pass
    return False


async def tell_pools(pools: Sequence[str], say: Callable[[str], Awaitable[int | None]]) -> ToldToPools:
    """Calls `say(pool)`, which returns the deciding record, for all pools concurrently: an unreachable one neither
    delays the others nor hides their results. Raises bugs of ours once all have ended."""
    ended = await asyncio.gather(*(say(pool) for pool in pools), return_exceptions=True)
    decided, errors = dict[str, int | None](), dict[str, Exception]()
    for pool, end in zip(pools, ended, strict=True):
        if isinstance(end, Exception) and code_of(end) is not None:
            errors[pool] = end
        elif isinstance(end, BaseException):
            raise end
        else:
            decided[pool] = end
    return ToldToPools(decided, errors=errors)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
