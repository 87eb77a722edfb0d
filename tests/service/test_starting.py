"""What a person has written wrong ends a service with a line that names it, whatever process it was forked from."""

import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from libs.cli.exits import UsageFault
from libs.cli.fencing import lease_terms
from libs.cli.launch import LaunchOptions, LocalStack
from libs.ports.folders import unwritable
from libs.service.settings import ServiceSettings
from libs.service.starting import read_settings, starting
from libs.walls.keyring import Keyring
from libs.walls.roles import SERVICES
from services.admission.settings import AdmissionSettings
from tests.kit.commands import fork


def test_each_variable_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HTTP_PORT", "99999999")
    monkeypatch.setenv("BATON_ADMISSION_BATCH", "0")
    with pytest.raises(SystemExit) as ended, starting("admission"):
        read_settings(AdmissionSettings)
    assert ended.value.code == (
        "admission: BATON_HTTP_PORT: Input should be less than or equal to 65535; "
        "BATON_ADMISSION_BATCH: Input should be greater than or equal to 1"
    )


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_refuses_the_credential_of_another(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: it started, was refused by the broker at every turn, and waited for ever."""
    ring = Keyring(tmp_path)
    other = "leases" if service != "leases" else "placement"
    monkeypatch.setenv("BATON_NATS_CREDS", str(ring.service(other)))
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"services.{service}", run_name="__main__")
    path = f"services/{other}/nats.creds"
    assert f"{service}: BATON_NATS_CREDS is {ring.creds / path}, the credential of {other!r}" in str(ended.value.code)
    for good in (ring.service(service), ring.service()):
        monkeypatch.setenv("BATON_NATS_CREDS", str(good))
        assert read_settings(ServiceSettings, service).nats_creds == good


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that this process may not write, whoever runs it; below it nothing can be made."""
    folder, user = Path(mkdtemp()), os.geteuid()
    folder.chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.rmdir()


def test_a_folder_says_why_it_cannot_be_written(read_only: Path) -> None:
    may_not = f"user {os.geteuid()} may not write {read_only}: give it to that user"
    assert unwritable(read_only) == unwritable(read_only / "below" / "it") == may_not
    (file := read_only.with_suffix(".file")).touch()
    assert unwritable(file / "below") == f"{file} is no folder: remove it"
    file.unlink()
    assert unwritable(read_only.parent) == unwritable(read_only.parent / "new" / "folder") == ""


def test_an_agent_names_the_state_folder_that_it_cannot_write(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a traceback at every start, and none of its lines named a variable."""
    monkeypatch.setenv("BATON_STATE_DIR", str(read_only))
    monkeypatch.setenv("BATON_AGENT_DEVICES", "cpu")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("services.agent", run_name="__main__")
    told = str(ended.value.code)
    assert f"agent: its state folder {read_only}/agent cannot be used, user " in told
    assert told.endswith("or name another with BATON_STATE_DIR")


async def test_up_names_the_state_folder_that_it_cannot_write(read_only: Path) -> None:
    with pytest.raises(UsageFault, match=rf"{read_only} cannot be used, user .* another with --state-dir"):
        await LocalStack(LaunchOptions(state_dir=read_only)).start()


def test_a_service_says_that_its_url_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_NATS_URL", "nats://a:secret@127.0.0.1:99999")
    with pytest.raises(SystemExit) as ended, starting("admission"):
        read_settings(AdmissionSettings)
    assert "admission: BATON_NATS_URL is 'nats://a:***@127.0.0.1:99999', and its port" in str(ended.value.code)


@pytest.mark.parametrize(
    ("variable", "url", "says"),
    [
        (
            "BATON_REDIS_URL",
            "garbage",
            "'garbage', and its scheme is not redis, rediss or unix: write redis://HOST:PORT",
        ),
        ("BATON_REDIS_URL", "redis://a:se,cret@127.0.0.1:99999", "'redis://a:***@127.0.0.1:99999', and its port is no"),
        *(
            (
                "BATON_REDIS_URL",
                f"redis://a:{password}@127.0.0.1:6379/0",
                "'redis://a:***@127.0.0.1:6379/0', and its password holds /, ?, #, [ or ]: write them as %2F, %3F, %23, %5B",
            )
            for password in ("sec/ret", "1/cret", "se#cret", "se?cret", "[cret]")
        ),
        ("BATON_MONGO_URL", "mongodb://a:se/cret@host", "'mongodb://a:***@host', and its password holds"),
        (
            "BATON_MONGO_URL",
            "http://a:secret@host",
            "'http://a:***@host', and its scheme is not mongodb or mongodb+srv",
        ),
        ("BATON_MONGO_URL", "mongodb://127.0.0.1:99999", "and its port is no number from 1 to 65535"),
    ],
)
def test_a_service_says_what_is_wrong_with_the_url_of_a_store(
    variable: str, url: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: "nats://...@garbage is not encrypted" of a URL for Redis, and a traceback of one for MongoDB."""
    monkeypatch.setenv(variable, url)
    with pytest.raises(SystemExit) as ended, starting("placement"):
        read_settings(ServiceSettings)
    assert f"placement: {variable} is " in str(ended.value.code)
    assert says in str(ended.value.code)
    assert "cret" not in str(ended.value.code)


@pytest.mark.parametrize(
    "url", ["mongodb://%2Ftmp%2Fm.sock", "mongodb://a:1,127.0.0.1/db?tls=true", "mongodb+srv://h/db"]
)
def test_urls_of_stores_in_their_own_forms_will_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_MONGO_URL", url)
    monkeypatch.setenv("BATON_REDIS_URL", "unix:///run/redis.sock")
    assert read_settings(ServiceSettings).mongo_url == url


def test_wrong_terms_of_leases_are_told_before_anything_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_LEASES_RHO", "7")
    with pytest.raises(UsageFault, match=r"BATON_LEASES_RHO: Input should be less than 0\.5"):
        lease_terms()


async def test_baton_up_says_what_is_wrong_in_a_file(tmp_path: Path) -> None:
    """Seen: "it wrote nothing to its log", as the services are forked from the command."""
    classes = tmp_path / "classes.yaml"
    classes.write_text("class: x\n")
    words = ("up", "--state-dir", str(tmp_path / "state"), "--no-real")
    environ = os.environ | {"BATON_CLASSES_FILE": str(classes)}
    code, _, err = await fork(stacks=True).run(words, environ, tmp_path)
    assert code == 1
    assert f"{classes}: classes: the field is missing: add it".encode() in err
    assert b"Traceback" not in err
