"""Admission: is a request well formed, allowed, and could it ever run here? Yes goes to the pool's inbox, no to its team.

Reads REQUESTS; knows the pool by following the ledger. It keeps no state of its own that the ledger does not give back.
"""
