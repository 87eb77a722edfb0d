"""Telemetry: who is alive, what devices do, how the pool is doing. It grants leases, and says when one has surely ended.

Heartbeats and samples come over core NATS, decisions from the ledger; ticks and lost nodes go to the pool's inbox.
"""
