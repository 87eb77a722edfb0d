"""What goes to another host is encrypted, and goes to the broker that it is meant for."""

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
import time
from pathlib import Path

import pytest

from libs.bus import wire
from libs.bus.connect import Address, BusUnavailable, close, connect
from libs.bus.endings import look
from libs.service.settings import ServiceSettings
from libs.walls import broker_claims
from libs.walls.keyring import Keyring
from libs.walls.resolver import tell
from libs.walls.wire import Wire
from tests.cli.test_command import baton
from tests.kit.nats_process import nats_process
from tests.kit.waiting import until

DAY_S = 86_400


async def test_a_broker_with_our_certificate_is_trusted_and_no_other(tmp_path: Path) -> None:
    """By the configuration that `baton credentials` writes, with the credential and what lies beside it."""
    state, server = tmp_path / "state", tmp_path / "server"
    made = await baton(
        *("credentials", "--teams", "red", "--pools", "main", "--state-dir", str(state)),
        *("--hosts", "127.0.0.1,localhost", "--certificates", str(server)),
        *("--accounts", str(server / "told"), "--write", str(server / "accounts.conf")),
    )
    assert made.code == 0, made.err
    assert stat.S_IMODE(server.stat().st_mode) == 0o700, "the server's own key lies there"
    cluster = f'cluster {{ name: baton, listen: "127.0.0.1:-1", include {server}/routes.conf }}\n'.replace(
        f"include {server}/", "include server/"
    )
    ring = Keyring(state)
    with nats_process(f"include server/accounts.conf\n{cluster}", tmp_path) as plain:
        url = plain.replace("nats://", "tls://")
        settings = ServiceSettings(nats_url=url, nats_creds=ring.service("history"))
        await close(await connect(settings.bus, name="history"))
        await tell(url, ring, ring.accounts)
        with pytest.raises(BusUnavailable, match=r"not one that we trust.*BATON_NATS_CA"):
            await connect(Address(url, ring.service("history").read_text()), name="history", wait_s=3)
        with pytest.raises(BusUnavailable, match=r"not one that we trust.*BATON_NATS_CREDS"):
            await connect(Address(url), name="history", wait_s=3)
        other = Wire(Keyring(tmp_path / "other"))
        other.make(["127.0.0.1"])
        foreign = tmp_path / "other" / "creds" / wire.CA_FILE
        with pytest.raises(BusUnavailable, match="not one that we trust"):
            await connect(Address(url, ring.service("history"), ca=foreign), name="history", wait_s=3)
        misnamed = url.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(BusUnavailable):
            await connect(Address(misnamed, ring.service("history")), name="history", wait_s=2)


@pytest.mark.parametrize(
    ("scheme", "host", "days_ago", "fix"),
    [
        ("tls", "localhost", 398, r"expired.*--renew"),
        ("tls", "localhost", -1, r"not yet valid.*clock"),
        ("tls", "127.0.0.1", 0, r"mismatch.*a name that the certificate has"),
        ("nats", "localhost", 0, "write tls://"),
    ],
)
async def test_why_a_certificate_is_not_trusted_is_told_with_what_helps(
    tmp_path: Path, scheme: str, host: str, days_ago: int, fix: str
) -> None:
    """Seen: of each, only that BATON_NATS_CA is to name the authority, which was named."""
    ring = Keyring(tmp_path / "state")
    creds = ring.service("history")
    made = Wire(ring, lambda: time.time() - days_ago * DAY_S)
    made.make(["localhost"])
    made.give(tmp_path / "server", tmp_path / "server")
    tls = json.dumps(made.config(tmp_path / "server"))
    with nats_process(f"tls: {tls}\n", tmp_path) as plain:
        url = plain.replace("nats://127.0.0.1", f"{scheme}://{host}")
        with pytest.raises(BusUnavailable, match=fix) as told:
            await connect(Address(url, creds), name="history", wait_s=3)
        assert "BATON_NATS_CA" not in str(told.value)


async def test_who_says_that_there_is_no_encryption_hears_nothing(tmp_path: Path) -> None:
    """A broker says itself, in clear, that it speaks TLS; who is in the middle can say that it does not, and pass on the true
    broker's nonce to be signed."""
    ring = Keyring(tmp_path)
    Wire(ring).make(["127.0.0.1"])
    heard = bytearray()

    async def in_the_middle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {
            "server_id": "N",
            "version": "2.12.0",
            "max_payload": 1024,
            "headers": True,
            "auth_required": True,
            "nonce": "n",
        }
        writer.write(f"INFO {json.dumps(info)}\r\n".encode())
        while said := await reader.read(4096):
            heard.extend(said)
            writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(in_the_middle, "127.0.0.1", 0) as server:
        url = f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(BusUnavailable, match="does not encrypt"):
            await connect(Address(url, ring.service("history")), name="history", wait_s=2)
    assert not heard, "nor a signature"


async def test_a_broker_that_reloads_has_the_new_certificate_and_still_speaks_tls(tmp_path: Path) -> None:
    """Seen: each run wrote another claim of the operator, with which a broker reloads nothing (who sends the signal hears no
    error), and one without --hosts left out TLS."""
    state, server = tmp_path / "state", tmp_path / "server"

    async def written(*more: str) -> None:
        made = await baton(
            *("credentials", "--teams", "red", "--state-dir", str(state), "--certificates", str(server)),
            *("--accounts", str(server / "told"), "--write", str(server / "accounts.conf"), *more),
        )
        assert made.code == 0, made.err

    await written("--nodes", "main/n1", "--hosts", "127.0.0.1,localhost")
    ring, pid = Keyring(state), tmp_path / "nats.pid"
    assert (
        broker_claims.trust(Keyring(state, lambda: time.time() + DAY_S)).operator == broker_claims.trust(ring).operator
    )
    with nats_process(f'include server/accounts.conf\npid_file: "{pid}"\n', tmp_path) as plain:
        url = plain.replace("nats://", "tls://")
        service = await connect(Address(url, ring.service("history")), name="history")
        before = shown(url)
        await written("--nodes", "main/n1,main/n2", "--renew")
        os.kill(int(pid.read_text()), signal.SIGHUP)
        await until(lambda: shown(url) != before)
        assert service.is_connected
        await close(service)
        await close(await connect(Address(url, ring.node("main", "n2")), name="agent", inbox_prefix="_NODE_main.n2"))
    assert Wire(ring).names == ["127.0.0.1", "localhost"]


def shown(url: str) -> bytes:
    """The certificate that the broker shows; it speaks TLS after its first line."""
    host, _, port = url.removeprefix("tls://").partition(":")
    any_one = ssl.create_default_context()
    any_one.check_hostname, any_one.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port))) as plain:
        plain.recv(65_536)
        with any_one.wrap_socket(plain) as tls:
            return tls.getpeercert(binary_form=True) or b""


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("nats://127.0.0.1:4222", True),
        ("nats://localhost:4222,nats://[::1]:4223", True),
        ("tls://gpu-1:4222", True),
        ("nats://gpu-1:4222", False),
        ("tls://gpu-1:4222,nats://gpu-2:4222", False),
        ("nats://10.0.0.5:4222", False),
        ("gpu-1:4222", False),
        ("redis://user:word@stores:6379/0", False),
        ("rediss://user:word@stores:6379/0", True),
        ("redis://user:wo,rd@127.0.0.1:6379/0", True),
        ("redis://user:wo,rd@stores:6379/0", False),
        ("mongodb://user:wo,rd@127.0.0.1:27017/baton", True),
        ("mongodb://user:wo,rd@127.0.0.1:1,stores:2/baton", False),
        ("mongodb://stores:27017/?tls=false", False),
        ("mongodb://a:1,b:2/?tls=true", True),
        ("mongodb+srv://stores/", True),
        ("mongodb+srv://stores/?tls=false", False),
        ("mongodb+srv://stores/?ssl=false", False),
        ("mongodb://stores:27017/?tls=true&tlsAllowInvalidCertificates=true", False),
        ("mongodb://stores:27017/?tls=true&tlsInsecure=true", False),
        ("rediss://user:word@stores:6379/0?ssl_cert_reqs=none", False),
        ("rediss://user:word@stores:6379/0?ssl_check_hostname=False", False),
        ("rediss://user:word@127.0.0.1:6379/0?ssl_cert_reqs=none", True),
        ("mongodb://%2Frun%2Fmongo.sock", True),
    ],
)
def test_plain_urls_of_other_hosts_are_refused(url: str, fine: bool) -> None:
    if fine:
        wire.check(url)
        return
    with pytest.raises(wire.PlainWire, match="not encrypted"):
        wire.check(url)
    wire.check(url, insecure=True)
    wire.check(url, allowed=("gpu-1", "gpu-2", "10.0.0.5", "stores"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:wo,rd@h:1/0", "redis://u:***@h:1/0"),
        ("redis://u:wo://rd@h:1/0", "redis://u:***@h:1/0"),
        ("nats://u:wo,rd@h:1,nats://v:word@i:2,j:3", "nats://u:***@h:1,nats://v:***@i:2,j:3"),
        ("u:word@h:1", "u:***@h:1"),
        ("word@h:1,i:2", "***@h:1,i:2"),
        ("nats://h:1,i:2", "nats://h:1,i:2"),
    ],
)
def test_no_part_of_a_password_is_shown(url: str, shown: str) -> None:
    assert wire.without_password(url) == shown


async def test_services_and_clients_hold_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"redis://.*BATON_PLAIN_HOSTS"):
        ServiceSettings(redis_url="redis://u:p@stores:6379/0")
    with pytest.raises(BusUnavailable, match="gpu-1 is another host"):
        await connect(ServiceSettings(nats_url="nats://gpu-1:4222").bus, name="service")
    monkeypatch.setenv("BATON_PLAIN_HOSTS", "stores, elsewhere")
    assert ServiceSettings(redis_url="redis://u:p@stores:6379/0")


def test_the_brokers_key_is_its_users_alone_from_its_first_byte(tmp_path: Path) -> None:
    """It was 0644, in a folder that others may enter: compose's volume. Who has it can pretend to be the broker."""
    made, server = Wire(Keyring(tmp_path / "state")), tmp_path / "server"
    made.make(["nats"])
    server.mkdir(mode=0o755)
    key = server / "server.key"
    key.write_text("of an older release")
    key.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(server, 12345, 12346)
    with key.open() as opened_before:
        made.give(server, "/etc/nats")
        assert opened_before.read() == "of an older release", "who has the old file open sees nothing of the new one"
    there, folder = key.stat(), server.stat()
    assert stat.S_IMODE(there.st_mode) == 0o600
    assert (there.st_uid, there.st_gid) == (folder.st_uid, folder.st_gid), "the server, which is no root, reads it"
    assert key.read_text() == made.key.read_text()


def test_a_certificate_is_made_anew_before_it_ends_and_the_authority_stays(tmp_path: Path) -> None:
    at = [time.time()]
    ring = Keyring(tmp_path)
    ring.service("history")
    made = Wire(ring, lambda: at[0])
    first = made.make(["nats"])
    authority, certificate = (tmp_path / "creds" / wire.CA_FILE).read_text(), made.certificate.read_text()
    at[0] += 300 * DAY_S
    assert made.make(["nats"]) == first
    assert made.certificate.read_text() == certificate
    at[0] += 60 * DAY_S
    assert made.make(["nats"]) > first
    assert made.certificate.read_text() != certificate
    renewed = made.certificate.read_text()
    made.make(["nats"], renew=True)
    assert made.certificate.read_text() != renewed
    assert (tmp_path / "creds" / wire.CA_FILE).read_text() == authority
    assert (tmp_path / "creds" / "services" / "history" / wire.CA_FILE).read_text() == authority
    assert made.key.stat().st_mode & 0o777 == 0o600
    strict = ssl.create_default_context(cafile=str(tmp_path / "creds" / wire.CA_FILE))
    assert strict.get_ca_certs()[0]["subject"] == ((("commonName", "Baton"),),)
    assert json.loads((tmp_path / "tls" / "server.json").read_text())["names"] == ["nats"]
    with pytest.raises(ValueError, match="xn--"):
        made.make(["größe"])


class Renewed:
    """A broker whose authority is followed by another one, and a connection from before."""

    def __init__(self, folder: Path) -> None:
        self.ring, self.server, self.pid = Keyring(folder / "state"), folder / "server", folder / "nats.pid"
        self.creds = self.ring.service("history")
        self.known = self.creds.with_name(wire.CA_FILE)
        made = Wire(self.ring)
        made.make(["127.0.0.1"])
        made.give(self.server, self.server)
        self.config = f'tls: {json.dumps(made.config(self.server))}\npid_file: "{self.pid}"\n'

    async def follow(self, url: str, handed_out: str) -> None:
        """A new authority signs what the broker shows now; who connects is given `handed_out`, in which `{}` is the new one."""
        before = shown(url)
        (self.ring.folder / "tls" / "ca.key").unlink()
        old = self.known.read_text()
        made = Wire(self.ring)
        made.make(["127.0.0.1"], renew=True)
        made.give(self.server, self.server)
        self.known.write_text(handed_out.format(new=self.known.read_text(), old=old))
        os.kill(int(self.pid.read_text()), signal.SIGHUP)
        await until(lambda: shown(url) != before)


async def test_a_client_that_speaks_tls_connects_again(tmp_path: Path) -> None:
    """Seen: with asyncio's own loop, which commands and clients have, it never did, and closing raised AttributeError."""
    made = Renewed(tmp_path)
    with nats_process(made.config, tmp_path) as plain:
        client = await connect(Address(plain.replace("nats://", "tls://"), made.creds), name="history")
        for times in (1, 2):
            await client.force_reconnect()
            await until(lambda times=times: client.is_connected and client.stats["reconnects"] == times)
        await close(client)


async def test_who_is_given_a_new_authority_knows_the_broker_by_it_when_it_connects_again(tmp_path: Path) -> None:
    """Seen: services that ran had the old one for ever, and after the broker's next restart the pool was down until each was
    started again."""
    renewed = Renewed(tmp_path)
    with nats_process(renewed.config, tmp_path) as plain:
        url = plain.replace("nats://", "tls://")
        service = await connect(Address(url, renewed.creds), name="history")
        await renewed.follow(url, "{new}")
        await service.force_reconnect()
        await until(lambda: service.is_connected and service.stats["reconnects"] == 1)
        await close(service)


async def test_an_authority_has_another_ten_years_and_who_has_its_certificate_of_before_goes_on(tmp_path: Path) -> None:
    """Seen: without `creds/ca.pem` no credentials could be made, and it was told to name a file that exists."""
    at = [time.time() - 3_640 * DAY_S]
    ring = Keyring(tmp_path / "state")
    creds, made = ring.service("history"), Wire(ring, lambda: at[0])
    made.make(["127.0.0.1"])
    old = tmp_path / "old.pem"
    old.write_text((ring.creds / wire.CA_FILE).read_text())
    at[0] = time.time()
    (ring.creds / wire.CA_FILE).unlink()
    made.make(["127.0.0.1"])
    made.give(tmp_path / "server", tmp_path / "server")
    with nats_process(f"tls: {json.dumps(made.config(tmp_path / 'server'))}\n", tmp_path) as plain:
        url = plain.replace("nats://", "tls://")
        for known, days in ((creds.with_name(wire.CA_FILE), 3_650), (old, 10)):
            where = Address(url, creds, ca=known)
            await close(await connect(where, name="history"))
            authority = (await look(where)).authority
            assert authority is not None
            assert authority.ends_s == pytest.approx(time.time() + days * DAY_S, abs=60)


async def test_a_file_with_the_old_and_the_new_authority_knows_the_broker_of_before_and_after(tmp_path: Path) -> None:
    renewed = Renewed(tmp_path)
    with nats_process(renewed.config, tmp_path) as plain:
        url = plain.replace("nats://", "tls://")
        old = renewed.known.read_text()
        await renewed.follow(url, "{new}{old}")
        await close(await connect(Address(url, renewed.creds), name="history"))
        renewed.known.write_text(old)
        with pytest.raises(BusUnavailable, match="not one that we trust"):
            await connect(Address(url, renewed.creds), name="history", wait_s=3)


async def test_who_does_not_trust_the_broker_any_more_can_be_stopped(tmp_path: Path) -> None:
    """Seen: a service or agent whose broker had another certificate did not end when it was told to, until it was killed."""
    renewed = Renewed(tmp_path)
    with nats_process(renewed.config, tmp_path) as plain:
        url = plain.replace("nats://", "tls://")
        service = await connect(Address(url, renewed.creds), name="history")
        await renewed.follow(url, "{old}")
        await service.force_reconnect()
        await until(lambda: "CERTIFICATE_VERIFY_FAILED" in str(service.last_error))
        async with asyncio.timeout(60):
            await close(service)
        assert service.is_closed
