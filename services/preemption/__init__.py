"""Preemption: who gives way to whom. Reads the ledger, sends plans to the pool's inbox; placement validates them again."""
