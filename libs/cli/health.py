"""Asks services whether they are ready, on plain sockets, since importing an HTTP client would slow the start."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

_ANSWER_S = 3.0
_LONGEST = 64 * 1024
_LOG_END = 256 * 1024
"""Bytes read at the end of a log."""
_RESTORE = "baton ledger restore"
"""Mentioned by a service that needs archived records."""


@dataclass(frozen=True, slots=True)
class Checks:
    """A service's answer: `checks` are name -> "ok" or the problem."""

    ready: bool
    checks: Mapping[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> str:
        """The checks that are not ok, in one line."""
        return ", ".join(f"{name}: {text}" for name, text in self.checks.items() if text != "ok")

    @property
    def archived(self) -> bool:
        """Whether it waits for archived records of the ledger."""
        return any(_RESTORE in text for text in self.checks.values())


class NotReady(RuntimeError):
    """Services were not ready in time. The text names each failed check; for a service that does not answer, the error
    with which it ended since `began_s` (seconds since 1970), if any; and where the logs are."""

    def __init__(self, waiting: Mapping[str, Checks], limit_s: float, logs: Path, began_s: float) -> None:
        reasons = {
            name: ", it ended: ".join(filter(None, (checks.problems, last_words(logs / f"{name}.log", began_s))))
            for name, checks in waiting.items()
        }
        said = "; ".join(f"{name} ({why or 'no reason given'})" for name, why in reasons.items())
        if any(_RESTORE in why for why in reasons.values()):
            said += "; `baton up --servers-only` runs the broker for that"
        super().__init__(f"not ready within {limit_s:g} s: {said}; see the logs in {logs}")
        self.waiting = dict(waiting)


def last_words(log: Path, began_s: float) -> str:
    """The last error with which a service ended since then, from its log; "" if it did not."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_END))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            if said["level"] == "critical":
                late = datetime.fromisoformat(said["timestamp"]).timestamp() >= began_s
                words = [text.strip(" |+-") for text in str(said.get("exception", said.get("event", ""))).splitlines()]
                return next((text for text in reversed(words) if text), "")[:500] if late else ""
    return ""


async def readiness(url: str, token: str) -> Checks:
    """The answer of `<url>/readyz`, with `token`; not ready when nobody answers."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                lines = [
                    "GET /readyz HTTP/1.1",
                    f"Host: {parts.netloc}",
                    f"Authorization: Bearer {token}",
                    "Connection: close",
                ]
                writer.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
                answer = await reader.read(_LONGEST)
                while len(answer) < _LONGEST and (more := await reader.read(_LONGEST)):
                    answer += more
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError) as e:
        return Checks(False, {"http": f"no answer ({type(e).__name__})"})
    head, _, body = answer.partition(b"\r\n\r\n")
    ready = head.split()[1:2] == [b"200"]
    try:
        checks = json.loads(body).get("checks", {})
    except (ValueError, AttributeError):
        checks = {}
    return Checks(ready, {str(name): str(text) for name, text in checks.items()} if isinstance(checks, dict) else {})
