"""Which host this code runs on: None is the machine itself, and all that production ever has."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar, Token
from typing import Any, Protocol

_present: ContextVar["Host | None"] = ContextVar("baton-host", default=None)


class Host(Protocol):
    """What stands in for a machine: its clocks, its connections, its end. Every method is the seam of one real call."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch, as this host's clock is set."""
        ...

    def boot_s(self) -> float:
        """Seconds on a clock that nobody sets and that goes on while the machine sleeps."""
        ...

    def boot_id(self) -> str:
        """Names the present boot of the machine."""
        ...

    def process_name(self) -> str:
        """Names the process among all of Baton's."""
        ...

    async def connect(self, name: str, inbox_prefix: str | None, wait_s: float) -> Any:
        """A client of the broker (`Net`); raises what `libs.bus.connect.connect` raises."""
        ...

    def broker(self, name: str) -> Any:
        """What handlers are registered at, in place of FastStream's broker."""
        ...

    def service(
        self,
        broker: Any,
        lifespan: Callable[[], AbstractAsyncContextManager[None]],
        ready: Callable[[], dict[str, str]],
    ) -> Any:
        """What runs a service, in place of an HTTP server."""
        ...

    def redis(self) -> Any:
        """A client of Redis."""
        ...

    def mongo(self) -> Any:
        """A client of MongoDB."""
        ...

    def end(self, why: str, error: BaseException | None) -> None:
        """This process ends, at once and with a failure."""
        ...

    def reached(self, failpoint: str) -> None:
        """A named place in a service was reached; the process may die here."""
        ...


def present_host() -> Host | None:
    """The host of the running task; None: the machine itself."""
    return _present.get()


def on_host(host: Host | None) -> Token[Host | None]:
    """From here on the present context, and the tasks that it starts, are on `host`."""
    return _present.set(host)


def failpoint(name: str) -> None:
    """A place where a crash is interesting. In production it costs a look at a context variable."""
    host = _present.get()
    if host is not None:
        host.reached(name)
