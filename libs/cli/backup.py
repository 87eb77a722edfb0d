"""`baton backup FOLDER`: see `libs.cli.backup_files`."""

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from libs.bus.connect import Address
from libs.cli.backup_files import alone, check_folder, rehearse, write
from libs.cli.operator_action import operator_action
from libs.cli.options import Output, Url
from libs.cli.output import Format, done, hint
from libs.client.where import check_operator, read_instance, shown_credential, state_dir
from libs.walls.keyring import Keyring

FolderArgument = Annotated[Path, typer.Argument(help="The folder of the backup.", metavar="FOLDER")]
StateDir = Annotated[Path | None, typer.Option("--state-dir", help="The instance's state directory (BATON_STATE_DIR).")]
Archive = Annotated[
    Path | None,
    typer.Option("--archive", help="Of `baton ledger archive --delete`: segments that are not in the ledger any more."),
]


def command(
    folder: FolderArgument,
    *,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Put it back into a broker of its own, and verify the ledger there."),
    ] = True,
    archive: Archive = None,
    state: StateDir = None,
    url: Url = None,
    mongo_url: Annotated[
        str | None,
        typer.Option("--mongo-url", help="Where hours of use are kept (BATON_MONGO_URL); else the running instance's."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Write everything that cannot be made again into FOLDER, while Baton runs; again into the same folder for what is new."""
    check_folder(folder)
    home = state or state_dir()
    address, began = _address(home, url), time.monotonic()
    with alone(folder):
        with operator_action("backup", str(folder), "", folder=home, tells=False):  # it contains all keys
            manifest = asyncio.run(write(home, folder, address, _mongo(home, url, mongo_url)))
        took_s = time.monotonic() - began
        heads = asyncio.run(rehearse(folder, archive)) if check else None
    size = sum(one["bytes"] for one in manifest["streams"])
    hint(
        f"{len(manifest['streams'])} streams, {size / (1 << 20):.1f} MiB, {manifest['copied_bytes'] / (1 << 20):.1f} MiB of it "
        f"new, in {took_s:.1f} s; what is acknowledged after {_moment(manifest['taken_s'])} is not in it"
    )
    if manifest["use_lacks"]:
        hint(
            f"hours of use are those of the backup before, if it had any: {manifest['use_lacks']} (--mongo-url says where)"
        )
    if heads is not None:
        for pool, head in heads.items():
            hint(f"pool {pool}: {head['records']} records, verified to {head['seq']}")
    document = {"folder": str(folder), "bytes": size, "copied_bytes": manifest["copied_bytes"]}
    document |= {
        "taken_us": int(manifest["taken_s"] * 1e6),
        "use_lacks": manifest["use_lacks"],
        "verified": heads,
        "done": "written",
    }
    done(document, [str(folder)], output)


def _mongo(home: Path, url: str | None, said: str | None) -> str | None:
    """MongoDB's address. It must be given for another broker than the running instance's."""
    if found := said or os.environ.get("BATON_MONGO_URL"):
        return found
    if url or os.environ.get("BATON_NATS_URL"):
        return None
    there = read_instance(home).get("mongo_url")
    return None if there is None else str(there)


def _address(home: Path, url: str | None) -> Address:
    """The broker's address, with the keys. Raises NeedsOperator without keys and with another's credential; Unreachable
    if no broker is known."""
    ring = Keyring(home)
    if not ring.exists:
        check_operator(shown_credential())
    found = url or os.environ.get("BATON_NATS_URL") or str(read_instance(home)["url"])
    return Address(found, ring.service() if ring.exists else None)


def _moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
