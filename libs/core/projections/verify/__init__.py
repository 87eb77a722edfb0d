"""Checks a ledger against the invariants visible in it (I1-I3, I5, I7, I8, I10-I20 of docs/invariants.md).

    checker = Checker()
    for entry in entries:                                   # every record of a ledger, in order, void ones too
        checker.step(entry.seq, entry.record, entry.valid)
    report = checker.finish()                               # report.ok, report.violations

It shares no code with placement's fold, transition table or rules, since it could not find a mistake that both make. It
has its own state (`books`), written and checked by one small class per subject:

    records      the chain, the inbox's offset                hosts        processors, host memory, power
    clock        ledger time                                  limits       quotas, in fractions (`limit_books`)
    lives        jobs: one end, each event in its time        nodes        lives of nodes, leases, evidence
    attempts     open, seen, freed, closed; the bill          boards       repartitions
                                                              cuts         for whom they are, and how many
    outcomes     how attempts and jobs end                    holds        preemption, and what it keeps
    checkpoints  never back, always resumed from              asked        a grant is what was asked for
    capacity     what existed, and what attempts held of it
    devices      compute, memory, epochs

It continues after a violation, so a report lists all of them; one fault may cause several. It keeps open things, and
the last ids of ended jobs (`ended_ids`): auditing ten million records needs no more memory than ten thousand.
"""

from libs.core.projections.verify.checker import SUBJECTS, Checker
from libs.core.projections.verify.report import MAX_VIOLATIONS, Verification

__all__ = ["MAX_VIOLATIONS", "SUBJECTS", "Checker", "Verification"]
