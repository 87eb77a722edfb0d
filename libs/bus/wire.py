"""Encryption in transit: everything is encrypted unless it stays on this machine. One rule for the bus and for the stores.

A plain URL of another host is refused. `--insecure` (BATON_INSECURE=1) allows it, and so does listing the host in
BATON_PLAIN_HOSTS, which states that nobody else uses the network between: containers of one host, say.
"""

import ipaddress
import logging
import os
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

CA_FILE = "ca.pem"
"""The authority's certificate, beside a credential: whoever connects with that checks the broker by it."""
_SAFE = ("tls", "wss", "rediss", "unix")
NATS_SCHEMES = ("nats", "tls", "ws", "wss")
_UNCHECKED: Mapping[str, Collection[str]] = {
    "tlsinsecure": ("true",),
    "tlsallowinvalidcertificates": ("true",),
    "tlsallowinvalidhostnames": ("true",),
    "ssl_cert_reqs": ("none", "optional"),
    "ssl_check_hostname": ("0", "f", "false", "n", "no"),
}
"""Options of stores by which anybody in the middle is taken for the server: no better than plain."""
_NO_PORT = "its port is no number from 1 to 65535"


class BadAddress(ValueError):
    """What says where a server is, or by what it is known, is wrong; the text names the variable, the value and the fix."""


class PlainWire(ValueError):
    """What would be said to another host could be read on the way; the text names the host and the fix."""


def check_form(urls: str, variable: str = "BATON_NATS_URL (or --url)") -> None:
    """Raises BadAddress when one of `urls` (separated by commas) is none of a NATS server; `variable` is what named it."""
    for url in map(str.strip, urls.split(",")):
        if wrong := _wrong(url):
            raise BadAddress(
                f"{variable} is {without_password(urls)!r}, and {wrong}: write {NATS_SCHEMES[0]}://HOST:PORT"
            )


def check_store(url: str, variable: str, schemes: Sequence[str]) -> None:
    """The same of a store: Redis has one server, MongoDB's client reads its own form of several. Raises BadAddress."""
    scheme, mark, _ = url.partition("://")
    wrong, fix = "", f"write {schemes[0]}://HOST:PORT"
    if not mark or scheme not in schemes:
        wrong = _no_scheme(schemes)
    elif _cut_short(url):
        wrong, fix = "its password holds /, ?, #, [ or ]", "write them as %2F, %3F, %23, %5B or %5D"
    elif not (scheme.startswith("mongodb") and "," in url):
        try:
            urlsplit(url).port  # noqa: B018 - it is read for what it raises
        except ValueError:
            wrong = _NO_PORT
    if wrong:
        raise BadAddress(f"{variable} is {_shown(url)!r}, and {wrong}: {fix}")


def without_password(url: str) -> str:
    """`url` as it may be shown: `nats://user:***@host:4222`."""
    parts = list[str]()
    for part in url.split(","):
        if parts and "@" in part and "://" not in part and "@" not in parts[-1]:
            parts[-1] += f",{part}"  # the comma may be one of a password: rather too much is hidden
        else:
            parts.append(part)
    return ",".join(_shown(part.strip()) for part in parts)


def check(urls: str, *, allowed: Collection[str] = (), insecure: bool = False) -> None:
    """Raises PlainWire when one of `urls` (separated by commas) is plain and of another host that is not `allowed`."""
    if insecure:
        return
    for scheme, host in _plain(urls):
        if not is_here(host) and host not in allowed:
            fix = {"redis": "rediss://", "mongodb": "?tls=true"}.get(scheme, "tls://")
            raise PlainWire(
                f"{scheme}://...@{host} is not encrypted, or believes whoever answers, and {host} is another host: use {fix} "
                "and check its certificate (docs/security.md), name the host in BATON_PLAIN_HOSTS if nobody else is in the "
                "network between, or say --insecure (BATON_INSECURE=1)"
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
    """Checks a server by the authority in that file, or without one by those of this machine. Raises BadAddress."""
    logging.getLogger("asyncio").addFilter(_worth_saying)
    try:
        return ssl.create_default_context(cafile=None if authority is None else str(authority))
    except (OSError, ssl.SSLError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise BadAddress(
            f"BATON_NATS_CA is {authority}, which is no certificate of an authority ({why}): correct it"
        ) from None


def _wrong(url: str) -> str:
    """Why it is no URL of a NATS server; "" when it is one. Without a scheme it is HOST:PORT."""
    scheme, mark, _ = url.partition("://")
    if mark and scheme not in NATS_SCHEMES:
        return _no_scheme(NATS_SCHEMES)
    try:  # the errors' texts may repeat a password
        found = urlsplit(url if mark else f"//{url}")
        host = "" if any(map(str.isspace, url)) else found.hostname
    except ValueError:
        host = ""
    if not host:
        return "it names no host that can be read"
    try:
        port = found.port
    except ValueError:
        port = 0
    if port == 0:
        return _NO_PORT
    return "" if mark or port else "it names no port"


def _no_scheme(schemes: Sequence[str]) -> str:
    return f"its scheme is not {', '.join(schemes[:-1])} or {schemes[-1]}"


def _shown(url: str) -> str:
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    credential, at, host = rest.rpartition("@")
    user, colon, _ = credential.partition(":")
    return f"{scheme}{mark}{user + ':' if colon else ''}***@{host}" if at else url


def _worth_saying(record: logging.LogRecord) -> bool:
    """asyncio warns at the end of each connection that began plain and went on encrypted, as all to NATS do; nothing is
    amiss."""
    return "eof_received() has no effect" not in record.getMessage()


def _cut_short(url: str) -> bool:
    """Whether a store's password holds what ends the name of a server."""
    scheme, _, rest = url.partition("://")
    if scheme.startswith("mongodb"):
        rest = rest.partition("?")[0]  # an option may have an @
    return scheme != "unix" and any(mark in rest.rpartition("@")[0] for mark in "/?#[]")


def _servers(urls: str) -> list[str]:
    """Each server of a URL of several. Redis has one, and a comma in a password of MongoDB's separates nothing."""
    scheme, _, rest = urls.partition("://")
    if scheme in ("redis", "rediss", "unix"):
        return [urls]
    if not scheme.startswith("mongodb"):
        return urls.split(",")
    credential, at, hosts = rest.rpartition("@")
    first, *others = hosts.split(",")
    return [f"{scheme}://{credential}{at}{first}", *others]


def _plain(urls: str) -> Iterator[tuple[str, str]]:
    scheme = query = ""
    for text in _servers(urls):
        found = urlsplit(text.strip() if "://" in text else f"{scheme or 'nats'}://{text.strip()}")
        scheme, query = found.scheme, found.query or urlsplit(urls).query
        options = {name.lower(): values[-1].lower() for name, values in parse_qs(query).items()}
        default = "true" if scheme.endswith("+srv") else "false"
        encrypted = scheme in _SAFE or (
            scheme.startswith("mongodb") and options.get("tls", options.get("ssl", default)) == "true"
        )
        if not encrypted or any(options.get(name) in values for name, values in _UNCHECKED.items()):
            host = found.netloc.rpartition("@")[2]
            yield scheme, host if host.lower().startswith("%2f") else (found.hostname or "")
