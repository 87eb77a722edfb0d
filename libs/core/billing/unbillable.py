"""What no bill can be made of."""


class Unbillable(ValueError):
    """The ledger says something that no valid ledger says: the reader must stop, a guess would be a wrong bill."""
