"""A reader of Baton 0.1.0 that goes on reading. A script: run with that version's wheel as PYTHONPATH, and nothing of the
present code; it prints its position whenever that has grown, and why it stopped. `python old_follower.py <nats url> <pool>`
"""

import asyncio
import sys

import nats

from libs.core import fold
from libs.core.model import State
from libs.ledger.chain import LedgerStopped
from libs.ledger.reader import LedgerReader


async def follow(url: str, pool: str) -> None:
    client = await nats.connect(url)
    state, reader = State(), LedgerReader(client.jetstream(), pool)
    print("ready", flush=True)
    try:
        async for entries in reader.follow(idle_s=0.2):
            for entry in entries:
                if entry.valid:
                    fold.apply_record(state, entry.record)
            if entries:
                print(reader.position, flush=True)
    except LedgerStopped as error:
        print("stopped", type(error).__name__, error, flush=True)


asyncio.run(follow(*sys.argv[1:]))
