"""Telemetry: which nodes are alive, what devices do, how the pool is doing. It grants leases and reports ended ones.

Heartbeats and samples come over core NATS, decisions from the ledger; ticks and lost nodes go to the pool's inbox.
"""
