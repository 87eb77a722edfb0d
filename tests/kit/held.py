"""What a keeper holds, seen from outside."""

from services.agent.keeper import proc


def zygotes(keeper: int) -> set[int]:
    """The process that forks this keeper's shims; none before the first start."""
    stats = ((pid, proc.read_stat(pid)) for pid in proc.children(keeper))
    return {pid for pid, stat in stats if stat is not None and stat.session == keeper}  # a shim has one of its own


def held(keeper: int | None) -> set[int]:
    """Shims, and all that runs below them, left to the keeper or not."""
    return set() if keeper is None else proc.descendants([keeper]) - zygotes(keeper)
