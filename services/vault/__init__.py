"""Vault: keeps the secrets of teams, and gives them to the nodes that run the jobs that name them.

It alone has the key that opens them. It follows the ledger as every reader does, and answers a node only for an attempt that
the ledger says is that node's to run. Nobody is told a value: not its team, not an operator.
"""
