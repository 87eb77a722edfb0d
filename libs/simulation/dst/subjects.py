"""Subjects and patterns, as NATS matches them."""

from functools import lru_cache
from typing import Any


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


_Key = tuple[int, int]
"""Client number, sid."""
Route = tuple[str, str, Any, int]
"""(pattern, queue, client, sid) of one that hears."""
_MOST = 10_000


class Routes:
    """Subscriptions by subject. Exact ones, and `head.*`, by look-up; who hears one is remembered until that changes."""

    def __init__(self) -> None:
        self._all: dict[_Key, Route] = {}
        self._exact: dict[str, dict[_Key, None]] = {}
        self._head: dict[str, dict[_Key, None]] = {}
        self._wild: dict[_Key, None] = {}
        self._known: dict[str, list[Route]] = {}
        self._answers: dict[str, list[Route]] = {}
        """By the head of subjects that are heard once: answers to one client."""

    def add(self, key: _Key, pattern: str, queue: str, client: Any) -> None:
        self._all[key] = (pattern, queue, client, key[1])
        self._place(pattern).setdefault(key)
        self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._answers.clear()

    def _place(self, pattern: str) -> dict[_Key, None]:
        head, _, last = pattern.rpartition(".")
        if "*" not in pattern and ">" not in pattern:
            return self._exact.setdefault(pattern, {})
        if last == "*" and "*" not in head:
            return self._head.setdefault(head, {})
        return self._wild

    def remove(self, key: _Key) -> None:
        found = self._all.pop(key, None)
        if found is not None:
            self._place(found[0]).pop(key, None)
            self._forget()

    def remove_client(self, number: int) -> None:
        for key in [key for key in self._all if key[0] == number]:
            self.remove(key)

    def of(self, subject: str) -> list[Route]:
        """Who hears `subject`. Not to be changed."""
        found = self._known.get(subject)
        if found is not None:
            return found
        if subject[0] == "_" and subject not in self._exact:
            head = subject.rpartition(".")[0]
            found = self._answers.get(head)
            if found is None:
                found = self._answers[head] = [self._all[key] for key in self._head.get(head, ())]
            return found
        found = self._found(subject)
        if len(self._known) < _MOST:
            self._known[subject] = found
        return found

    def _found(self, subject: str) -> list[Route]:
        keys = [*self._exact.get(subject, ()), *self._head.get(subject.rpartition(".")[0], ())]
        if subject[0] != "_":
            keys += [key for key in self._wild if matches(self._all[key][0], subject)]
        return [self._all[key] for key in keys]
