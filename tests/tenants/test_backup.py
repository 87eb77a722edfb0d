"""Backups of a running instance, and what is made of them: streams as they were, only what is new, nothing that was changed."""

import asyncio
import errno
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.bus.connect import Address, BusConnection, close, connect
from libs.bus.copies import NotCopied
from libs.cli.backup_files import MANIFEST, alone, check_folder, put_into, rehearse, write
from libs.cli.exits import UsageFault
from libs.cli.fencing import Fence, NotFenced
from libs.cli.launch import RESTORED, ROOT, LaunchOptions, LocalStack
from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.embedded.servers import NATS
from libs.ledger.inputs import read_input
from libs.ledger.tail import Stored
from libs.walls import broker_claims
from libs.walls.keyring import Keyring
from schemas import inbox, subjects
from schemas.inbox import NodeDead, NodeLost
from tests.cli.test_command import baton
from tests.core.builders import World, job, node
from tests.redis.ledgers import chain, store


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalStack]:
    options = LaunchOptions(state_dir=tmp_path / "state", teams=("red",), services=(), sync_always=False, scale=0.01)
    async with LocalStack(options) as made:
        yield made


def a_pool_that_lived(lease_s: float = 300.0) -> World:
    w = World(node("n1"), node("n2"))
    w.started(w.submit(job("runs").model_copy(update={"lease_s": lease_s})))
    w.submit(job("waits", 64))
    return w


async def filled(cluster: LocalStack, world: World) -> BusConnection:
    """A ledger, and a life of a third node that waits in the inbox to be decided."""
    nats = await connect(cluster.address(), name="test")
    js = nats.jetstream()
    await store(js, "main", chain("main", world.records))
    for n in range(world.records[-1].inbox_seq):
        await js.publish(subjects.inbox("clock", "tick", "main"), b"{}", headers={"Nats-Msg-Id": f"old{n}"})
    late = inbox.NodeRegistered(incarnation=7, inventory=node("n3"), lease_s=10)
    headers = {"ce-type": "io.baton.node.registered.v1", "ce-specversion": "1.0"}
    await js.publish(subjects.node_inbox("registered", "main", "n3"), late.model_dump_json().encode(), headers=headers)
    return nats


async def test_what_was_copied_is_put_back_as_it_was_and_every_life_is_ended(
    cluster: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats = await filled(cluster, a_pool_that_lived())
    folder, home = tmp_path / "backup", tmp_path / "again"
    first = await write(cluster.state_dir, folder, cluster.address())
    assert {path.stat().st_mode & 0o077 for path in [folder, *folder.rglob("*.*")]} == {0}
    head = (await rehearse(folder))["main"]
    assert head["records"] == len(a_pool_that_lived().records)
    names = [one["name"] for one in first["streams"]]
    assert (
        names.index("KV_baton-cursors") < names.index("EVENTS") < names.index("LEDGER-main") < names.index("INBOX-main")
    )

    with pytest.raises(UsageFault, match="is no backup"):
        await put_into(tmp_path, home, Fence(0.0))
    told = await put_into(folder, home, Fence(0.0))
    assert (told["main"]["nodes"], told["main"]["hash"]) == (3, head["hash"])
    assert told["main"]["not_before_s"] == pytest.approx(907.81)
    monkeypatch.setenv("BATON_LEASES_KILL_BOUND_S", "60")
    told = await put_into(folder, tmp_path / "slow to kill", Fence(0.0))
    assert told["main"]["not_before_s"] == pytest.approx(907.81 + 55 * 1.002), "as leases reckons"
    assert json.loads((home / RESTORED).read_text())["pools"]["main"]["seq"] == head["seq"]
    assert LocalStack(LaunchOptions(state_dir=home)).fenced_s() == 0

    options = ServerOptions(run=(NATS,), nats=NatsOptions(trust=broker_claims.trust(Keyring(home))))
    async with Servers(home, options) as servers:
        mine = Address(servers.nats_url, cluster.state_dir / "creds" / "red.creds")  # as its owner has it
        await close(await connect(mine, name="red"))
        assert servers.nats_url != cluster.nats_url
        again = await connect(Address(servers.nats_url, Keyring(home).service()), name="look")
        js = again.jetstream()
        was, now = [(await of.stream_info("LEDGER-main")).state for of in (nats.jetstream(), js)]
        assert was == now
        state = (await js.stream_info("INBOX-main")).state
        ended = []
        for seq in range(state.last_seq - 2, state.last_seq + 1):
            message = await js.get_msg("INBOX-main", seq)
            stored = Stored(seq, message.subject or "", message.headers or {}, message.data or b"", 1)
            ended.append(read_input(stored, "main").message)
        assert [(one.node, one.incarnation) for one in ended if isinstance(one, NodeLost)] == [
            ("n1", 1), ("n2", 1), ("n3", 7),
        ]  # fmt: skip
        await close(again)
    await close(nats)


async def test_programs_are_told_what_was_copied_and_restored(cluster: LocalStack, tmp_path: Path) -> None:
    nats = await filled(cluster, a_pool_that_lived())
    await close(nats)
    folder, home = tmp_path / "backup", tmp_path / "again"
    written = await baton("backup", str(folder), "-o", "json", BATON_STATE_DIR=str(cluster.state_dir))
    assert written.code == 0, written.err
    told = json.loads(written.out)
    assert (told["folder"], told["done"], told["copied_bytes"] > 0) == (str(folder), "written", True)
    restored = await baton("restore", str(folder), "--state-dir", str(home), "-o", "json")
    assert restored.code == 0, restored.err
    again = json.loads(restored.out)
    assert (again["state_dir"], again["pools"]["main"]["hash"]) == (str(home), told["verified"]["main"]["hash"])
    keys = (home / "keys.json").read_text()
    assert not [seed for seed in re.findall(r"\bS[A-Z][A-Z2-7]{56}\b", keys) if seed in written.out + restored.out]


async def test_kept_work_has_to_be_fenced_by_somebody(cluster: LocalStack, tmp_path: Path) -> None:
    nats = await filled(cluster, a_pool_that_lived(lease_s=0))
    folder, home = tmp_path / "backup", tmp_path / "again"
    await write(cluster.state_dir, folder, cluster.address())
    await close(nats)
    with pytest.raises(NotFenced, match="no silence ends may still run on n"):
        await put_into(folder, home, Fence(0.0))
    assert not home.exists(), "nobody starts half of it"
    told = await put_into(folder, home, Fence(0.0, "power off"))
    assert told["main"]["not_before_s"] == 0
    async with Servers(
        home, ServerOptions(run=(NATS,), nats=NatsOptions(trust=broker_claims.trust(Keyring(home))))
    ) as servers:
        again = await connect(Address(servers.nats_url, Keyring(home).service()), name="look")
        js = again.jetstream()
        last = await js.get_msg("INBOX-main", (await js.stream_info("INBOX-main")).state.last_seq)
        assert NodeDead.model_validate_json(last.data or b"").fenced_by == "restored from a backup: power off"
        await close(again)


async def test_a_file_that_was_changed_is_not_restored(cluster: LocalStack, tmp_path: Path) -> None:
    folder, home = tmp_path / "backup", tmp_path / "again"
    manifest = await write(cluster.state_dir, folder, cluster.address())
    keys = folder / "state" / "keys.json"
    assert keys.read_text() == (cluster.state_dir / "keys.json").read_text()
    keys.write_text(keys.read_text().replace("S", "s", 1))
    with pytest.raises(NotCopied, match=r"keys\.json is not what the backup wrote"):
        await put_into(folder, home, Fence(0.0))
    (folder / MANIFEST).write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(UsageFault, match="is of version 99"):
        await put_into(folder, home, Fence(0.0))


async def test_a_sealed_stream_is_copied_once(cluster: LocalStack, tmp_path: Path) -> None:
    nats = await filled(cluster, a_pool_that_lived())
    js, folder = nats.jetstream(), tmp_path / "backup"
    await js.update_stream((await js.stream_info("LEDGER-main")).config.evolve(sealed=True))
    before = {one["name"]: one for one in (await write(cluster.state_dir, folder, cluster.address()))["streams"]}
    await js.publish(subjects.inbox("clock", "tick", "main"), b"{}")
    after = {one["name"]: one for one in (await write(cluster.state_dir, folder, cluster.address()))["streams"]}
    assert after["LEDGER-main"] == before["LEDGER-main"]
    assert after["INBOX-main"]["file"] != before["INBOX-main"]["file"]
    assert {f"streams/{path.name}" for path in (folder / "streams").iterdir()} == {
        one["file"] for one in after.values()
    }
    await close(nats)


async def test_a_restore_that_was_killed_is_not_started(cluster: LocalStack, tmp_path: Path) -> None:
    """Seen: it was started, with no fence, while nodes may still run jobs that it does not know."""
    nats = await filled(cluster, a_pool_that_lived())
    folder, home = tmp_path / "backup", tmp_path / "again"
    await write(cluster.state_dir, folder, cluster.address())
    await close(nats)
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "libs.cli", "restore", str(folder), "--state-dir", str(home)), cwd=ROOT
    )
    while killed.returncode is None and not (home / "nats").exists():
        await asyncio.sleep(0)
    killed.kill()
    await killed.wait()
    with pytest.raises(UsageFault, match="restored half-way"):
        await LocalStack(LaunchOptions(state_dir=home, services=())).start()
    shutil.rmtree(home)
    await put_into(folder, home, Fence(0.0))
    assert LocalStack(LaunchOptions(state_dir=home)).fenced_s() == 0


async def test_a_backup_that_ends_half_way_leaves_the_one_before(
    cluster: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the files of `state/` were not those of the manifest any more, and nobody could restore it."""
    folder = tmp_path / "backup"
    book = cluster.state_dir / "audit.jsonl"
    book.write_text("{}\n")
    await write(cluster.state_dir, folder, cluster.address())
    book.write_text("{}\n{}\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr("libs.cli.backup_files.write_private", full)
            with pytest.raises(OSError, match="No space left"):
                await write(cluster.state_dir, folder, cluster.address())
        check_folder(folder)
        await rehearse(folder)
    await write(cluster.state_dir, folder, cluster.address())
    await rehearse(folder)
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "state", "streams"}


async def test_two_backups_into_one_folder_take_turns(cluster: LocalStack, tmp_path: Path) -> None:
    """Each would remove what the other's manifest names."""
    folder = tmp_path / "backup"
    with alone(folder):
        refused = await baton("backup", str(folder), BATON_STATE_DIR=str(cluster.state_dir))
    assert (refused.code, "another backup" in refused.err) == (2, True), refused.err
    written = await baton("backup", str(folder), BATON_STATE_DIR=str(cluster.state_dir))
    assert written.code == 0, written.err
