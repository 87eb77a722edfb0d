"""Signals that end a long-running command."""

import asyncio
import signal
from collections.abc import Callable


def when_asked_to_stop(stop: Callable[[], object]) -> None:
    """Calls `stop` at Ctrl-C, at SIGTERM, and when the terminal is closed: an abrupt end would leave this machine's
    jobs running until their lease ends. Under `nohup` a closed terminal sends nothing. Needs a running event loop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue
        asyncio.get_running_loop().add_signal_handler(number, stop)
