"""Double entry for capacity: each unit of it is, at each microsecond of ledger time, in exactly one account with at
most one payer.

usage -> postings -> balances

    accounts = Accounts()
    for record, seq in ledger:
        postings = accounts.apply(record, seq)      # intervals that this record closed; they never change again
    accounts.balances(t_us)                         # unit-microseconds per account, open intervals counted up to t_us
    sum(accounts.balances(t_us).values()) == accounts.capacity_unit_us(t_us)

Capacity is counted in units, 7,000 per device (`capacity.py` defines parts of a device); time in microseconds of ledger
time. All numbers are integers. An attempt's claim is its own (`billed`) from the grant until it is freed. The rest of a
device is in the first of these accounts that applies:

    unconfirmed    its node is silent and is lost later: from when it was last heard
    faulty         it is in quarantine
    cleaning       its board is being repartitioned
    maintenance    an operator has taken its node out of use
    held           it is kept for a job that others are preempted for, in that job's name
    reserved       it is kept for a gang whose reservation is due, in that job's name
    idle           none of these

Placement reports which part of `idle` fits no waiting job (`fragmented_unit_us`). That is a split of `idle`, not an
account.

What a silent node does is unknown. The node counts as lost if a part of it is freed because its lease ended, because it
was declared dead, or because it starts a new life. Then the time since it was last heard is `unconfirmed`, in the name
of the attempt that held it. If the node is heard again, or itself reports that a part is gone, that is proof, and the
time stays in its former account. Until then these intervals are open; they are posted when it is known.
"""

from libs.core.billing.accounts.capacity import DEVICE_UNITS, units_of, units_of_share
from libs.core.billing.accounts.fold import Accounts
from libs.core.billing.accounts.posting import Account, Posting

__all__ = ["DEVICE_UNITS", "Account", "Accounts", "Posting", "units_of", "units_of_share"]
