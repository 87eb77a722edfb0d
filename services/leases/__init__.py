"""Leases: says until when each node may run work, and which nodes are silent. It sends the ticks.

Heartbeats are answered from memory, over core NATS: no disk, no fold. The right to answer is a record of the ledger with an
epoch (`libs.core.leases`); of several processes one has it, and the others stand by. The ledger is read for nodes and for that
right alone, so no kind of event, whatever it is, stops this service.
"""
