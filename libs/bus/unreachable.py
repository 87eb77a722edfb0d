"""Why no server could be reached, and what to do about it."""

import asyncio
import logging
import re
import time
from contextlib import suppress
from pathlib import Path

from libs.bus.creds import Address, BadCredential, speaker
from libs.bus.endings import of_credential
from libs.bus.metrics import ERRORS
from libs.bus.wire import without_password
from schemas.subjects import FINANCE

logger = logging.getLogger("baton.bus")

_RENEWING = "`baton team rotate` makes it; of a node `baton node rotate`, of a service `baton credentials --rotate`"
_SAID_NOTHING = ("TimeoutError", "nats: timeout")
"""What is reported of a server that lets one connect and says nothing."""
_UNTRUSTED = re.compile(
    r"certificate|\bSSL\b(?!: (?:APPLICATION_DATA_AFTER_CLOSE_NOTIFY|UNEXPECTED_EOF))", re.IGNORECASE
)
"""Not of a server that ended the connection: it waited too long for whom it encrypts to."""
_OUTDATED = re.compile(r"expired|not yet valid", re.IGNORECASE)
_MISNAMED = re.compile(r"mismatch", re.IGNORECASE)
_CROWDED = re.compile(r"maximum account active connections", re.IGNORECASE)
_REFUSAL = re.compile(r"authorization|authentication(?! timeout)|revoked", re.IGNORECASE)
"""Not of a credential that came too late: the way there is slow."""


class Problems:
    """Logs and counts what the client reports; the same text at most every ten seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = ""
        """What was reported last."""
        self.connected = False
        self.refused = asyncio.Event()
        """The credential was, by a server, before there was a connection."""
        self._logged: dict[str, float] = {}

    async def report(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if not (_CROWDED.search(self.last) and isinstance(error, ConnectionError)):  # the broker's own word says more
            self.last = text
        ERRORS.labels(type(error).__name__).inc()
        if not self.connected and _REFUSAL.search(text):
            self.refused.set()
        now = time.monotonic()
        if now - self._logged.get(text, -10.0) >= 10.0:
            if len(self._logged) > 100:
                self._logged.clear()
            self._logged[text] = now
            logger.warning("NATS connection %s: %s", self.name, text)


def explained(where: Address, problems: Problems, wait_s: float) -> str:
    """Why nothing answered at `where` for `wait_s` seconds, by what was reported meanwhile; without a password."""
    shown = without_password(where.url)
    if problems.refused.is_set():
        fix = (
            "check user and password in the URL, or set BATON_NATS_CREDS"
            if where.creds is None
            else f"{_void(where.creds)}; ask your operator for the new file ({_RENEWING})"
        )
        return f"NATS at {shown} refused the credential ({problems.last}): {fix}"
    if _UNTRUSTED.search(problems.last):
        fix = _trusted(where, problems.last)
        return f"the certificate of NATS at {shown} is not one that we trust ({problems.last}): {fix}"
    if _CROWDED.search(problems.last):
        whose, ends = ("finance", "finance let-in") if _of_finance(where) else ("this team", "team let-in")
        return (
            f"NATS at {shown} takes no connection of {whose} ({problems.last}): it has as many as it may, or it sent too "
            f"much and is kept out for some minutes; your operator's `baton audit` says which, and `baton {ends}` ends it"
        )
    if problems.last in _SAID_NOTHING:
        return (
            f"no NATS server answered at {shown} within {wait_s:g} s, and nothing refused the connection: a server that is "
            "there stands still, or is too slow: look at it, and at the way to it, or correct BATON_NATS_URL"
        )
    why = f" ({problems.last})" if problems.last else ""
    return (
        f"no NATS server answered at {shown} within {wait_s:g} s{why}: "
        "start one (`baton up`, or `docker compose up nats`) or correct BATON_NATS_URL"
    )


def _of_finance(where: Address) -> bool:
    with suppress(BadCredential):
        return where.creds is not None and speaker(where.creds).partition(".")[0] == FINANCE
    return False


def _void(creds: Path | str) -> str:
    with suppress(BadCredential):
        if (term := of_credential(creds)) is not None and term.ends_s <= (now_s := time.time()):
            return f"it {term.told(now_s)}"
    return "it may have been revoked or rotated"


def _trusted(where: Address, why: str) -> str:
    """What to do so that the broker's certificate is believed."""
    if not where.encrypted:
        return "its URL says that nothing is encrypted: write tls:// there"
    if _OUTDATED.search(why):
        return (
            "your operator makes a new one (`baton credentials --renew` with the options of before, then the broker reloads), "
            "or this machine's clock is wrong"
        )
    if _MISNAMED.search(why):
        return "use a name that the certificate has, or have it made for this one (`baton credentials --hosts`)"
    if where.creds is None:
        return "set BATON_NATS_CREDS to your credential, beside which its ca.pem lies, or BATON_NATS_CA to that"
    return "set BATON_NATS_CA to the ca.pem that came with your credential"
