"""Placement: the only writer of its pool's ledger.

Reads the pool's inbox; decides order and place (`libs.core.scheduling.decider`); appends the decision as one ledger
record; then tells the nodes that it touched what should run there now. Two placement processes may run at once: the
broker refuses the append of the one that is behind, which then folds the ledger again.
"""
