"""What goes over the wire is encrypted, unless it stays on this machine: one rule for the bus and for the stores.

A plain URL of another host is refused. `--insecure` (BATON_INSECURE=1) allows it, and so does naming the host in
BATON_PLAIN_HOSTS, which says that the network between is nobody else's: containers of one host, say.
"""

import ipaddress
import logging
import os
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

CA_FILE = "ca.pem"
"""The authority's certificate, beside a credential: whoever connects with that checks the broker by it."""
_SAFE = ("tls", "wss", "rediss", "unix")


class PlainWire(ValueError):
    """What would be said to another host could be read on the way; the text names the host and the fix."""


def check(urls: str, *, allowed: Collection[str] = (), insecure: bool = False) -> None:
    """Raises PlainWire when one of `urls` (separated by commas) is plain and of another host that is not `allowed`."""
    if insecure:
        return
    for scheme, host in _plain(urls):
        if not is_here(host) and host not in allowed:
            fix = {"redis": "rediss://", "mongodb": "?tls=true"}.get(scheme, "tls://")
            raise PlainWire(
                f"{scheme}://...@{host} is not encrypted, and {host} is another host: use {fix} (docs/security.md), name the "
                "host in BATON_PLAIN_HOSTS if nobody else is in the network between, or say --insecure (BATON_INSECURE=1)"
            )


def is_here(host: str) -> bool:
    """Whether `host` is this machine by its name or address alone; nothing is looked up."""
    if host in ("localhost", "") or host.lower().startswith("%2f"):  # a socket, as MongoDB's URLs have it
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def allowed_hosts(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Those of BATON_PLAIN_HOSTS, separated by commas."""
    named = (os.environ if environ is None else environ).get("BATON_PLAIN_HOSTS", "")
    return frozenset(host.strip() for host in named.split(",") if host.strip())


def context(authority: Path | None) -> ssl.SSLContext:
    """Checks a server by the authority in that file, or without one by those of this machine. Raises ValueError."""
    logging.getLogger("asyncio").addFilter(_worth_saying)
    try:
        return ssl.create_default_context(cafile=None if authority is None else str(authority))
    except (OSError, ssl.SSLError) as e:
        raise ValueError(f"{authority} is no certificate of an authority ({e}): correct BATON_NATS_CA") from None


def _worth_saying(record: logging.LogRecord) -> bool:
    """asyncio warns at the end of each connection that began plain and went on encrypted, as all to NATS do; nothing is
    amiss."""
    return "eof_received() has no effect" not in record.getMessage()


def _plain(urls: str) -> Iterator[tuple[str, str]]:
    scheme = query = ""
    for text in urls.split(","):
        found = urlsplit(text.strip() if "://" in text else f"{scheme or 'nats'}://{text.strip()}")
        scheme, query = found.scheme, found.query or urlsplit(urls).query
        options = {name.lower(): values[-1].lower() for name, values in parse_qs(query).items()}
        encrypted = scheme.endswith("+srv") or options.get("tls", options.get("ssl")) == "true"
        if scheme not in _SAFE and not (scheme.startswith("mongodb") and encrypted):
            host = found.netloc.rpartition("@")[2]
            yield scheme, host if host.lower().startswith("%2f") else (found.hostname or "")
