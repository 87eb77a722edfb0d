"""What a keeper holds, seen from outside."""

from services.agent.keeper import proc


def zygotes(keeper: int) -> set[int]:
    """The process that forks this keeper's shims; none before the first start."""
    stats = ((pid, proc.read_stat(pid)) for pid in proc.children(keeper))
    return {pid for pid, stat in stats if stat is not None and stat.session == keeper}  # a shim has one of its own


def held(keeper: int | None) -> set[int]:
    """Shims, and all that runs below them, left to the keeper or not."""
    return set() if keeper is None else proc.descendants([keeper]) - zygotes(keeper)


def shims(keeper: int | None) -> set[int]:
    """Its children. In a namespace of a user who is not root each has a second one below it, of the same name."""
    own = set() if keeper is None else set(proc.children(keeper))
    stats = {pid: proc.read_stat(pid) for pid in (*own, *(below for pid in own for below in proc.children(pid)))}
    names = {stat.name for pid in own if (stat := stats[pid]) is not None}
    return own | {pid for pid, stat in stats.items() if stat is not None and stat.name in names}
