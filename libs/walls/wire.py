"""The broker's certificate, and the authority that signs it: made once, in the keyring's folder.

    tls/ca.key              the authority's secret; whoever has it can pretend to be the broker
    tls/server.pem, tls/server.key     of the broker
    creds/**/ca.pem         beside every credential: by it clients know the broker

The authority is good for ten years, a broker's certificate for 397 days. Each run of `baton credentials` (compose: each start)
makes a new one when fewer than 60 days are left or the names have changed, or at once with `--renew`; clients go on, since the
authority stays. A server reads it when it starts or is told to reload. Where `creds/ca.pem` was removed it makes that anew, for
another ten years, and clients go on likewise.
"""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from libs.bus.wire import CA_FILE
from libs.ports.private_files import write_private
from libs.walls import certificates
from libs.walls.certificates import SEED_BYTES, SERIAL_BYTES, Validity
from libs.walls.keyring import Keyring

CERTIFICATE, KEY, ROUTES = "server.pem", "server.key", "routes.conf"
_NAME = "Baton"
_DAY_S = 86_400
_AUTHORITY_DAYS, _SERVER_DAYS, _RENEW_DAYS = 3_650, 397, 60
_EARLIER_S = 3_600
"""Clocks of clients may be behind."""


class Wire:
    """See above. `now` gives seconds since 1970."""

    def __init__(self, ring: Keyring, now: Callable[[], float] = time.time) -> None:
        self._creds, self._folder, self._now = ring.creds, ring.folder / "tls", now
        self.certificate, self.key = self._folder / CERTIFICATE, self._folder / KEY
        self._about = self._folder / "server.json"

    @property
    def names(self) -> list[str]:
        """Those of the certificate that is there; none without one."""
        return list(self._held().get("names", ()))

    def _held(self) -> dict[str, Any]:
        return json.loads(self._about.read_text()) if self._about.is_file() and self.certificate.is_file() else {}

    def make(self, names: Sequence[str], *, renew: bool = False) -> datetime:
        """Makes what is missing, about to expire, or of other names; until when the certificate is good. `names`: host names
        and addresses that clients call the broker by. Raises ValueError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seed = self._authority()
        held = self._held()
        now = int(self._now())
        if renew or held.get("names") != list(names) or held.get("ends_s", 0) - now < _RENEW_DAYS * _DAY_S:
            held = {"names": list(names), "ends_s": now + _SERVER_DAYS * _DAY_S}
            own, valid = secrets.token_bytes(SEED_BYTES), Validity(now - _EARLIER_S, held["ends_s"])
            signed = certificates.server(seed, _NAME, own, names, valid, secrets.token_bytes(SERIAL_BYTES))
            write_private(self.key, certificates.private_key(own))
            self.certificate.write_text(signed)
            self._about.write_text(json.dumps(held))
        self._hand_out()
        return datetime.fromtimestamp(held["ends_s"], UTC)

    def _authority(self) -> bytes:
        """Its secret. Its certificate is made where it is missing: of the same key, so that who has an older one goes on."""
        path, known = self._folder / "ca.key", self._creds / CA_FILE
        begun = path.is_file()
        seed = bytes.fromhex(path.read_text()) if begun else secrets.token_bytes(SEED_BYTES)
        if not (begun and known.is_file()):
            now = int(self._now())
            valid = Validity(now - _EARLIER_S, now + _AUTHORITY_DAYS * _DAY_S)
            made = certificates.authority(seed, _NAME, valid, secrets.token_bytes(SERIAL_BYTES))
            self._creds.mkdir(mode=0o700, parents=True, exist_ok=True)
            known.write_text(made)
        if not begun:
            write_private(path, seed.hex(), durable=True)
        return seed

    def _hand_out(self) -> None:
        """The authority's certificate into every folder of credentials: each may be given away alone."""
        known = (self._creds / CA_FILE).read_text()
        for folder in {path.parent for path in self._creds.rglob("*.creds")} - {self._creds}:
            (folder / CA_FILE).write_text(known)

    def config(self, folder: Path | str) -> dict[str, str]:
        """The `tls` block of nats-server's configuration; `folder` is where the server finds the files."""
        return {"cert_file": f"{folder}/{CERTIFICATE}", "key_file": f"{folder}/{KEY}", "min_version": "1.3"}

    def give(self, to: Path, folder: Path | str) -> None:
        """What the server needs, into `to`; `routes.conf` is for inclusion in the `cluster` block of a server that has one, so
        that servers know each other, too. The key is for the owner of `to` alone, as whom the server runs."""
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(to / KEY, self.key.read_text(), whose=to)
        for source, name in ((self.certificate, CERTIFICATE), (self._creds / CA_FILE, CA_FILE)):
            (to / name).write_text(source.read_text())
        routes = {**self.config(folder), "ca_file": f"{folder}/{CA_FILE}", "verify": True}
        (to / ROUTES).write_text(f"tls: {json.dumps(routes, indent=2)}\n")
