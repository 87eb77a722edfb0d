"""Subjects and patterns, as NATS matches them."""

from functools import lru_cache


@lru_cache(maxsize=100_000)
def matches(pattern: str, subject: str) -> bool:
    """Whether `subject` (without wildcards) is one of `pattern`'s."""
    if "*" not in pattern and ">" not in pattern:
        return pattern == subject
    want, have = pattern.split("."), subject.split(".")
    for place, token in enumerate(want):
        if token == ">":
            return len(have) > place
        if place >= len(have) or (token != "*" and token != have[place]):
            return False
    return len(want) == len(have)


@lru_cache(maxsize=10_000)
def meet(one: str, other: str) -> bool:
    """Whether a subject may be of both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


class Routes:
    """Subscriptions by subject: (client number, sid) -> (pattern, queue, client). Exact ones, and `head.*`, by look-up."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, int], tuple[str, str, object]] = {}
        self._exact: dict[str, dict[tuple[int, int], None]] = {}
        self._head: dict[str, dict[tuple[int, int], None]] = {}
        self._wild: dict[tuple[int, int], None] = {}
        self._cache: dict[str, list[tuple[int, int]]] = {}

    def add(self, key: tuple[int, int], pattern: str, queue: str, client: object) -> None:
        self._all[key] = (pattern, queue, client)
        self._place(pattern).setdefault(key)
        self._cache.clear()

    def _place(self, pattern: str) -> dict[tuple[int, int], None]:
        head, _, last = pattern.rpartition(".")
        if "*" not in pattern and ">" not in pattern:
            return self._exact.setdefault(pattern, {})
        if last == "*" and "*" not in head:
            return self._head.setdefault(head, {})
        return self._wild

    def remove(self, key: tuple[int, int]) -> None:
        found = self._all.pop(key, None)
        if found is not None:
            self._place(found[0]).pop(key, None)
            self._cache.clear()

    def remove_client(self, number: int) -> None:
        for key in [key for key in self._all if key[0] == number]:
            self.remove(key)

    def of(self, subject: str) -> list[tuple[str, str, object, int]]:
        """(pattern, queue, client, sid) of who hears `subject`."""
        found: list[tuple[int, int]] = []
        if subject in self._exact:
            found += self._exact[subject]
        head = subject.rpartition(".")[0]
        if head in self._head:
            found += self._head[head]
        if self._wild and subject[0] != "_":
            wild = self._cache.get(subject)
            if wild is None:
                wild = [key for key in self._wild if matches(self._all[key][0], subject)]
                if len(self._cache) < 10_000:
                    self._cache[subject] = wild
            found += wild
        return [(*self._all[key], key[1]) for key in found]
