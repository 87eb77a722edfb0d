"""Who has the broker trace its messages, heard in the core: what cannot be counted while it happens.

Whoever publishes may ask for a trace (`Nats-Trace-Dest`, NATS ADR-41): the broker then says how the message went, on a subject
on which that one may publish. No setting and no permission forbids it. The broker makes these words one after the other in one
queue without a bound, and its own answers (what accounts have sent, the APIs of JetStream) stand behind them. So whoever has
more traced than it can say is not counted by `libs.walls.floods`, keeps services from working, and has the broker grow. But
each of these words passes through the core, with the account for which it was made.
"""

import asyncio
import json
from collections import Counter
from contextlib import suppress
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas import subjects

LISTEN_S: Final = 0.5
FLOOD: Final = 8
"""So many in that time: nobody of ours has anything traced, and who looks for a fault by hand, once."""
_WHERE = (*subjects.COMMANDS_QUESTIONS_INPUTS, subjects.SIGNALS)
"""Where teams and nodes may publish, and so have traces sent."""
_BEGINNING, _PACKED = b'{"server":{', "Content-Encoding"
_WHOSE = "Nats-Request-Info"
"""The broker writes it behind all that a sender may have written."""


async def traced(core: Client) -> Counter[str]:
    """Account (its public key) -> how many of its messages the broker said within `LISTEN_S` that it traced. A server that
    stands still says none. Raises nats errors."""
    heard = Counter[str]()

    async def hear(message: Msg) -> None:
        if account := _account(message):
            heard[account] += 1

    ears = [await core.subscribe(subject, cb=hear) for subject in _WHERE]
    try:
        await asyncio.sleep(LISTEN_S)
    finally:
        for ear in ears:
            await ear.unsubscribe()
    return heard


def _account(message: Msg) -> str:
    """For whom the broker made a trace; "" for any other message."""
    headers = message.headers or {}
    if message.reply or not (message.data.startswith(_BEGINNING) or _PACKED in headers):
        return ""
    with suppress(ValueError, AttributeError):
        return str(json.loads(headers.get(_WHOSE, "")).get("acc", ""))
    return ""
