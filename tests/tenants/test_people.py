"""Pseudonyms: drawn once, kept in one place, and forgotten."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from libs.bus.connect import Address
from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.team_admin import answering
from libs.client import Baton, NotFound, connect
from libs.walls.keyring import Keyring
from libs.walls.people import MOST_NAME, NoSuchPerson, People, is_pseudonym
from schemas.jobs import JobSpec
from tests.cli.test_command import Result, baton
from tests.kit.waiting import until


def test_a_pseudonym_is_a_persons_of_one_team_until_it_is_erased(tmp_path: Path) -> None:
    people = People(tmp_path)
    ana = people.pseudonym("red", "ana")
    assert (people.pseudonym("red", "ana"), people.known("red", "ana"), people.known("red", "ben")) == (ana, ana, "ben")
    assert people.pseudonym("blue", "ana") != ana
    assert (tmp_path / "people.json").stat().st_mode & 0o077 == 0
    assert people.erase("red", "ana") == [ana]
    with pytest.raises(NoSuchPerson, match="nobody of team red is called 'ana'"):
        people.erase("red", "ana")
    assert people.pseudonym("red", "ana") != ana, "who comes back is somebody else"
    assert len(people.erase("red")) == 1
    assert people.erase("red") == []
    assert "red" not in json.loads((tmp_path / "people.json").read_text())["teams"]
    for bad in ("", "x" * (MOST_NAME + 1)):
        with pytest.raises(ValueError, match="a person's name has"):
            people.pseudonym("red", bad)


async def test_the_command_knows_people_by_their_names(tmp_path: Path) -> None:
    options = LaunchOptions(state_dir=tmp_path, teams=("red",), services=(), sync_always=False, scale=0.01)
    async with LocalStack(options) as cluster:

        async def team(*words: str) -> Result:
            return await baton("team", *words, BATON_STATE_DIR=str(cluster.state_dir))

        added = await team("add", "red.ana")
        path = Path(added.out.strip())
        assert (added.code, path.is_file(), "ana" in path.name) == (0, True, False), added.err
        assert [name for name in cluster.keyring.users("red") if "ana" in name] == []
        assert f"red.ana speaks as the user {path.stem.partition('.')[2]}, in subjects and as BATON_USER" in added.err
        assert "was no team until now" not in added.err
        mistyped = await team("add", "rde.eve")
        assert "did you mean red? rde was no team until now" in mistyped.err
        before = path.read_text()
        assert (await team("rotate", "red.ana")).out == added.out
        assert path.read_text() != before
        erased = await team("erase", "red.ana")
        assert (erased.code, erased.out) == (0, f"{path.stem}\n"), erased.err
        assert not path.exists()
        assert (await team("erase", "red.ana")).code == 3
        plain = await team("add", "red.ben", "--plain")
        assert (Path(plain.out.strip()).name, plain.err) == ("red.ben.creds", "")
        assert (await team("add", "red.ben")).out == plain.out, "who has a credential by its name keeps it"


async def test_who_is_erased_is_not_forgotten_before_the_credential_is_void(tmp_path: Path) -> None:
    """The name went first: when the keys could not be changed then, nobody could say any more whose credential stood on."""
    ring, people = Keyring(tmp_path), People(tmp_path)
    ring.team(f"red.{people.pseudonym('red', 'ana')}")
    written = json.loads((tmp_path / "keys.json").read_text())
    (tmp_path / "keys.json").write_text(json.dumps({**written, "version": 99}))
    refused = await baton("team", "erase", "red.ana", BATON_STATE_DIR=str(tmp_path))
    assert refused.code != 0
    assert list(people.of("red").values()) == ["ana"]
    (tmp_path / "keys.json").write_text(json.dumps(written))
    erased = await baton("team", "erase", "red.ana", BATON_STATE_DIR=str(tmp_path))
    assert (erased.code, people.of("red"), ring.users("red")) == (0, {}, []), erased.err


async def test_the_name_of_a_person_of_no_team_is_not_kept(tmp_path: Path) -> None:
    """It was refused, and stood in people.json for ever."""
    Keyring(tmp_path).team("red")
    for name in ("VIS.Bea Smith", ".Ann Smith", "operator.Cleo Smith"):
        refused = await baton("team", "add", name, BATON_STATE_DIR=str(tmp_path))
        assert (refused.code, refused.out) == (2, ""), refused.err
    assert "Smith" not in (tmp_path / "people.json").read_text()


async def test_the_name_of_who_has_no_credential_or_has_none_any_more_is_not_kept(tmp_path: Path) -> None:
    """What was refused was a line of the operator's book, and of the ledger: for ever, also of who had been erased."""
    Keyring(tmp_path).team("red")
    for words in (("add", "red.Smith"), ("erase", "red.Smith")):
        assert (await baton("team", *words, BATON_STATE_DIR=str(tmp_path))).code == 0
    for words in (("rotate",), ("revoke", "--reason", "left"), ("erase",)):
        refused = await baton("team", words[0], "red.Smith", *words[1:], BATON_STATE_DIR=str(tmp_path))
        assert refused.code == 3, refused.err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and b"Smith" in path.read_bytes()] == []


async def test_an_instance_of_before_goes_on_with_names(tmp_path: Path) -> None:
    """Its users' names are in its ledger, and in scripts."""
    ring = Keyring(tmp_path)
    ring.team("red")
    people = json.loads((tmp_path / "people.json").read_text())
    assert people["by_default"] is True, "a new one does not"
    (tmp_path / "people.json").write_text(json.dumps({"version": 1, "teams": {}}))
    added = await baton("team", "add", "red.ana", BATON_STATE_DIR=str(tmp_path))
    assert Path(added.out.strip()).name == "red.ana.creds", added.err
    drawn = await baton("team", "add", "red.ben", BATON_STATE_DIR=str(tmp_path), BATON_PSEUDONYMS="1")
    assert is_pseudonym(Path(drawn.out.strip()).stem.partition(".")[2]), drawn.err


async def test_names_are_shown_to_who_may_know_them(tmp_path: Path) -> None:
    """The host with the keys, an admin of the team, and each user of itself; another user sees pseudonyms."""
    services = ("placement", "admission", "history", "leases")
    options = LaunchOptions(
        state_dir=tmp_path / "here", teams=("red",), services=services, sync_always=False, scale=0.01
    )
    async with LocalStack(options) as cluster:
        home = cluster.state_dir

        async def team(*words: str) -> Path:
            return Path((await baton("team", *words, BATON_STATE_DIR=str(home))).out.strip())

        ana, ben, head = (
            await team("add", "red.ana"),
            await team("add", "red.ben"),
            await team("add", "red.gina", "--admin"),
        )
        user = ana.stem.partition(".")[2]
        async with answering(cluster.nats_url, cluster.keyring):
            async with await connect(Address(cluster.nats_url, ana)) as red:
                done = await red.submit(JobSpec(command=("x",)), wait_admitted=True)
                await until(lambda: known(red, done.job_id))

            async def seen(creds: Path | None) -> str:
                elsewhere = {"BATON_NATS_URL": cluster.nats_url, "BATON_NATS_CREDS": str(creds)} if creds else {}
                env = {"BATON_STATE_DIR": str(tmp_path / "none" if creds else home), **elsewhere}
                told = await baton("describe", "job", done.job_id, **env)
                assert told.code == 0, told.err
                (shown,) = {word for word in ("ana (", "you (") if word in told.out} or {""}
                assert user in told.out
                return shown

            assert [await seen(who) for who in (None, head, ana, ben)] == ["ana (", "ana (", "you (", ""]
            listed = await baton("get", "jobs", "-o", "wide", BATON_STATE_DIR=str(home))
            assert f"ana ({user})" in listed.out, listed.err
            await team("erase", "red.ana")
            assert await seen(None) == "", "nobody can say it any more"


async def known(red: Baton, job_id: str) -> bool:
    with suppress(NotFound):
        return bool(await red.get(job_id))
    return False
