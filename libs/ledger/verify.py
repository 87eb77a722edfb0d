"""The audit of a pool's real ledger: every record from the first on, through the checker that keeps its own books."""

from nats.js import JetStreamContext

from libs.core.projections.verify import Checker, Verification
from libs.ledger.reader import LedgerReader


async def verify(js: JetStreamContext, pool: str) -> Verification:
    """Folds the ledger up to its present end. Memory is bounded by what is open, not by the ledger's length.

    Raises LedgerStopped (see libs.ledger.chain) when the ledger cannot be read from its beginning.
    """
    checker = Checker()
    reader = LedgerReader(js, pool)
    try:
        async for entries in reader.read_to(await reader.last_seq()):
            for entry in entries:
                checker.step(entry.seq, entry.record, entry.valid)
    finally:
        await reader.close()
    return checker.finish()
