"""What a client knows of the jobs that it has submitted itself, also while history is silent. Bounded: the oldest go first."""

import asyncio
import uuid
from collections import OrderedDict
from typing import TypeVar

from nats.aio.client import Client

from libs.client.asking import ask
from libs.client.errors import ClientError
from libs.client.where import Place
from schemas.explanations import ExplainQuery

_REMEMBERED = 10_000
_QUERIES_S = 1.0

T = TypeVar("T")


def remember(kept: OrderedDict[str, T], key: str, value: T) -> None:
    """Keeps `value`, and forgets the oldest one where there are too many."""
    kept[key] = value
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)


class OwnJobs:
    """The jobs of one client that were admitted (`add`, `in`), and the keys that it has made for new ones."""

    def __init__(self, nats: Client, place: Place) -> None:
        self._nats, self._place = nats, place
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._admitted: OrderedDict[str, None] = OrderedDict()
        self._asking = asyncio.Lock()

    def add(self, job_id: str) -> None:
        """It is admitted: whoever waits for it knows that there is one."""
        remember(self._admitted, job_id, None)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._admitted

    def new_key(self) -> str:
        """A client key that names no job yet."""
        key = uuid.uuid4().hex
        remember(self._keys, key, None)
        return key

    async def waits_or_runs(self, job_id: str, client_key: str, pool: str) -> bool:
        """Whether the pool has the job, as queries says; asked for new keys only, by one submit at a time. Under another key an
        older job may run, with another body."""
        if client_key not in self._keys:
            return False
        async with self._asking:
            try:
                query = ExplainQuery(job_id=job_id)
                await ask(self._nats, "job.explain", self._place, query, pool=pool, timeout_s=_QUERIES_S)
            except ClientError:
                return False
        return True
