"""Tells who has said no time limit that the job got one, of its class or its team's queue."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence

from libs.cli.output import hint
from libs.cli.units import duration
from libs.client import Baton
from libs.client.errors import ClientError

_LAGS_S = 0.1
"""History has written most jobs by then, so that each is asked for once."""
_WITHIN_S = 1.5
_NAMED = 3


async def tell(baton: Baton, jobs: Sequence[tuple[str, str]]) -> None:
    """One line on stderr for each limit that these jobs (id, name) got. Of what history does not say in time, nothing."""
    if not jobs:
        return
    got = defaultdict[float, list[str]](list)
    with contextlib.suppress(ClientError, TimeoutError):
        async with asyncio.timeout(_WITHIN_S):
            await asyncio.sleep(_LAGS_S)
            for job_id, name in jobs:
                if limit_s := (await baton.get(job_id)).spec.time_limit_s:
                    got[limit_s].append(name)
    for limit_s, names in got.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        has = "has" if len(names) == 1 else "have"
        hint(
            f"{', '.join(names[:_NAMED])}{more} {has} a time limit of {duration(limit_s)}, by class or queue, as none was "
            "said: to set another, use --time, or time_limit_s in a file"
        )
