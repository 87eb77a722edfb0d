"""Scheduling: `cycle` is one scheduling cycle, `reactions` handles each inbox message, `decider` joins both into one ledger
record. Each policy is a package of its own beside them."""
