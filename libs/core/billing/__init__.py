"""Usage and money, folded from the ledger in integers."""
