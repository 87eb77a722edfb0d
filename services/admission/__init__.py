"""Admission: is a request well formed, allowed, and could it ever run here? Yes goes to a pool's inbox, no to its team.

Reads REQUESTS; knows the pools by following their ledgers. It keeps no state of its own that ledgers and inboxes do not
give back.
"""
