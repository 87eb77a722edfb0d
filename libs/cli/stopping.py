"""How a command that stays is asked to end."""

import asyncio
import signal
from collections.abc import Callable


def when_asked_to_stop(stop: Callable[[], object]) -> None:
    """Calls `stop` at Ctrl-C, at SIGTERM, and when the terminal is closed: who was ended there and then would leave the jobs of
    this machine running until their lease ends. Under `nohup` a closed terminal says nothing. In a running event loop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue
        asyncio.get_running_loop().add_signal_handler(number, stop)
