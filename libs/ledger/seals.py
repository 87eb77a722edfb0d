"""Whether the seals of closed periods say what the ledger comes to (I17). It reads the ledger again, so it takes its files."""

from collections.abc import Sequence
from pathlib import Path

from libs.core.billing.charges import charges
from libs.core.billing.sealing import Sealing, WrongRow
from libs.core.state.moments import text_of
from libs.ledger.records import FiledLedger


def wrong_seals(files: Sequence[Path]) -> list[tuple[int, str]]:
    """(the last record that a seal knows of, what is wrong with the seal) for each that is wrong, in the order in which the
    periods were closed. Memory is that of one row and of the teams' totals, one pass for all seals.

    Raises BadLedgerFile when a file is damaged, or does not follow the one before it.
    """
    ledger = FiledLedger(files)
    if not ledger.closed:
        return []
    made = [Sealing() for _ in ledger.closed]
    upto_seq = max(seal.upto_seq for seal in ledger.closed)
    try:
        for charge in charges(ledger, ledger.closed, upto_seq=upto_seq):
            for seal, sealing in zip(ledger.closed, made, strict=True):
                if seal.from_us <= charge.billed_us < seal.to_us and charge.posted_seq <= seal.upto_seq:
                    sealing.take(charge)
    except WrongRow as error:
        return [(upto_seq, f"the rows of closed periods cannot be made: {error}")]
    found = []
    for seal, sealing in zip(ledger.closed, made, strict=True):
        name = f"the period from {text_of(seal.from_us)} to {text_of(seal.to_us)}"
        try:
            head = ledger.at(seal.upto_seq)[0].hash
        except KeyError:
            found.append((seal.upto_seq, f"{name} is sealed with record {seal.upto_seq}, which there is not"))
            continue
        currency = ledger.currency if sealing.rows else seal.currency  # without a row it may be older than all prices
        for what, told, comes_to in (
            ("the hash of that record", seal.head, head),
            ("the hash of its rows", seal.rows, sealing.digest),
            ("its currency", seal.currency, currency),
            ("its totals", seal.totals, sealing.totals),
        ):
            if told != comes_to:
                text = f"{name}, up to record {seal.upto_seq}: {what} is {told} in its seal, and comes to {comes_to}"
                found.append((seal.upto_seq, text[:1000]))
    return found
