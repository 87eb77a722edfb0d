"""Checks a ledger against the invariants that can be read from it (I1-I3, I5, I7, I8, I10-I16 of docs/invariants.md).

    checker = Checker()
    for entry in entries:                                   # every record of a ledger, in order, void ones too
        checker.step(entry.seq, entry.record, entry.valid)
    report = checker.finish()                               # report.ok, report.violations

It shares no code with the fold that placement runs on, with its table of transitions or with its rules: a mistake that both
made would be found by nobody. It keeps books of its own (`books`), written and checked by one small class per subject:

    records      the chain, the inbox's offset                hosts        processors, host memory, power
    clock        ledger time                                  limits       quotas, in fractions (`limit_books`)
    lives        jobs: one end, each event in its time        nodes        lives of nodes, leases, evidence
    attempts     open, seen, freed, closed; the bill          boards       repartitions
    outcomes     how attempts and jobs end                    holds        preemption, and what it keeps
    checkpoints  never back, always resumed from              asked        a grant is what was asked for
    capacity     what existed, and what attempts held of it
    devices      compute, memory, epochs

It goes on after a violation, so that a report names them all; one lie may be named several times. Its books hold what is
open, and of ended jobs the last ids (`ended_ids`): an audit of ten million records must fit where one of ten thousand does.
"""

from libs.core.projections.verify.checker import SUBJECTS, Checker
from libs.core.projections.verify.report import MAX_VIOLATIONS, Verification

__all__ = ["MAX_VIOLATIONS", "SUBJECTS", "Checker", "Verification"]
