"""The error for a ledger that cannot be billed."""


class Unbillable(ValueError):
    """The ledger contains what no valid ledger does. The reader must stop, since a guess would be a wrong bill."""
