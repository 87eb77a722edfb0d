"""History projects the ledger: job documents in MongoDB, events for each team, answers about the past. Decides nothing.

Two loops that know nothing of each other, each with its own place in the ledger: `documents.py` (its checkpoint lies in
MongoDB, written after the documents) and `feed.py` (its cursor lies in JetStream). MongoDB may be away for as long as
it likes: the feed goes on, nothing is lost, and the documents catch up when it returns.
"""
