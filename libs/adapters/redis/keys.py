"""The layout in Redis. `{pool}` in braces is a hash tag: all keys of a pool lie in one slot of a cluster.

    baton:{main}:meta      hash   seq   last ledger sequence that was seen, valid or void
                                  hash  hash of the last valid record up to it ("" before the first)
    baton:{main}:nodes     hash   node -> JSON: status (up, silent, lost), incarnation, since_us, leaf, spine, zone, cpus,
                                  memory_mib, out_of_use (why an operator says so, or empty), labels, simulated,
                                  devices [id]
    baton:{main}:devices   hash   device id -> JSON: node, index, kind, model, memory_mib, mig_profile, milli_used,
                                  memory_used_mib, jobs {job id: team}, quarantine (who uses it that is no job)
    baton:{main}:teams     hash   team -> JSON: limit_milli (null: none), by_type (limits by type or type:profile),
                                                 used_milli (whole accelerators), used (by kind), queued, active (jobs)
    baton:{main}:jobs      hash   id of a job that has not ended -> JSON: team, name, state, priority_class, priority,
                                  devices, attempt, submitted_us, queued_us, granted_us, claims {device: [milli, MiB]}

A rebuild fills `baton:{main}:next:<token>:<table>`, a token for each, and puts all of them into place in one step: readers
never see half a view, and two rebuilds at once do not mix. All are written by `functions.lua` alone. What a user must be
allowed for that, and for reading, stands in `libs/cli/stores.py` (a function runs with its caller's rights).
"""

from libs.core.projections.hot_state import TABLES
from schemas.subjects import token


def meta(pool: str) -> str:
    return f"baton:{{{token(pool)}}}:meta"


def table(pool: str, name: str) -> str:
    """The hash that holds a table's rows."""
    return f"baton:{{{token(pool)}}}:{name}"


def tables(pool: str) -> list[str]:
    """All tables, in the order in which `functions.lua` numbers them."""
    return [table(pool, name) for name in TABLES]


def staging(pool: str, rebuild: str) -> list[str]:
    """Where one rebuild writes: how many rows it has written, then the tables in the same order."""
    return [table(pool, f"next:{token(rebuild)}:{name}") for name in ("meta", *TABLES)]
