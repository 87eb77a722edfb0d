"""Cgroups of version 1 that attempts have one after the other, since a group that is made and removed for each makes all starts
dearer. They lie in trees of their own, by one controller each, and say nothing of who was in them."""

import os
from contextlib import suppress

from services.agent.keeper.proc import oom_kills_of, remove_group

MOST_SPARE = 32
LITTLE = 64
"""A group of memory is used again when at the most one part of so many of its limit is still taken: so much the next attempt
lacks. It is page cache of what was written, tables of the kernel's, and what each processor has set aside for the group."""

_Kind = tuple[str, int]
"""Where a group lies, and its weight or limit."""


class SpareGroups:
    """Those of one controller and one keeper. `again`: nothing of an attempt runs in its group when it has ended."""

    def __init__(self, *, again: bool) -> None:
        self._again = again
        self._made = 0
        self._taken: dict[str, _Kind] = {}
        self._spare: dict[str, _Kind] = {}
        """The one that was given back first comes first."""

    def take(self, stem: str, size: int) -> str:
        """A group for one attempt, which may be there already: then its name begins with the stem of another node of this
        agent's. `size`: its weight or limit."""
        kind = os.path.dirname(stem), size
        group = next((spare for spare, its in reversed(self._spare.items()) if its == kind), "")
        if group:
            del self._spare[group]
        else:
            self._made += 1
            group = f"{stem}-{os.getpid()}-{self._made}"
        self._taken[group] = kind
        return group

    def has(self, group: str) -> bool:
        """Whether it was taken here, and not given back."""
        return group in self._taken

    def give_back(self, group: str, *, well: bool = True) -> None:
        """Its attempt has ended, and `well`: nobody asks why. One that was not taken here changes nothing."""
        kind = self._taken.pop(group, None)
        if kind is None:
            return
        if not (self._again and well and self._as_new(group, kind[1])):
            self._remove(group)
            return
        self._spare[group] = kind
        if len(self._spare) > MOST_SPARE:  # of a weight or limit that is asked for no more, perhaps
            oldest = next(iter(self._spare))
            del self._spare[oldest]
            self._remove(oldest)

    def remove(self) -> None:
        """Those that nobody has."""
        for group in self._spare:
            self._remove(group)
        self._spare.clear()

    def _as_new(self, group: str, size: int) -> bool:
        """Whether the next attempt is as well off with it as with one that is made for it."""
        return True

    def _remove(self, group: str) -> None:
        remove_group(group)


class MemoryGroups(SpareGroups):
    """What an attempt leaves in one counts as the next one's, and so do its kills for lack of memory."""

    def __init__(self, *, again: bool) -> None:
        super().__init__(again=again)
        self._files: dict[str, tuple[int, int]] = {}
        """Group -> open files of what is taken and of its kills, which are read after each attempt."""

    def _as_new(self, group: str, size: int) -> bool:
        try:
            taken, kills = self._opened(group)
            return int(os.pread(taken, 64, 0)) <= size // LITTLE and not oom_kills_of(os.pread(kills, 4096, 0).decode())
        except (OSError, ValueError):
            return False

    def _opened(self, group: str) -> tuple[int, int]:
        """Raises OSError."""
        if (files := self._files.get(group)) is None:
            taken = os.open(f"{group}/memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
            try:
                kills = os.open(f"{group}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                os.close(taken)
                raise
            files = self._files[group] = taken, kills
        return files

    def _remove(self, group: str) -> None:
        for file in self._files.pop(group, ()):
            with suppress(OSError):
                os.close(file)
        super()._remove(group)
