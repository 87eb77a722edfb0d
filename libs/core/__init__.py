"""The decision logic of Baton: pure functions over data, with time and ids as arguments.

Nine packages in five layers; a package imports only packages of lower layers (docs/architecture.md has the picture).

    explain        why a job waits, what would help, a dry run
    scheduling     who is next and what each input leads to: the cycle, the reactions, one package per policy
    admission      may this request enter a pool at all?
    placement      where a job runs: search, score, MIG
    billing        usage and money from the ledger
    projections    what readers of the ledger keep: documents, rows, the checker
    proofs         a team's own part of a ledger, and sums over all teams' parts
    state          what a ledger folds into: fleet, jobs, attempts
    accelerators   facts about devices: models, MIG boards, vendors, memory estimates
"""
