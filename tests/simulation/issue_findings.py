"""What experiments found before the simulation was there, and where each is shown now."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`besides`: tests elsewhere, of what no simulation of messages and time can show, and why that is so."""

    what: str
    besides: str = ""


FINDINGS: dict[int, Finding] = {
    1: Finding("a handful of jobs ends placement: what is told after a commit", "sizes: `placement/test_tell`"),
    2: Finding("streams fill with what was consumed long ago", "`bus/test_trim`, `ledger/test_segments`"),
    3: Finding("compose cannot start", "not simulated: sizes in files. `architecture/test_compose`"),
    4: Finding("a broker outage of more than 10 s kills every job"),
    5: Finding("a new ledger event kind kills the fleet's work"),
    6: Finding("snapshots of another version end a service"),
    7: Finding("a node can be out for ever"),
    8: Finding("a job outlives its release", "processes are the kernel's: `agent/test_keeper_faults`"),
    9: Finding("good submits become dead letters"),
    10: Finding("clocks that jump"),
    11: Finding("an error in a decision loops placement", "records above 1 MiB: `ledger/test_writer`"),
    12: Finding("a start is lost for good", "sizes in bytes: `agent/test_reports`"),
    13: Finding("the same key with two bodies within the ledger's lag"),
    14: Finding(
        "a cancel before its submit", "500,000 ended jobs and graces of an hour: `placement`, `core/test_lifecycle`"
    ),
    15: Finding("questions starve under a backlog", "not simulated: virtual time has no CPU to run out of. Benchmarks"),
    16: Finding("an agent's crash, restart or upgrade kills every job of its node", "`agent/test_keeper_faults`"),
    17: Finding("two of everything", "`faults/test_two_of_everything`"),
}
