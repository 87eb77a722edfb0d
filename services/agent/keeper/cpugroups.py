"""Cgroups of version 1 by which attempts share the processors. They lie in a tree of their own, and keep nothing of who was in
them; so they are used again, since a group that is made and removed for each attempt makes all starts dearer."""

import os

from services.agent.keeper.proc import remove_group

MOST_SPARE = 32


class CpuGroups:
    """Those of one keeper. `again`: nothing of an attempt is left in its group when it has ended."""

    def __init__(self, *, again: bool) -> None:
        self._again = again
        self._made = 0
        self._taken: dict[str, tuple[str, int]] = {}
        """Group -> what its name begins with, and its weight."""
        self._spare: dict[tuple[str, int], list[str]] = {}

    def take(self, stem: str, weight: int) -> str:
        """A group for one attempt, which may be there already. Its name begins with the stem."""
        spare = self._spare.get((stem, weight))
        if spare:
            group = spare.pop()
        else:
            self._made += 1
            group = f"{stem}-{os.getpid()}-{self._made}"
        self._taken[group] = stem, weight
        return group

    def give_back(self, group: str) -> None:
        """Its attempt has ended. One that was not taken here changes nothing."""
        kind = self._taken.pop(group, None)
        if kind is None:
            return
        if self._again and sum(map(len, self._spare.values())) < MOST_SPARE:
            self._spare.setdefault(kind, []).append(group)
        else:
            remove_group(group)

    def remove(self) -> None:
        """Those that nobody has."""
        for groups in self._spare.values():
            for group in groups:
                remove_group(group)
        self._spare.clear()
