"""When what a connection rests on ends by itself: a broker's certificate, that of its authority, a credential.

One rule says what ends soon. The certificates are looked at by a connection made for that: one that stands shows what the
broker had when it began, and a broker that was given a new certificate lets it stand.
"""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from libs.bus import wire
from libs.bus.creds import Address, claim, speaker

DAY_S = 86_400
SOON_S = 30 * DAY_S
_LAST_PART = 3
"""What is made for less than three months ends soon in the last third of its time."""
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class GoodFor:
    """From when to when something is good, seconds since 1970."""

    begins_s: float
    ends_s: float

    def soon(self, now_s: float) -> bool:
        """Whether it ends soon, or has ended."""
        return self.ends_s - now_s < min(SOON_S, (self.ends_s - self.begins_s) / _LAST_PART)

    def told(self, now_s: float) -> str:
        """`ends on 2026-12-01, in 3 days`."""
        day, left_s = datetime.fromtimestamp(self.ends_s, UTC).strftime("%Y-%m-%d"), self.ends_s - now_s
        if left_s <= 0:
            return f"ended on {day}"
        days = int(left_s // DAY_S)
        return f"ends on {day}, " + (f"in {days} day{'' if days == 1 else 's'}" if days else "in less than a day")


@dataclass(frozen=True, slots=True)
class Shown:
    """The terms of certificates: those of the servers that answered, by host and port, and that of the authority by which they
    are checked, unless that is any of this machine's."""

    servers: Mapping[str, GoodFor]
    authority: GoodFor | None


def of_credential(creds: Path | str | None) -> GoodFor | None:
    """Of a credential that ends by itself; None: it is good until it is void. Raises BadCredential."""
    said: Mapping[str, Any] = {} if creds is None else claim(creds)
    return GoodFor(said.get("iat", 0), said["exp"]) if "exp" in said else None


def notice(creds: Path | str | None, now_s: float) -> str:
    """What the holder of a credential is told when that ends soon; else "". Raises BadCredential."""
    term = of_credential(creds)
    if creds is None or term is None or not term.soon(now_s):
        return ""
    who = speaker(creds)
    return (
        f"the credential of {who} {term.told(now_s)}: ask who gave it to you for a new one (`baton team rotate {who}`)"
    )


async def look(where: Address) -> Shown:
    """Asks each server of `where` for its certificate. Of one that does not answer, or that is not to be trusted, nothing is
    told. Raises BadAddress."""
    if not where.encrypted:
        return Shown({}, None)
    checks = wire.context(where.authority)
    urls = [urlsplit(url.strip() if "://" in url else f"tls://{url.strip()}") for url in where.url.split(",")]
    asked = {f"{url.hostname}:{_port(url)}": _of_server(url, checks) for url in urls}
    told = await asyncio.gather(*asked.values())
    servers = {name: term for name, term in zip(asked, told, strict=True) if term is not None}
    own = [_term(known) for known in checks.get_ca_certs()] if where.authority is not None else []
    return Shown(servers, min(own, key=lambda term: term.ends_s, default=None))


async def _of_server(url: SplitResult, checks: ssl.SSLContext) -> GoodFor | None:
    with suppress(OSError, TimeoutError):  # what TLS raises is an OSError
        return await asyncio.wait_for(_shown(url, checks), _LOOK_S)
    return None


async def _shown(url: SplitResult, checks: ssl.SSLContext) -> GoodFor:
    """A broker speaks TLS after its first line, but by websockets from the start."""
    at_once = url.scheme == "wss"
    reader, writer = await asyncio.open_connection(url.hostname, _port(url), ssl=checks if at_once else None)
    try:
        if not at_once:
            await reader.readline()
            await writer.start_tls(checks, server_hostname=url.hostname)
        return _term(writer.get_extra_info("peercert"))
    finally:
        writer.close()  # in good order: the broker logs a handshake that it does not see the end of as an error


def _port(url: SplitResult) -> int:
    """As the client of NATS connects where the URL says none."""
    return url.port or (443 if url.scheme == "wss" else 4222)


def _term(certificate: Mapping[str, Any]) -> GoodFor:
    return GoodFor(*(ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter")))
