"""Quota_billing turns the ledger into device-seconds and money, and configuration into quotas.

It reads the ledger (`metering.py`), prices it when asked (`handlers.py`), and tells placement through the inbox what a
team may hold: from a file (`teams.py`), or by an operator's command. Quotas are enforced by placement alone.
"""
