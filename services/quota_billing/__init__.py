"""Quota_billing turns the ledger into device-seconds and money, and configuration into quotas.

It follows the ledger with a meter (`libs.core.billing.metering`), prices what was used when asked (`handlers.py`), and
tells placement through the inbox what a team may hold: from a file or by an operator's command (`files.py`, `quotas.py`).
Quotas are enforced by placement alone.
"""
