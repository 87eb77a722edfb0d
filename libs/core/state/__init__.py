"""What a ledger folds into: the fleet, jobs, attempts, limits. `fold` says what each ledger event means."""
