"""The state that a ledger folds into: fleet, jobs, attempts, limits. `fold` applies each kind of ledger event."""
