"""What costs milliseconds and is the same in every seed is done once: files that are read, records that are parsed.

Records are immutable and all readers get the same bytes, so one parsed record serves them all. It lasts for one seed.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from nats.js import api

from libs.bus import streams, table
from libs.ledger import chain, inputs
from libs.service import files, fill
from libs.simulation.dst import client, secrecy
from services.quota_billing import files as quotas

_caches: list[dict[bytes, Any]] = []
_installed: list[bool] = []


def install() -> None:
    """Once per process."""
    if _installed:
        return
    _installed.append(True)
    chain._record = _once(chain._record)  # type: ignore[assignment]
    inputs._KINDS = {
        stem: inputs._InboxKind(kind.type, kind.pattern, _once(kind.parse)) for stem, kind in inputs._KINDS.items()
    }
    client.stream_info = _once(client.stream_info)  # type: ignore[assignment]
    streams.streams = fill.streams = _table
    api.Base.from_response = classmethod(_from_response)  # type: ignore[assignment, method-assign]
    _read_once()
    secrecy.install()


_made_table = lru_cache(maxsize=8)(table.streams)


def _table(pools: Sequence[str], *, replicas: int = 1, scale: float = 1.0) -> list[Any]:
    return list(_made_table(tuple(pools), replicas=replicas, scale=scale))


_fields = lru_cache(maxsize=256)(lambda kind: tuple(field.name for field in dataclasses.fields(kind)))


def _from_response(kind: Any, answer: dict[str, Any]) -> Any:
    """As nats-py's own, which looks its fields up each time."""
    return kind(**{name: answer[name] for name in _fields(kind) if name in answer})


def _read_once() -> None:
    """Wherever a service has imported one of these, it gets the one that remembers."""
    reading = (files.read, files.read_prices, files.read_throughputs, files.read_classes, quotas.load_quotas)
    remembering = {function: _as_written(function) for function in reading}
    for module in [module for name, module in sys.modules.items() if name.startswith(("services.", "libs.service."))]:
        for name, value in list(vars(module).items()):
            if callable(value) and value in reading:
                setattr(module, name, remembering[value])


def _as_written(read: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers what it read of files, as long as nobody writes them anew: the process may have more to do than seeds."""

    @lru_cache(maxsize=8)
    def known(written: tuple[tuple[int, int], ...], *args: Any) -> Any:
        return read(*args)

    def reading(*args: Any) -> Any:
        there = [path.stat() for path in args if isinstance(path, Path) and path.exists()]
        return known(tuple((file.st_mtime_ns, file.st_size) for file in there), *args)

    return reading


def forget() -> None:
    """At the end of a seed."""
    for cache in _caches:
        cache.clear()


def _once(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Failures are not kept: they are rare, and each has its own traceback."""
    known: dict[bytes, Any] = {}
    _caches.append(known)

    def parsed(payload: bytes) -> Any:
        found = known.get(payload)
        if found is None:
            found = known[payload] = parse(payload)
        return found

    return parsed
