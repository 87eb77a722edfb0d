"""The content of a backup: writing it while Baton runs, and restoring a state directory from it.

    manifest.json        all files with their SHA-256; written last, so it never describes half a backup
    lock                 held by a backup into this folder
    streams/             each stream as of one moment: ledger, inboxes, requests, events, cursors, snapshots
    state/               keys.json, creds/ and whatever else of the state directory cannot be recreated
    use/                 hours of use, which only MongoDB has (`services.quota_billing.use_files`)

Redis, the rest of MongoDB, bills and the state of queries are folds of the ledger: services recompute them. The folder
contains what can create any credential, so its files are 0600 and the folder 0700.

**Consistent.** Streams are copied one after another while they are written to, so the order must make the whole
consistent. Positions (cursors, readers, snapshots) come before the streams that they refer to. Requests come before the
ledger: one that is in both is admitted again, which changes nothing. Events come before the ledger, which then contains
the decisions behind all of them. The inbox comes last: it contains everything the ledger has decided, so no new input
reuses a sequence.

**Incremental.** A sealed segment of the ledger never changes: another backup into the same folder keeps its file.
"""

import fcntl
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from libs.bus import listing
from libs.bus.connect import Address, close, connect
from libs.bus.copies import NotCopied, copy_stream, put_back, sha256
from libs.bus.table import CURSORS_BUCKET, READERS_BUCKET, SNAPSHOTS_BUCKET, SNAPSHOTS_MIB, snapshots_of
from libs.cli.backup_use import FOLDER, UseAway, copy_use
from libs.cli.exits import UsageFault
from libs.cli.fencing import Fence, fence, verified
from libs.cli.launch import RESTORED, VAULT_FOLDER
from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.embedded.servers import NATS
from libs.ports.private_files import open_lock, sync_file, sync_folder, write_private
from libs.walls import broker_claims
from libs.walls.book import BOOK_FILE
from libs.walls.departed_teams import DEPARTED_FILE
from libs.walls.keyfile import KEYS_FILE
from libs.walls.keyring import Keyring
from libs.walls.managing import AUDIT_FILE
from libs.walls.people import PEOPLE_FILE
from schemas import subjects
from schemas.subjects import EVENTS, REQUESTS, TELEMETRY

MANIFEST = "manifest.json"
VERSION = 1
_BEFORE, _LOCK = "state.before", "lock"
STATE = (KEYS_FILE, "creds", "tls", PEOPLE_FILE, DEPARTED_FILE, AUDIT_FILE, BOOK_FILE, VAULT_FOLDER)
"""Parts of a state directory that cannot be recreated."""
_SNAPSHOTS = (f"OBJ_{SNAPSHOTS_BUCKET}", *(f"OBJ_{snapshots_of(service)}" for service in SNAPSHOTS_MIB))
_FIRST = (f"KV_{CURSORS_BUCKET}", f"KV_{READERS_BUCKET}", *_SNAPSHOTS, REQUESTS, EVENTS)
_LEDGER = re.compile(r"LEDGER-.+|SEGMENT-.+-\d{20}")
_SCRATCH_BYTES = 1 << 40
"""Storage that streams may reserve in a restore's broker, which does not check the disk for it."""


# ------------------------------------------------------------------------------------------------------------- to a folder


def check_folder(folder: Path) -> None:
    """Makes the folder private to its owner, and removes foreign files. Raises UsageFault unless it is new, empty or
    has a backup, even an incomplete one."""
    ours = (MANIFEST, f"{MANIFEST}.new", _LOCK, "streams", "state", _BEFORE, FOLDER, "rehearsal", "lost+found")
    if folder.exists() and not (folder.is_dir() and all(path.name in ours for path in folder.iterdir())):
        raise UsageFault(f"{folder} has something else in it: name a new folder, or that of an earlier backup")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One backup at a time: each removes what its own manifest does not name. Raises UsageFault."""
    _private_folder(folder)
    with open_lock(folder / _LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageFault(
                f"another backup into {folder} has not ended: wait for it, or name another folder"
            ) from None
        yield


async def write(home: Path, folder: Path, address: Address, mongo_url: str | None = None) -> dict[str, Any]:
    """Writes the backup; returns its manifest. `mongo_url`: where the hours of use are. Without it, or when it does not
    answer, those of the previous backup stay, and `use_lacks` says why. Raises NotCopied, BusUnavailable, OSError."""
    _private_folder(folder)
    _private_folder(folder / "streams")
    there = _manifest(folder, missing={"streams": []})
    before = {one["name"]: one for one in there["streams"]}
    taken_s, copied, done = time.time(), 0, []
    nats = await connect(address, name="backup", wait_s=10.0)
    try:
        for name, info in await _in_order(nats):
            known = before.get(name)
            if known is not None and _same(known, info) and sha256(folder / known["file"]) == known["sha256"]:
                done.append(known)
                continue
            file = f"streams/{name}-{int(taken_s * 1000)}.snapshot"
            about = await copy_stream(nats, name, folder / file)
            copied += about["bytes"]
            done.append({"name": name, "file": file, "created": info["created"], **about})
    finally:
        await close(nats)
    sync_folder(folder / "streams")
    use, lacks = there.get("use", []), "nobody says where MongoDB is"
    if mongo_url is not None:
        try:
            use, lacks = await copy_use(mongo_url, _pools({"streams": done}), folder, use, int(taken_s * 1e6)), ""
        except UseAway as e:  # the ledger matters more than MongoDB's part
            lacks = f"MongoDB does not answer: {e}"
    manifest = {
        "version": VERSION,
        "taken_s": taken_s,
        "done_s": time.time(),
        "copied_bytes": copied,
        "streams": done,
        "state": _copy_state(home, folder, there),
        "use": use,
        "use_lacks": lacks,
    }
    write_private(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n", durable=True)
    shutil.rmtree(folder / _BEFORE, ignore_errors=True)
    wanted = {one["file"] for one in (*done, *use)}
    for old in (*(folder / "streams").iterdir(), *(folder / FOLDER).glob("*")):
        if str(old.relative_to(folder)) not in wanted:
            old.unlink()
    return manifest


def _same(known: dict[str, Any], info: dict[str, Any]) -> bool:
    """Whether a sealed stream's file is current. Such a stream never changes, and a recreated one has another creation
    time."""
    sealed = bool(info["config"].get("sealed"))
    return sealed and known["created"] == info["created"] and known["state"]["last_seq"] == info["state"]["last_seq"]


async def _in_order(nats: Any) -> list[tuple[str, dict[str, Any]]]:
    """All of Baton's streams on the broker, in copying order."""
    found = {one["config"]["name"]: one for one in await listing.streams(nats.jetstream())}
    inboxes = [name for name in found if name.startswith(subjects.inbox_stream("x").removesuffix("x"))]
    ledger = sorted(name for name in found if _LEDGER.fullmatch(name))
    others = sorted(found.keys() - {*_FIRST, *inboxes, *ledger, TELEMETRY})
    order = [*(name for name in _FIRST if name in found), *others, *ledger, *sorted(inboxes)]
    return [(name, found[name]) for name in order]


def _copy_state(home: Path, folder: Path, held: dict[str, Any]) -> list[dict[str, Any]]:
    """Copies the files of `STATE`. Those of the manifest that is there stay until the new manifest is: whatever ends a backup
    half-way leaves the one before."""
    into, before = folder / "state", folder / _BEFORE
    if _state(folder, held) == into and into.exists():
        shutil.rmtree(before, ignore_errors=True)
        into.rename(before)
    shutil.rmtree(into, ignore_errors=True)
    done = []
    for name in STATE:
        for path in sorted([home / name] if (home / name).is_file() else (home / name).rglob("*")):
            if path.is_file() and not path.is_symlink():
                there = into / path.relative_to(home)
                there.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copyfile(path, there)
                there.chmod(0o600)
                sync_file(there)
                done.append({"file": str(path.relative_to(home)), "sha256": sha256(there)})
    for made in {(into / one["file"]).parent for one in done}:
        sync_folder(made)
    return done


# ----------------------------------------------------------------------------------------------------------- out of a folder


async def rehearse(folder: Path, archive: Path | None = None) -> dict[str, dict[str, Any]]:
    """Restores the backup into a temporary broker, and verifies each pool's ledger there. Pool -> head."""
    scratch = folder / "rehearsal"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        async with AsyncExitStack() as stack:
            nats = await _revived(stack, folder, scratch)
            return {pool: await verified(nats, pool, archive) for pool in _pools(_manifest(folder))}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


async def put_into(folder: Path, home: Path, how: Fence, archive: Path | None = None) -> dict[str, dict[str, Any]]:
    """Fills the new state directory `home`. Pool -> what was found and ended. Raises NotCopied, NotFenced.

    Until the end `RESTORED` says no time: what a kill leaves half-way is not started, for it has no fence.
    """
    results: dict[str, dict[str, Any]] = {}
    try:
        _private_folder(home)
        write_private(home / RESTORED, json.dumps({"not_before_s": None}) + "\n")
        async with AsyncExitStack() as stack:
            nats = await _revived(stack, folder, home)
            for pool in _pools(_manifest(folder)):
                results[pool] = await fence(nats, pool, how, archive)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)  # an incomplete ledger must not be started
        raise
    not_before_s = max((one["not_before_s"] for one in results.values()), default=0.0)
    write_private(home / RESTORED, json.dumps({"not_before_s": not_before_s, "pools": results}, indent=1) + "\n")
    return results


async def _revived(stack: AsyncExitStack, folder: Path, home: Path) -> Any:
    """A connection to a broker in `home` with the backup's streams and its keys' accounts."""
    manifest = _manifest(folder)
    _check_files(folder, manifest)
    _put_state(folder, home, manifest)
    ring = Keyring(home)
    options = NatsOptions(
        trust=broker_claims.trust(ring) if ring.exists else None, sync_always=False, max_file_store_bytes=_SCRATCH_BYTES
    )
    servers = Servers(home, ServerOptions(run=(NATS,), nats=options))
    await stack.enter_async_context(servers)
    creds = ring.service() if ring.exists else None
    nats = await connect(Address(servers.nats_url, creds), name="restore")
    stack.push_async_callback(close, nats)
    for about in manifest["streams"]:
        await put_back(nats, about, folder / about["file"])
    return nats


def _state(folder: Path, manifest: dict[str, Any]) -> Path:
    """The folder with the manifest's files of `STATE`."""
    into, before = folder / "state", folder / _BEFORE

    def all_in(there: Path) -> bool:
        return all(
            (path := there / one["file"]).is_file() and sha256(path) == one["sha256"]
            for one in manifest.get("state", ())
        )

    return before if before.exists() and not all_in(into) and all_in(before) else into


def _put_state(folder: Path, home: Path, manifest: dict[str, Any]) -> None:
    _private_folder(home)
    state = _state(folder, manifest).name
    files = [(state, one["file"]) for one in manifest["state"]] + [("", one["file"]) for one in manifest.get("use", ())]
    for where, file in files:
        there = home / file
        there.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(folder / where / file, there)
        there.chmod(0o600)


def _private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _manifest(folder: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise UsageFault(f"{folder} is no backup: it has no {MANIFEST}, or the backup was never finished") from None
    except ValueError as e:
        raise UsageFault(f"{folder / MANIFEST} cannot be read: {e}") from None
    if manifest.get("version") != VERSION:
        raise UsageFault(f"{folder} is of version {manifest.get('version')}: restore it with the Baton that wrote it")
    return manifest


def _check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raises NotCopied for a file that was changed after it was written, before anything is restored."""
    files = [(folder / one["file"], one["sha256"]) for one in manifest["streams"]]
    state = _state(folder, manifest)
    files += [(state / one["file"], one["sha256"]) for one in manifest["state"]]
    files += [(folder / one["file"], one["sha256"]) for one in manifest.get("use", ())]
    for path, digest in files:
        if not path.is_file() or sha256(path) != digest:
            raise NotCopied(f"{path} is not what the backup wrote: it is missing, cut short or changed")


def _pools(manifest: dict[str, Any]) -> list[str]:
    prefix = subjects.inbox_stream("x").removesuffix("x")
    return sorted(one["name"].removeprefix(prefix) for one in manifest["streams"] if one["name"].startswith(prefix))
