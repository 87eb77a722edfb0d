"""Quota_billing turns the ledger into device-seconds and money, and configuration into quotas.

It follows the ledger with a meter (`libs.core.billing.metering`), prices usage on request (`handlers.py`), and sends
quotas to placement's inbox, from a file or an operator's command (`files.py`, `quotas.py`). Placement alone enforces
quotas.
"""
