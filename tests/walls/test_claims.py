"""Keys, claims and the keyring, without a broker."""

import errno
import json
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from libs.bus.creds import Address, BadCredential, speaker
from libs.bus.endings import GoodFor
from libs.cli.main import app
from libs.ports.private_files import write_private
from libs.walls import accounts, broker_claims, claims, keyring, keys_of
from libs.walls.accounts import CORE, SYSTEM
from libs.walls.claims import KeyKind, KeyPair
from libs.walls.departed_teams import DepartedTeams
from libs.walls.keyfile import Keys, NewerKeys
from libs.walls.keyring import Keyring
from libs.walls.keys_of import NoCredential
from libs.walls.people import People
from schemas import subjects
from tests.walls.claimed import said_by

SEED = bytes(range(32))


def test_a_key_is_what_nats_makes_of_the_same_bytes() -> None:
    """Prefixes say whose it is; the same seed is the same key."""
    made = {kind: KeyPair.of(kind, SEED) for kind in KeyKind}
    assert [key.public[0] for key in made.values()] == ["O", "A", "U"]
    assert [key.seed[:2] for key in made.values()] == ["SO", "SA", "SU"]
    assert all(len(key.public) == 56 and KeyPair(key.seed).public == key.public for key in made.values())
    with pytest.raises(ValueError, match="no seed"):
        KeyPair("SUhello")


def test_a_claim_says_what_was_put_in() -> None:
    operator, account = KeyPair.of(KeyKind.OPERATOR, SEED), KeyPair.of(KeyKind.ACCOUNT, SEED)
    said = said_by(claims.claim(operator, account.public, "blue", {"type": "account"}, issued_s=7, exp=9))
    assert (said["iss"], said["sub"], said["name"], said["iat"], said["exp"]) == (
        operator.public, account.public, "blue", 7, 9,
    )  # fmt: skip
    assert said["nats"] == {"type": "account", "version": 2}


@pytest.mark.parametrize(
    ("everybody", "own", "name"),
    [
        (subjects.user_may("ANYONE"), subjects.user_may("blue"), ".blue"),
        (subjects.node_may("ANYONE"), subjects.node_may("west"), ".west"),
        (subjects.node_may("ANYONE"), subjects.node_may("west", "n1"), ".west.n1"),
    ],
)
def test_what_is_imported_is_exported_with_a_name_in_it(everybody: Any, own: Any, name: str) -> None:
    for exported, imported in zip(accounts.shared(everybody), accounts.shared(own), strict=True):
        stars = ".*" * name.count(".")
        assert {pattern.replace(name, stars) for pattern in imported} == set(exported)
        assert all(name in pattern for pattern in imported)
        assert all(_ANYONE not in pattern for pattern in exported)


_ANYONE = "ANYONE"


def test_a_role_names_the_credential_and_nobody_else() -> None:
    user = accounts.team_roles("blue")["user"]
    assert all("{{name()}}" in pattern for pattern in user.publish or ())
    assert f"_INBOX_{accounts.NAME}.>" in (user.subscribe or ())
    node = accounts.node_roles("main", "n1")["node"]
    assert all(pattern.endswith("main.n1") for pattern in node.publish or ())


def test_what_is_written_is_its_owners_only(tmp_path: Path) -> None:
    ring = Keyring(tmp_path / "state")
    path = ring.team("blue.ana")
    for private in (path, ring.folder / "keys.json"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    seeds = re.findall(r'"(S[OAU][A-Z2-7]{56})"', (ring.folder / "keys.json").read_text())
    assert seeds
    assert not [seed for seed in seeds if seed in repr(ring.keys())], "keys that are shown by mistake are not shown"


def test_credentials_stay_the_same_until_they_are_changed(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)
    first = ring.team("blue").read_text()
    assert Keyring(tmp_path).team("blue").read_text() == first
    assert ring.rotate("blue").read_text() != first
    ring.revoke("blue")
    assert not (ring.creds / "blue.creds").exists()
    assert ring.users("blue") == []
    with pytest.raises(NoCredential, match="green"):
        ring.rotate("green.eve")
    with pytest.raises(NoCredential, match=r"blue\.ana"):
        ring.revoke("blue.ana")


def test_what_a_newer_version_wrote_stays_in_the_keys(tmp_path: Path) -> None:
    ring, file = Keyring(tmp_path), tmp_path / "keys.json"
    ring.team("blue")
    written = json.loads(file.read_text())
    written["auditors"] = {"seed": "s", "users": {"ana": "U"}}
    written["teams"]["blue"]["colour"] = "of the sky"
    file.write_text(json.dumps(written))
    ring.rotate("blue")
    after = json.loads(file.read_text())
    assert after["auditors"] == written["auditors"]
    assert after["teams"]["blue"]["colour"] == "of the sky"
    for name, write in (
        ("people.json", lambda: People(tmp_path).pseudonym("blue", "ana")),
        ("left.json", lambda: DepartedTeams(tmp_path).note("red", 1.0)),
    ):
        (tmp_path / name).write_text('{"newer": 3}')
        write()
        assert json.loads((tmp_path / name).read_text())["newer"] == 3


def test_keys_that_only_a_newer_version_understands_are_left_alone(tmp_path: Path) -> None:
    ring, file = Keyring(tmp_path), tmp_path / "keys.json"
    ring.team("blue")
    newer = file.read_text().replace('"version": 1', '"version": 2')
    file.write_text(newer)
    with pytest.raises(NewerKeys, match=r"keys\.json is of version 2.*newer Baton"):
        ring.rotate("blue")
    assert file.read_text() == newer


@pytest.mark.parametrize(
    ("rotate", "path"),
    [
        (lambda ring: ring.rotate("blue"), "blue.creds"),
        (lambda ring: ring.rotate_finance("fay"), "finance/fay.creds"),
        (lambda ring: ring.rotate_own("operator"), "operator.creds"),
        (lambda ring: ring.rotate_own("placement"), "services/placement/nats.creds"),
        (lambda ring: ring.rotate_node("main", "n1"), "nodes/main.n1/nats.creds"),
        (lambda ring: ring.rotate_node("main", "n1"), "nodes/main.n1/logs.creds"),
        (lambda ring: ring.rotate_node("main"), "nodes/main/nats.creds"),
    ],
)
def test_a_rotation_that_is_cut_short_leaves_the_old_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rotate: Callable[[Keyring], object], path: str
) -> None:
    ring = Keyring(tmp_path)
    for made in (ring.team("blue"), ring.finance("fay"), ring.operator(), ring.service("placement")):
        assert made.is_file()
    ring.node("main", "n1"), ring.nodes("main")
    before, keys = (ring.creds / path).read_text(), ring.keys()

    def full(file: Path, text: str) -> None:
        if file == ring.creds / path:
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        write_private(file, text)

    monkeypatch.setattr(keyring, "write_private", full)
    with pytest.raises(OSError):
        rotate(ring)
    assert (ring.keys(), (ring.creds / path).read_text()) == (keys, before), "it is as good as it was"
    monkeypatch.undo()
    rotate(ring)
    assert (ring.creds / path).read_text() != before


def test_only_what_there_is_is_rotated(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)
    ring.operator()
    for nobody in (
        lambda: ring.rotate_finance("fay"),
        lambda: ring.rotate_own("placement"),
        lambda: ring.rotate_node("main"),
    ):
        with pytest.raises(NoCredential):
            nobody()
    ring.node("main", "n1"), ring.revoke_node("main", "n1")
    with pytest.raises(NoCredential, match="was revoked"):
        ring.rotate_node("main", "n1")


def test_a_credential_may_end_by_itself_and_rotating_gives_as_much_again(tmp_path: Path) -> None:
    now = [1_000.0]
    ring = Keyring(tmp_path, now=lambda: now[0])

    def said(path: Path) -> dict[str, Any]:
        return said_by(path.read_text().splitlines()[1])

    first = said(ring.team("blue.ana", lasts_s=60))
    assert first["exp"] == first["iat"] + 60
    assert "exp" not in said(ring.team("blue.ben")), "by default none ends"
    assert ring.ends("blue") == {"blue.ana": GoodFor(first["iat"], first["exp"])}
    assert said(ring.team("blue.ana")) == first, "it is there already"
    now[0] = 1_030.0
    rotated = said(ring.rotate("blue.ana"))
    assert (rotated["sub"] != first["sub"], rotated["exp"]) == (True, rotated["iat"] + 60)
    assert said(ring.rotate("blue.ana", lasts_s=600))["exp"] >= 1_630
    now[0] = 2_000.0
    again = said(ring.team("blue.ana"))
    assert (again["iat"], again["exp"]) == (2_000, 2_600), "what has ended is made anew, for as long"
    ring.revoke("blue")
    assert ring.ends("blue") == {}
    assert "exp" not in said(ring.team("blue.ana"))


def test_every_claim_of_an_account_is_newer_than_the_last(tmp_path: Path) -> None:
    """Brokers keep the newest; two in one second, or a clock that was set back, must not lose one."""
    ring = Keyring(tmp_path, now=lambda: 1_000.0)
    ring.team("blue")
    issued = [said_by(broker_claims.account_claim(ring, "blue")[1])["iat"] for _ in range(3)]
    assert issued == sorted(set(issued))
    assert broker_claims.account_claim(Keyring(tmp_path, now=lambda: 500.0), "blue")[1] > ""
    assert said_by(broker_claims.account_claim(ring, "blue")[1])["iat"] > issued[-1] + 1


@pytest.mark.parametrize(
    "name", [SYSTEM, CORE, "operator", "services", "a b", "", "..", "a.b.c", "a.*", ">", "Red", "r_d", "-a"]
)
def test_no_team_has_a_name_that_means_something_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError):
        Keyring(tmp_path).team(name)


@pytest.mark.parametrize(
    ("pool", "node"), [("Main", "n1"), ("main", "-n1"), ("main", "n1."), ("main", "e\u0301"), ("main", "*")]
)
def test_no_node_has_a_name_that_no_message_may_have(tmp_path: Path, pool: str, node: str) -> None:
    with pytest.raises(ValueError):
        Keyring(tmp_path).node(pool, node)


@pytest.mark.parametrize("text", ["", "-----BEGIN NATS USER JWT-----", "-----BEGIN NATS USER JWT-----\na.b\n"])
def test_a_file_that_is_no_credential_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.creds"
    path.write_text(text)
    with pytest.raises(BadCredential, match=r"x\.creds"):
        Address("nats://127.0.0.1:1", path).options()
    with pytest.raises(BadCredential, match="BATON_NATS_CREDS"):
        speaker(tmp_path / "none.creds")


def test_a_credential_says_whose_it_is(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)
    assert [speaker(ring.team(name)) for name in ("blue", "blue.ana")] == ["blue", "blue.ana"]
    assert (speaker(ring.operator()), speaker(ring.node("main", "n1"))) == ("operator", "main.n1")


def test_void_credentials_are_not_kept_for_ever(tmp_path: Path) -> None:
    """A credential that stands from the first day keeps the lines of all that came after; once it is rotated they are one."""
    ring = Keyring(tmp_path)
    ring.team("red"), ring.team("red.ana")
    gone = []
    for _ in range(20):
        gone.append(ring.keys().teams["red"].users["red.ana"])
        ring.rotate("red.ana")
    kept = ring.keys().teams["red"]
    assert set(kept.revoked) == set(gone)
    first = kept.users["red"]
    ring.rotate("red")
    kept = ring.keys().teams["red"]
    assert set(kept.revoked) == {"*", first}, "those of before the oldest that counts are one line"
    assert kept.revoked["*"] < min(kept.since.values())
    ring.revoke("red.ana")
    assert len(ring.keys().teams["red"].revoked) <= 3
    ring.team("red.ben"), ring.rotate("red")
    assert kept.revoked["*"] <= ring.keys().teams["red"].revoked["*"]


def test_too_many_void_credentials_are_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_of, "MOST_REVOKED", 5)
    ring = Keyring(tmp_path)
    ring.team("red"), ring.team("red.ana"), ring.team("red.ben")
    for _ in range(5):
        ring.rotate("red.ana")
    for refused in (lambda: ring.rotate("red.ana"), lambda: ring.team("red.cat")):
        with pytest.raises(keys_of.TooManyUsers, match="baton team rotate red`"):
            refused()
    ring.revoke("red.ben")
    ring.rotate("red")
    ring.team("red.cat")


class CountedKeyring(Keyring):
    """Counts changes of its file."""

    changes = 0

    @contextmanager
    def changing(self) -> Iterator[Keys]:
        self.changes += 1
        with super().changing() as keys:
            yield keys


def test_a_start_changes_the_keys_as_often_with_many_accounts_as_with_few(tmp_path: Path) -> None:
    """The whole file was read and written for each: with a thousand teams and nodes that ever were, a minute."""
    ring, made = CountedKeyring(tmp_path), []
    for teams in (1, 20):
        for n in range(teams):
            ring.team(f"team{n}")
            ring.node("main", f"n{n}")
        ring.changes = 0
        found = broker_claims.trust(ring)
        assert len(found.accounts) == 2 + 2 * teams
        made.append(ring.changes)
    assert made[0] == made[1]


def test_a_list_of_teams_reads_the_keys_as_often_with_many_as_with_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thousand teams that were read for each it took half a minute."""
    ring, read, reads = Keyring(tmp_path), Keyring.keys, list[Path]()

    def keys(self: Keyring) -> Keys:
        reads.append(self.folder)
        return read(self)

    monkeypatch.setattr(Keyring, "keys", keys)
    counted = []
    for teams in (1, 20):
        for n in range(teams):
            ring.team(f"team{n}.ana")
        reads.clear()
        done = CliRunner().invoke(
            app, ["team", "list", "--state-dir", str(tmp_path), "-o", "json"], env={"BATON_NATS_URL": ""}
        )
        assert done.exit_code == 0, done.output
        assert done.stdout.count("team19.ana") == (2 if teams == 20 else 0)
        counted.append(len(reads))
    assert counted[0] == counted[1]
