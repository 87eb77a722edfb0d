"""Checks a ledger and keeps its accounts side by side, and compares the two."""

from collections.abc import Callable

from libs.core.billing.accounts import Accounts, Posting
from libs.core.billing.credits import Credit, Credits
from libs.core.billing.unbillable import Unbillable
from libs.core.projections.verify import Checker, Verification
from schemas.ledger import DevicesFragmented, LedgerRecord


class AuditedLedger:
    """Feed it every record of a ledger in stream order, void ones too; then ask for the report."""

    def __init__(self, posting: Callable[[Posting], None] = lambda p: None, credit: Credits | None = None) -> None:
        """`posting` gets each posting when it is made; `credit` folds along, into `credits`."""
        self._checker, self._accounts, self._posting = Checker(), Accounts(), posting
        self._credit = credit
        self.credits: list[Credit] = []
        self._stopped = ""

    @property
    def report(self) -> Verification:
        """Violations so far. Call `finish` to update the sums."""
        return self._checker.report

    @property
    def accounts(self) -> Accounts:
        return self._accounts

    def step(self, seq: int, record: LedgerRecord, valid: bool) -> None:
        """One record at stream sequence `seq`; `valid`: whether the chain's reader rule accepts it."""
        self._checker.step(seq, record, valid)
        if not valid:
            self._accounts.skip(seq)
        elif not self._stopped:
            try:
                made = self._accounts.apply(record, seq)
                for posting in made:
                    self._posting(posting)
                if self._credit is not None:
                    self.credits += self._credit.apply(record, seq, made)
                if any(isinstance(event, DevicesFragmented) for event in record.events):
                    self._check_split(seq)
            except Unbillable as e:
                self._stopped = f"the accounts end here: {e}"
                self._checker.report.violated("I16", seq, self._stopped)

    def _check_split(self, seq: int) -> None:
        if kind := self._accounts.overstated:
            what = f"more of {kind} is told to be fragmented than is idle ({self._accounts.idle[kind]} units)"
            self._checker.report.violated("I16", seq, what)

    def finish(self) -> Verification:
        """The report up to here. Also checks that all accounts sum to the existing capacity, and those of attempts to
        the bill."""
        report = self._checker.finish()
        if self._stopped:
            return report
        return reconciled(report, self._accounts)


def reconciled(report: Verification, accounts: Accounts) -> Verification:
    """The checker's report with the accounts of the same ledger, and with their differences as violations (I16)."""
    report.accounts = {account.value: amount for account, amount in accounts.balances().items()}
    report.fragmented_unit_us = accounts.fragmented_unit_us()
    total, paid = sum(report.accounts.values()), accounts.of_attempts()
    if total != report.capacity_unit_us:
        what = f"the accounts sum to {total} unit-us, {report.capacity_unit_us} existed"
        report.violated("I16", report.last_seq, what)
    if paid != report.held_unit_us:
        what = f"attempts are in the accounts with {paid} unit-us, they held {report.held_unit_us}"
        report.violated("I16", report.last_seq, what)
    return report
