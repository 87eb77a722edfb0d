"""What docs/security.md tells an operator who serves strangers is done here, as it stands there."""

import re
import shlex
from pathlib import Path

import pytest

from libs.bus.connect import Address, BusUnavailable, close, connect
from libs.walls.keyring import Keyring
from schemas import subjects
from tests.cli.test_command import Result, baton
from tests.kit.nats_process import nats_process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TEXT = PAGE.partition("## Running it for teams that do not trust each other\n")[2].partition("\n## ")[0]
HOST = "broker.example.org"
SAID = [shlex.split(" ".join(line.split())) for line in re.findall(r"`(baton [^`]+)`", TEXT)]
DONE = [shlex.split(line) for line in re.findall(r"^ {7}(baton .+)$", TEXT, re.MULTILINE)]


def test_it_is_one_page() -> None:
    assert len(TEXT.splitlines()) <= 45
    assert [words[1] for words in DONE] == ["credentials", "provision"]


async def test_what_the_page_says_works(tmp_path: Path) -> None:
    state, accounts, server = tmp_path / "state", tmp_path / "accounts", tmp_path / "server"
    server.mkdir()

    async def run(words: list[str], *more: str, **env: str) -> Result:
        return await baton(*words[1:], *more, cwd=tmp_path, BATON_STATE_DIR=str(state), **env)

    credentials, provision = DONE
    where = [word.replace(HOST, "127.0.0.1") for word in credentials]
    made = await run(where, "--certificates", str(accounts), "--accounts", str(server / "told"))
    assert made.code == 0, made.err
    ring = Keyring(state)
    assert ring.teams == ["blue", "red"]
    for folder in (ring.creds, *(ring.creds / "services").iterdir(), *(ring.creds / "nodes").iterdir()):
        assert (folder / "ca.pem").is_file()
    with nats_process('include accounts/accounts.conf\njetstream { store_dir: "{folder}" }', tmp_path) as plain:
        url = plain.replace("nats://", "tls://")
        at = {"BATON_NATS_URL": url}
        provisioner = str(ring.creds / "services/provision/nats.creds")
        ready = await run(
            provision, "--scale", "0.01", "--reason", "the first time", **at, BATON_NATS_CREDS=provisioner
        )
        assert (ready.code, ready.out) == (0, "main\tready\n"), ready.err
        teams = [words for words in SAID if words[1] == "team" and words[2] != "serve"]
        assert [words[2] for words in teams] == ["add", "rotate", "revoke"]
        for words in teams:
            done = await run(words, **at, **({"BATON_PSEUDONYMS": "0"} if words[2] == "add" else {}))
            assert done.code == 0, (words, done.err)
            if words[2] == "revoke":
                break
            assert ring.ends("red").keys() == {"red.ana"}, "ninety days"
            ana = Address(url, Path(done.out.strip()))
            stolen = ana.creds.read_text() if isinstance(ana.creds, Path) else ""
            connection = await connect(ana, name="ana", inbox_prefix=subjects.reply_prefix("red", "ana"))
            await close(connection)
        (tmp_path / "stolen.creds").write_text(stolen)
        ca = ring.creds / "ca.pem"
        with pytest.raises(BusUnavailable, match="revoked or rotated"):
            await connect(Address(url, tmp_path / "stolen.creds", ca=ca), name="thief", wait_s=3)
    book = (state / "audit.jsonl").read_text()
    for what in ("credentials.make", "provision", "team.add", "team.rotate", "team.revoke"):
        assert f'"what":"{what}"' in book
    assert "the first time" in book


async def test_every_other_command_of_the_page_is_there() -> None:
    for words in {tuple(word for word in said[1:] if re.fullmatch("[a-z]+", word))[:2] for said in SAID}:
        if words[0] not in ("team", "provision", "credentials"):
            assert (await baton(*words[: 1 if words[0] == "quota" else 2], "--help")).code == 0, words
