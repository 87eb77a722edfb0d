"""A world's ledger as a file of `baton ledger export`."""

from pathlib import Path

from libs.ledger.chain import GENESIS, Head, encode
from libs.ledger.export import FileStart, LedgerFileWriter
from libs.ledger.tail import Stored
from tests.core.builders import World


def filed(world: World, path: Path) -> None:
    """Its records, chained."""
    head = GENESIS
    with LedgerFileWriter(path, FileStart("test")) as out:
        for seq, record in enumerate(world.records, 1):
            payload, made = encode(record.model_copy(update={"prev_seq": head.seq, "prev_hash": head.hash}))
            head = Head(seq, made)
            out.add(Stored(seq, "s", {}, payload, record.t_us))
        out.finish()
