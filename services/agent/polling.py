"""The event loop of an agent whose jobs have its user, see `keeper.waiting`."""

import asyncio
import selectors


def loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.PollSelector())
