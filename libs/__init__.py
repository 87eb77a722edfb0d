"""Baton's libraries: the pure core, the ledger, the bus, and the adapters that services are wired from."""
