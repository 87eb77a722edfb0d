"""What pipelines install: submit, follow, explain, bill. Holds a NATS connection and nothing else.

async with await connect() as baton:
    job = await baton.submit(JobSpec(command=("python", "train.py"), resources=Resources(devices=4)))
    async for event in baton.watch(job.job_id):
        print(event.what)
"""

from libs.client.baton import Baton, Submitted, connect
from libs.client.errors import (
    Busy,
    ClientError,
    Conflict,
    Denied,
    Failed,
    HasEnded,
    Invalid,
    NotCancelled,
    NotFound,
    Parked,
    Rejected,
    TimedOut,
    Unreachable,
)
from libs.client.where import Place, find
