"""The ledger: records in a hash chain (`chain`), reading them (`reader`), writing them (`writer`), snapshots, the audit.

Start with README.md. Nothing is imported here, so that a reader does not load what only the writer needs.
"""
