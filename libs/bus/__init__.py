"""The bus: NATS JetStream with its traps taken care of once.

Streams and consumers are made by one provisioner (`streams.py`), everything published is acknowledged, retried and
de-duplicated (`outbox.py`), what a failed message leads to is decided in one place (`settle.py`), and questions are
answered by `queries.py`.
"""
