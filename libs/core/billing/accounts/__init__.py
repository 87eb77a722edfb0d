"""Double entry: for every unit of capacity and every microsecond of ledger time exactly one account, and at most one payer.

    usage -> postings -> balances

    accounts = Accounts()
    for record, seq in ledger:
        postings = accounts.apply(record, seq)      # what this record closed, whole intervals, never changed again
    accounts.balances(t_us)                         # unit-microseconds per account, what is open counted up to t_us
    sum(accounts.balances(t_us).values()) == accounts.capacity_unit_us(t_us)

Capacity is counted in units, 7,000 a device (`capacity.py` says what a part of one is), and time in microseconds of ledger
time. Everything is an integer. What an attempt holds is its own from the grant until it is freed; what is left of a device
is in the first account of these that is true of it:

    unconfirmed    its node is silent, and is lost afterwards: from when it was heard last
    faulty         it is in quarantine
    cleaning       its board is being repartitioned
    maintenance    an operator has taken its node out of use
    held           it is kept for a job that others give way to, in that job's name
    reserved       it is kept for a gang whose reservation is due, in that job's name
    idle           none of these

What of `idle` is of no use to what waits (`fragmented_unit_us`) was told by placement. It is a split, and no account.

Of a node that is silent nobody knows what it does. It is lost if its part is freed because its lease has ended, because it
was declared dead, or because it begins a new life: then the time since it was heard last is `unconfirmed`, in the name of
whose attempt it was. If it is heard again, or says itself that a part is gone, there is proof, and the time is what it was
before. Until that is known such intervals are open, and are posted when it is.
"""

from libs.core.billing.accounts.capacity import DEVICE_UNITS, units_of, units_of_share
from libs.core.billing.accounts.fold import Accounts
from libs.core.billing.accounts.posting import Account, Posting

__all__ = ["DEVICE_UNITS", "Account", "Accounts", "Posting", "units_of", "units_of_share"]
