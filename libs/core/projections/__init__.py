"""What readers make of the ledger: documents, rows for Redis, node health, and the checker of invariants."""
