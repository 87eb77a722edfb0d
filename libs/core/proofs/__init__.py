"""How a team checks its own part of a ledger that it may not read, and how that part comes about (docs/proofs.md). Pure.

    lines    what of a record is a team's own, as bytes, and the hash over them in turn
    tree     the heads of all teams under one root; a path in it says nothing of any other team
    sums     roots that name each other, back to any earlier one in few steps
    chains   the fold of a ledger into all of these: history's, and the auditor's

What a team does with what it is told is in `libs.core.billing.own_part`.
"""
