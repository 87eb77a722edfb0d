"""Baton's language: every message, name and unit that services, agents, clients and pipelines share.

Start with `subjects.py` (where things are said), `catalog.py` (every message once), `jobs.py` (what is asked)
and `ledger/` (what was decided). Nothing here imports a bus, a database or a clock.
"""
