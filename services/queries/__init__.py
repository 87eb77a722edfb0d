"""Queries: answers people's questions about a pool from the last committed state. It decides nothing and writes nothing.

It follows the ledger as every reader does, so it answers while placement is busy, stopped or dead. Any number of
processes may run: each question goes to one of them, and each answer says which ledger record it is of.
"""
