"""Cgroups of version 1 that attempts have one after the other, since a group that is made and removed for each makes all starts
dearer. They lie in trees of their own, by one controller each, and say nothing of who was in them."""

import os
from contextlib import suppress

from services.agent.keeper.proc import oom_kills_of, remove_group

MOST_SPARE = 32
LITTLE = 64
"""A group of memory is used again when no more of its limit than one part of so many is still taken: what the next attempt
lacks then. What else takes memory when nothing runs is mostly the page cache of what was written."""


class SpareGroups:
    """Those of one controller and one keeper. `again`: nothing of an attempt runs in its group when it has ended."""

    def __init__(self, *, again: bool) -> None:
        self._again = again
        self._made = 0
        self._taken: dict[str, tuple[str, int]] = {}
        """Group -> what its name begins with, and its weight or limit."""
        self._spare: dict[tuple[str, int], list[str]] = {}

    def take(self, stem: str, size: int) -> str:
        """A group for one attempt, which may be there already. Its name begins with the stem. `size`: its weight or limit."""
        spare = self._spare.get((stem, size))
        if spare:
            group = spare.pop()
        else:
            self._made += 1
            group = f"{stem}-{os.getpid()}-{self._made}"
        self._taken[group] = stem, size
        return group

    def has(self, group: str) -> bool:
        """Whether it was taken here, and not given back."""
        return group in self._taken

    def give_back(self, group: str, *, well: bool = True) -> None:
        """Its attempt has ended, and `well`: there is nothing to be asked of its group. One that was not taken here changes
        nothing."""
        kind = self._taken.pop(group, None)
        if kind is None:
            return
        if self._again and well and sum(map(len, self._spare.values())) < MOST_SPARE and self._as_new(group, kind[1]):
            self._spare.setdefault(kind, []).append(group)
        else:
            self._remove(group)

    def remove(self) -> None:
        """Those that nobody has."""
        for groups in self._spare.values():
            for group in groups:
                self._remove(group)
        self._spare.clear()

    def _as_new(self, group: str, size: int) -> bool:
        """Whether the next attempt finds nothing there of this one."""
        return True

    def _remove(self, group: str) -> None:
        remove_group(group)


class MemoryGroups(SpareGroups):
    """What an attempt leaves in one counts as the next one's, and so do its kills for lack of memory."""

    def __init__(self, *, again: bool) -> None:
        super().__init__(again=again)
        self._files: dict[str, tuple[int, int]] = {}
        """Group -> open files of what it takes and of its kills: looked at after each attempt."""

    def _as_new(self, group: str, size: int) -> bool:
        try:
            if (files := self._files.get(group)) is None:
                usage = os.open(f"{group}/memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
                kills = os.open(f"{group}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
                files = self._files[group] = usage, kills
            usage, kills = files
            return int(os.pread(usage, 64, 0)) <= size // LITTLE and not oom_kills_of(os.pread(kills, 4096, 0).decode())
        except (OSError, ValueError):
            return False

    def _remove(self, group: str) -> None:
        for file in self._files.pop(group, ()):
            with suppress(OSError):
                os.close(file)
        super()._remove(group)
