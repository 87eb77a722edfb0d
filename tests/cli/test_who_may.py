"""Every command that is the operators' says so to whoever shows another's credential, before anything is done: exit code 4.
And every command that asks the broker says what is wrong with where it is, or with the credential: exit code 2."""

import os
import sys
from pathlib import Path

import pytest

from libs.bus.wire import without_password
from libs.cli.main import main
from libs.walls.keyring import Keyring
from libs.walls.people import People
from tests.audit.test_every_command import every

ROOT = Path(__file__).parents[2]
NOWHERE = "nats://127.0.0.1:9"

OPERATORS = """
bill statement
bill export bill.csv
bill page page.html --of red
bill push --to openmeter --endpoint http://127.0.0.1:9 --state state
bill close --from 2026-10 --reason x
ledger readers
ledger upgrade
ledger segments
ledger roll
ledger archive folder
ledger restore FILE --reason x
ledger verify
ledger credits
ledger used
ledger export export.jsonl
audit verify
audit push
dead list
dead show 1
dead replay 1
apply -f QUEUES
diff -f QUEUES
prices apply -f PRICES
budget top-up red --gpu-hours 1 --reason x
quota set red 8
secret rekey
node declare-dead n1 --fenced-by x
node cordon n1 --reason x
node uncordon n1
node release n1 d1 --reason x
node add n2
node rotate n1
node revoke n1 --reason x
finance add ana
finance rotate ana
finance revoke ana --reason x
finance let-in
team add green
team rotate green
team revoke green --reason x
team let-in green
team erase red.ana
team push
team serve
team suspend red --reason x
team resume red
team offboard red --export folder --reason x
provision
backup folder
"""
ANYBODY = """
submit --gpus 1 -- x
plan -f JOB
get jobs
get waiting
get nodes
get devices
get queues
get quotas
describe job one
describe node n1
explain one
logs one
watch
wait one
cancel one
bill used
status
top --once
boost one --to normal --for 1h --reason x
budget show
secret set one --file FILE
secret list
secret remove one
team list
team export folder
"""
HERE = {
    "demo",
    "up",
    "replay",
    "simulate",
    "scenario run",
    "placer",
    "prices check",
    "credentials",
    "restore",
    "bill verify",
    "finance list",
}
"""They ask nobody who is there already, or begin with the files or the keys of the folder that they are given."""
BESIDES = ["audit", "ledger readers --forget x --reason y", "secret remove one --of red", "team add red.ana --admin",
           "credentials --rotate operator"]  # fmt: skip
"""What is the operators' of the other commands."""


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def test_of_every_command_it_is_said_who_may() -> None:
    listed = [*lines(OPERATORS), *lines(ANYBODY)]
    for name in every():
        assert name in HERE or any(f"{line} ".startswith(f"{name} ") for line in listed), f"list `baton {name}`"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run: without keys and without an instance, but with the files that they may be given."""
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        monkeypatch.delenv(name)
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("BATON_NATS_URL", NOWHERE)
    return tmp_path


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    return Keyring(tmp_path_factory.mktemp("keys"))


def argv(line: str) -> list[str]:
    """Of `baton line`, with files where it names their kinds."""
    files = {
        "FILE": "file", "QUEUES": str(ROOT / "deploy/queues.yaml"), "PRICES": str(ROOT / "deploy/prices.yaml"),
        "JOB": str(ROOT / "examples/gang-16.yaml"),
    }  # fmt: skip
    return ["baton", *(files.get(word, word) for word in line.split())]


def ended(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code of `baton line`, and what it says on stderr."""
    monkeypatch.setattr(sys, "argv", argv(line))
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize("line", [*lines(OPERATORS), "finance list", *BESIDES])
def test_an_operators_command_is_refused_to_a_team_and_its_admin(
    line: str, folder: Path, ring: Keyring, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_NATS_CREDS", str(ring.team("red.ana", admin=True)))
    code, said = ended(line, monkeypatch, capsys)
    assert (code, said.splitlines()[0]) == (4, "baton: refused: needs an operator's credential")
    assert "red.ana.creds is that of red.ana" in said
    assert sorted(path.name for path in folder.iterdir()) == ["file"], "nothing was done"


def credentials(ring: Keyring) -> list[tuple[str, dict[str, str], dict[str, int]]]:
    keys = ring.keys()
    return [(name, one.users, one.revoked) for name, one in (*keys.teams.items(), *keys.nodes.items())]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("garbage", "'garbage', and it names no port"),
        ("http://127.0.0.1:4222", "its scheme is not nats, tls, ws or wss"),
        ("nats://ana:secret@127.0.0.1:99999", "'nats://ana:***@127.0.0.1:99999', and its port is no number from 1 to"),
        ("nats://127.0.0.1:abc", "its port is no number from 1 to 65535"),
        ("nats://127.0.0.1:0", "its port is no number from 1 to 65535"),
        ("nats://ana:sec/ret@127.0.0.1:4222", "'nats://ana:***@127.0.0.1:4222', and its port is no number"),
        ("nats://[::1", "it names no host that can be read"),
        ("nats://", "it names no host that can be read"),
        (":4222", "it names no host that can be read"),
        ("nats://the broker:4222", "it names no host that can be read"),
        ("nats://127.0.0.1:4222,", "'nats://127.0.0.1:4222,', and it names no host"),
    ],
)
def test_what_is_wrong_with_a_url(
    url: str, why: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen: a traceback for a port out of range, "not encrypted" for what is no URL, a password in the text."""
    monkeypatch.setenv("BATON_NATS_URL", url)
    monkeypatch.setenv("BATON_TEAM", "red")
    code, said = ended("get jobs", monkeypatch, capsys)
    assert code == 2
    assert f"BATON_NATS_URL (or --url) is {without_password(url)!r}" in said
    assert why in said
    assert "write nats://HOST:PORT" in said
    assert "secret" not in said


@pytest.mark.parametrize("line", [*lines(OPERATORS), *lines(ANYBODY), *BESIDES])
def test_every_command_says_that_its_url_is_none(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = Keyring(folder / "none")
    for make in (ring.operator, lambda: ring.team("red"), lambda: ring.node("main", "n1")):
        make()
    People(ring.folder).pseudonym("red", "ana")  # there is somebody to forget
    before = credentials(ring)
    monkeypatch.setenv("BATON_NATS_URL", "nats://127.0.0.1:99999")
    monkeypatch.setenv("BATON_NATS_CREDS", str(ring.operator()))
    code, said = ended(line, monkeypatch, capsys)
    assert (code, "BATON_NATS_URL" in said) == (0 if line == "team list" else 2, True), said
    assert credentials(ring) == before, "nothing was done"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("missing", "cannot be read (No such file or directory)"),
        ("a folder", "cannot be read (Is a directory)"),
        ("bytes", "cannot be read (it is no text)"),
        ("empty", "is no NATS credential, which has the claim of a user and a seed"),
        ("a certificate", "is no NATS credential"),
        ("cut short", "is no NATS credential"),
    ],
)
def test_what_is_wrong_with_a_credential(
    kind: str,
    why: str,
    folder: Path,
    ring: Keyring,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, good = folder / "my.creds", ring.operator().read_text()
    texts = {"empty": "", "a certificate": "-----BEGIN CERTIFICATE-----\nMIIB\n", "cut short": good[: good.index("SU")]}
    if kind in texts:
        path.write_text(texts[kind])
    elif kind == "bytes":
        path.write_bytes(b"\xff\xfe\x00")
    elif kind == "a folder":
        path.mkdir()
    monkeypatch.setenv("BATON_NATS_CREDS", str(path))
    code, said = ended("get jobs", monkeypatch, capsys)
    assert (code, said.count("BATON_NATS_CREDS")) == (2, 1), said
    assert f"{path} {why}" in said
    assert "SU" not in said


@pytest.mark.parametrize("line", [*lines(OPERATORS), *lines(ANYBODY), *BESIDES])
def test_every_command_says_that_its_credential_is_none(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_NATS_CREDS", str(folder / "none.creds"))
    code, said = ended(line, monkeypatch, capsys)
    assert (code, f"{folder / 'none.creds'} cannot be read" in said, "correct BATON_NATS_CREDS" in said) == (
        2,
        True,
        True,
    )


def test_an_authority_that_is_none_is_told(
    folder: Path, ring: Keyring, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen: a traceback."""
    monkeypatch.setenv("BATON_NATS_URL", "tls://127.0.0.1:9")
    monkeypatch.setenv("BATON_NATS_CREDS", str(ring.team("red")))
    for path in ("file", "none.pem"):
        monkeypatch.setenv("BATON_NATS_CA", path)
        code, said = ended("get jobs", monkeypatch, capsys)
        assert (code, f"BATON_NATS_CA is {path}, which is no certificate of an authority" in said) == (2, True), said
