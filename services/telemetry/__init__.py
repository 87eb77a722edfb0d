"""Telemetry: what devices do and how the pool is doing.

Samples come over core NATS, decisions from the ledger. Who is alive is the question of the service leases.
"""
